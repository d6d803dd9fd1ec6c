"""The wire replies of lifecycle calls, made from what the engine decided and wrote."""

from collections.abc import Sequence

from tracelake.dispatcher.engine.calls.completion import CompletionResult
from tracelake.dispatcher.engine.calls.create import CreateResult
from tracelake.dispatcher.engine.calls.task_actions import TaskActionResult
from tracelake.dispatcher.engine.plan import EventReceipt, PublishReceipt
from tracelake.wire.platform import CancelReply, CreatedTask
from tracelake.wire.task_calls import BufferPublishReply, CompleteReply, EventAnswer, EventsReply
from tracelake.wire.tasks import RetryReply, SkipReply


def events_reply(receipts: Sequence[EventReceipt]) -> EventsReply:
    return EventsReply(
        accepted=len(receipts),
        duplicate=all(receipt.duplicate for receipt in receipts),
        events=[EventAnswer(duplicate=receipt.duplicate, routed=receipt.routed) for receipt in receipts],
    )


def complete_reply(result: CompletionResult) -> CompleteReply:
    return CompleteReply(status=result.status, duplicate=result.duplicate, next_retry_at=result.next_retry_at)


def publish_reply(receipt: PublishReceipt) -> BufferPublishReply:
    return BufferPublishReply(
        publish_id=receipt.publish_id, publish_seq=receipt.publish_seq, duplicate=receipt.duplicate
    )


def created_task(result: CreateResult) -> CreatedTask:
    return CreatedTask(task_id=result.task_id, status=result.status, duplicate=result.duplicate)


def cancel_reply(result: TaskActionResult) -> CancelReply:
    task = result.task
    return CancelReply(
        task_id=task.task_id,
        status=task.status.value,
        cancel_requested=task.cancel_requested,
        duplicate=result.duplicate,
    )


def retry_reply(result: TaskActionResult) -> RetryReply:
    task = result.task
    return RetryReply(
        task_id=task.task_id,
        status=task.status.value,
        max_attempts=task.max_attempts,
        duplicate=result.duplicate,
        cancel_requested=task.cancel_requested,
    )


def skip_reply(result: TaskActionResult) -> SkipReply:
    return SkipReply(task_id=result.task.task_id, status=result.task.status.value, duplicate=result.duplicate)
