"""Events: an attempt announces units of its outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from tracelake.dispatcher.engine.calls.call import (
    AnnouncingCall,
    DecisionContext,
    LockedTask,
    Respond,
    output_for,
    require,
)
from tracelake.dispatcher.engine.file_publications import WHOLE
from tracelake.dispatcher.engine.plan import EventReceipt, NewEvent, event_key, unit_of
from tracelake.errors import TraceError
from tracelake.model import lifecycle
from tracelake.model.job import Job, Storage
from tracelake.model.task import Task
from tracelake.wire.task_calls import EventsRequest
from tracelake.wire.units import EventIn

CommittedRevisions: TypeAlias = Mapping[tuple[UUID, str], int | None]
"""dataset_uuid and unit -> revision, of the units that a completion commits."""


@dataclass(frozen=True, slots=True)
class EventsCall(AnnouncingCall[list[EventReceipt]]):
    body: EventsRequest

    def decide(self, locked: LockedTask | None, context: DecisionContext) -> Respond[list[EventReceipt]]:
        locked = require(locked)
        task = locked.task
        lifecycle.check_current(task, self.body.attempt, self.body.lease_token)
        outdated = context.order.is_outdated(task)
        events = new_events(self.body.events, task, locked.job, {}, self.received, outdated=outdated)
        context.plan.events.extend(events)
        return lambda applied: [applied.events[event.key] for event in events]


def new_events(
    events: Sequence[EventIn], task: Task, job: Job, committed: CommittedRevisions, received: float, *, outdated: bool
) -> list[NewEvent]:
    """Makes the rows of a task's events, each on an output of its job."""
    producer = str(task.task_id)
    starts = job.timeout_seconds is None  # an always_on source: each of its events is news
    shared = (task.revision, task.revision_kind, outdated, received, task.traceparent, starts)
    rows = []
    for event in events:
        output = output_for(job, event.dataset_uuid, None, event.dataset_version)
        if event.first is not None and output.storage is not Storage.POSTGRES:
            raise TraceError("body_invalid", "Only a table that the task writes has positions.", field="events.first")
        unit = unit_of(event.cursor, event.partition_key)
        revision = committed.get((event.dataset_uuid, unit), committed.get((event.dataset_uuid, WHOLE)))
        awaits_commit = not output.storage.routes_at_once
        key = event_key(producer, event)
        rows.append(NewEvent(key, task.org_id, task.attempt, event, awaits_commit, revision, *shared))
    return rows
