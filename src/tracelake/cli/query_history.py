"""The history of the prompt: what was entered, in a file that only its owner can read.

It is below the directory of states (XDG_STATE_HOME, else ~/.local/state), and bounded. Several prompts may use it at
once. Where it cannot be kept, the prompt works without.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from prompt_toolkit.history import History

from tracelake.private_files import private_directory, write_private

MAX_ENTRIES = 1_000
MAX_BYTES = 1024 * 1024
_FILE = "query_history.jsonl"


def history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    # A relative path is not valid there.
    return (Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()) / "trace" / _FILE


class BoundedHistory(History):
    """One JSON text per line, the newest last. Entries that begin with a blank are not kept."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """The newest first."""
        try:
            with self._locked():
                entries = self._read()
        except (OSError, RuntimeError):
            return []
        return list(reversed(entries))

    def store_string(self, string: str) -> None:
        if not string.strip() or string[0].isspace():
            return
        try:
            with self._locked():
                self._append(string)
        except (OSError, RuntimeError):
            return  # a full disk must not end the prompt

    def _append(self, text: str) -> None:
        entries = self._read()
        if entries[-1:] == [text]:
            return
        line = msgspec.json.encode(text) + b"\n"
        if len(entries) >= MAX_ENTRIES or _size(self._path) + len(line) > MAX_BYTES:
            self._shrink([*entries, text])
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(line)

    def _shrink(self, entries: list[str]) -> None:
        """Drops the oldest quarter, so that this does not happen for each entry."""
        lines = [msgspec.json.encode(entry) + b"\n" for entry in entries[-(MAX_ENTRIES * 3 // 4) :]]
        size = sum(map(len, lines))
        while lines and size > MAX_BYTES * 3 // 4:
            size -= len(lines.pop(0))
        write_private(self._path, b"".join(lines))

    def _read(self) -> list[str]:
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        entries = []
        for line in lines:
            try:
                entries.append(msgspec.json.decode(line, type=str))
            except msgspec.MsgspecError:  # a line that a full disk cut off
                continue
        return entries

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock is the directory's, because the file is replaced."""
        descriptor = os.open(private_directory(self._path.parent), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
