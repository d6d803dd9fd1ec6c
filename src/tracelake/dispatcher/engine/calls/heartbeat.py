"""Heartbeats: a worker extends the lease of its attempt, also late, unless a newer attempt was claimed.

That of a follower of a chain also says how far it is.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tracelake.dispatcher.engine.calls.call import (
    AttemptCall,
    CallNeeds,
    DecisionContext,
    LockedTask,
    Respond,
    always,
    require,
)
from tracelake.dispatcher.engine.plan import SourceProgress, StateChange
from tracelake.model import lifecycle
from tracelake.model.job import Job
from tracelake.model.task import Task
from tracelake.wire.head_progress import HeadProgress
from tracelake.wire.task_calls import HeartbeatRequest


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The task with its extended lease."""

    task: Task
    job: Job
    now: datetime
    paused: bool = False
    """It is the run of a source that should emit nothing for now."""


@dataclass(frozen=True, slots=True)
class HeartbeatCall(AttemptCall[HeartbeatAnswer]):
    body: HeartbeatRequest
    org_id: UUID | None = None
    """The org that the token names."""

    needs = CallNeeds(pause=True)
    routing_org = None
    urgent = True

    @property
    def owner(self) -> UUID | None:
        return self.org_id

    def decide(self, locked: LockedTask | None, context: DecisionContext) -> Respond[HeartbeatAnswer]:
        locked = require(locked)
        extended = lifecycle.heartbeat(
            locked.task,
            locked.now,
            attempt=self.body.attempt,
            lease_token=self.body.lease_token,
            lease_seconds=locked.job.lease_seconds,
        )
        context.plan.changes.append(StateChange(locked.task, extended))
        if self.body.progress is not None and _is_run(extended):
            context.plan.progress.append(_progress(extended, self.body.progress))
        return always(HeartbeatAnswer(extended, locked.job, locked.now, locked.paused))


def _is_run(task: Task) -> bool:
    """Whether it is the run of an always_on source; nothing else has endless attempts."""
    return task.max_attempts is None and task.node_id is not None


def _progress(task: Task, progress: HeadProgress) -> SourceProgress:
    assert task.node_id is not None
    return SourceProgress(
        task.node_id,
        task.org_id,
        task.attempt,
        progress.state,
        progress.head,
        progress.stored,
        progress.stored_time,
        progress.announced,
        progress.reorgs,
        progress.last_reorg_depth,
        progress.max_reorg_depth,
    )
