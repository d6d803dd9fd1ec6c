"""What a function prints: the last part of it, without its credentials."""

from collections.abc import Callable, Sequence

from tracelake.sandbox.pipes import InwardPipe

KEPT_BYTES = 256 * 1024
MOST_BYTES = 64 * 1024 * 1024
"""A function that prints more is ended."""
_BLANK = "[redacted]"
_LONGEST_SECRET = 64 * 1024


class OutputTail:
    def __init__(self, pipe: InwardPipe, flood: Callable[[], None]) -> None:
        self._pipe = pipe
        self._flood = flood
        self._tail = bytearray()
        self._size = 0

    async def read(self) -> None:
        """Reads until the sandbox has ended."""
        while chunk := await self._pipe.read():
            self._size += len(chunk)
            if self._size > MOST_BYTES:
                self._flood()
            self._tail += chunk
            if len(self._tail) > 4 * KEPT_BYTES:
                del self._tail[: -KEPT_BYTES - _LONGEST_SECRET]

    def text(self, secrets: Sequence[str]) -> str:
        """The last bytes. More is kept than shown, so that no secret is cut in two at the beginning."""
        return redact(self._tail.decode("utf-8", "replace"), secrets)[-KEPT_BYTES:]


def redact(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, _BLANK)
    return text
