"""What becomes of the rows of a part: files of one output or of several, and a report of them.

Rows that were placed before come to one part for each file (`SplitSink`). Rows that were not are written as they come
from the files that are read, and each part looks whether that may be (`InPlaceSink`).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.catalogue.context import NonRetryableError
from tracelake.ports import ObjectMeta
from tracelake.spark.parts import MisplacedRowsError

if TYPE_CHECKING:
    from tracelake.spark.writer import PartWriter, Split, SplitOutput, WrittenFile


class FileReport(msgspec.Struct, frozen=True):
    output: int
    meta: ObjectMeta
    rows: int


class PartReport(msgspec.Struct, frozen=True):
    """What the driver hears of a part."""

    files: list[FileReport]
    received: int = 0
    dropped: int = 0


decode_report = msgspec.json.Decoder(PartReport).decode


class SplitSink:
    """A part of rows that were placed by their blocks, or by nothing."""

    def __init__(
        self,
        outputs: "Mapping[int, SplitOutput]",
        split: "Split",
        by: str | None,
        unit: tuple[int, int],
        ranges: Sequence[tuple[int, int]],
        order: Sequence[str],
        number: int,
    ) -> None:
        self._outputs, self._split, self._by, self._unit = outputs, split, by, unit
        self._ranges, self._order, self._number = ranges, order, number
        self._parts: dict[int, PartWriter] = {}
        self._blocks: list[int] = []
        self._received = self._dropped = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._received += batch.num_rows
        if self._by is not None:
            self._blocks = _ends(batch.column(self._by), self._blocks)
            _check_blocks(batch.column(self._by), self._by, self._blocks, self._unit)
        for number, rows in self._split(batch):
            output = self._outputs.get(number)
            if output is None:
                self._dropped += rows.num_rows
            elif rows.num_rows:
                if number not in self._parts:
                    self._parts[number] = output.open(self._order)
                self._parts[number].write(rows)

    def finish(self) -> str:
        name = self._name()
        files = [(number, part.upload(*name)) for number, part in self._parts.items()]
        return _encode(
            [FileReport(number, file.meta, file.rows) for number, file in files], self._received, self._dropped
        )

    def discard(self) -> None:
        for part in self._parts.values():
            part.discard()

    def _name(self) -> tuple[int, int]:
        ranges, blocks = self._ranges, self._blocks
        if len(ranges) == 1:
            return ranges[0]
        if self._by is not None:
            # Without a row there is nothing to name.
            return next((part for part in ranges if blocks and part[0] <= blocks[0] <= part[1]), ranges[0])
        return ranges[self._number]


class InPlaceSink:
    """A part of rows as they are read: whole files one after another, each sorted. Others raise MisplacedRowsError.

    Files are reported by the number of their range, as outputs are."""

    def __init__(
        self,
        output: "SplitOutput",
        unit: tuple[int, int],
        ranges: Sequence[tuple[int, int]],
        order: Sequence[str],
        _number: int,
    ) -> None:
        self._output, self._unit, self._ranges, self._order, self._by = output, unit, ranges, order, order[0]
        self._firsts = np.array([first for first, _ in ranges])
        self._place: int | None = None
        self._part: PartWriter | None = None
        self._block = 0
        self._files: dict[int, WrittenFile] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        column = batch.column(self._by)
        _check_blocks(column, self._by, _ends(column, []), self._unit)
        blocks = column.cast(pa.int64()).to_numpy()
        places = np.searchsorted(self._firsts, blocks, side="right") - 1
        cuts = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), batch.num_rows]
        for first, last in pairwise(cuts):
            self._write(int(places[first]), batch.slice(first, last - first), blocks[first:last])

    def _write(self, place: int, rows: pa.RecordBatch, blocks: Any) -> None:
        if place != self._place:
            self._close()
            if place < 0 or place in self._files:
                raise MisplacedRowsError
            self._place, self._block = place, self._ranges[place][0]
            self._part = self._output.open(self._order)
        if blocks[0] < self._block or blocks.max() > self._ranges[place][1] or (np.diff(blocks) < 0).any():
            raise MisplacedRowsError
        self._block = int(blocks[-1])
        assert self._part is not None
        self._part.write(rows)

    def _close(self) -> None:
        if self._part is not None and self._place is not None:
            self._files[self._place] = self._part.upload(*self._ranges[self._place])
            self._part.discard()
            self._part = None

    def finish(self) -> str:
        self._close()
        return _encode([FileReport(place, file.meta, file.rows) for place, file in self._files.items()])

    def discard(self) -> None:
        if self._part is not None:
            self._part.discard()


def _encode(files: list[FileReport], received: int = 0, dropped: int = 0) -> str:
    return msgspec.json.encode(PartReport(files, received, dropped)).decode()


def _ends(column: pa.Array, before: list[int]) -> list[int]:
    """The lowest and the highest block so far; none while there are none."""
    here = pc.min_max(column).as_py()
    numbers = [int(number) for number in (*before, here["min"], here["max"]) if number is not None]
    return [min(numbers), max(numbers)] if numbers else []


def _check_blocks(column: pa.Array, name: str, blocks: Sequence[int], unit: tuple[int, int]) -> None:
    """Whoever reads a unit asks for its blocks: rows of others, or of none, would be there and never be read."""
    strange = [f"block {block}" for block in blocks if not unit[0] <= block <= unit[1]]
    if column.null_count:
        strange.append(f"no block ({name} is null)")
    if strange:
        raise NonRetryableError(
            f"rows of {strange[0]} do not belong to the unit {unit[0]}-{unit[1]}, and nobody would read them: leave"
            f" them out, or write what is of no block without a column {name}"
        )
