"""What events of a direct write say of its positions: where the write begins, and the times of its positions.

Times are those of a table of the write in which each position has one row, with a column `timestamp` in seconds since
1970, such as the blocks of a chain. The other tables of the write are of the same positions.
"""

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.model.buffered import quoted, table_name
from tracelake.model.dag import ColumnType
from tracelake.model.windows import LAST_TIME
from tracelake.ports.direct_tables import RangeReplacement
from tracelake.storage.data_connection import Run
from tracelake.wire.direct import DirectTable
from tracelake.wire.units import MAX_TIMES, EventIn, Invalidates

TIME = "timestamp"


def find_clock(tables: Iterable[DirectTable]) -> DirectTable | None:
    """The table that has a time for each position; None if there is none."""
    for table in tables:
        column = table.schema.column(TIME)
        if table.schema.unique == (table.position,) and column is not None and column.type is ColumnType.INT64:
            return table
    return None


def locate_events(
    run: Run,
    clock: DirectTable | None,
    change: RangeReplacement,
    rows: Mapping[UUID, Sequence[pa.RecordBatch]],
    scope_id: int | None,
) -> list[EventIn]:
    """The events of a write with its positions and their times. Called in its transaction, before rows are removed."""
    if not change.events:
        return []
    times = () if clock is None else _times(clock, change, rows.get(clock.dataset_uuid, ()))
    located = []
    for event in change.events:
        wrong = event.invalidates
        if wrong is not None and wrong.time_min is None and clock is not None and scope_id is not None:
            event = msgspec.structs.replace(event, invalidates=_with_times(run, clock, wrong, scope_id))
        first, last = change.start if event.start is None else event.start, event.last_position
        is_of_table = event.dataset_uuid in rows
        if is_of_table and last is not None and change.start <= first <= last <= change.end:
            part = times[first - change.start : last - change.start + 1]
            event = msgspec.structs.replace(event, first=first, times=part)
        located.append(event)
    return located


def _times(clock: DirectTable, change: RangeReplacement, batches: Sequence[pa.RecordBatch]) -> tuple[int, ...]:
    """One for each position of the write; none if a position has no row, or no time."""
    count = change.end - change.start + 1
    if count > MAX_TIMES or sum(batch.num_rows for batch in batches) != count:
        return ()
    table = pa.Table.from_batches(batches).sort_by(clock.position)
    times = table[TIME]
    if table[clock.position].to_pylist() != list(range(change.start, change.end + 1)) or times.null_count:
        return ()
    return tuple(times.to_pylist()) if pc.min(times).as_py() >= 0 and pc.max(times).as_py() <= LAST_TIME else ()


def _with_times(run: Run, clock: DirectTable, wrong: Invalidates, scope_id: int) -> Invalidates:
    """The range with the times of the rows that it still has."""
    name, position = quoted(table_name(clock.dataset_uuid)), quoted(clock.position)
    # A genesis block with the time 0 was in the window of the block behind it.
    ((time_min, time_max),) = run(
        f"""SELECT min({quoted(TIME)}), max({quoted(TIME)}) FROM {name}
            WHERE {position} BETWEEN {int(wrong.start)} AND {int(wrong.end)} AND _scope = {int(scope_id)}
              AND {quoted(TIME)} <> 0"""  # noqa: S608
    )
    if time_min is None or time_min < 0 or time_max > LAST_TIME:
        return wrong
    return msgspec.structs.replace(wrong, time_min=time_min, time_max=time_max)
