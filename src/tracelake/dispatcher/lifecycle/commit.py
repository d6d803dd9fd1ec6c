"""One batch of calls, one transaction."""

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeAlias
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.clock import StoreClock
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.jobs import Definitions
from tracelake.dispatcher.lifecycle import publications, rows
from tracelake.dispatcher.lifecycle.calls import (
    Answer,
    Call,
    ClaimCall,
    CompleteCall,
    Context,
    CreateCall,
    EventsCall,
    HeartbeatCall,
    Respond,
    RetryCall,
    Subject,
)
from tracelake.dispatcher.lifecycle.wake import INVOKE
from tracelake.dispatcher.lifecycle.writer import Writer
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.tally import count_failed, count_written
from tracelake.errors import TraceError
from tracelake.wire.units import TaskInput

Stopped: TypeAlias = Callable[[Connection, UUID, int, Collection[UUID]], Awaitable[Collection[UUID]]]
"""Which of these nodes of an org, at this epoch, should emit nothing at this moment."""


async def _nobody(_connection: Connection, _org_id: UUID, _epoch: int, _nodes: Collection[UUID]) -> Collection[UUID]:
    return ()


_INPUTS = msgspec.json.Decoder(list[TaskInput])


class LifecycleCommit:
    """Locks, decides, writes. A call that is refused leaves no trace and does not disturb its neighbours."""

    def __init__(
        self,
        store: Store,
        definitions: Definitions,
        writer: Writer,
        config: DispatcherConfig,
        clock: StoreClock,
        metrics: Metrics,
        on_outbox: Callable[[], None],
        on_freed_edge: Callable[[], None] = lambda: None,
        on_invoke: Callable[[], None] = lambda: None,
        stopped: Stopped = _nobody,
    ) -> None:
        self._store = store
        self._definitions = definitions
        self._writer = writer
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._on_outbox = on_outbox
        self._on_freed_edge = on_freed_edge
        self._on_invoke = on_invoke
        self._stopped = stopped

    async def __call__(self, calls: Sequence[Call]) -> list[Answer]:
        """One answer per call; a refusal is a `TraceError` in its place."""
        routing = {call.org_id for call in calls if isinstance(call, CompleteCall | EventsCall)}
        routing |= {call.by.org_id for call in calls if isinstance(call, RetryCall) and call.by.org_id is not None}
        async with self._store.transaction(routing=routing, wait=False) as connection:
            subjects = await self._lock(connection, calls)
            context = Context(self._config)
            context.plan.epochs = {subject.task.org_id: subject.epoch for subject in subjects.values()}
            held = [subject.task for subject in subjects.values() if subject.task.held]
            context.plan.waited_for = {key for task in held for key in task.limit_keys}
            requests = [item for call in calls if isinstance(call, CompleteCall) for item in call.publications]
            if requests:
                context.registry = await publications.load(connection, requests)
            decisions = [_decide(call, subjects.get(call.task_id), context) for call in calls]
            applied = await self._writer.write(connection, context.plan)
        self._writer.committed(context.plan)
        count_written(self._metrics, applied)
        count_failed(self._metrics, context.plan.changes)
        if context.plan.wakeups or applied.batches_sent:
            self._on_outbox()
        if any(wake.kind == INVOKE for _, wake in context.plan.wakeups):
            self._on_invoke()
        if applied.freed_edges:
            self._on_freed_edge()
        return [made if isinstance(made, TraceError) else made(applied) for made in decisions]

    async def _lock(self, connection: Connection, calls: Sequence[Call]) -> dict[UUID, Subject]:
        task_ids = [call.task_id for call in calls if not isinstance(call, CreateCall)]
        if not task_ids:
            return {}
        claims = [call.task_id for call in calls if isinstance(call, ClaimCall)]
        asked_at = time.monotonic()
        locked = await rows.lock(connection, task_ids, claims)
        if locked.now is not None:
            self._clock.observe(locked.now, asked_at)
        await self._definitions.load_jobs(connection, (task.job_id for task in locked.tasks.values()))
        inputs = {task_id: decode_inputs(record["inputs"]) for task_id, record in locked.records.items()}
        await self._definitions.load_datasets(
            connection, (item.dataset_uuid for items in inputs.values() for item in items)
        )
        retries = [call.task_id for call in calls if isinstance(call, RetryCall)]
        superseded = await rows.superseded(connection, retries) if retries else set()
        paused = await self._paused(connection, calls, locked)
        subjects = {}
        for task_id, task in locked.tasks.items():
            record = locked.records[task_id]
            job = self._definitions.job(task.job_id)
            subjects[task_id] = Subject(
                task,
                job,
                record["now"],
                record["unit"],
                inputs[task_id],
                record["epoch"],
                superseded=task_id in superseded,
                paused=task_id in paused,
            )
        return subjects

    async def _paused(self, connection: Connection, calls: Sequence[Call], locked: rows.Locked) -> set[UUID]:
        """The runs of always_on sources (nothing else has attempts without end) that should emit nothing for now.

        Whoever claims one or heartbeats for it hears what the tables say: also if this Dispatcher has just started, or
        the pause was another's to take.
        """
        runs: dict[tuple[UUID, int], dict[UUID, UUID]] = {}
        for task_id in (call.task_id for call in calls if isinstance(call, ClaimCall | HeartbeatCall)):
            task = locked.tasks.get(task_id)
            if task is not None and task.max_attempts is None and task.node_id is not None:
                runs.setdefault((task.org_id, locked.records[task_id]["epoch"]), {})[task.node_id] = task_id
        found: set[UUID] = set()
        for (org_id, epoch), nodes in runs.items():
            found |= {nodes[node] for node in await self._stopped(connection, org_id, epoch, nodes)}
        return found


def _decide(call: Call, subject: Subject | None, context: Context) -> Respond | TraceError:
    try:
        return call.decide(subject, context)
    except TraceError as refusal:
        return refusal


def decode_inputs(text: str | None) -> list[TaskInput]:
    return [] if text is None or text == "[]" else _INPUTS.decode(text)
