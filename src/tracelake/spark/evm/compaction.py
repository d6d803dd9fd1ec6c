"""What one Spark task does of a compaction: read a chunk of blocks of each table, write a file of each, say what was
written.

All tasks join one snapshot, so the files of a unit are of one moment. Rows come by ADBC in the order of the files and
go straight to them. A chunk fails unless every block of it is there once, each the child of the one before, and every
other table has as many rows in the file as in the snapshot.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tracelake.catalogue.context import NonRetryableError
from tracelake.model.buffered import quoted
from tracelake.spark.evm.block_times import first_time
from tracelake.spark.evm.chunk import MANIFEST, ChunkEnds
from tracelake.spark.python_gc import settle
from tracelake.spark.writer import PartWriter, Target, WrittenFile
from tracelake.storage.snapshots import PositionPart, Snapshot, SnapshotTable

BLOCKS = "blocks"


@dataclass(frozen=True, slots=True)
class CompactedTable:
    rows: SnapshotTable
    """With the types of the files."""
    order: tuple[str, ...]
    """The key of a row, whose first column is its position."""
    target: Target

    def part(self, first: int, last: int) -> PositionPart:
        return PositionPart(self.order[0], first, last)


@dataclass(frozen=True, slots=True)
class CompactionChunks:
    """What Spark carries to its tasks."""

    dsn: str
    snapshot: str
    tables: Mapping[str, CompactedTable]
    """By name, with `blocks` among them."""
    first: int
    last: int
    size: int
    parts: int
    """How many Spark tasks share the chunks."""

    @property
    def ranges(self) -> list[tuple[int, int]]:
        starts = range(self.first, self.last + 1, self.size)
        return [(first, min(self.last, first + self.size - 1)) for first in starts]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        with closing(Snapshot(self.dsn, joined=self.snapshot)) as snapshot:
            for part in (number for batch in batches for number in batch.column(0).to_pylist()):
                for chunk in self.ranges[part :: self.parts]:
                    yield pa.RecordBatch.from_pylist(self._write(snapshot, *chunk), schema=MANIFEST)

    def _write(self, snapshot: Snapshot, first: int, last: int) -> list[dict[str, object]]:
        walk = BlockWalk(first, last)
        files = {name: self._write_table(snapshot, name, walk) for name in self.tables}
        ends = walk.finish()
        return [
            {
                "table": name,
                "first": first,
                "last": last,
                **ends._asdict(),
                "uri": file.meta.uri,
                "size": file.meta.size,
                "etag": file.meta.etag,
                "sha256": file.meta.sha256,
                "rows": file.rows,
            }
            for name, file in files.items()
        ]

    def _write_table(self, snapshot: Snapshot, name: str, walk: "BlockWalk") -> WrittenFile:
        table = self.tables[name]
        part = table.part(walk.first, walk.last)
        # Of the table: a column of the result with the same name may be text, which has another order.
        order = ", ".join(f"{table.rows.name}.{quoted(name)}" for name in table.order)
        writer = PartWriter(table.target, table.rows.schema)
        try:
            for batch in snapshot.rows(table.rows, f"{part.condition} ORDER BY {order}"):
                if name == BLOCKS:
                    walk.pass_over(batch)
                writer.write(batch)
            if name != BLOCKS and (count := snapshot.count(table.rows, part.condition)) != writer.rows:
                raise NonRetryableError(
                    f"rows_incomplete: of {count} rows of {name} of blocks {walk.first} to {walk.last}, {writer.rows}"
                    " came"
                )
            return writer.upload(walk.first, walk.last)
        finally:
            writer.discard()


class BlockWalk:
    """Passes over the blocks of a chunk in their order. Raises NonRetryableError where they are not a chain."""

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self._next = first
        self._hash: bytes | None = None
        self._ends: ChunkEnds | None = None

    def pass_over(self, blocks: pa.RecordBatch) -> None:
        if not blocks.num_rows:
            return
        numbers = blocks.column("block_number").cast(pa.int64())
        expected = pa.array(range(self._next, self._next + len(numbers)), pa.int64())
        if not numbers.equals(expected):
            place = pc.index(pc.not_equal(numbers, expected), True).as_py()
            number = numbers[place].as_py()
            raise _incomplete(f"block {number} follows block {self._next + place - 1} in the table `{BLOCKS}`")
        hashes, parents = blocks.column("block_hash"), blocks.column("parent_hash")
        previous = pa.concat_arrays([pa.array([self._hash], hashes.type), hashes[:-1]])
        # Null where nothing is before it.
        place = pc.index(pc.equal(parents, previous), False).as_py()
        if place >= 0:
            raise _incomplete(f"block {self._next + place} is not the child of the block before it")
        times = blocks.column("timestamp")
        last_hash = hashes[-1].as_py()
        first_parent = f"0x{parents[0].as_py().hex()}" if self._ends is None else self._ends.first_parent
        start_time = 0 if self._ends is None else self._ends.first_time
        start_time = start_time or first_time(times[:2].to_pylist())
        self._ends = ChunkEnds(first_parent, f"0x{last_hash.hex()}", start_time, times[-1].as_py())
        self._hash = last_hash
        self._next += len(numbers)

    def finish(self) -> ChunkEnds:
        if self._ends is None or self._next != self.last + 1:
            raise _incomplete(f"block {self._next} is not in the table `{BLOCKS}`")
        return self._ends


def _incomplete(text: str) -> NonRetryableError:
    return NonRetryableError(f"rows_incomplete: {text}: final rows never change, so no other attempt can find it")
