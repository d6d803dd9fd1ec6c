"""The task: its states and the snapshot that transitions are decided on."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec


class RevisionKind(StrEnum):
    """Where the revision of a unit comes from. Texts of different kinds are never the same revision."""

    EVENT = "event"
    """The text is the producer's own, the number of a commit, or empty."""
    MANUAL = "manual"
    """A user asked for the run, or it follows from such a run: the text is the trigger's key where nobody gave one. It
    stands beside what its edge has come through, and takes no cursor on."""
    INVALIDATION = "invalidation"
    """The unit is made again because its input was declared wrong: the text is the invalidation's id."""


class Status(StrEnum):
    QUEUED = "Queued"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELED = "Canceled"


class Outcome(StrEnum):
    """The last attempt's verdict. `TIMEOUT` is the clock's; the others are the worker's final word."""

    TIMEOUT = "Timeout"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELED = "Canceled"


class Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row of `tasks`, without the parts that never change a decision (inputs, result)."""

    task_id: UUID
    org_id: UUID
    job_id: UUID
    status: Status
    attempt: int
    max_attempts: int | None
    held: bool = False
    cancel_requested: bool = False
    outcome: Outcome | None = None
    lease_token: UUID | None = None
    lease_expires_at: datetime | None = None
    deadline_at: datetime | None = None
    claimed_at: datetime | None = None
    worker_id: str | None = None
    claim_id: str | None = None
    ready_at: datetime | None = None
    next_retry_at: datetime | None = None
    finished_at: datetime | None = None
    skipped_at: datetime | None = None
    error: str | None = None
    forgiven: int = 0
    """So many of the attempts do not count for the wait before the next one."""
    held_by: str | None = None
    """The limit that had no place."""
    read_as_of: str | None = None
    """What the current attempt reads: a JSON map of the `dataset_version` of each input that is kept in files to the
    time of its newest commit when the attempt was claimed."""

    # What never changes: what the task is for.
    node_id: UUID | None = None
    edge: int | None = None
    unit_key: str | None = None
    revision: str = ""
    revision_kind: RevisionKind = RevisionKind.EVENT
    input_order: tuple[int, ...] = ()
    """How new its inputs are: of each input since when it reads its generation (0: it never read another), and the
    `routed_seq` of the event that said the revision (0: the first). Empty if all are 0. Compared, from the left, with
    tasks of the same unit alone."""
    limit_keys: tuple[str, ...] = ()
    counted: bool = False
    """In the depth of its node's queue, while it is queued."""
    traceparent: str | None = None
    """The span of the event that made it, if it is traced."""

    @property
    def finished(self) -> bool:
        """No transition is due by itself. A late reply of a timed-out last attempt may still change it."""
        return self.finished_at is not None

    @property
    def ready(self) -> bool:
        """A worker may take it at any time."""
        return self.status is Status.QUEUED and not self.held

    @property
    def queued(self) -> bool:
        """It waits for a worker, or for a place under a limit on running work: the depth of a queue counts both."""
        return self.status is Status.QUEUED

    @property
    def takes_place(self) -> bool:
        """Counts against its limits: it runs, or a worker may take it at any time."""
        return self.status is Status.RUNNING or self.ready

    @property
    def holds_edge(self) -> bool:
        """A cursor unit that failed (no retries left): what comes after it on its edge would leave a gap behind."""
        return (
            self.status is Status.FAILED
            and self.finished
            and self.skipped_at is None
            and self.edge is not None
            and self.edge >= 0
            and self.unit_key is not None
            and self.unit_key.startswith("c:")
            and self.revision_kind is not RevisionKind.MANUAL
        )

    @property
    def may_retry(self) -> bool:
        return self.max_attempts is None or self.attempt < self.max_attempts

    def is_current(self, attempt: int, lease_token: UUID | None) -> bool:
        """The one meaning of "current" for every task-scoped call.

        Same attempt and lease token, no newer claim, the worker has not said its final word, and the task is
        not cancelled. The timeout verdict alone does not end an attempt: a late reply is still its own.
        """
        return (
            self.attempt == attempt
            and lease_token is not None  # never claimed: there is no attempt to be current
            and self.lease_token == lease_token
            and self.status not in (Status.COMPLETED, Status.CANCELED)
            and self.outcome in (None, Outcome.TIMEOUT)
        )
