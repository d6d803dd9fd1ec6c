"""What a function prints: the last part of it, without credentials.

Output is redacted as it arrives, before anything is cut, so that no credential is cut in two. A word is released once
it has ended, because only then it is known not to be a part of a credential; none of them contains white space. All
work is linear in what is printed: a function that prints fast and cleverly costs no more than one that prints.
"""

import asyncio
import codecs
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tracelake.sandbox.pipes import InwardPipe

KEPT_BYTES = 256 * 1024
MOST_BYTES = 64 * 1024 * 1024
"""A function that prints more is ended."""
_UNPACED_BYTES = 1024 * 1024
_REST = 4.0
"""Rest after each piece of output, as a multiple of the time that it took."""
_BLANK = "[redacted]"
_LONGEST_SECRET = 64 * 1024
"""Nothing longer is taken for a credential."""
# Credentials that the runner was not given: a token that the function renewed itself, keys of the object store, an
# address of an exported result. A match begins where a word does, so that a long word is looked at once.
_TOKEN = re.compile(r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}")
_TOKEN_HEAD = "eyJ"  # noqa: S105 - how the Base64 of a JSON object begins
_SIGNED = re.compile(r"X-Amz-(?:Signature|Credential|Security-Token)=[^\s&\"'<>\\]+")


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """The end of what was printed, and where it begins: positions count bytes of UTF-8 after redaction."""

    text: str
    start: int
    end: int


class OutputTail:
    """One stream of a run. `secrets` may grow while the function runs."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        self._secrets = secrets
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._word = ""
        """Read, and not released: it may be the beginning of a credential."""
        self._tail = bytearray()
        self._released = 0

    async def read(self, pipe: InwardPipe, flood: Callable[[], None]) -> None:
        """Reads until the sandbox has ended; calls `flood` when it prints too much."""
        size = 0
        while chunk := await pipe.read():
            size += len(chunk)
            if size > MOST_BYTES:
                flood()
            began = time.perf_counter()
            self.feed(chunk)
            if size > _UNPACED_BYTES:  # whoever prints without end waits for the pipe, and others get their turns
                await asyncio.sleep(_REST * (time.perf_counter() - began))

    def feed(self, chunk: bytes) -> None:
        text = self._word + self._decoder.decode(chunk)
        spans = list(_find_secrets(text, self._secrets))
        cut = max(text.rfind(space) for space in " \n\r\t") + 1
        if len(text) - cut > _LONGEST_SECRET:  # no white space for long: release all that a credential cannot reach
            cut = _move_before(spans, len(text) - _LONGEST_SECRET)
        self._release(text[:cut], [span for span in spans if span[1] <= cut])
        self._word = text[cut:]

    def finish(self) -> None:
        """No more will come: what was held back is released."""
        text = self._word + self._decoder.decode(b"", final=True)
        self._word = ""
        self._release(text, list(_find_secrets(text, self._secrets)))

    @property
    def end(self) -> int:
        """How much was released so far."""
        return self._released

    def piece(self) -> OutputPiece:
        """The last `KEPT_BYTES` of what was released, from the beginning of a character on."""
        last = self._tail[-KEPT_BYTES:]
        skipped = 0
        if len(last) < self._released:
            while skipped < len(last) and last[skipped] & 0xC0 == 0x80:
                skipped += 1
        start = self._released - len(last) + skipped
        return OutputPiece(last[skipped:].decode("utf-8", "replace"), start, self._released)

    def _release(self, text: str, spans: Sequence[tuple[int, int]]) -> None:
        encoded = _blank(text, spans).encode("utf-8", "replace")
        self._released += len(encoded)
        self._tail += encoded
        if len(self._tail) > 4 * KEPT_BYTES:
            del self._tail[:-KEPT_BYTES]


class RunOutput:
    """Both streams of a run."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        self.stdout = OutputTail(secrets)
        self.stderr = OutputTail(secrets)

    def finish(self) -> None:
        self.stdout.finish()
        self.stderr.finish()

    @property
    def end(self) -> tuple[int, int]:
        return self.stdout.end, self.stderr.end


def redact(text: str, secrets: Sequence[str]) -> str:
    """A whole text, before it is cut."""
    return _blank(text, list(_find_secrets(text, secrets)))


def _find_secrets(text: str, secrets: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where credentials begin and end; parts may overlap."""
    for secret in secrets:
        start = text.find(secret) if secret else -1
        while start >= 0:
            yield start, start + len(secret)
            start = text.find(secret, start + len(secret))
    if _TOKEN_HEAD in text:
        for match in _TOKEN.finditer(text):
            head = text.find(_TOKEN_HEAD, match.start(), match.end())
            if head >= 0 and match.end() - head <= _LONGEST_SECRET:
                yield head, match.end()
    for match in _SIGNED.finditer(text):
        if match.end() - match.start() <= _LONGEST_SECRET:
            yield text.index("=", match.start()) + 1, match.end()


def _move_before(spans: Sequence[tuple[int, int]], cut: int) -> int:
    """The cut, or where the credential begins that it would divide."""
    for start, end in sorted(spans, reverse=True):
        if start < cut < end:
            cut = start
    return cut


def _blank(text: str, spans: Sequence[tuple[int, int]]) -> str:
    parts, position = [], 0
    for start, end in sorted(spans):
        if start >= position:
            parts += [text[position:start], _BLANK]
        position = max(position, end)
    return "".join([*parts, text[position:]])
