"""The transaction of a batch of calls: locks their tasks, lets them decide, writes the plan."""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from tracelake.catalogue.sql.query_config import QUERY
from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.clock import StoreClock
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine import file_publications, unit_order
from tracelake.dispatcher.engine.calls.call import AnyCall, DecisionContext, LockedTask, Respond
from tracelake.dispatcher.engine.check_references import find_references, row_checks
from tracelake.dispatcher.engine.commit_metrics import count_failed, count_written
from tracelake.dispatcher.engine.lanes import LOCKED_ROW, CallOutcome, LockedRow
from tracelake.dispatcher.engine.plan import INVOKE, Generation, WritePlan, WriteResult
from tracelake.dispatcher.engine.tables import publication_rows, query_rows, repair_rows, task_rows
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.read_pins import encode_pins
from tracelake.dispatcher.slices import compute_beside
from tracelake.errors import TraceError
from tracelake.model.job import Job, Storage
from tracelake.model.task import Status
from tracelake.wire.units import TaskInput

logger = logging.getLogger(__name__)

_LOCK_MILLISECONDS = 50
"""How long a batch of calls that should not wait does wait: longer than another batch of the same kind takes."""

Stopped: TypeAlias = Callable[[Connection, UUID, int, Collection[UUID]], Awaitable[Collection[UUID]]]
"""Which of these nodes of an org, at this epoch, should emit nothing at this moment."""


async def _nobody(_connection: Connection, _org_id: UUID, _epoch: int, _nodes: Collection[UUID]) -> Collection[UUID]:
    return ()


_BESIDE_WEIGHT = 64
"""A batch with a call of more than this weight is decided and answered beside the event loop."""

P = ParamSpec("P")
T = TypeVar("T")
Decision: TypeAlias = Respond[Any] | TraceError | LockedRow
"""How a call is answered once the plan is written, or why not."""

_INPUTS = msgspec.json.Decoder(list[TaskInput])


