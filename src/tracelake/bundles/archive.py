"""The strict reader of zip archives: a pure function from bytes to entries, or to a refusal with a stable code.

Two programs that read one archive differently are how hostile archives work, so that every byte must have exactly one
meaning. The entries tile the file from its first byte to the central directory, which is followed by the end record and
nothing else. A local header repeats what the central directory says. Declared sizes and checksums are those of the
content, which is inflated piece by piece and never beyond its declared size. What honest tools do not need is refused,
not interpreted: zip64, encryption, links, devices, comments of the archive, methods other than stored and deflated.

Nothing is repaired. Whoever extracts an archive uses these entries, and never a second reader.
"""

import mmap
import stat
import struct
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

ArchiveData: TypeAlias = bytes | memoryview | mmap.mmap

_KIB, _MIB = 1024, 1024**2

REFUSALS = {
    "archive_comment": "the archive has a comment, or bytes after its end",
    "archive_empty": "the archive has no files",
    "archive_too_large": "the archive is larger than allowed",
    "central_directory": "the central directory is damaged",
    "content_damaged": "the content of an entry does not have the declared size or checksum",
    "encrypted": "an entry is encrypted",
    "entry_type": "an entry is a device, a socket or a pipe, or has set-user-ID bits",
    "expands_too_much": "the files are larger than allowed, or much larger than the archive",
    "header_mismatch": "a local header differs from the central directory",
    "link": "an entry is a link",
    "name_clash": "two entries have the same name, or names that differ only in case or Unicode form",
    "name_invalid": "the name of an entry is not a relative path in UTF-8",
    "not_a_zip": "the file is not a zip archive",
    "overlap": "entries overlap",
    "too_many_entries": "the archive has more entries than allowed",
    "unclaimed_bytes": "the archive has bytes that belong to no entry",
    "unsupported": "an entry uses a feature of zip that bundles may not use",
    "zip64": "the archive uses zip64, which no bundle needs",
}
"""The stable codes of refusals of an archive, with what they mean."""

_END, _CENTRAL, _LOCAL = struct.Struct("<4s4H2LH"), struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
_END_MARK, _CENTRAL_MARK, _LOCAL_MARK = b"PK\x05\x06", b"PK\x01\x02", b"PK\x03\x04"
_DESCRIPTOR_MARK, _LOCATOR_MARK = b"PK\x07\x08", b"PK\x06\x07"
_LOCATOR_BYTES = 20
_STORED, _DEFLATED = 0, 8
_MASK_16, _MASK_32 = 0xFFFF, 0xFFFFFFFF

_ENCRYPTED_FLAGS = 1 << 0 | 1 << 6 | 1 << 13
_STREAMED, _UTF8 = 1 << 3, 1 << 11
_NEWEST_VERSION = 63
"""Of the format, times ten. Readers refuse what needs a newer one."""
_FLAGS = 1 << 1 | 1 << 2 | _STREAMED | _UTF8
"""Flags that an entry may have: how hard the compressor tried, sizes behind the content, a name in UTF-8."""
_ZIP64_FIELD, _AES_FIELD, _NAME_FIELD = 0x0001, 0x9901, 0x7075
_LINK_FIELDS = {0x000D, 0x756E}
"""Extra fields that can name the target of a link."""
_PIECE = 256 * _KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    max_bytes: int = 50 * _MIB
    max_entries: int = 10_000
    max_expanded_bytes: int = 250 * _MIB
    max_ratio: int = 100
    """How many times larger than the archive its files may be."""
    free_expansion_bytes: int = 4 * _MIB
    """Files that are no larger than this in total may have any ratio: text of one letter is no bomb."""
    max_name_bytes: int = 512
    max_depth: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveEntry:
    name: str
    """A relative path; that of a directory has no slash at its end."""
    is_directory: bool
    executable: bool
    size: int
    crc: int
    method: int
    offset: int
    """Where the compressed content begins."""
    compressed_size: int


