"""The corpus of hostile archives: a name, the code that refuses it, and its bytes."""

import stat
import struct

from tests.bundles.archives import DIRECTORY, RawEntry, deflate, make_zip

_HONEST = make_zip(RawEntry())
_BOMB = bytes(8 * 1024 * 1024)


def _named(*names: bytes, flags: int = 1 << 11) -> bytes:
    return make_zip(*(RawEntry(name=name, flags=flags) for name in names))


def _lying(**fields: int) -> bytes:
    """Both headers agree, and the content differs."""
    return make_zip(RawEntry(central=fields, local=fields))


def _overlapping() -> bytes:
    """Two entries that share one compressed stream, which is how a small file expands without end."""
    return make_zip(RawEntry(name=b"a"), RawEntry(name=b"b", stream=b"", central={"header": 0}))


def _nested() -> bytes:
    """The content of the first entry holds the local header and the content of the second."""
    inner = make_zip(RawEntry(name=b"b", method=0, content=b"inner"))[: 30 + 1 + 5]
    outer = RawEntry(name=b"a", method=0, content=inner)
    second = RawEntry(name=b"b", method=0, content=b"inner", central={"header": 31})
    data = make_zip(outer, second)
    first_end = 31 + len(inner)
    directory = data.index(b"PK\x01\x02")
    end = bytearray(data[-22:])
    end[16:20] = struct.pack("<L", first_end)
    return data[:first_end] + data[directory:-22] + bytes(end)


def _extra(kind: int, body: bytes = b"") -> bytes:
    return struct.pack("<HH", kind, len(body)) + body


def _descriptor(crc: int, compressed: int, size: int) -> bytes:
    return b"PK\x07\x08" + struct.pack("<3L", crc, compressed, size)


_ZIP64_LOCATOR = b"PK\x06\x07" + bytes(16)