@dataclass(eq=False)
class LifecycleCommit:
    """Locks, decides, writes. A call that is refused leaves no trace and does not disturb its neighbours."""

    store: Store
    definitions: Definitions
    writer: Writer
    config: DispatcherConfig
    clock: StoreClock
    metrics: Metrics
    on_outbox: Callable[[], None]
    on_freed_edge: Callable[[], None] = lambda: None
    on_invoke: Callable[[], None] = lambda: None
    stopped: Stopped = _nobody

    async def __call__(self, calls: Sequence[AnyCall], *, patient: bool = True) -> list[CallOutcome]:
        """Returns one outcome per call; a refusal is a `TraceError` in its place.

        Unless it is `patient`, a task whose row somebody holds is left out (`LOCKED_ROW`), and any other lock is waited
        for a moment only.
        """
        routing = {call.routing_org for call in calls if call.routing_org is not None}
        async with self.store.transaction(
            routing=routing, wait=False, reserved=True, lock_milliseconds=None if patient else _LOCK_MILLISECONDS
        ) as connection:
            locked_tasks, skipped = await self._lock(connection, calls, patient=patient)
            context = DecisionContext(self.config)
            context.plan.epochs = {locked.task.org_id: locked.epoch for locked in locked_tasks.values()}
            held_tasks = [locked.task for locked in locked_tasks.values() if locked.task.held]
            context.plan.waited_for = {key for task in held_tasks for key in task.limit_keys}
            requests = [item for call in calls for item in call.publications]
            if requests:
                context.registry = await file_publications.load(connection, requests)
            context.order = await self._order(connection, calls, locked_tasks)
            heaviest = max(calls, key=lambda call: call.weight)
            heavy = patient and heaviest.weight > _BESIDE_WEIGHT
            org = heaviest.routing_org
            decisions = await _compute(heavy, org, _decide_all, calls, locked_tasks, skipped, context)
            applied = await self.writer.write(connection, context.plan)
        self._tell(context.plan, applied)
        return await _compute(heavy, org, _respond_all, decisions, applied)

    def _tell(self, plan: WritePlan, applied: WriteResult) -> None:
        """Tells metrics, tracing and loops what was committed. A failure here repeats no call."""
        try:
            self.writer.committed(plan)
            count_written(self.metrics, applied)
            count_failed(self.metrics, plan.changes)
            if plan.wakeups or applied.batches_sent:
                self.on_outbox()
            if any(wake.kind == INVOKE for _, wake in plan.wakeups):
                self.on_invoke()
            if applied.freed_edges:
                self.on_freed_edge()
        except Exception:
            logger.exception("a batch is committed, but not everybody was told")

    async def _lock(
        self, connection: Connection, calls: Sequence[AnyCall], *, patient: bool
    ) -> tuple[dict[UUID, LockedTask], set[UUID]]:
        """Returns the locked tasks, and those that were left out because somebody else holds them."""
        task_ids = [call.task_id for call in calls if call.needs.task]
        if not task_ids:
            return {}, set()
        with_inputs = [call.task_id for call in calls if call.needs.inputs]
        asked_at = time.monotonic()
        with_units = [call.task_id for call in calls if call.needs.unit]
        locked = await task_rows.lock(connection, task_ids, with_inputs, with_units, skip_locked=not patient)
        missing = [] if patient else [task_id for task_id in task_ids if task_id not in locked.tasks]
        skipped = await task_rows.present(connection, missing) if missing else set()
        if locked.now is not None:
            self.clock.observe(locked.now, asked_at)
        epochs = {task.org_id: locked.records[task_id]["epoch"] for task_id, task in locked.tasks.items()}
        await self.definitions.follow(connection, epochs)
        await self.definitions.load_jobs(connection, (task.job_id for task in locked.tasks.values()))
        inputs = {task_id: decode_inputs(record["inputs"]) for task_id, record in locked.records.items()}
        await self.definitions.load_datasets(
            connection, (item.dataset_uuid for items in inputs.values() for item in items)
        )
        queries = [
            task_id
            for task_id in with_inputs
            if task_id in locked.tasks and self.definitions.job(locked.tasks[task_id].job_id).operator == QUERY
        ]
        configs = await query_rows.load_configs(connection, queries)
        configs |= await repair_rows.load_repairs(connection, self._endless_jobs(with_inputs, locked))
        questioned = [call.task_id for call in calls if call.needs.superseded]
        superseded = await task_rows.superseded(connection, questioned) if questioned else set()
        paused = await self._paused(connection, calls, locked)
        waiting = await self._waiting_events(connection, calls, locked)
        references = await self._references(connection, with_inputs, locked, inputs)
        reads = {task_id: [*items, *references.get(task_id, ())] for task_id, items in inputs.items()}
        newest_commits = await self._newest_commits(connection, calls, locked, reads)
        claimed = frozenset(with_inputs)
        locked_tasks = {}
        for task_id, task in locked.tasks.items():
            record = locked.records[task_id]
            job = self.definitions.job(task.job_id)
            locked_tasks[task_id] = LockedTask(
                task,
                job,
                record["now"],
                record["unit"],
                inputs[task_id],
                record["epoch"],
                superseded=task_id in superseded,
                paused=task_id in paused,
                config=configs.get(task_id),
                read_as_of=newest_commits.get(task_id),
                checks=row_checks(self.definitions.current_checks(job)) if task_id in claimed else (),
                references=references.get(task_id, ()),
                waiting_events=waiting.get(task_id, ()),
            )
        return locked_tasks, skipped

    def _endless_jobs(self, task_ids: Collection[UUID], locked: task_rows.LockedRows) -> dict[UUID, Job]:
        """The jobs of those of the tasks that are runs of always_on sources and write tables."""
        jobs = {
            task_id: self.definitions.job(locked.tasks[task_id].job_id)
            for task_id in task_ids
            if task_id in locked.tasks and locked.tasks[task_id].max_attempts is None
        }
        return {task_id: job for task_id, job in jobs.items() if any(output.fills_table for output in job.outputs)}

    async def _references(
        self,
        connection: Connection,
        task_ids: Collection[UUID],
        locked: task_rows.LockedRows,
        inputs: Mapping[UUID, Sequence[TaskInput]],
    ) -> dict[UUID, list[TaskInput]]:
        """Finds the checks of attempts that are claimed now, and what they read besides the rows."""
        jobs = {
            task_id: self.definitions.job(locked.tasks[task_id].job_id)
            for task_id in task_ids
            if task_id in locked.tasks
        }
        nodes = {
            job.node_id: (job.org_id, locked.records[task_id]["epoch"])
            for task_id, job in jobs.items()
            if job.node_id is not None
        }
        await self.definitions.load_current_jobs(connection, nodes)
        units = {task_id: inputs[task_id][0].unit for task_id in jobs if inputs[task_id]}
        return await find_references(connection, self.definitions, jobs, units)

    async def _newest_commits(
        self,
        connection: Connection,
        calls: Sequence[AnyCall],
        locked: task_rows.LockedRows,
        inputs: Mapping[UUID, Sequence[TaskInput]],
    ) -> dict[UUID, str]:
        """Reads what attempts that are claimed now will read, by one statement: of one moment for all inputs."""
        generations: dict[UUID, dict[Generation, Storage]] = {}
        for task_id in (call.task_id for call in calls if call.needs.inputs):
            if task_id in locked.tasks and locked.tasks[task_id].status is Status.QUEUED:
                for item in inputs[task_id]:
                    dataset = self.definitions.dataset(item.dataset_uuid)
                    if dataset is not None and dataset.storage.has_files:
                        generation = (item.dataset_uuid, item.dataset_version)
                        generations.setdefault(task_id, {})[generation] = dataset.storage
                for output in self.definitions.job(locked.tasks[task_id].job_id).outputs:
                    # What compaction may remove from the table: rows at or below the boundary.
                    if output.dataset.storage is Storage.LIVE and not output.fills_table:
                        generation = (output.dataset_uuid, output.dataset_version)
                        generations.setdefault(task_id, {})[generation] = Storage.LIVE
        distinct = {generation for items in generations.values() for generation in items}
        newest = await publication_rows.read_newest(connection, distinct) if distinct else {}
        return {
            task_id: encode_pins(
                {
                    generation[1]: newest[generation] if storage is Storage.LIVE else newest[generation].as_of
                    for generation, storage in items.items()
                }
            )
            for task_id, items in generations.items()
        }

    async def _order(
        self, connection: Connection, calls: Sequence[AnyCall], locked_tasks: Mapping[UUID, LockedTask]
    ) -> unit_order.UnitOrder:
        """Reads after the locks, by a statement of its own: it sees what completed while this transaction waited."""
        with_units = [call.task_id for call in calls if call.needs.unit]
        tasks = [locked_tasks[task_id].task for task_id in with_units if task_id in locked_tasks]
        return await unit_order.load(connection, tasks)

    async def _waiting_events(
        self, connection: Connection, calls: Sequence[AnyCall], locked: task_rows.LockedRows
    ) -> Mapping[UUID, Sequence[file_publications.WaitingEvent]]:
        """Reads the waiting events of completing attempts, if an output of their job commits by pointer."""
        attempts = {}
        for call in calls:
            task = locked.tasks.get(call.task_id)
            if task is None or call.completing_attempt is None:
                continue
            outputs = self.definitions.job(task.job_id).outputs
            if any(output.storage is Storage.S3 for output in outputs):
                attempts[task.task_id] = call.completing_attempt
        return await file_publications.load_waiting_events(connection, attempts) if attempts else {}

    async def _paused(
        self, connection: Connection, calls: Sequence[AnyCall], locked: task_rows.LockedRows
    ) -> set[UUID]:
        """Returns the runs of always_on sources (nothing else has endless attempts) that should emit nothing now.

        Whoever claims one or heartbeats for it hears what the tables say: also if this Dispatcher has just started, or
        the pause was another's to take.
        """
        runs: dict[tuple[UUID, int], dict[UUID, UUID]] = {}
        for task_id in (call.task_id for call in calls if call.needs.pause):
            task = locked.tasks.get(task_id)
            if task is not None and task.max_attempts is None and task.node_id is not None:
                runs.setdefault((task.org_id, locked.records[task_id]["epoch"]), {})[task.node_id] = task_id
        paused: set[UUID] = set()
        for (org_id, epoch), nodes in runs.items():
            paused |= {nodes[node] for node in await self.stopped(connection, org_id, epoch, nodes)}
        return paused


