"""Units of work as pure values: what one event asks of one reader, and the task that follows from it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tracelake.dispatcher.engine.plan import NewTask, RoutedEvent, WakeTarget, unit_of
from tracelake.dispatcher.engine.routing.coverage import NewestRevision
from tracelake.dispatcher.engine.routing.directory import Consumer, ConsumerInput
from tracelake.model.ids import new_id
from tracelake.model.task import RevisionKind
from tracelake.wire.units import CursorRange, TaskInput, Unit

ALL_INPUTS = -1
"""The edge of a PerPartition task: it belongs to all of them."""
MAX_REVISION = 200


@dataclass(frozen=True, slots=True)
class UnitRequest:
    """One unit, in one revision, for one reader."""

    consumer: Consumer
    input: ConsumerInput
    cursor: int | None
    partition_key: str | None
    start: int | None
    end: int | None
    revision: str
    kind: RevisionKind = RevisionKind.EVENT
    routed_seq: int = 0
    """Of the event that asks: how new the revision is."""
    again: bool = False
    """A unit that was there before: it never takes its edge on."""
    traceparent: str | None = None
    """Of the event that asks."""
    producer: str = ""
    """Who announced the event."""

    @classmethod
    def of(cls, event: RoutedEvent, consumer: Consumer, item: ConsumerInput) -> "UnitRequest":
        return cls(
            consumer,
            item,
            event.cursor,
            event.partition_key,
            event.range_start,
            event.range_end,
            event.revision,
            RevisionKind(event.revision_kind),
            event.routed_seq,
            traceparent=event.traceparent,
            producer=event.producer,
        )

    @property
    def unit_key(self) -> str:
        return unit_of(self.cursor, self.partition_key)

    @property
    def edge(self) -> int:
        return ALL_INPUTS if self.consumer.job.strategy.is_of_all_inputs else self.input.input_index

    def unit(self, after: int | None) -> Unit:
        if self.cursor is None:
            return Unit(partition_key=self.partition_key, start=self.start, end=self.end)
        return Unit(cursor=CursorRange(after=self.cursor - 1 if after is None else after, to=self.cursor))


def draft(
    request: UnitRequest,
    wake: WakeTarget,
    limit_keys: tuple[str, ...],
    revisions: Sequence[NewestRevision],
    *,
    after: int | None = None,
) -> NewTask:
    """Makes the task. `revisions`: of the input, or of every input of a join, in order; `after` is for cursors."""
    consumer, job = request.consumer, request.consumer.job
    unit = request.unit(after)
    read = list(zip(consumer.inputs if consumer.joins else (request.input,), revisions, strict=True))
    order = tuple(number for item, newest in read for number in (item.pinned_seq, newest.routed_seq))
    inputs = [
        TaskInput(
            input_index=item.input_index,
            dataset_uuid=item.generation[0],
            dataset_version=item.generation[1],
            unit=unit,
            revision=newest.revision,
            where=item.where,
        )
        for item, newest in read
    ]
    if unit.cursor is not None:
        start, end = unit.cursor.after + 1, unit.cursor.to
        bounds: tuple[int | None, int | None] = (min(start, end), end)
    else:
        bounds = (unit.start, unit.end)
    return NewTask(
        task_id=new_id(),
        org_id=job.org_id,
        job_id=job.job_id,
        max_attempts=job.max_attempts,
        inputs=msgspec.json.encode(inputs).decode(),
        unit=msgspec.json.encode(unit).decode(),
        wake=wake,
        limit_keys=limit_keys,
        node_id=consumer.node_id,
        edge=request.edge,
        unit_key=request.unit_key,
        unit_start=bounds[0],
        unit_end=bounds[1],
        revision=combine(revisions, consumer.inputs.index(request.input) if consumer.joins else 0),
        revision_kind=request.kind,
        input_order=order if any(order) else (),
        counted=job.counted,
        traceparent=request.traceparent,
    )


def combine(revisions: Sequence[NewestRevision], own: int = 0) -> str:
    """Combines the revisions of all inputs into one text; empty if none of them has one.

    The kind of the `own` input's revision is the task's, and is kept beside the text. Different revisions never make
    the same text: what the plain form cannot tell apart is hashed with its kinds.
    """
    if len(revisions) == 1:
        return revisions[0].revision
    texts = [newest.revision for newest in revisions]
    if not any(texts):
        return ""
    text = "|".join(texts)
    others = [newest.kind for number, newest in enumerate(revisions) if number != own]
    plain = all(kind is RevisionKind.EVENT for kind in others) and not any("|" in revision for revision in texts)
    if plain and len(text) <= MAX_REVISION:
        return text
    spelled = msgspec.json.encode([(newest.kind, newest.revision) for newest in revisions])
    return "sha256:" + hashlib.sha256(spelled).hexdigest()
