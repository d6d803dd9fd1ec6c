"""Claims: a worker starts the next attempt of a ready task."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msgspec.structs import replace

from tracelake.dispatcher.engine.calls.call import AttemptCall, CallNeeds, DecisionContext, LockedTask, Respond, always
from tracelake.dispatcher.engine.plan import StateChange
from tracelake.model import lifecycle
from tracelake.model.dag import OutputCheck
from tracelake.model.ids import new_secret_id
from tracelake.model.job import Job
from tracelake.model.lifecycle import NotClaimed
from tracelake.model.task import Task
from tracelake.wire.claims import ClaimRequest
from tracelake.wire.units import TaskInput


@dataclass(frozen=True, slots=True)
class ClaimedAttempt:
    """A started attempt."""

    task: Task
    job: Job
    inputs: list[TaskInput]
    waited_seconds: float | None = None
    """How long the task had been ready. None if a lost answer is repeated."""
    config: str | None = None
    """Of a batch query, instead of its job's."""
    checks: Sequence[OutputCheck] = ()
    references: Sequence[TaskInput] = ()
    """What its checks read besides its rows."""
    paused: bool = False
    """It is the run of a source that should emit nothing for now."""


ClaimAnswer: TypeAlias = ClaimedAttempt | NotClaimed


@dataclass(frozen=True, slots=True)
class ClaimCall(AttemptCall[ClaimAnswer]):
    body: ClaimRequest

    needs = CallNeeds(inputs=True, pause=True)
    routing_org = None
    urgent = True

    def decide(self, locked: LockedTask | None, context: DecisionContext) -> Respond[ClaimAnswer]:
        if locked is None:
            return always(NotClaimed.NOT_FOUND)
        task, job = locked.task, locked.job
        claimed = lifecycle.claim(
            task,
            locked.now,
            lease_token=new_secret_id(),
            lease_seconds=job.lease_seconds,
            timeout_seconds=job.timeout_seconds,
            worker_id=self.body.worker_id,
            claim_id=self.body.claim_id,
        )
        if isinstance(claimed, NotClaimed):
            return always(claimed)
        waited = None
        if claimed is not task:
            claimed = replace(claimed, read_as_of=locked.read_as_of)
            context.plan.changes.append(StateChange(task, claimed))
            if task.ready_at is not None:
                waited = max(0.0, (locked.now - task.ready_at).total_seconds())
        return always(
            ClaimedAttempt(
                claimed,
                job,
                locked.inputs,
                waited,
                locked.config,
                locked.checks,
                locked.references,
                locked.paused,
            )
        )