CORPUS: dict[str, tuple[str, bytes]] = {
    # Not an archive, or one with something around it
    "nothing": ("not_a_zip", b""),
    "a short file": ("not_a_zip", b"PK\x03\x04"),
    "a script": ("not_a_zip", b"#!/bin/sh\n" * 10),
    "an archive that was cut": ("not_a_zip", _HONEST[:-1]),
    "a script before the archive": ("central_directory", b"#!/bin/sh\nexit\n" + _HONEST),
    "a script before it, offsets corrected": ("unclaimed_bytes", make_zip(RawEntry(), before=b"#!/bin/sh\n")),
    "bytes after the end": ("archive_comment", _HONEST + b"x"),
    "a comment": ("archive_comment", make_zip(RawEntry(), comment=b"hello")),
    "a comment with a second end record": ("archive_comment", make_zip(RawEntry(), comment=_HONEST[-22:] + b"x")),
    "two archives in one file": ("central_directory", _HONEST + make_zip(RawEntry(name=b"other.py"))),
    "bytes before the central directory": ("unclaimed_bytes", make_zip(RawEntry(), between=b"hidden")),
    "an entry that no directory lists": ("unclaimed_bytes", make_zip(RawEntry(), between=_HONEST[:60])),
    "no entry": ("archive_empty", make_zip()),
    "directories alone": ("archive_empty", make_zip(RawEntry(name=b"a/", content=b"", method=0, mode=DIRECTORY))),
    # The end record lies
    "fewer entries than there are": ("central_directory", make_zip(RawEntry(), RawEntry(name=b"b"), here=1, count=1)),
    "more entries than there are": ("central_directory", make_zip(RawEntry(), here=2, count=2)),
    "two counts": ("central_directory", make_zip(RawEntry(), here=1, count=2)),
    "another disk": ("central_directory", make_zip(RawEntry(), disk=1)),
    "a directory beyond the file": ("central_directory", make_zip(RawEntry(), offset=2**31)),
    "a directory that is too long": ("central_directory", make_zip(RawEntry(), size=2**31)),
    # zip64
    "the count of zip64": ("zip64", make_zip(RawEntry(), here=65535, count=65535)),
    "the offset of zip64": ("zip64", make_zip(RawEntry(), offset=2**32 - 1)),
    "the locator of zip64": ("zip64", _HONEST[:-22] + _ZIP64_LOCATOR + _HONEST[-22:]),
    "an entry of zip64 size": ("zip64", make_zip(RawEntry(central={"size": 2**32 - 1}))),
    "an entry of zip64 offset": ("zip64", make_zip(RawEntry(central={"header": 2**32 - 1}))),
    "a zip64 field": ("zip64", make_zip(RawEntry(extra=_extra(1, bytes(16))))),
    "a zip64 field in the local header": ("zip64", make_zip(RawEntry(local_extra=_extra(1, bytes(16))))),
    "a zip64 size in the local header": ("zip64", make_zip(RawEntry(local={"size": 2**32 - 1}))),
    # Names
    "an absolute path": ("name_invalid", _named(b"/etc/passwd")),
    "a parent": ("name_invalid", _named(b"../main.py")),
    "a parent inside": ("name_invalid", _named(b"a/../../main.py")),
    "a parent at the end": ("name_invalid", _named(b"a/..")),
    "a dot": ("name_invalid", _named(b"./main.py")),
    "an empty segment": ("name_invalid", _named(b"a//main.py")),
    "an empty name": ("name_invalid", _named(b"")),
    "a slash": ("name_invalid", make_zip(RawEntry(name=b"/", content=b"", method=0, mode=DIRECTORY))),
    "a backslash": ("name_invalid", _named(b"..\\main.py")),
    "a drive": ("name_invalid", _named(b"C:\\main.py")),
    "a NUL": ("name_invalid", _named(b"main.py\x00.txt")),
    "a newline": ("name_invalid", _named(b"main\n.py")),
    "an escape": ("name_invalid", _named(b"\x1b[2Jmain.py")),
    "text in reverse order": ("name_invalid", _named("main\u202eyp.exe".encode())),
    "a zero-width space": ("name_invalid", _named("ma\u200bin.py".encode())),
    "not UTF-8": ("name_invalid", _named(b"\xff\xfe.py")),
    "a surrogate": ("name_invalid", _named(b"\xed\xa0\x80.py")),
    "an overlong slash": ("name_invalid", _named(b"..\xc0\xafmain.py")),
    "UTF-8 that is not marked": ("name_invalid", _named("ä.py".encode(), flags=0)),
    "a very long name": ("name_invalid", _named(b"a" * 513)),
    "a segment that no file system takes": ("name_invalid", _named(b"a" * 256)),
    "a very deep path": ("name_invalid", _named(b"a/" * 32 + b"b")),
    "a second name": ("name_invalid", make_zip(RawEntry(extra=_extra(0x7075, b"\x01" + bytes(4) + b"../evil.py")))),
    # Names that are one file
    "the same name twice": ("name_clash", _named(b"main.py", b"main.py")),
    "a directory twice": (
        "name_clash",
        make_zip(*[RawEntry(name=b"a/", content=b"", method=0, mode=DIRECTORY)] * 2, RawEntry()),
    ),
    "another case": ("name_clash", _named(b"main.py", b"Main.py")),
    "another case of a directory": ("name_clash", _named(b"lib/a.py", b"LIB/b.py")),
    "another Unicode form": ("name_clash", _named("ä.py".encode(), "a\u0308.py".encode())),
    "a ligature": ("name_clash", _named("ﬁle.py".encode(), b"file.py")),
    "a sharp s": ("name_clash", _named("ß.py".encode(), b"ss.py")),
    "a file that is a directory too": ("name_clash", _named(b"a", b"a/b")),
    "a directory that is a file too": ("name_clash", _named(b"a/b", b"a")),
    # Kinds of files
    "a symbolic link": ("link", make_zip(RawEntry(mode=stat.S_IFLNK | 0o777, content=b"/etc/passwd"))),
    "a link that claims to be of DOS": ("link", make_zip(RawEntry(mode=stat.S_IFLNK | 0o777, system=0))),
    "a link in an extra field": ("link", make_zip(RawEntry(extra=_extra(0x756E, bytes(14) + b"/etc/passwd")))),
    "a link in an extra field of PKWARE": ("link", make_zip(RawEntry(extra=_extra(0x000D, bytes(12) + b"x")))),
    "a pipe": ("entry_type", make_zip(RawEntry(mode=stat.S_IFIFO | 0o644))),
    "a device": ("entry_type", make_zip(RawEntry(mode=stat.S_IFCHR | 0o644))),
    "a block device": ("entry_type", make_zip(RawEntry(mode=stat.S_IFBLK | 0o644))),
    "a socket": ("entry_type", make_zip(RawEntry(mode=stat.S_IFSOCK | 0o644))),
    "set-user-ID": ("entry_type", make_zip(RawEntry(mode=stat.S_IFREG | 0o4755))),
    "set-group-ID": ("entry_type", make_zip(RawEntry(mode=stat.S_IFREG | 0o2755))),
    "a directory with the name of a file": ("entry_type", make_zip(RawEntry(mode=DIRECTORY))),
    "a file with the name of a directory": ("entry_type", make_zip(RawEntry(name=b"a/", mode=stat.S_IFREG | 0o644))),
    "a directory with content": ("entry_type", make_zip(RawEntry(name=b"a/", mode=DIRECTORY))),
    # Features
    "encryption": ("encrypted", make_zip(RawEntry(flags=1))),
    "strong encryption": ("encrypted", make_zip(RawEntry(flags=1 << 6))),
    "masked headers": ("encrypted", make_zip(RawEntry(flags=1 << 13))),
    "AES": ("encrypted", make_zip(RawEntry(extra=_extra(0x9901, bytes(7))))),
    "bzip2": ("unsupported", make_zip(RawEntry(method=12, stream=b"BZh9"))),
    "lzma": ("unsupported", make_zip(RawEntry(method=14, stream=b"x"))),
    "deflate64": ("unsupported", make_zip(RawEntry(method=9, stream=b"x"))),
    "of a newer version": ("unsupported", make_zip(RawEntry(needed=64))),
    "a patch": ("unsupported", make_zip(RawEntry(flags=1 << 5))),
    "an extra field that is cut": ("central_directory", make_zip(RawEntry(extra=b"\x55\x54\xff\xff\x00"))),
    "half of an extra field": ("central_directory", make_zip(RawEntry(extra=b"\x55\x54"))),
    # Local headers that say something else
    "another name": ("header_mismatch", make_zip(RawEntry(local_name=b"evil.py"))),
    "another method": ("header_mismatch", make_zip(RawEntry(local={"method": 0}))),
    "other flags": ("header_mismatch", make_zip(RawEntry(local={"flags": 2}))),
    "encrypted in the local header": ("header_mismatch", make_zip(RawEntry(local={"flags": 1}))),
    "another checksum": ("header_mismatch", make_zip(RawEntry(local={"crc": 1}))),
    "another size": ("header_mismatch", make_zip(RawEntry(local={"size": 1}))),
    "another compressed size": ("header_mismatch", make_zip(RawEntry(local={"compressed": 1}))),
    "no local header": ("header_mismatch", _HONEST.replace(b"PK\x03\x04", b"PK\x03\x05")),
    "a descriptor that lies": ("header_mismatch", make_zip(RawEntry(flags=8, descriptor=_descriptor(1, 2, 3)))),
    "a descriptor that is missing": ("header_mismatch", make_zip(RawEntry(flags=8, descriptor=b""))),
    "a descriptor that is too long": ("header_mismatch", make_zip(RawEntry(flags=8, descriptor=bytes(20)))),
    # Bytes that belong to two entries, or to none
    "entries that share their content": ("overlap", _overlapping()),
    "an entry inside another": ("overlap", _nested()),
    "content beyond the directory": ("overlap", _lying(compressed=9999)),
    "a header in the directory": ("unclaimed_bytes", make_zip(RawEntry(central={"header": 80}))),
    # Content that is not what was declared
    "a wrong checksum": ("content_damaged", _lying(crc=1)),
    "a size that is too small": ("content_damaged", _lying(size=1)),
    "a size that is too large": ("content_damaged", _lying(size=99)),
    "stored with another size": (
        "content_damaged",
        make_zip(RawEntry(method=0, central={"size": 99}, local={"size": 99})),
    ),
    "not deflated": ("content_damaged", make_zip(RawEntry(stream=b"\xff" * 20))),
    "a stream that was cut": ("content_damaged", make_zip(RawEntry(stream=deflate(b"x" * 99)[:-2], content=b"x" * 99))),
    "bytes after the stream": ("content_damaged", make_zip(RawEntry(stream=deflate(b"x") + b"hidden", content=b"x"))),
    "many bytes after the stream": (
        "content_damaged",
        make_zip(RawEntry(stream=deflate(b"x") + bytes(600_000), content=b"x")),
    ),
    # Too much
    "a bomb": ("expands_too_much", make_zip(RawEntry(name=b"zeros", content=_BOMB))),
    "many small bombs": (
        "expands_too_much",
        make_zip(*(RawEntry(name=b"zeros%d" % number, content=_BOMB[: 1024 * 1024]) for number in range(8))),
    ),
    "a bomb that declares little": (
        "content_damaged",
        make_zip(RawEntry(stream=deflate(_BOMB), content=b"x" * 10)),
    ),
    "an expansion beyond all limits": (
        "expands_too_much",
        _lying(size=2**31),
    ),
    "too many entries": ("too_many_entries", _named(*(b"%d" % number for number in range(1001)))),
}  # fmt: skip
