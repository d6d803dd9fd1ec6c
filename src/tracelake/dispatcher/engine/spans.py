"""Which spans follow from what a transaction wrote.

`Tracing` is asked inside the transaction and only takes notes in the plan; `committed` hands them on. What is rolled
back, or repeated one by one, therefore leaves no span. All times are the store's, so that spans of several processes
lie on one line. Ids and names are said, the texts and payloads of users never.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.clock import StoreClock
from tracelake.dispatcher.engine.plan import NewEvent, NewTask, RoutedEvent, StateChange, WritePlan, WriteResult
from tracelake.dispatcher.engine.routing.directory import Reader
from tracelake.dispatcher.engine.routing.router import RoutingScope
from tracelake.dispatcher.engine.routing.units import UnitRequest
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.tracing.context import (
    Attributes,
    Span,
    TraceContext,
    attempt_span,
    is_sampled,
    new_trace_id,
    parse,
    span_id_of,
    task_span,
)
from tracelake.model.job import Job
from tracelake.model.task import Outcome, Status, Task

# No decision needs the time, so nobody else reads it: untraced tasks do not pay for it.
_MADE = "SELECT task_id, created_at FROM tasks WHERE task_id = ANY($1)"


class SpanSink(Protocol):
    """Where finished spans go. It never blocks and never fails."""

    def take(self, span: Span, end: datetime) -> None: ...

    async def close(self) -> None: ...


@dataclass(eq=False)
class Tracing:
    sink: SpanSink
    definitions: Definitions
    clock: StoreClock
    ratio: float

    # Inside the transaction

    def begin(self, plan: WritePlan) -> None:
        """Give each event that is traced its span, before it is stored."""
        plan.events = [self._begun(event, plan) for event in plan.events]

    def asked(self, plan: WritePlan, request: UnitRequest) -> str | None:
        """A unit that a person asks a job for: no event stands for it, so the request itself is the first span."""
        job = request.consumer.job
        context, parent = self._root(plan.within, span_id_of("trigger", new_trace_id()))
        if context is None:
            return None
        attributes = _job_attributes(job) | {
            "tracelake.org_id": str(job.org_id),
            "tracelake.unit": request.unit_key,
            "tracelake.revision": request.revision,
        }
        name = f"trigger {job.dag_name}/{job.name}"
        start = self.clock.at(plan.received)
        plan.spans.append(Span(name, context, parent, start, attributes=attributes, server=True))
        return str(context)

    async def written(
        self, connection: Connection, plan: WritePlan, applied: WriteResult, locked: RoutingScope, routing_since: float
    ) -> None:
        """Notes the spans of a written plan: accepted and routed events, attempts and tasks that ended."""
        for event in plan.events:
            self._accepted(plan, event, applied)
        task_counts = Counter(task.traceparent for task in applied.created_tasks)
        since = self.clock.at(routing_since)
        for routed in applied.routed:
            context = parse(routed.traceparent)
            if context is not None:
                attributes = self._event_attributes(routed) | _kept_back(routed, locked)
                self._routed(plan, "route", context, routed, task_counts, attributes, since)
        ended = [change for change in plan.changes if change.after.traceparent is not None and _ends(change)]
        if ended:
            await self.definitions.load_jobs(connection, (change.after.job_id for change in ended))
            finished = [change.after.task_id for change in ended if _task_ends(change)]
            rows = await connection.fetch(_MADE, finished) if finished else []
            made_at = {row["task_id"]: row["created_at"] for row in rows}
            for change in ended:
                self._ended(plan, change, made_at)

    def shown(self, plan: WritePlan, events: Iterable[RoutedEvent], created: Sequence[NewTask], reader: Reader) -> None:
        """Notes that waiting events were shown to a reader."""
        tasks = Counter(task.traceparent for task in created)
        consumer, _ = reader
        for event in events:
            context = parse(event.traceparent)
            if context is not None:
                attributes = self._event_attributes(event) | _job_attributes(consumer.job)
                self._routed(plan, "drain", context, event, tasks, attributes, self.clock.at(plan.received))

    # After the commit

    def committed(self, plan: WritePlan) -> None:
        if plan.spans:
            now = self.clock.now()
            for span in plan.spans:
                self.sink.take(span, now if span.end is None else span.end)
            plan.spans.clear()

    async def close(self) -> None:
        await self.sink.close()

    def _begun(self, event: NewEvent, plan: WritePlan) -> NewEvent:
        own = span_id_of("event", *event.key)
        if event.attempt is not None and event.within is not None:
            within = parse(event.within)
            if within is None:
                return event
            parent = attempt_span(event.key[0], event.attempt)
            return msgspec.structs.replace(event, traceparent=str(within.at(own)), parent_span=parent)
        if not event.starts:
            return event
        context, above = self._root(plan.within if event.attempt is None else None, own)
        if context is None:
            return event
        return msgspec.structs.replace(event, traceparent=str(context), parent_span=above)

    def _root(self, within: str | None, own: int) -> tuple[TraceContext | None, int | None]:
        """The context of a first span, and the caller's span above it. None if it is not sampled.

        A caller may leave its trace out. Whoever chooses a trace id chooses whether it is recorded, too: the decision
        is by the id, as in other samplers, so that all who take part in a trace come to the same one. Callers are users
        with the right to trigger; the ids of all others are made here.
        """
        caller = parse(within)
        trace_id = new_trace_id() if caller is None else caller.trace_id
        if (caller is not None and not caller.sampled) or not is_sampled(trace_id, self.ratio):
            return None, None
        return TraceContext(trace_id, own), None if caller is None else caller.span_id

    def _accepted(self, plan: WritePlan, event: NewEvent, applied: WriteResult) -> None:
        context = parse(event.traceparent)
        if context is None or event.traceparent not in applied.traced:
            return
        event_id, state = applied.traced.pop(event.traceparent)
        dataset = self.definitions.dataset_name(event.event.dataset_uuid)
        attributes: Attributes = {
            "tracelake.event_id": event_id,
            "tracelake.state": state,
            "tracelake.dataset": dataset,
            "tracelake.dataset_uuid": str(event.event.dataset_uuid),
            "tracelake.dataset_version": str(event.event.dataset_version),
            "tracelake.org_id": str(event.org_id),
            "tracelake.unit": event.key[3],
            "tracelake.revision": event.effective_revision,
            "tracelake.producer": event.key[0],
        }
        start = self.clock.at(event.received or plan.received)
        span = Span(_named("accept", dataset), context, event.parent_span, start, attributes=attributes, server=True)
        plan.spans.append(span)

    def _routed(
        self,
        plan: WritePlan,
        verb: str,
        event: TraceContext,
        routed: RoutedEvent,
        task_counts: Counter[str | None],
        attributes: Attributes,
        since: datetime,
    ) -> None:
        # An event is routed once, but may be shown to many readers.
        own = span_id_of("route", event.span_id) if verb == "route" else span_id_of("drain", new_trace_id())
        name = _named(verb, self.definitions.dataset_name(routed.dataset_uuid))
        attributes = attributes | {"tracelake.tasks": task_counts[routed.traceparent]}
        plan.spans.append(
            Span(name, event.at(own), event.span_id, since, self.clock.at(time.monotonic()), attributes=attributes)
        )

    def _event_attributes(self, event: RoutedEvent) -> Attributes:
        return {
            "tracelake.event_id": event.event_id,
            "tracelake.dataset": self.definitions.dataset_name(event.dataset_uuid),
            "tracelake.org_id": str(event.org_id),
            "tracelake.unit": event.unit_key,
            "tracelake.revision": event.revision,
        }

    def _ended(self, plan: WritePlan, change: StateChange, made_at: Mapping[UUID, datetime]) -> None:
        task = change.after
        within = parse(task.traceparent)
        if within is None:
            return
        job = self.definitions.job(task.job_id)
        attributes = _task_attributes(task, job)
        own, above = attempt_span(task.task_id, task.attempt), task_span(task.task_id)
        if _attempt_ends(change):
            start = task.claimed_at or self.clock.now()
            attempt = attributes | {"tracelake.outcome": _word(task), "tracelake.worker_id": task.worker_id or ""}
            error = _word(task) if task.outcome in (Outcome.FAILED, Outcome.TIMEOUT) else None
            name = f"attempt {task.attempt}"
            plan.spans.append(Span(name, within.at(own), above, start, attributes=attempt, error=error))
            if change.called is not None:
                called = self.clock.at(change.called)
                context = within.at(span_id_of("complete", task.task_id, task.attempt))
                plan.spans.append(Span("complete", context, own, called, attributes=attempt, server=True))
        if _task_ends(change):
            start = made_at[task.task_id]
            error = _word(task) if task.status is Status.FAILED else None
            name = f"task {job.dag_name}/{job.name}"
            plan.spans.append(Span(name, within.at(above), within.span_id, start, attributes=attributes, error=error))


def _ends(change: StateChange) -> bool:
    return _attempt_ends(change) or _task_ends(change)


def _task_ends(change: StateChange) -> bool:
    return change.after.finished and change.after.finished_at != change.before.finished_at


def _attempt_ends(change: StateChange) -> bool:
    """Whether the attempt got its outcome, or one that replaces a timeout."""
    return change.after.outcome is not None and change.after.outcome is not change.before.outcome


def _word(task: Task) -> str:
    return task.status.value if task.outcome is None else task.outcome.value


def _named(verb: str, dataset: str) -> str:
    return f"{verb} {dataset}" if dataset else verb


def _job_attributes(job: Job) -> Attributes:
    return {"tracelake.dag": job.dag_name, "tracelake.job": job.name, "tracelake.job_id": str(job.job_id)}


def _task_attributes(task: Task, job: Job) -> Attributes:
    return _job_attributes(job) | {
        "tracelake.task_id": str(task.task_id),
        "tracelake.org_id": str(task.org_id),
        "tracelake.attempt": task.attempt,
        "tracelake.status": task.status.value,
        "tracelake.unit": task.unit_key or "",
        "tracelake.revision": task.revision,
    }


def _kept_back(event: RoutedEvent, locked: RoutingScope) -> Attributes:
    """Counts the event's readers, and those for which it waits."""
    readers = locked.readers.get(event.generation, ())
    held_counts: Counter[str] = Counter()
    for consumer, item in readers:
        key = (consumer.node_id, item.input_index)
        edge = locked.edges.get(key)
        if key in locked.blocked:
            held_counts["stopped"] += 1
        elif edge is None or not edge.live:
            held_counts["failed_unit" if edge is not None and edge.failed_units else "behind"] += 1
    attributes: Attributes = {f"tracelake.kept.{why}": count for why, count in held_counts.items()}
    return attributes | {"tracelake.edges": len(readers)}
