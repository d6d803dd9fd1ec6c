"""parquet_compact: final rows of the tables of live datasets become files.

The unit is a range of blocks that the follower has sealed, so its rows never change again. First, rows go whose files
were committed before this attempt was claimed. Then Spark's tasks copy the rows of the unit to files, all of one
snapshot, and the driver checks that the chunks are one chain. The files are published without an event: readers see
the same rows as before, from the moment on in which the boundary passes them.

Nothing here can be wrong twice. An attempt that is repeated or stale removes rows of committed files alone, and writes
files that nobody sees.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec

from tracelake.catalogue.compact import ParquetCompactConfig
from tracelake.catalogue.context import LiveOutput, NonRetryableError, OperatorResult
from tracelake.catalogue.evm_columns import EVM_KEYS, EvmTable
from tracelake.ports import ObjectMeta
from tracelake.ports.direct_tables import TableExtent
from tracelake.spark.evm.block_times import unit_times
from tracelake.spark.evm.chunk import MANIFEST_DDL
from tracelake.spark.evm.compaction import BLOCKS, CompactedTable, CompactionChunks
from tracelake.spark.evm.tables import schema_of
from tracelake.spark.sizes import session_for_small
from tracelake.spark.work import SparkWork
from tracelake.spark.writer import WrittenFile
from tracelake.storage.snapshots import Snapshot, SnapshotTable
from tracelake.wire.task_calls import TableColumn

_MOST_PARTITIONS = 64


class CompactionError(Exception):
    """Another attempt may succeed. It begins with a code for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def run(work: SparkWork) -> OperatorResult:
    config = work.context.config
    assert isinstance(config, ParquetCompactConfig)
    first, last = work.blocks
    outputs = {table: index for index, table in enumerate(config.tables) if work.has_output(index)}
    if BLOCKS not in outputs:
        raise NonRetryableError("the job has no output for `blocks`, which show whether rows are complete")
    live = {table: work.context.live_output(work.output(index)) for table, index in outputs.items()}
    _remove_committed(work, live, first)
    work.stop_if_canceled()
    dsn, snapshot = work.hold_tables([output.table.dataset_uuid for output in live.values()])
    extents = {table: snapshot.read_extent(output.table.dataset_uuid) for table, output in live.items()}
    for table, extent in extents.items():
        _check_extent(table, extent, first, last)
    tables: dict[str, CompactedTable] = {
        table: CompactedTable(
            _read_columns(snapshot, config, table, live[table]), EVM_KEYS[table], work.target(outputs[table])
        )
        for table in live
    }
    size = min(config.chunk_blocks, last - first + 1)
    parts = min(_MOST_PARTITIONS, -(-(last - first + 1) // size))
    chunks = CompactionChunks(dsn, snapshot.name, tables, first, last, size, parts)
    work.context.progress(f"copying blocks {first} to {last} in {len(chunks.ranges)} chunks")
    # All the work is done in Python: there is nothing to generate code for.
    rows = session_for_small(work.session).range(0, parts, 1, parts).mapInArrow(chunks, MANIFEST_DDL).collect()
    work.stop_if_canceled()
    rows.sort(key=lambda row: row.first)
    _check_chain([row for row in rows if row.table == BLOCKS], chunks)
    for table, index in outputs.items():
        files = [
            WrittenFile(ObjectMeta(row.uri, row["size"], row.etag, row.sha256), row["rows"])
            for row in rows
            if row.table == table
        ]
        if len(files) != len(chunks.ranges):
            raise CompactionError("chunks_missing", "Spark did not return every chunk")
        work.seal_output(index, files, None)
    work.times = unit_times((row.first_time, row.last_time) for row in rows)
    starts = {output.table.dataset_uuid: extents[table].table_start for table, output in live.items()}
    result = work.result()
    published = [
        msgspec.structs.replace(item, table_start=starts[item.dataset_uuid]) for item in result.datasets_published
    ]
    return replace(result, datasets_published=published, events=[])


def _remove_committed(work: SparkWork, live: Mapping[EvmTable, LiveOutput], first: int) -> None:
    """Rows at or below the boundary, but none of the unit: it may be compacted again while they are there."""
    removed = {
        table: work.context.remove_rows(output, min(output.boundary, first - 1))
        for table, output in live.items()
        if output.boundary is not None and first > 0
    }
    if any(removed.values()):
        counts = ", ".join(f"{count} of {table}" for table, count in removed.items())
        work.context.progress(f"removed rows that are in files: {counts}")


def _check_extent(table: str, extent: TableExtent, first: int, last: int) -> None:
    if extent.table_start is None or extent.sealed_to is None or extent.sealed_to < last:
        raise CompactionError(
            "not_sealed",
            f"blocks {first} to {last} of {table} are not final yet: the table is sealed up to {extent.sealed_to}; the"
            " next attempt looks again",
        )
    if first < extent.table_start:
        raise NonRetryableError(
            f"the table of {table} begins at block {extent.table_start}, and the unit at block {first}: earlier blocks"
            " are read by `evm_ingest`"
        )
    if extent.removed_to is not None and extent.removed_to >= first:
        raise NonRetryableError(
            f"rows of {table} up to block {extent.removed_to} were removed from the table: the files of the unit were"
            " committed before, and cannot be made again from it"
        )


def _read_columns(
    snapshot: Snapshot, config: ParquetCompactConfig, table: EvmTable, output: LiveOutput
) -> SnapshotTable:
    schema = schema_of(table, config.optional_columns(table))
    stored = {column.name: column for column in output.table.schema.columns}
    if missing := [name for name in schema.names if name not in stored]:
        raise NonRetryableError(
            f"the table of {table} has no column {', '.join(missing)}: `columns` must be those of the job that writes"
            " its rows"
        )
    columns = msgspec.convert([stored[name] for name in schema.names], list[TableColumn], from_attributes=True)
    return replace(snapshot.table(output.table.dataset_uuid, columns), types=schema)


def _check_chain(rows: Sequence[Any], chunks: CompactionChunks) -> None:
    """Every chunk is there, and each begins where the one before it ends."""
    if [(row.first, row.last) for row in rows] != chunks.ranges:
        raise CompactionError("chunks_missing", "Spark did not return every chunk")
    for before, after in pairwise(rows):
        if after.first_parent != before.last_hash:
            raise NonRetryableError(
                f"rows_incomplete: block {after.first} is not the child of block {before.last}, and final rows never"
                " change"
            )
