"""What of an input is in a table, in a snapshot: all of it, or the part of a live dataset above its boundary."""

from collections.abc import Sequence

from tracelake.catalogue.context import LiveInput, TableInput
from tracelake.storage.snapshots import PositionPart, Snapshot, SnapshotTable, TablePart
from tracelake.wire.units import PayloadInput


def in_files(item: PayloadInput, source: LiveInput) -> bool:
    """Whether every position that is read is at or below the boundary, so that the table has none of them."""
    last = item.blocks[1]
    return last is not None and source.boundary is not None and last <= source.boundary


def in_table(item: PayloadInput, source: LiveInput) -> bool:
    """Whether every position that is read is above the boundary, so that no file has one of them."""
    first = item.blocks[0]
    return not source.files or (first is not None and source.boundary is not None and first > source.boundary)


def cut_table(
    snapshot: Snapshot, item: PayloadInput, source: TableInput | LiveInput, size: int
) -> tuple[SnapshotTable, Sequence[TablePart | PositionPart], int]:
    """The table, parts of it that are together every row of the input in it, and how many rows these are. Raises
    BoundaryMovedError if some of a live dataset have left the table since its boundary was asked for."""
    if isinstance(source, TableInput):
        table = snapshot.table(item.dataset_uuid, source.columns)
        return table, *snapshot.split_input(table, item, size)
    columns = source.table.columns
    # Files of the past may be there before the first row of the table.
    if in_files(item, source) or not snapshot.has_table(item.dataset_uuid):
        return SnapshotTable(item.dataset_uuid, columns, (None,) * len(columns)), (), 0
    table = snapshot.table(item.dataset_uuid, columns)
    snapshot.check_boundary(item.dataset_uuid, source.boundary)
    return table, *snapshot.split_input(table, item, size, source.boundary)