class ArchiveRefusal(Exception):  # noqa: N818 - a verdict, not a fault
    """The archive is not acceptable. The message quotes nothing of the archive but a name, shortened."""

    def __init__(self, code: str, detail: str = "", name: bytes | str | None = None) -> None:
        self.code = code
        self.entry = None if name is None else _shown(name)
        text = detail or REFUSALS.get(code, code)
        super().__init__(text if self.entry is None else f"{text}: {self.entry}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """An entry of the central directory."""

    name: bytes
    flags: int
    method: int
    crc: int
    compressed_size: int
    size: int
    mode: int
    header: int
    """Where its local header begins."""


def read_archive(data: ArchiveData, limits: ArchiveLimits) -> list[ArchiveEntry]:
    """The entries in the order of the central directory, all of them verified. Raises ArchiveRefusal alone."""
    if len(data) > limits.max_bytes:
        raise ArchiveRefusal("archive_too_large", f"expected at most {limits.max_bytes} bytes, received {len(data)}")
    count, directory = _read_end(data, limits)
    records = _read_directory(data, count, directory)
    names = _check_names(records, limits)
    _check_expansion(records, len(data), limits)
    starts = _check_tiling(data, records, directory)
    entries = [
        ArchiveEntry(
            name=name.rstrip("/"),
            is_directory=name.endswith("/"),
            executable=bool(record.mode & 0o111),
            size=record.size,
            crc=record.crc,
            method=record.method,
            offset=start,
            compressed_size=record.compressed_size,
        )
        for name, record, start in zip(names, records, starts, strict=True)
    ]
    if all(entry.is_directory for entry in entries):
        raise ArchiveRefusal("archive_empty")
    for entry in entries:
        for _ in read_content(data, entry):
            pass
    return entries


def read_content(data: ArchiveData, entry: ArchiveEntry) -> Iterator[bytes]:
    """The content in pieces. Raises ArchiveRefusal, at the latest at the end, if it is not what was declared."""
    crc, size = 0, 0
    pieces = _inflate(data, entry) if entry.method == _DEFLATED else _copy(data, entry)
    for piece in pieces:
        size += len(piece)
        if size > entry.size:
            break
        crc = zlib.crc32(piece, crc)
        yield piece
    if size != entry.size or crc != entry.crc:
        raise ArchiveRefusal("content_damaged", name=entry.name)


def _copy(data: ArchiveData, entry: ArchiveEntry) -> Iterator[bytes]:
    end = entry.offset + entry.compressed_size
    for start in range(entry.offset, end, _PIECE):
        yield bytes(data[start : min(start + _PIECE, end)])


def _inflate(data: ArchiveData, entry: ArchiveEntry) -> Iterator[bytes]:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    position, end = entry.offset, entry.offset + entry.compressed_size
    rest = b""
    while not inflater.eof:
        if not rest:
            rest = bytes(data[position : min(position + _PIECE, end)])
            position += len(rest)
        exhausted = not rest
        try:
            piece = inflater.decompress(rest, _PIECE)
        except zlib.error:
            raise ArchiveRefusal("content_damaged", name=entry.name) from None
        rest = inflater.unconsumed_tail
        if piece:
            yield piece
        elif exhausted:
            break
    if not inflater.eof or inflater.unused_data or rest or position != end:
        raise ArchiveRefusal("content_damaged", name=entry.name)


def _read_end(data: ArchiveData, limits: ArchiveLimits) -> tuple[int, int]:
    """The number of entries, and where the central directory begins."""
    at = len(data) - _END.size
    if at < 0:
        raise ArchiveRefusal("not_a_zip")
    mark, disk, directory_disk, count_here, count, size, offset, comment = _END.unpack(data[at:])
    if mark != _END_MARK:
        # A comment is all that may follow the end record.
        tail = bytes(data[max(0, at - _MASK_16) : at + len(_END_MARK) - 1])
        raise ArchiveRefusal("archive_comment" if _END_MARK in tail else "not_a_zip")
    if comment:
        raise ArchiveRefusal("archive_comment")
    located = at >= _LOCATOR_BYTES and data[at - _LOCATOR_BYTES : at - _LOCATOR_BYTES + 4] == _LOCATOR_MARK
    if located or _MASK_16 in (count, count_here, disk, directory_disk) or _MASK_32 in (size, offset):
        raise ArchiveRefusal("zip64")
    if disk or directory_disk or count_here != count or offset + size != at:
        raise ArchiveRefusal("central_directory")
    if count == 0:
        raise ArchiveRefusal("archive_empty")
    if count > limits.max_entries:
        detail = f"expected at most {limits.max_entries} entries, received {count}"
        raise ArchiveRefusal("too_many_entries", detail)
    return count, offset


def _read_directory(data: ArchiveData, count: int, start: int) -> list[_Record]:
    position, end = start, len(data) - _END.size
    records = []
    for _ in range(count):
        if position + _CENTRAL.size > end:
            raise ArchiveRefusal("central_directory")
        fields = _CENTRAL.unpack(data[position : position + _CENTRAL.size])
        mark, _, needed, flags, method, _, _, crc, compressed, size = fields[:10]
        name_size, extra_size, comment_size, disk = fields[10:14]
        attributes, header = fields[15:]
        name_at = position + _CENTRAL.size
        extra_at = name_at + name_size
        position = extra_at + extra_size + comment_size
        if mark != _CENTRAL_MARK or position > end or disk not in (0, _MASK_16):
            raise ArchiveRefusal("central_directory")
        name = bytes(data[name_at:extra_at])
        if disk or _MASK_32 in (compressed, size, header):
            raise ArchiveRefusal("zip64", name=name)
        _check_features(name, needed, flags, method)
        _check_extra(name, bytes(data[extra_at : extra_at + extra_size]))
        record = _Record(
            name=name,
            flags=flags,
            method=method,
            crc=crc,
            compressed_size=compressed,
            size=size,
            mode=attributes >> 16,
            header=header,
        )
        _check_type(record)
        records.append(record)
    if position != end:
        raise ArchiveRefusal("central_directory")
    return records


def _check_features(name: bytes, needed: int, flags: int, method: int) -> None:
    if flags & _ENCRYPTED_FLAGS:
        raise ArchiveRefusal("encrypted", name=name)
    if needed > _NEWEST_VERSION or flags & ~_FLAGS or method not in (_STORED, _DEFLATED):
        raise ArchiveRefusal("unsupported", name=name)


def _check_extra(name: bytes, extra: bytes) -> None:
    """Extra fields may hold times and owners, but no second size, name or target of an entry."""
    position = 0
    while position < len(extra):
        if position + 4 > len(extra):
            raise ArchiveRefusal("central_directory", "an extra field is damaged", name)
        kind, size = struct.unpack_from("<HH", extra, position)
        position += 4 + size
        if position > len(extra):
            raise ArchiveRefusal("central_directory", "an extra field is damaged", name)
        if kind == _ZIP64_FIELD:
            raise ArchiveRefusal("zip64", name=name)
        if kind == _AES_FIELD:
            raise ArchiveRefusal("encrypted", name=name)
        if kind == _NAME_FIELD:
            raise ArchiveRefusal("name_invalid", "an entry has a second name", name)
        if kind in _LINK_FIELDS:
            raise ArchiveRefusal("link", name=name)


def _check_type(record: _Record) -> None:
    """The mode of Unix is checked whatever system the archive claims to come from: extractors differ in that."""
    kind, is_directory = stat.S_IFMT(record.mode), record.name.endswith(b"/")
    if kind == stat.S_IFLNK:
        raise ArchiveRefusal("link", name=record.name)
    expected = stat.S_IFDIR if is_directory else stat.S_IFREG
    if kind not in (0, expected) or record.mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX):
        raise ArchiveRefusal("entry_type", name=record.name)
    if is_directory and record.size:
        raise ArchiveRefusal("entry_type", "a directory has content", record.name)


def _check_names(records: Sequence[_Record], limits: ArchiveLimits) -> list[str]:
    names = [_read_name(record, limits) for record in records]
    spellings: dict[str, tuple[str, bool]] = {}
    explicit: set[str] = set()
    for name in names:
        path = name.rstrip("/")
        if path in explicit:
            raise ArchiveRefusal("name_clash", name=name)
        explicit.add(path)
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            spelling = "/".join(parts[:depth])
            spelled = spelling, depth < len(parts) or name.endswith("/")
            # Where case or Unicode form is folded, both would be one file.
            if spellings.setdefault(_fold(spelling), spelled) != spelled:
                raise ArchiveRefusal("name_clash", name=name)
    return names


def _fold(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _read_name(record: _Record, limits: ArchiveLimits) -> str:
    if len(record.name) > limits.max_name_bytes:
        detail = f"expected a name of at most {limits.max_name_bytes} bytes, received {len(record.name)}"
        raise ArchiveRefusal("name_invalid", detail, record.name)
    try:
        name = record.name.decode("utf-8" if record.flags & _UTF8 else "ascii")
    except UnicodeDecodeError:
        raise ArchiveRefusal(
            "name_invalid", "expected a name in ASCII, or in UTF-8 and marked as such", record.name
        ) from None
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise ArchiveRefusal("name_invalid", "expected a relative path without `.` and `..`", record.name)
    if "\\" in name or any(unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") for letter in name):
        raise ArchiveRefusal("name_invalid", "expected no backslash and no invisible character", record.name)
    if len(parts) > limits.max_depth or any(len(part.encode()) > 255 for part in parts):
        detail = f"expected at most {limits.max_depth} directories, each of at most 255 bytes"
        raise ArchiveRefusal("name_invalid", detail, record.name)
    return name


def _check_expansion(records: Sequence[_Record], archive_size: int, limits: ArchiveLimits) -> None:
    total = sum(record.size for record in records)
    most = min(limits.max_expanded_bytes, max(limits.free_expansion_bytes, limits.max_ratio * archive_size))
    if total > most:
        detail = f"expected files of at most {most} bytes in an archive of {archive_size}, received {total}"
        raise ArchiveRefusal("expands_too_much", detail)


def _check_tiling(data: ArchiveData, records: Sequence[_Record], directory: int) -> list[int]:
    """Check every local header; return where the content of each entry begins, in the order of `records`."""
    order = sorted(range(len(records)), key=lambda index: records[index].header)
    limits_of = [*(records[index].header for index in order[1:]), directory]
    starts = [0] * len(records)
    position = 0
    for index, following in zip(order, limits_of, strict=True):
        record = records[index]
        if record.header != position:
            raise ArchiveRefusal("overlap" if record.header < position else "unclaimed_bytes", name=record.name)
        starts[index] = _check_local(data, record, directory)
        position = starts[index] + record.compressed_size
        if record.flags & _STREAMED:
            position += _check_descriptor(data, record, position, following)
        if position > directory:
            raise ArchiveRefusal("overlap", name=record.name)
    if position != directory:
        raise ArchiveRefusal("unclaimed_bytes")
    return starts


def _check_local(data: ArchiveData, record: _Record, directory: int) -> int:
    if record.header + _LOCAL.size > directory:
        raise ArchiveRefusal("overlap", name=record.name)
    header = _LOCAL.unpack(data[record.header : record.header + _LOCAL.size])
    mark, _, flags, method, _, _, crc, compressed, size, name_size, extra_size = header
    name_at = record.header + _LOCAL.size
    start: int = name_at + name_size + extra_size
    if start > directory:
        raise ArchiveRefusal("overlap", name=record.name)
    if _MASK_32 in (compressed, size):
        raise ArchiveRefusal("zip64", name=record.name)
    expected = [(record.crc, crc), (record.compressed_size, compressed), (record.size, size)]
    streamed = bool(flags & _STREAMED)
    same = all(ours == theirs or (streamed and theirs == 0) for ours, theirs in expected)
    name = bytes(data[name_at : name_at + name_size])
    if mark != _LOCAL_MARK or (flags, method, name) != (record.flags, record.method, record.name) or not same:
        raise ArchiveRefusal("header_mismatch", name=record.name)
    _check_extra(name, bytes(data[name_at + name_size : start]))
    return start


def _check_descriptor(data: ArchiveData, record: _Record, start: int, following: int) -> int:
    """Check the sizes behind the content, which some tools begin with a mark; return their length."""
    descriptor = bytes(data[start:following]) if 0 <= following - start <= 16 else b""
    values = struct.pack("<3L", record.crc, record.compressed_size, record.size)
    if descriptor not in (values, _DESCRIPTOR_MARK + values):
        raise ArchiveRefusal("header_mismatch", name=record.name)
    return len(descriptor)


def _shown(name: bytes | str) -> str:
    text = name if isinstance(name, str) else name.decode("utf-8", "replace")
    return ascii(text[:80]) if len(text) <= 80 else f"{text[:80]!a}..."
