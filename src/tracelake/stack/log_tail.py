"""The last lines of a part's log, and what follows, also while the log is rotated (`log_files.py`).

A rotation copies the text to `.1` and cuts the file to nothing. A reader that has come to some position therefore finds
the rest of the old text in `.1`, from the same position on, and the new text at the beginning of the file.
"""

import os
from pathlib import Path

from tracelake.stack.log_files import KEPT_FILES

_CHUNK = 64 * 1024
_MOST_LINE = 1024 * 1024
"""A longer text without a line end is taken for a line."""
_PATIENCE = 10
"""Looks in which the copy of a log that was cut may appear: the cut comes first."""


def list_logs(directory: Path) -> list[str]:
    """The names of the parts that have a log."""
    return sorted(path.stem for path in directory.glob("*.log") if not path.stem.startswith("java-crash"))


def read_last(path: Path, number: int) -> list[str]:
    """The last lines, oldest first; older texts of the log are read as far as needed."""
    lines: list[str] = []
    for place in (path, *(path.with_name(f"{path.name}.{index}") for index in range(1, KEPT_FILES + 1))):
        if len(lines) >= number:
            break
        try:
            lines = _last_of(place, number - len(lines)) + lines
        except FileNotFoundError:
            if place != path:
                break
    return lines


def _last_of(path: Path, number: int) -> list[str]:
    """Reads from the end, so that a large file costs what is shown of it."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        text = b""
        while position > 0 and text.count(b"\n") <= number:
            size = min(_CHUNK, position)
            position -= size
            file.seek(position)
            text = file.read(size) + text
    return [line.decode("utf-8", "replace") for line in text.split(b"\n") if line][-number:]


class LogTail:
    """Reads what is appended to a log from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy = path.with_name(f"{path.name}.1")
        self._copy_inode = _inode(self._copy)
        self._position = _size(path)
        self._rest = b""
        self._missing_looks = 0

    def read(self) -> list[str]:
        """The lines that are complete since the last look."""
        inode = _inode(self._copy)
        if inode != self._copy_inode:
            self._copy_inode, self._missing_looks = inode, 0
            self._take(self._copy)
            self._position = 0
        elif self._missing_looks or _size(self._path) < self._position:
            self._missing_looks += 1
            if self._missing_looks < _PATIENCE:
                return []  # the copy is about to appear
            self._position = self._missing_looks = 0
        self._take(self._path)
        *lines, self._rest = self._rest.split(b"\n")
        if len(self._rest) > _MOST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        return [line.decode("utf-8", "replace") for line in lines if line]

    def _take(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                file.seek(self._position)
                text = file.read()
        except FileNotFoundError:
            return
        self._position += len(text)
        self._rest += text


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
