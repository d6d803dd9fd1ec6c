"""Units of work and the events that announce them."""

from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from tracelake.model.dag import OutputCheck, ReadMode
from tracelake.model.windows import LAST_TIME
from tracelake.wire.base import MAX_PARTITION_KEY_BYTES, Cursor, PartitionKey, Request, Revision, ShortText

Scalar = str | int | float | bool | None
MAX_TIMES = 10_000
"""Positions of one event whose times are told."""


class CursorRange(Request, frozen=True, kw_only=True):
    """The half-open range `(after, to]` of one edge."""

    after: int
    to: Cursor

    def __post_init__(self) -> None:
        if self.after < -1 or self.after > self.to:
            raise ValueError("a cursor range needs -1 <= after <= to")


class Unit(Request, frozen=True, kw_only=True, omit_defaults=True):
    """The work of one task: a cursor range, or a partition (with its block range if it has one)."""

    cursor: CursorRange | None = None
    partition_key: PartitionKey | None = None
    start: Cursor | None = None
    end: Cursor | None = None

    def __post_init__(self) -> None:
        if (self.cursor is None) == (self.partition_key is None):
            raise ValueError("a unit has either a cursor or a partition_key")
        check_partition(self.partition_key, self.start, self.end)

    @property
    def blocks(self) -> tuple[int | None, int | None]:
        """First and last block, both included; of a cursor, the blocks it passed. None and None without a range."""
        if self.cursor is not None:
            return min(self.cursor.after + 1, self.cursor.to), self.cursor.to
        return self.start, self.end


class ReadScope(Request, frozen=True, kw_only=True, omit_defaults=True):
    """What of a dataset an input is, where that is not just the task's unit. Positions are blocks, or seconds since
    1970 where the dataset's own units are windows of time."""

    mode: ReadMode
    start: Cursor | None = None
    end: Cursor | None = None
    """All units that share a position with this range; all of the dataset without one."""
    in_seconds: bool = False
    """The range counts seconds."""
    unit_in_seconds: bool = False
    """The unit of the task is a window of time."""
    empty: bool = False
    """No row of it: the units in the range only tell the columns."""
    column: ShortText | None = None
    first: Cursor | None = None
    last: Cursor | None = None
    """Only rows in which `column` is `first` to `last`: a block number, or a time in seconds since 1970."""
    time_zone: ShortText | None = None
    """Whose days the dates in `column` are; absent: those of UTC."""
    columns: dict[str, ShortText] | None = None
    """The columns of an empty relation that has no files to tell them: names and types of Spark."""


class TaskInput(Request, frozen=True, kw_only=True, omit_defaults=True):
    input_index: Cursor
    dataset_uuid: UUID
    dataset_version: UUID
    name: ShortText | None = None
    """For people; the payload has the registry's name."""
    unit: Unit
    revision: Revision = ""
    where: dict[str, Scalar | list[Scalar]] | None = None
    scope: ReadScope | None = None


class Invalidates(Request, frozen=True, kw_only=True, omit_defaults=True):
    start: Cursor
    end: Cursor
    reason: ShortText
    time_min: Cursor | None = None
    time_max: Cursor | None = None
    """The times that these positions had before, in seconds since 1970, if they are known."""

    def __post_init__(self) -> None:
        if self.start > self.end:
            raise ValueError("an invalidated range needs start <= end")
        if (self.time_min is None) != (self.time_max is None) or (self.time_min or 0) > (self.time_max or 0):
            raise ValueError("time_min and time_max go together, in order")


