"""Worker and service tokens: random texts in 0600 files that rotate with overlap.

`{name}.token` is what a caller sends; `{name}.accepted.json` holds the SHA-256 of every token still
accepted and until when. A rotation writes the acceptance first and the token after it, so that no caller
can hold a token that is not yet accepted.
"""

import hashlib
import hmac
import os
import secrets
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from tracelake.private_files import private_directory, write_private

_LOOK_SECONDS = 1.0


class _Accepted(msgspec.Struct, frozen=True):
    sha256: str
    until: datetime | None = None


class SharedSecret:
    def __init__(self, directory: Path, name: str) -> None:
        self.token_file = directory / f"{name}.token"
        self._accepted_file = directory / f"{name}.accepted.json"
        self._accepted: list[_Accepted] = []
        self._loaded: tuple[int, int, int] | None = None
        self._looked = -_LOOK_SECONDS

    @classmethod
    def ensure(cls, directory: Path, name: str) -> "SharedSecret":
        private_directory(directory)
        secret = cls(directory, name)
        if not secret.token_file.exists() or not secret._accepted_file.exists():
            secret._issue([])
        return secret

    def matches(self, token: str, now: datetime) -> bool:
        """Whether the token is accepted now.

        A rotation by another process is noticed within a second, and at once by a token that is not known. There is no
        limit on the latter: somebody who keeps sending rubbish must not delay the first use of a new token.
        """
        digest = _digest(token)
        if time.monotonic() - self._looked >= _LOOK_SECONDS or not self._find(digest, now):
            self._looked = time.monotonic()
            if self._loaded != self._seal():
                self._load()
        return self._find(digest, now)

    def rotate(self, now: datetime, *, overlap_seconds: float) -> None:
        """The old token gets its end only once the new one is in its file: a crash in between locks nobody out."""
        self._load()
        until = now + timedelta(seconds=overlap_seconds)
        old = [item for item in self._accepted if item.until is None or item.until > now]
        new = self._issue(old)
        self._accept([msgspec.structs.replace(item, until=min(item.until or until, until)) for item in old] + [new])

    def _issue(self, old: list[_Accepted]) -> _Accepted:
        token = secrets.token_urlsafe(32)
        new = _Accepted(_digest(token))
        self._accept([*old, new])
        write_private(self.token_file, token + "\n")
        return new

    def _accept(self, accepted: list[_Accepted]) -> None:
        self._accepted = accepted
        write_private(self._accepted_file, msgspec.json.encode(accepted))

    def _load(self) -> None:
        self._loaded = self._seal()  # before the text: a replacement in between is then seen again
        self._accepted = msgspec.json.decode(self._accepted_file.read_bytes(), type=list[_Accepted])

    def _seal(self) -> tuple[int, int, int]:
        stat = os.stat(self._accepted_file)  # noqa: PTH116 - on the path of every refused call
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    def _find(self, digest: str, now: datetime) -> bool:
        return any(
            hmac.compare_digest(item.sha256, digest) and (item.until is None or now < item.until)
            for item in self._accepted
        )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def utc_now() -> datetime:
    """The machine's time, for files that carry times; leases and tokens use the store's."""
    return datetime.now(UTC)
