"""The progress of a trigger in the user API: what follows from it, and whether anything of it is still open."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from tracelake.wire.base import Reply
from tracelake.wire.failures import ErrorGroup


class WaitingInput(Reply, frozen=True, kw_only=True):
    """An input of a job with events that have not become tasks yet."""

    job: str
    """As `dag/job`."""
    dataset: str
    events: int
    """How many of them came with or after the trigger, counted up to 10,000."""
    state: Literal["draining", "stopped", "paused", "held"]
    """`draining`: they become tasks in a moment. `stopped`: a queue is full; `paused`: a person paused a source.
    `held`: an earlier unit failed, and they wait until somebody retries or skips its task."""
    because: str = ""
    """Why it is stopped or paused."""


class TriggerProgressReply(Reply, frozen=True, kw_only=True):
    """Everything is of one moment. Counts stop at 10,000 (`more`)."""

    idempotency_key: str
    triggered_at: datetime
    now: datetime
    finished: bool
    """Nothing that follows from the trigger is open, and nothing new will come of it unless somebody acts: all tasks
    have ended, and no event, unit, batch or re-computation waits. Inputs that are `held` do not make it unfinished."""
    done: int
    """Tasks that completed, were cancelled or skipped."""
    open: int
    """Tasks that are queued, running or waiting for a retry."""
    failed: int
    """Tasks that failed and have no retry left."""
    more: bool = False
    """Counting stopped at a limit: the numbers are lower bounds."""
    retrying: int = 0
    """Those of the open tasks that failed and wait for their next attempt."""
    next_retry_at: datetime | None = None
    retry_error: str | None = None
    """The error of the task that is retried next."""
    waiting_events: int = 0
    """Events that have not become tasks yet, except those at inputs that are `held`."""
    waiting_units: int = 0
    """Units of joins and windows that wait for a task upstream."""
    waiting_batches: int = 0
    """Published batches that no sink has written into its table yet: their events come with the commit."""
    waiting_reruns: int = 0
    """Invalidations whose units have not all become tasks yet."""
    inputs: list[WaitingInput] = []
    """The inputs with waiting events; at most 20."""
    dead_letters: int = 0
    """Batches that sinks rejected since the trigger."""
    errors: list[ErrorGroup] = []
    """The errors of the failed tasks."""
    task_id: UUID | None = None
    """Of a reactive job: the task that the trigger created."""

    @property
    def held_events(self) -> int:
        return sum(item.events for item in self.inputs if item.state == "held")

    @property
    def succeeded(self) -> bool:
        """Everything that follows from the trigger is done, and nothing of it is missing."""
        return self.finished and not (self.failed or self.dead_letters or self.held_events)
