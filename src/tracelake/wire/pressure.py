"""The user API's view of backpressure: `/v1/pressure`."""

from datetime import datetime
from typing import Literal

from tracelake.wire.base import Reply

PressureState = Literal["open", "bulk_stopped", "stopped", "paused"]
"""Of a queue: whom it stops; people say `full` for `stopped` and `filling` for `bulk_stopped`. Of an edge: by what
it is stopped; `bulk_stopped` is an edge of a bulk job that others would still pass, `paused` one whose source a person
paused."""


class QueueRow(Reply, frozen=True, kw_only=True):
    """The queued tasks of a job with a threshold."""

    dag: str
    job: str
    """Or the buffered dataset, if it is a backlog."""
    backlog: bool = False
    """Batches that wait for a sink, and no tasks."""
    building: bool = False
    """It belongs to a version that is being built."""
    state: PressureState
    depth: int
    """Queued tasks, also those that wait for a limit on running work; or batches of a backlog."""
    held: int = 0
    """Those of them that wait for a limit on running work; counted no further than 10,000."""
    max_depth: int | None = None
    age_seconds: float
    """How long the oldest queued task has been waiting."""
    max_age_seconds: int | None = None
    since: datetime | None = None
    """Since when it stops what feeds it."""
    because: str = ""


class PressureEdgeRow(Reply, frozen=True, kw_only=True):
    """One input of a job that is, or may come, under the pressure of a queue."""

    dag: str
    job: str
    input_index: int
    dataset: str
    building: bool = False
    bulk: bool = False
    """The job is: it stops at 80 % of a queue behind it."""
    state: PressureState
    queue: str | None = None
    """What stops it, or, while it is open, the fullest of the queues behind it: `dag/job`."""
    queue_is_backlog: bool = False
    """That one is the backlog of a buffered dataset: `dag/dataset`."""
    queues: list[str] = []
    """Every queue with a threshold that could stop it."""
    queues_of_writers: list[str] = []
    """Those of them that the job does not lead to: they stop everybody who writes the dataset, so nothing of it is
    passed on."""
    depth: int
    max_depth: int | None = None
    age_seconds: float
    max_age_seconds: int | None = None
    """These four are of `queue`."""
    since: datetime | None = None
    because: str = ""
    backlog: int
    """Events that wait; counted no further than 10,000."""


class PressureReply(Reply, frozen=True, kw_only=True):
    queues: list[QueueRow]
    edges: list[PressureEdgeRow]
