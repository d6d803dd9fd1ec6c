"""Archives made field by field, so that each of them can lie about one thing."""

import stat
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

FILE, EXECUTABLE, DIRECTORY = stat.S_IFREG | 0o644, stat.S_IFREG | 0o755, stat.S_IFDIR | 0o755


@dataclass(kw_only=True)
class RawEntry:
    name: bytes = b"main.py"
    content: bytes = b"def handler(event, context):\n    return {}\n"
    method: int = 8
    flags: int = 0
    mode: int = FILE
    extra: bytes = b""
    local_extra: bytes | None = None
    stream: bytes | None = None
    """The compressed content, instead of the honest one."""
    central: dict[str, int] = field(default_factory=dict)
    local: dict[str, int] = field(default_factory=dict)
    """Fields that differ from the honest ones: crc, compressed, size, flags, method, header."""
    local_name: bytes | None = None
    descriptor: bytes | None = None
    """Behind the content; the honest one, with its mark, if flag 3 is set and this is None."""
    system: int = 3
    needed: int = 20


def deflate(content: bytes) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compressor.compress(content) + compressor.flush()


def make_zip(*entries: RawEntry, before: bytes = b"", between: bytes = b"", after: bytes = b"", **end: Any) -> bytes:
    """`between` comes before the central directory. `end`: fields of the end record, or its comment."""
    body, directory = bytearray(before), bytearray()
    for entry in entries:
        stream = entry.stream
        if stream is None:
            stream = deflate(entry.content) if entry.method == 8 else entry.content
        honest = {
            "crc": zlib.crc32(entry.content),
            "compressed": len(stream),
            "size": len(entry.content),
            "flags": entry.flags,
            "method": entry.method,
            "header": len(body),
        }
        local = honest | ({"crc": 0, "compressed": 0, "size": 0} if entry.flags & 8 else {}) | entry.local
        central = honest | entry.central
        name = entry.name if entry.local_name is None else entry.local_name
        extra = entry.extra if entry.local_extra is None else entry.local_extra
        body += struct.pack(
            "<4s5H3L2H", b"PK\x03\x04", 20, local["flags"], local["method"], 0, 33,
            local["crc"], local["compressed"], local["size"], len(name), len(extra),
        ) + name + extra + stream  # fmt: skip
        if entry.descriptor is not None:
            body += entry.descriptor
        elif entry.flags & 8:
            body += b"PK\x07\x08" + struct.pack("<3L", honest["crc"], honest["compressed"], honest["size"])
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\x01\x02", entry.system << 8 | 20, entry.needed, central["flags"], central["method"],
            0, 33, central["crc"], central["compressed"], central["size"], len(entry.name), len(entry.extra), 0,
            central.get("disk", 0), 0, entry.mode << 16, central["header"],
        ) + entry.name + entry.extra  # fmt: skip
    body += between
    comment: bytes = end.pop("comment", b"")
    fields = {"disk": 0, "directory_disk": 0, "here": len(entries), "count": len(entries)}
    fields |= {"size": len(directory), "offset": len(body)} | end
    record = struct.pack("<4s4H2LH", b"PK\x05\x06", *fields.values(), len(comment))
    return bytes(body + directory) + record + comment + after


def elf(machine: int = 62, width: int = 2, order: int = 1, kind: int = 3) -> bytes:
    return struct.pack("<4sBBBBB7xHH", b"\x7fELF", width, order, 1, 0, 0, kind, machine) + bytes(64)