async def _compute(
    heavy: bool, org: UUID | None, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs
) -> T:
    """Computes beside the event loop if it is heavy: a call with a thousand events takes milliseconds."""
    return await compute_beside(org, function, *arguments, **keywords) if heavy else function(*arguments, **keywords)


def _decide_all(
    calls: Sequence[AnyCall],
    locked_tasks: Mapping[UUID, LockedTask],
    skipped: Collection[UUID],
    context: DecisionContext,
) -> list[Decision]:
    return [
        LOCKED_ROW if call.task_id in skipped else _decide(call, locked_tasks.get(call.task_id), context)
        for call in calls
    ]


def _decide(call: AnyCall, locked: LockedTask | None, context: DecisionContext) -> Decision:
    try:
        return call.decide(locked, context)
    except TraceError as refusal:
        return refusal


def _respond_all(decisions: Sequence[Decision], applied: WriteResult) -> list[CallOutcome]:
    return [_respond(decision, applied) for decision in decisions]


def _respond(decision: Decision, applied: WriteResult) -> CallOutcome:
    if not callable(decision):
        return decision
    try:
        return decision(applied)
    except Exception:
        logger.exception("a committed call has no answer")
        return TraceError("internal")


def decode_inputs(text: str | None) -> list[TaskInput]:
    return [] if text is None or text == "[]" else _INPUTS.decode(text)
