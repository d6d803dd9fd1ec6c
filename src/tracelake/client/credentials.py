"""The credentials of callers. Tokens rotate while processes run, so they are read from files."""

from pathlib import Path
from typing import Protocol

from tracelake.client.errors import DispatcherUnavailableError


class Credential(Protocol):
    def current(self) -> str:
        """The credential as last read."""
        ...

    def newer_than(self, refused: str) -> str | None:
        """Reads again after a refusal; None if there is no other credential."""
        ...


class FileCredential:
    """A token in a file; its owner replaces the file when it rotates the token."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token: str | None = None

    def current(self) -> str:
        if self._token is None:
            self._token = self._read()
        return self._token

    def newer_than(self, refused: str) -> str | None:
        self._token = self._read()
        return None if self._token == refused else self._token

    def _read(self) -> str:
        try:
            return self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            # Transient: the file is being replaced, or does not exist yet.
            raise DispatcherUnavailableError("the credential file cannot be read") from error
