"""A recorded chain in a file: xz-compressed JSON lines, a head line and then one line for each block from 0 on.

Reading is lazy and takes the memory of one block. A file that was cut short, changed, or is something else is
refused with RecordingError, at the latest when its damaged part is reached; nothing wrong is handed out before.
"""

import lzma
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tracelake.demo.chain.packing import Json, Packed, Packer

FORMAT = "tracelake-chain"
VERSION = 1
MAX_LINE_BYTES = 64 * 1024 * 1024
"""The largest size of a block; a file that declares more is damaged, or meant to fill the memory."""

_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 64 * 1024 * 1024, "lc": 3}]


class RecordingError(ValueError):
    """The file is not a whole recording. The message says what is wrong with it and what to do."""


class RecordingHead(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a recording."""

    format: str
    version: int
    chain_id: str
    """The answer of eth_chainId."""
    client: str
    """The answer of web3_clientVersion."""
    blocks: int
    about: dict[str, Any] = {}
    """How it was recorded, for people."""


class RecordedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A node's answers to eth_getBlockByNumber (with whole transactions) and eth_getBlockReceipts."""

    number: int
    block: Json
    receipts: list[Json]


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    block: Packed
    receipts: list[Packed]
    shapes: list[tuple[str, ...]] = []


class Recording:
    """A recording that can be read any number of times; each reading starts at block 0."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        with self._reading() as lines:
            self.head = self._read_head(lines)

    def __len__(self) -> int:
        return self.head.blocks

    def __iter__(self) -> Iterator[RecordedBlock]:
        decoder = msgspec.json.Decoder(_Line)
        packer = Packer(self.head.chain_id)
        number, parent = 0, ""
        with self._reading() as lines:
            self._read_head(lines)
            for number in range(self.head.blocks):
                read = self._unpack(packer, decoder, self._line(lines, f"block {number}"), number)
                if number and read.block["parentHash"] != parent:
                    raise self._damaged(f"block {number} does not follow block {number - 1}")
                parent = read.block["hash"]
                yield read
            if lines.readline(1):
                raise self._damaged(f"something follows the last block, {number}")

    def _unpack(self, packer: Packer, decoder: msgspec.json.Decoder[_Line], raw: bytes, number: int) -> RecordedBlock:
        try:
            line = decoder.decode(raw)
            packer.shapes.extend(line.shapes)
            block, receipts = packer.unpack(line.block, line.receipts)
            if int(block["number"], 16) != number:
                raise self._damaged(f"block {number} calls itself {block['number']}")
        except RecordingError:
            raise
        except (msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise self._damaged(f"the line of block {number} is not as it was written") from error
        return RecordedBlock(number=number, block=block, receipts=receipts)

    def _read_head(self, lines: lzma.LZMAFile) -> RecordingHead:
        try:
            head = msgspec.json.decode(self._line(lines, "its first line"), type=RecordingHead)
        except msgspec.MsgspecError as error:
            raise self._damaged("its first line is not that of a recording") from error
        if head.format != FORMAT or head.blocks < 1:
            raise self._damaged("its first line is not that of a recording")
        if head.version != VERSION:
            raise RecordingError(
                f"{self._path.name} has version {head.version} of the format, and this program reads version {VERSION}."
                " Record the chain again, or use the program that wrote it."
            )
        return head

    def _line(self, lines: lzma.LZMAFile, what: str) -> bytes:
        line = lines.readline(MAX_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise self._damaged(
                f"it ends before the end of {what}" if len(line) < MAX_LINE_BYTES else f"{what} is huge"
            )
        return line

    @contextmanager
    def _reading(self) -> Iterator[lzma.LZMAFile]:
        try:
            with lzma.open(self._path, "rb") as lines:
                yield lines
        except (lzma.LZMAError, EOFError) as error:
            raise self._damaged("its compressed data are cut short or changed") from error
        except OSError as error:
            reason = error.strerror or "it cannot be read"
            raise RecordingError(f"The recording {self._path.name} cannot be opened: {reason}.") from error

    def _damaged(self, what: str) -> RecordingError:
        return RecordingError(
            f"{self._path.name} is not a whole recording: {what}. Fetch the file again, or record the chain anew"
            " (make record-chain)."
        )


def write_recording(
    path: Path,
    *,
    chain_id: str,
    client: str,
    about: dict[str, Any],
    blocks: Iterable[tuple[Json, list[Json]]],
    count: int,
) -> None:
    """Write `count` blocks, each as the node answered."""
    head = RecordingHead(format=FORMAT, version=VERSION, chain_id=chain_id, client=client, blocks=count, about=about)
    packer = Packer(chain_id)
    encoder = msgspec.json.Encoder()
    block_count = 0
    with lzma.open(path, "wb", format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, filters=_FILTERS) as out:
        out.write(encoder.encode(head) + b"\n")
        for block, receipts in blocks:
            shape_count = len(packer.shapes)
            packed, packed_receipts = packer.pack(block, receipts)
            line = _Line(block=packed, receipts=packed_receipts, shapes=packer.shapes[shape_count:])
            out.write(encoder.encode(line) + b"\n")
            block_count += 1
    if block_count != count:
        raise ValueError(f"{count} blocks were announced and {block_count} came")
