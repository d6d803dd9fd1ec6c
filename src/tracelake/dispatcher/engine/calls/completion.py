"""Completions: the final report of an attempt, with what it publishes and announces."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.calls.call import (
    AnnouncingCall,
    DecisionContext,
    LockedTask,
    Respond,
    always,
    output_for,
    require,
)
from tracelake.dispatcher.engine.calls.events import CommittedRevisions, new_events
from tracelake.dispatcher.engine.file_publications import WHOLE, PublicationRequest, WaitingEvent, decode_unit
from tracelake.dispatcher.engine.plan import BatchRelease, Publication, StateChange, unit_of
from tracelake.errors import TraceError
from tracelake.model import lifecycle
from tracelake.model.job import Job, Storage
from tracelake.model.runtime import RuntimeKind
from tracelake.model.task import Outcome, Status, Task
from tracelake.wire.task_calls import CompleteRequest
from tracelake.wire.units import EventIn

FREE_STOPS = 10
"""How many stops of workers cost a task no attempt; from then on a stop is a failure like any other."""


@dataclass(frozen=True, slots=True)
class CompletionResult:
    """What is recorded of a final report; `duplicate` if it was recorded before."""

    status: str
    next_retry_at: datetime | None
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class CompleteCall(AnnouncingCall[CompletionResult]):
    body: CompleteRequest
    publications: Sequence[PublicationRequest] = ()
    objection: TraceError | None = None
    """Why the files of the attempt cannot be published. A repeated report is answered all the same."""
    not_started: bool = False
    """The Dispatcher says so itself, of an attempt that nobody took over: it costs none of the task's attempts."""

    @property
    def completing_attempt(self) -> int | None:
        return self.body.attempt if self.body.status == "Completed" else None

    def decide(self, locked: LockedTask | None, context: DecisionContext) -> Respond[CompletionResult]:
        locked = require(locked)
        task, job, body = locked.task, locked.job, self.body
        ended = self._end(locked, context.config)
        if ended is None:
            return always(CompletionResult(_recorded_status(task), task.next_retry_at, duplicate=True))
        if self.objection is not None:
            raise self.objection
        _check_outputs(body, task, job, context.config)
        _check_reported(body, job)
        made_for = decode_unit(locked.unit) if self.publications else None
        outdated = context.order.is_outdated(task)
        moves = [context.registry.publish(item, task, made_for, job, outdated=outdated) for item in self.publications]
        committed = _committed_revisions(moves)
        if ended.status is Status.COMPLETED:
            _check_announced(body.events, locked.waiting_events, job, moves, committed)
        events = new_events(body.events, task, job, committed, self.received, outdated=outdated)
        for move in moves:
            context.registry.accept(move)
        rerun = bool(task.input_order) or context.order.has_completed(task)
        if ended.status is Status.COMPLETED:
            context.order.record_completed(task, task.input_order)
        result = msgspec.json.encode(body.outputs).decode() if body.outputs else None
        plan = context.plan
        plan.changes.append(StateChange(task, ended, result, called=self.received))
        if body.spark is not None or body.operator_package is not None:
            figures = msgspec.json.encode(body.spark or {}).decode()
            plan.spark_metrics.append((task.task_id, task.attempt, figures, body.operator_package))
        plan.check_results.extend(_check_rows(body, task, job))
        plan.publications.extend(moves)
        plan.events.extend(events)
        if ended.status is Status.COMPLETED and job.writes_batches and not outdated:
            # The rows of older inputs may have been published later, and released before.
            plan.releases.append(BatchRelease(task.task_id, task.attempt, rerun=rerun))
        return always(CompletionResult(_recorded_status(ended), ended.next_retry_at))

    def _end(self, locked: LockedTask, config: DispatcherConfig) -> Task | None:
        """Returns the task after this report; None if the attempt has reported before."""
        task, now, body = locked.task, locked.now, self.body
        # What a Dispatcher runs itself has no worker that may have to end. Of a task whose attempts have an end,
        # `forgiven` counts exactly the attempts that cost none.
        runtime = config.runtimes.get(locked.job.runtime)
        stopped = (
            body.error_code == "worker_stopping"
            and (runtime is None or runtime.kind is not RuntimeKind.IN_PROCESS)
            and (task.max_attempts is None or task.forgiven < FREE_STOPS)
        )
        return lifecycle.complete(
            task,
            now,
            attempt=body.attempt,
            lease_token=body.lease_token,
            status=Outcome(body.status),
            retryable=body.retryable,
            error=body.error_message,
            retry=lifecycle.next_retry(task, now, config.retry, stopped=stopped, not_started=self.not_started),
            stopped=stopped or self.not_started,
        )


