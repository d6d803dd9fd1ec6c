"""Buffer publishes: an attempt hands over a batch of rows of a buffered dataset."""

from dataclasses import dataclass

from tracelake.dispatcher.engine.calls.call import (
    AttemptCall,
    CallNeeds,
    DecisionContext,
    LockedTask,
    Respond,
    output_for,
    require,
)
from tracelake.dispatcher.engine.plan import BufferPublish, PublishReceipt
from tracelake.errors import TraceError
from tracelake.model import lifecycle
from tracelake.model.ids import new_id
from tracelake.model.job import Storage
from tracelake.ports import ObjectMeta
from tracelake.wire.task_calls import BufferPublishRequest


@dataclass(frozen=True, slots=True)
class BufferPublishCall(AttemptCall[PublishReceipt]):
    body: BufferPublishRequest
    artifact: ObjectMeta | None
    objection: TraceError | None = None
    """Why the artifact cannot be published. An attempt that is not current is told that first."""

    needs = CallNeeds()
    routing_org = None

    def decide(self, locked: LockedTask | None, context: DecisionContext) -> Respond[PublishReceipt]:
        locked = require(locked)
        task, job, body = locked.task, locked.job, self.body
        lifecycle.check_current(task, body.attempt, body.lease_token)
        if self.objection is not None:
            raise self.objection
        assert self.artifact is not None
        output = output_for(job, body.dataset_uuid, body.dedupe_scope, body.dataset_version)
        if output.storage is not Storage.BUFFERED:
            raise TraceError("dataset_forbidden", "This output is not a buffered dataset.", field="dataset_uuid")
        publish = BufferPublish(
            publish_id=new_id(),
            org_id=task.org_id,
            task_id=task.task_id,
            attempt=task.attempt,
            dataset_uuid=output.dataset_uuid,
            dataset_version=output.dataset_version,
            batch_uri=body.batch_uri,
            size_bytes=self.artifact.size,
            etag=self.artifact.etag,
            sha256=self.artifact.sha256,
            record_count=body.record_count,
            content_type=body.content_type,
            released=job.timeout_seconds is None,  # always_on: no completion to wait for
        )
        context.plan.buffer_publishes.append(publish)
        return lambda applied: applied.publishes[publish.key]
