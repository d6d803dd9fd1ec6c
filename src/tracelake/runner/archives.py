"""Unpacks the archive of a bundle, or refuses it. Nothing outside of the target is ever size."""

import stat
import unicodedata
import zipfile
import zlib
from pathlib import Path, PurePosixPath

MOST_ENTRIES = 10_000
MOST_UNPACKED_BYTES = 512 * 1024 * 1024
_MOST_RATIO = 200
"""Above a megabyte: real code does not compress further."""
_FREE_BYTES = 1024 * 1024
_MAX_PATH = 400
_CHUNK = 256 * 1024


class BundleRejected(Exception):  # noqa: N818 - a verdict
    """The archive is not acceptable; the message is for its author."""


def unpack(archive: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as bundle:
            entries = bundle.infolist()
            _check(entries, archive.stat().st_size)
            target.mkdir(mode=0o755)
            for entry in entries:
                _extract(bundle, entry, target)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise BundleRejected(f"the archive cannot be unpacked: {type(error).__name__}") from None
    for directory in [*(item for item in target.rglob("*") if item.is_dir()), target]:
        directory.chmod(0o555)


def _check(entries: list[zipfile.ZipInfo], archive_bytes: int) -> None:
    if len(entries) > MOST_ENTRIES:
        raise BundleRejected(f"expected at most {MOST_ENTRIES} entries, received {len(entries)}")
    total = sum(entry.file_size for entry in entries)
    if total > MOST_UNPACKED_BYTES or total > _FREE_BYTES + archive_bytes * _MOST_RATIO:
        raise BundleRejected(f"expected at most {MOST_UNPACKED_BYTES} bytes unpacked, the archive declares {total}")
    names: set[str] = set()
    for entry in entries:
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise BundleRejected(f"expected a file or directory, received another kind: {entry.filename[:100]!r}")
        _check_name(entry.filename)
        if entry.filename.rstrip("/") in names:
            raise BundleRejected(f"expected each name once, received twice: {entry.filename[:100]!r}")
        names.add(entry.filename.rstrip("/"))


def _check_name(name: str) -> None:
    path = PurePosixPath(name)
    parts = name.rstrip("/").split("/")
    unsafe = (
        path.is_absolute()
        or len(name.encode("utf-8", "replace")) > _MAX_PATH
        or any(part in ("", ".", "..") or len(part.encode("utf-8", "replace")) > 255 for part in parts)
        or any(character in "\\:" or ord(character) < 32 or ord(character) == 127 for character in name)
        or unicodedata.normalize("NFC", name) != name
    )
    if unsafe:
        raise BundleRejected(f"expected a plain relative path, received {name[:100]!r}")


def _extract(bundle: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    place = target / entry.filename
    if entry.is_dir():
        place.mkdir(parents=True, exist_ok=True, mode=0o755)
        return
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    size = 0
    with bundle.open(entry) as source, place.open("xb") as file:
        while chunk := source.read(_CHUNK):
            size += len(chunk)
            if size > entry.file_size:
                raise BundleRejected(f"expected {entry.file_size} bytes, received more: {entry.filename[:100]!r}")
            file.write(chunk)
    executable = (entry.external_attr >> 16) & 0o111 or entry.filename == "bootstrap"
    place.chmod(0o555 if executable else 0o444)
