"""Jobs in the user API: their inputs, outputs and counts, triggers and rebuilds."""

from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.wire.base import Cursor, Reply, Request, ShortText
from tracelake.wire.units import check_partition


class EdgeRow(Reply, frozen=True, kw_only=True):
    """One input of a job, and its progress."""

    input_index: int
    dataset: str
    dataset_version: UUID
    where: dict[str, Any] | None = None
    phase: Literal["Active", "Staged", "Parked"]
    state: Literal["live", "draining", "held", "stopped", "paused", "parked"]
    """`stopped`: by a full queue; `paused`: a person paused its source. Only the list of jobs shows these two."""
    routed_cursor: int | None = None
    backlog: int
    """The number of events that wait for this edge."""
    failed_units: int


class JobOutputRow(Reply, frozen=True, kw_only=True):
    output_index: int
    dataset: str
    dataset_uuid: UUID
    dataset_version: UUID
    storage: str
    dead_letters: int | None = None
    """Of a buffered dataset, only in the list of jobs: refused batches of all its writers; counted up to 10,000."""


class JobRow(Reply, frozen=True, kw_only=True):
    dag: str
    name: str
    job_id: UUID
    activation: str
    runtime: str | None = None
    operator: str | None = None
    strategy: str
    units: str | None = None
    """Of a job that chose its own units: `hour`, `day of Europe/Berlin`, `1,000 blocks`."""
    priority: str = "normal"
    max_concurrency: int | None = None
    source: str | None = None
    inputs: list[EdgeRow] = []
    outputs: list[JobOutputRow] = []
    queued: int
    running: int
    held: int
    """Tasks that wait for a limit on running tasks."""
    retrying: int
    """Tasks that failed and wait for their next attempt."""
    failed: int
    """Tasks that failed, have no retry left, and were not skipped."""
    more: bool = False
    """Counting stopped at a limit: the numbers of these tasks are lower bounds."""
    done: int = 0
    """Tasks that completed, among the newest of the job: 20,000 are looked at for all jobs together, and at most 10,000
    for each."""
    done_more: bool = False
    """There are older tasks: `done` is a lower bound."""
    gaps: int = 0
    """Units that were skipped or cancelled, so that nothing will compute them; up to 1,000 such tasks are looked at."""


class JobsReply(Reply, frozen=True, kw_only=True):
    dag: str
    version: int
    jobs: list[JobRow]


class BlockRange(Request, frozen=True, kw_only=True):
    start: Cursor
    end: Cursor

    def __post_init__(self) -> None:
        if self.start > self.end:
            raise ValueError("a range needs start <= end")


MAX_TRIGGERED_WINDOWS = 1_000


class TriggerRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Triggers a job for a unit: exactly one of `cursor`, `range`, `partition_key` and `window`. Of a job with windows,
    `range` and `window` may have up to 1,000 of them: all are triggered, or none."""

    cursor: Cursor | None = None
    range: BlockRange | None = None
    partition_key: ShortText | None = None
    window: ShortText | None = None
    """Of a job whose units are windows of time: one of them, like `2026-03-03`. Of a job with windows also several side
    by side, like `2026-03-01..2026-03-31`."""
    output_index: Annotated[int, Meta(ge=0, le=63)] = 0
    """Of a source: the output that the event is of."""
    input_index: Annotated[int, Meta(ge=0, le=63)] = 0
    """Of a PerUpdate job: the input that the unit is of."""
    idempotency_key: ShortText | None = None
    """A repeated key is the same trigger; without a key every call is a new one."""

    def __post_init__(self) -> None:
        if sum(item is not None for item in (self.cursor, self.range, self.partition_key, self.window)) != 1:
            raise ValueError("give exactly one of cursor, range, partition_key and window")
        check_partition(self.partition_key, None, None)


class TriggerReply(Reply, frozen=True, kw_only=True):
    idempotency_key: str
    event_id: int | None = None
    """Of a source: the event that was emitted."""
    task_id: UUID | None = None
    """Of a reactive job: the task that was created, if it is one."""
    tasks: list[UUID] = []
    """Of a source: the tasks that the event created at once (the first hundred). Of a range of several windows: the
    task of each."""
    duplicate: bool = False
    kept: Literal["paused", "stopped"] | None = None
    """Of a source: the event creates its tasks later, because a person paused the source or a full queue stops it."""


class RebuildReply(Reply, frozen=True, kw_only=True):
    dag: str
    job: str
    because: str
    """The dataset whose rebuild made the job's outputs stale."""
    duplicate: bool = False
    """A rebuild was already in progress."""
