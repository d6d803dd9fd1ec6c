"""Jobs in the user API: their inputs, outputs and counts, triggers and rebuilds."""

from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.wire.base import Cursor, Reply, Request, ShortText
from tracelake.wire.units import check_partition


class EdgeRow(Reply, frozen=True, kw_only=True):
    """One input of a job, and how far it has come."""

    input_index: int
    dataset: str
    dataset_version: UUID
    where: dict[str, Any] | None = None
    phase: Literal["Active", "Staged", "Parked"]
    state: Literal["live", "draining", "held", "stopped", "paused", "parked"]
    """`stopped`: by a full queue; `paused`: its source was, by a person. Only the list of jobs tells these two."""
    routed_cursor: int | None = None
    backlog: int
    """Events that wait for this edge."""
    failed_units: int


class JobOutputRow(Reply, frozen=True, kw_only=True):
    output_index: int
    dataset: str
    dataset_uuid: UUID
    dataset_version: UUID
    storage: str
    dead_letters: int | None = None
    """Of a buffered dataset, in the list of jobs: batches of all its writers that were refused and wait for a person.
    Counted no further than 10,000."""


class JobRow(Reply, frozen=True, kw_only=True):
    dag: str
    name: str
    job_id: UUID
    activation: str
    runtime: str | None = None
    operator: str | None = None
    strategy: str
    priority: str = "normal"
    max_concurrency: int | None = None
    source: str | None = None
    inputs: list[EdgeRow] = []
    outputs: list[JobOutputRow] = []
    queued: int
    running: int
    held: int
    """They wait for a place of a limit."""
    retrying: int
    """They failed, and wait for their next attempt."""
    failed: int
    """Failed for good, and neither retried nor skipped."""
    more: bool = False
    """There are more tasks than were counted: each number is at least that."""


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


class TriggerRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """The unit: exactly one of `cursor`, `range` and `partition_key`."""

    cursor: Cursor | None = None
    range: BlockRange | None = None
    partition_key: ShortText | None = None
    output_index: Annotated[int, Meta(ge=0, le=63)] = 0
    """Of a source: which output's event."""
    input_index: Annotated[int, Meta(ge=0, le=63)] = 0
    """Of a PerUpdate job: which input the unit is of."""
    idempotency_key: ShortText | None = None
    """The same key again is the same trigger; without one every call is a new one."""

    def __post_init__(self) -> None:
        if sum(item is not None for item in (self.cursor, self.range, self.partition_key)) != 1:
            raise ValueError("give exactly one of cursor, range and partition_key")
        check_partition(self.partition_key, None, None)


class TriggerReply(Reply, frozen=True, kw_only=True):
    idempotency_key: str
    event_id: int | None = None
    """Of a source: the event that was emitted."""
    task_id: UUID | None = None
    """Of a reactive job: the task that was made."""
    tasks: list[UUID] = []
    """Of a source: the tasks that the event made at once (the first hundred)."""
    duplicate: bool = False
    kept: Literal["paused", "stopped"] | None = None
    """Of a source: the event makes its tasks later. A person paused the source, or a full queue downstream stops it."""


class RebuildReply(Reply, frozen=True, kw_only=True):
    dag: str
    job: str
    because: str
    """The dataset whose rebuild made the job's outputs stale."""
    duplicate: bool = False
    """A rebuild was under way already."""
