"""Creation of a task by a platform service."""

from dataclasses import dataclass
from uuid import UUID

from tracelake.dispatcher.engine.calls.call import Call, CallNeeds, DecisionContext, LockedTask, Respond
from tracelake.dispatcher.engine.plan import NewTask, WriteResult
from tracelake.errors import TraceError
from tracelake.model.task import Status


@dataclass(frozen=True, slots=True)
class CreateResult:
    """The status of a task that a service asked for; `duplicate` if the task existed before."""

    task_id: UUID
    status: str
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class CreateCall(Call[CreateResult]):
    new: NewTask

    needs = CallNeeds(task=False)
    routing_org = None

    @property
    def task_id(self) -> UUID:
        return self.new.task_id

    def decide(self, locked: LockedTask | None, context: DecisionContext) -> Respond[CreateResult]:
        del locked
        context.plan.new_tasks.append(self.new)
        return self._respond

    def _respond(self, applied: WriteResult) -> CreateResult | TraceError:
        if self.new.task_id in applied.created:
            return CreateResult(self.new.task_id, Status.QUEUED.value)
        definition, status = applied.existing[self.new.task_id]
        if definition != self.new.definition:
            return TraceError("task_conflict", field="tasks.task_id")
        return CreateResult(self.new.task_id, status, duplicate=True)