class EventIn(Request, frozen=True, kw_only=True, omit_defaults=True):
    """One update of one output: either a cursor or a partition."""

    dataset_uuid: UUID
    dataset_version: UUID
    cursor: Cursor | None = None
    partition_key: PartitionKey | None = None
    start: Cursor | None = None
    end: Cursor | None = None
    revision: Revision = ""
    invalidates: Invalidates | None = None
    first: Cursor | None = None
    """Of a table that the task writes itself: the first position of the write. Its last one is `cursor` or `end`."""
    times: Annotated[tuple[Cursor, ...], Meta(max_length=MAX_TIMES)] = ()
    """The time of each of these positions, in seconds since 1970; empty: unknown."""

    def __post_init__(self) -> None:
        if (self.cursor is None) == (self.partition_key is None):
            raise ValueError("an event has either a cursor or a partition_key")
        check_partition(self.partition_key, self.start, self.end)
        if self.invalidates is not None:
            check_block_time(self.invalidates.time_max)
        if self.first is None and not self.times:
            return
        last = self.last_position
        if self.first is None or last is None or self.first > last:
            raise ValueError("first is at or before the last position of the event")
        if self.start not in (None, self.first):
            raise ValueError("first and start are the same position")
        if self.times and len(self.times) != last - self.first + 1:
            raise ValueError("times has one time for each position")
        check_block_time(max(self.times, default=None))

    @property
    def last_position(self) -> int | None:
        return self.cursor if self.cursor is not None else self.end


def check_block_time(time: int | None) -> None:
    """Checks that a time of a block is one: any number would be windows of millions of years for whoever reads on."""
    if time is not None and time > LAST_TIME:
        raise ValueError(
            f"expected the time of a block in seconds since 1970, at most {LAST_TIME}, received {time}:"
            " divide milliseconds by 1000"
        )


def check_partition(partition_key: str | None, start: int | None, end: int | None) -> None:
    """Checks that a block range has both ends, in order, and the key that spells them.

    The key is limited in bytes, not characters, because it is part of a primary key in Postgres.
    """
    if partition_key is not None and len(partition_key.encode()) > MAX_PARTITION_KEY_BYTES:
        raise ValueError(f"a partition_key has at most {MAX_PARTITION_KEY_BYTES} bytes")
    if start is None and end is None:
        return
    if start is None or end is None or partition_key is None:
        raise ValueError("start and end go together, with a partition_key")
    if start > end:
        raise ValueError("a range needs start <= end")
    if partition_key != f"{start}-{end}":
        raise ValueError("the partition_key of a block range is {start}-{end}")


class StorageOut(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where an output goes: `s3` has write_prefix, `postgres` location, `buffered` buffer_prefix, `none` nothing."""

    kind: str
    write_prefix: str | None = None
    location: str | None = None
    buffer_prefix: str | None = None
    live: bool = False
    """Whether the files are those of a live dataset, which has a table as well."""


class TaskOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    output_index: int
    dataset_uuid: UUID
    dataset_version: UUID
    name: str = ""
    """The name of the dataset, which its files have as well."""
    storage: StorageOut


class JobRef(msgspec.Struct, frozen=True, kw_only=True):
    dag_name: str
    name: str


class PayloadInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An input as a worker sees it, with all fields set but `scope`."""

    input_index: int
    dataset_uuid: UUID
    dataset_version: UUID
    name: str
    unit: Unit
    revision: str
    where: dict[str, Scalar | list[Scalar]] | None
    scope: ReadScope | None = None
    """Absent if the input is just the task's unit of the dataset."""
    window: str | None = None
    """The unit as a date, if it is a window of time; only in what people are shown."""

    @property
    def positions(self) -> tuple[int | None, int | None]:
        """First and last position of what is read, both included; None and None for all of the dataset."""
        return self.unit.blocks if self.scope is None else (self.scope.start, self.scope.end)

    @property
    def blocks(self) -> tuple[int | None, int | None]:
        """The same if the dataset's units are ranges of blocks; None and None otherwise."""
        return (None, None) if self.scope is not None and self.scope.in_seconds else self.positions


class TaskPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker needs to run a task. `config` and `inputs` are typed by the operator, not here."""

    task_id: UUID
    attempt: int
    job: JobRef
    operator: str
    config: dict[str, Any]
    inputs: list[PayloadInput]
    outputs: list[TaskOutput]
    checks: list[OutputCheck] = []
    """Of the rows that it writes: it evaluates them before its final report."""
    references: list[PayloadInput] = []
    """What the checks read besides these rows: other datasets, and other units of the outputs. Their indexes differ
    from those of the inputs."""
    traceparent: str | None = None
    """The attempt's span, for code that continues the trace; absent without tracing."""
