"""The user API's view of backpressure: `/v1/pressure`."""

from datetime import datetime
from typing import Literal

from tracelake.wire.base import Reply

PressureState = Literal["open", "bulk_stopped", "stopped", "paused"]
"""Of a queue: which edges it stops; commands show `full` for `stopped` and `filling` for `bulk_stopped`. Of an edge:
why it is stopped; `bulk_stopped` stops only bulk jobs, `paused` means that a person paused its source."""


class QueueRow(Reply, frozen=True, kw_only=True):
    """The queue of a job with a threshold, or the backlog of a buffered dataset."""

    dag: str
    job: str
    """The job, or the buffered dataset if it is a backlog."""
    backlog: bool = False
    """It counts batches that wait for a sink, not tasks."""
    building: bool = False
    """The job belongs to a version that is being built."""
    state: PressureState
    depth: int
    """Queued tasks, including those that wait for a limit on running tasks; or the batches of a backlog."""
    held: int = 0
    """The queued tasks that wait for a limit on running tasks; counted up to 10,000."""
    max_depth: int | None = None
    age_seconds: float
    """How long the oldest queued task has been waiting."""
    max_age_seconds: int | None = None
    since: datetime | None = None
    """Since when it stops its upstream edges."""
    because: str = ""


class PressureEdgeRow(Reply, frozen=True, kw_only=True):
    """One input of a job that a full queue stops, or could stop."""

    dag: str
    job: str
    input_index: int
    dataset: str
    building: bool = False
    bulk: bool = False
    """The job is a bulk job: it stops when a downstream queue is 80 % full."""
    state: PressureState
    queue: str | None = None
    """The queue that stops the edge, or, while it is open, the fullest downstream queue: `dag/job`."""
    queue_is_backlog: bool = False
    """`queue` is the backlog of a buffered dataset: `dag/dataset`."""
    queues: list[str] = []
    """All queues with a threshold that could stop the edge."""
    queues_of_writers: list[str] = []
    """Those of `queues` that are not downstream of the job: they stop all writers of the dataset, so the edge gets
    nothing."""
    depth: int
    max_depth: int | None = None
    age_seconds: float
    max_age_seconds: int | None = None
    """The last four fields describe `queue`."""
    since: datetime | None = None
    because: str = ""
    backlog: int
    """Events that wait for the edge; counted up to 10,000."""


class PressureReply(Reply, frozen=True, kw_only=True):
    queues: list[QueueRow]
    edges: list[PressureEdgeRow]