def _recorded_status(task: Task) -> str:
    """The status that answers a completion and its repeats: the worker's report, unless the task ended otherwise."""
    if task.outcome is None or (task.finished and task.status is not Status.COMPLETED):
        return task.status.value
    return task.outcome.value


def _check_outputs(body: CompleteRequest, task: Task, job: Job, config: DispatcherConfig) -> None:
    for report in body.outputs:
        output = output_for(job, report.dataset_uuid, None, report.dataset_version)
        if report.output_index not in (None, output.output_index):
            raise TraceError(
                "dataset_forbidden", "The dataset belongs to another output.", field="outputs.output_index"
            )
        registered = config.layout.location(job, output, task.task_id, task.attempt)
        if report.location is not None and report.location != registered:
            raise TraceError("prefix_forbidden", field="outputs.location")
    for published in body.datasets_published:
        output = output_for(job, published.dataset_uuid, None, published.dataset_version)
        if output.storage is not Storage.S3:
            raise TraceError(
                "dataset_forbidden", "Only outputs with `storage: s3` publish files.", field="datasets_published"
            )


def _check_reported(body: CompleteRequest, job: Job) -> None:
    """Refuses results of checks of outputs that the job does not have, and two of one name."""
    outputs = {output.output_index for output in job.outputs}
    keys = [(report.output_index, report.name) for report in body.checks]
    if not outputs.issuperset(index for index, _ in keys) or len(set(keys)) != len(keys):
        raise TraceError(
            "dataset_forbidden", "A check names no output of the job, or is reported twice.", field="checks"
        )


def _check_rows(body: CompleteRequest, task: Task, job: Job) -> list[tuple[Any, ...]]:
    outputs = {output.output_index: output for output in job.outputs}
    return [
        (
            task.task_id,
            task.attempt,
            report.output_index,
            report.name,
            task.org_id,
            outputs[report.output_index].dataset_uuid,
            outputs[report.output_index].dataset_version,
            task.unit_key,
            report.kind.value,
            report.severity,
            report.passed,
            report.rows,
            report.offending_rows,
            report.message.replace("\0", "\N{REPLACEMENT CHARACTER}"),
            msgspec.json.encode(report.sample).decode().replace("\\u0000", "\N{REPLACEMENT CHARACTER}"),
        )
        for report in body.checks
    ]


def _committed_revisions(moves: Sequence[Publication]) -> CommittedRevisions:
    """The units that a completion commits, by every name that an event may have for them."""
    keys = ((move, key) for move in moves for key in (move.unit, move.cursor_unit) if key is not None)
    return {(move.dataset_uuid, key): move.revision for move, key in keys}


def _check_announced(
    events: Sequence[EventIn],
    waiting: Sequence[WaitingEvent],
    job: Job,
    moves: Sequence[Publication],
    committed: CommittedRevisions,
) -> None:
    """Refuses an event on an output that is kept in files unless the completion publishes the unit."""
    announced = [(event.dataset_uuid, unit_of(event.cursor, event.partition_key)) for event in events]
    for dataset_uuid, unit in (*announced, *waiting):
        output = job.by_dataset.get(dataset_uuid)
        if output is None or output.storage is not Storage.S3:
            continue
        if (dataset_uuid, unit) not in committed and (dataset_uuid, WHOLE) not in committed:
            published = (
                ", ".join(_unit_text(move.unit) for move in moves if move.dataset_uuid == dataset_uuid) or "nothing"
            )
            raise TraceError(
                "event_without_publication",
                f"The attempt announces {_unit_text(unit)} of {output.dataset.name} and publishes {published} of it: "
                "publish the files of the unit in `datasets_published`, or leave the event out.",
                field="events",
                dataset=output.dataset.name,
                unit=unit,
            )


def _unit_text(unit: str) -> str:
    """Writes `c:12` and `p:0-9` for people."""
    kind, _, key = unit.partition(":")
    return f"cursor {key}" if kind == "c" else f"unit {key}" if kind == "p" else "the whole dataset"
