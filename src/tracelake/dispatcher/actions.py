"""What a user does to running work: trigger, cancel, retry, skip. Each leaves its line in the audit log."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import UUID

import msgspec

from tracelake.catalogue import RangeSplitterConfig, read_config
from tracelake.db.transaction import Connection, Store, unavailable_when_held_up
from tracelake.dispatcher import audit
from tracelake.dispatcher.audit import Actor
from tracelake.dispatcher.engine.calls.task_actions import CancelCall, RetryCall, SkipCall, TaskActionResult
from tracelake.dispatcher.engine.commit_metrics import count_written
from tracelake.dispatcher.engine.group_commit import GroupCommit
from tracelake.dispatcher.engine.plan import AuditEntry, NewTask, WritePlan, WriteResult, source_event
from tracelake.dispatcher.engine.pressure.upstream import UpstreamDirectory
from tracelake.dispatcher.engine.routing import stale_outputs
from tracelake.dispatcher.engine.routing.directory import Consumer, EdgeDirectory
from tracelake.dispatcher.engine.routing.input_coverage import InputUnit, has_unit, missing_ranges
from tracelake.dispatcher.engine.routing.output_units import RangeCuts, UnitPath, check_units, find_readers
from tracelake.dispatcher.engine.routing.pending_units import ChangedUnit
from tracelake.dispatcher.engine.routing.router import EventRouter
from tracelake.dispatcher.engine.routing.units import MAX_REVISION, UnitRequest
from tracelake.dispatcher.engine.routing.window_inputs import Obstacle
from tracelake.dispatcher.engine.routing.window_ranges import NO_WINDOWS, parse_windows, split_range
from tracelake.dispatcher.engine.spans import Tracing
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.invoke.operators.range_splitter import count_units
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.public_ids import PublicIds
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.quotas.checks import check_queued
from tracelake.dispatcher.replies import cancel_reply, retry_reply, skip_reply
from tracelake.dispatcher.views.trigger_progress import StoredTrigger
from tracelake.dispatcher.views.words import decode_grid
from tracelake.errors import TraceError
from tracelake.model.dag import Activation, JobDocument, SourceKind
from tracelake.model.ids import new_id
from tracelake.model.job import Job
from tracelake.model.task import RevisionKind
from tracelake.model.windows import describe_range
from tracelake.wire.base import ErrorInfo
from tracelake.wire.failures import TaskAction, TaskActionOutcome, TaskActionsReply, TaskActionsRequest
from tracelake.wire.jobs import BlockRange, RebuildReply, TriggerReply, TriggerRequest
from tracelake.wire.platform import CancelReply
from tracelake.wire.tasks import RetryReply, SkipReply

SHOWN_TASKS = 100

_CALLS: dict[TaskAction, type[RetryCall] | type[SkipCall] | type[CancelCall]] = {
    "retry": RetryCall,
    "skip": SkipCall,
    "cancel": CancelCall,
}

_ACTIVE_JOB = """
    SELECT d.active_version, v.job_id, j.document, o.routing_epoch, s.paused_at IS NOT NULL AS paused
    FROM dags d JOIN orgs o USING (org_id)
    LEFT JOIN dag_version_jobs v ON v.dag_version_id = d.active_version AND v.job_name = $3
    LEFT JOIN jobs j USING (job_id)
    LEFT JOIN source_state s ON s.node_id = j.node_id
    WHERE d.org_id = $1 AND d.dag_name = $2"""

_GRID = "SELECT units FROM dataset_versions WHERE dataset_uuid = $1 AND dataset_version = $2"

_LATEST_SLOT = "SELECT floor(extract(epoch FROM trace_now() + interval '1 day'))::bigint"

# First, so that of two equal triggers at once the second waits here and then finds the first's reply.
_OPEN_TRIGGER = """
    INSERT INTO triggers (org_id, idempotency_key, request_hash, reply) VALUES ($1, $2, $3, '{}')
    ON CONFLICT DO NOTHING RETURNING idempotency_key"""

_FIND_TRIGGER = "SELECT request_hash, reply FROM triggers WHERE org_id = $1 AND idempotency_key = $2"

_CLOSE_TRIGGER = "UPDATE triggers SET reply = $3 WHERE org_id = $1 AND idempotency_key = $2"


@dataclass(eq=False, kw_only=True)
class UserActions:
    store: Store
    group: GroupCommit
    definitions: Definitions
    directory: EdgeDirectory
    router: EventRouter
    writer: Writer
    metrics: Metrics
    on_outbox: Callable[[], None]
    upstream: UpstreamDirectory
    ids: PublicIds
    tracing: Tracing | None = None
    quotas: QuotaBook = field(default_factory=QuotaBook)

    async def cancel(self, actor: Actor, task_id: UUID) -> CancelReply:
        return cancel_reply(await self.group.enqueue(CancelCall(task_id, actor)))

    async def retry(self, actor: Actor, task_id: UUID) -> RetryReply:
        return retry_reply(await self.group.enqueue(RetryCall(task_id, actor)))

    async def skip(self, actor: Actor, task_id: UUID) -> SkipReply:
        return skip_reply(await self.group.enqueue(SkipCall(task_id, actor)))

    async def act_on_many(self, actor: Actor, body: TaskActionsRequest) -> TaskActionsReply:
        """Retries, skips or cancels each task as the caller saw it. A repeated call does nothing twice."""
        make_call = _CALLS[body.action]
        attempts = {item.task_id: item.attempt for item in body.tasks}
        calls = [self.group.enqueue(make_call(task_id, actor, attempt)) for task_id, attempt in attempts.items()]
        results = dict(zip(attempts, await asyncio.gather(*calls, return_exceptions=True), strict=True))
        for result in results.values():
            if isinstance(result, BaseException) and (not isinstance(result, TraceError) or result.retryable):
                raise result  # the caller repeats the call; what is done by now is a duplicate then
        return TaskActionsReply(outcomes=[_outcome(item.task_id, results[item.task_id]) for item in body.tasks])

    async def trigger(
        self, actor: Actor, dag: str, job_name: str, body: TriggerRequest, traceparent: str | None = None
    ) -> TriggerReply:
        """A source emits its output's event; a reactive job gets one task for the unit, in a revision of its own.

        `traceparent` is what the caller sent, if anything: a trace that this goes on with.
        """
        plan = WritePlan(within=traceparent)
        try:
            if actor.org_id is None:
                raise TraceError("dag_not_found")
            with unavailable_when_held_up("The trigger conflicts with a concurrent change; repeat it."):
                reply = await self._trigger(actor, actor.org_id, dag, job_name, body, plan)
        except TraceError as refusal:
            self.metrics.triggers.labels(refusal.code).inc()
            raise
        created = "event" if reply.event_id is not None or not (reply.task_id or reply.tasks) else "task"
        self.metrics.triggers.labels("duplicate" if reply.duplicate else created).inc()
        if reply.event_id is None:
            return reply
        ids = await self.ids.of(actor.org_id)
        return msgspec.structs.replace(reply, event_id=ids.events.seal(reply.event_id))

    async def rebuild(self, actor: Actor, dag: str, job_name: str) -> RebuildReply:
        """Have the stale outputs of a job made again, unit by unit."""
        if actor.org_id is None:
            raise TraceError("dag_not_found")
        with unavailable_when_held_up("The rebuild conflicts with a concurrent change; repeat it."):
            async with self.store.transaction(routing=[actor.org_id]) as connection:
                self.quotas.check_new_work(actor.org_id)
                job, *_ = await self._active_job(connection, actor.org_id, dag, job_name)
                rebuild = None
                if job.node_id is not None:
                    producer = f"rebuild:{dag}/{job_name}"
                    rebuild = await stale_outputs.begin_rebuild(connection, job.node_id, job.strategy.value, producer)
                if rebuild is None:
                    text = (
                        "The outputs of the job are not stale: see `trace datasets`. To recompute a unit, trigger it."
                    )
                    raise TraceError("trigger_invalid", text, field="job")
                because, duplicate = rebuild
                if not duplicate:
                    details = {"because": because}
                    target = f"{dag}/{job_name}"
                    await audit.record(connection, actor.org_id, actor.subject, "job.rebuild", target, details)
        return RebuildReply(dag=dag, job=job_name, because=because, duplicate=duplicate)

    async def _trigger(
        self, actor: Actor, org_id: UUID, dag: str, job_name: str, body: TriggerRequest, plan: WritePlan
    ) -> TriggerReply:
        key = body.idempotency_key or str(new_id())
        request = msgspec.json.encode([dag, job_name, msgspec.structs.replace(body, idempotency_key=None)])
        request_hash = f"sha256:{hashlib.sha256(request).hexdigest()}"
        async with self.store.transaction(routing=[org_id]) as connection:
            if await connection.fetchval(_OPEN_TRIGGER, org_id, key, request_hash) is None:
                return await _repeated(connection, org_id, key, request_hash)
            await check_queued(connection, org_id, self.quotas)
            job, document, epoch, paused = await self._active_job(connection, org_id, dag, job_name)
            plan.epochs = {org_id: epoch}
            self._check_units(job, body)
            newest: int = await connection.fetchval("SELECT last_value FROM events_routed_seq")
            unit: dict[str, Any] = msgspec.to_builtins(body)
            plan.audit.append(AuditEntry(org_id, actor.subject, "job.trigger", f"{dag}/{job_name}", unit))
            if document.activation is Activation.SOURCE:
                reply, applied = await self._emit(connection, plan, actor, job, document, body, key, paused=paused)
            else:
                reply, applied = await self._make(connection, plan, actor, job, body, key)
            fields = msgspec.structs.asdict(reply)
            stored = StoredTrigger(**fields, node_id=job.node_id, after_seq=newest)
            await connection.execute(_CLOSE_TRIGGER, org_id, key, msgspec.json.encode(stored).decode())
        self.writer.committed(plan)
        count_written(self.metrics, applied)
        self.on_outbox()
        return reply

    def _check_units(self, job: Job, body: TriggerRequest) -> None:
        """Refuses a range that the splitter would refuse later."""
        if job.operator == "range_splitter" and body.range is not None:
            config = read_config(job.operator, msgspec.json.decode(job.config))
            assert isinstance(config, RangeSplitterConfig)
            units = count_units(body.range.start, body.range.end, config.size, align=config.align)
            self.quotas.check_units(job.org_id, units, "range")

    async def _active_job(
        self, connection: Connection, org_id: UUID, dag: str, name: str
    ) -> tuple[Job, JobDocument, int, bool]:
        """Reads the job, its document, the org's epoch, and whether somebody has paused the job."""
        row = await connection.fetchrow(_ACTIVE_JOB, org_id, dag, name)
        if row is None or row["active_version"] is None:
            raise TraceError("dag_not_found")
        if row["job_id"] is None:
            raise TraceError("job_not_found", "The active version of the DAG has no such job.")
        await self.definitions.load_jobs(connection, [row["job_id"]])
        document = msgspec.json.decode(row["document"], type=JobDocument)
        return self.definitions.job(row["job_id"]), document, row["routing_epoch"], row["paused"]

    async def _emit(
        self,
        connection: Connection,
        plan: WritePlan,
        actor: Actor,
        job: Job,
        document: JobDocument,
        body: TriggerRequest,
        key: str,
        *,
        paused: bool,
    ) -> tuple[TriggerReply, WriteResult]:
        if body.window is not None:
            raise TraceError("trigger_invalid", NO_WINDOWS, field="window")
        if not document.only_emits:
            text = "An always_on source cannot be triggered; to recompute a unit, trigger a job that reads the source."
            raise TraceError("trigger_invalid", text, field="job")
        if document.source is not None and document.source.unit == "delivery":
            text = "Its units are deliveries, numbered as they come: send one, or trigger a job that reads the source."
            raise TraceError("trigger_invalid", text, field="job")
        output = next((item for item in job.outputs if item.output_index == body.output_index), None)
        if output is None:
            raise TraceError("input_not_found", "The source has no such output.", field="output_index")
        if not output.storage.routes_at_once:
            raise TraceError("trigger_invalid", "Only a commit creates events of this output.", field="output_index")
        if document.source is not None and document.source.kind is SourceKind.CRON and body.cursor is not None:
            latest = await connection.fetchval(_LATEST_SLOT)
            if body.cursor > latest:
                raise TraceError(
                    "trigger_invalid",
                    f"Expected a cursor up to {latest}, a day ahead in seconds since 1970; received {body.cursor}: "
                    "until then no slot would create a task.",
                    field="cursor",
                )
        await self._check_ranges(connection, plan, actor, replace(job, outputs=(output,)), body.range)
        start, end = (None, None) if body.range is None else (body.range.start, body.range.end)
        partition_key = body.partition_key if body.range is None else f"{start}-{end}"
        unit = {"cursor": body.cursor, "partition_key": partition_key, "start": start, "end": end}
        plan.events.append(source_event(f"manual:{key}", job.org_id, output, **unit))
        assert job.node_id is not None
        of_org = (job.org_id, plan.epochs[job.org_id])
        stopped = await self.upstream.source_stopped(connection, *of_org, job.node_id, paused=paused)
        applied = await self.writer.write(connection, plan)
        reply = TriggerReply(
            idempotency_key=key,
            kept=stopped,
            event_id=applied.routed[0].event_id if applied.routed else None,
            tasks=[task.task_id for task in applied.created_tasks[:SHOWN_TASKS]],
        )
        return reply, applied

    async def _make(
        self, connection: Connection, plan: WritePlan, actor: Actor, job: Job, body: TriggerRequest, key: str
    ) -> tuple[TriggerReply, WriteResult]:
        assert job.node_id is not None
        consumer = (await self.directory.nodes(connection, [job.node_id]))[job.node_id]
        item = next((item for item in consumer.inputs if item.input_index == body.input_index), None)
        if item is None:
            raise TraceError("input_not_found", "The job has no such input.", field="input_index")
        if body.window is not None:
            grid = consumer.job.units or decode_grid(await connection.fetchval(_GRID, *item.generation))
            body = msgspec.structs.replace(
                body, window=None, range=parse_windows(grid, body.window, several=consumer.has_windows)
            )
        start, end = (None, None) if body.range is None else (body.range.start, body.range.end)
        partition_key = body.partition_key if body.range is None else f"{start}-{end}"
        revision = key if len(key) <= MAX_REVISION else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"
        if consumer.has_windows:
            return await self._make_windows(connection, plan, consumer, body, key, revision)
        request = UnitRequest(consumer, item, body.cursor, partition_key, start, end, revision, RevisionKind.MANUAL)
        if self.tracing is not None:
            request = replace(request, traceparent=self.tracing.asked(plan, request))
        task = await self.router.drafts.draft_manual(connection, request)
        await self._check_inputs(connection, request, task)
        assert task is not None
        await self._check_ranges(connection, plan, actor, consumer.job, body.range)
        plan.new_tasks.append(task)
        applied = await self.writer.write(connection, plan)
        return TriggerReply(idempotency_key=key, task_id=task.task_id), applied

    async def _make_windows(
        self, connection: Connection, plan: WritePlan, consumer: Consumer, body: TriggerRequest, key: str, revision: str
    ) -> tuple[TriggerReply, WriteResult]:
        """Computes windows again, from what their inputs are now: all of the range, or none."""
        job, units = consumer.job, self.router.changed_units
        if body.range is None:
            raise TraceError("trigger_invalid", "The units of this job are ranges; give one of them.", field="range")
        graph = await units.graph(connection, job.org_id, plan.epochs[job.org_id])
        windows = split_range(consumer, graph, body.range)
        self.quotas.check_units(job.org_id, len(windows), "range")
        newest = await connection.fetchval("SELECT last_value FROM events_routed_seq")
        for window in windows:
            unit = ChangedUnit(consumer.node_id, window, job.org_id, newest, RevisionKind.MANUAL)
            try:
                plan.new_tasks.append(await units.draft_manual(connection, graph, consumer, unit, revision))
            except Obstacle as obstacle:
                name = f"{window.start}-{window.end}" if job.units is None else describe_range(job.units, *window)
                text = f"The inputs do not cover {name} ({obstacle.reason}): compute them first."
                raise TraceError("inputs_incomplete", text, field="range") from None
        applied = await self.writer.write(connection, plan)
        tasks = [task.task_id for task in plan.new_tasks]
        if len(tasks) == 1:
            return TriggerReply(idempotency_key=key, task_id=tasks[0]), applied
        return TriggerReply(idempotency_key=key, tasks=tasks), applied

    async def _check_ranges(
        self, connection: Connection, plan: WritePlan, actor: Actor, job: Job, blocks: BlockRange | None
    ) -> None:
        """Refuses a range that cuts across units of the job or of those that take its units."""
        if blocks is None:
            return
        epoch = plan.epochs[job.org_id]
        graph = await self.router.changed_units.graph(connection, job.org_id, epoch)
        first = UnitPath(job, RangeCuts.whole(blocks.start, blocks.end))
        readers = await find_readers(connection, self.directory, graph, epoch, first)
        await check_units(connection, [first, *readers], dags=actor.readable_dags)

    async def _check_inputs(self, connection: Connection, request: UnitRequest, task: NewTask | None) -> None:
        """Refuses a run whose inputs lack a part of its unit: it would commit the unit all the same."""
        read = request.consumer.inputs if request.consumer.joins else (request.input,)
        await self.definitions.load_datasets(connection, (item.generation[0] for item in read))
        missing: list[dict[str, Any]] = []
        for item in read:
            dataset = self.definitions.dataset(item.generation[0])
            assert dataset is not None
            unit = InputUnit(request.consumer.node_id, item, dataset.storage, request.unit_key, *_blocks(request, task))
            ranges = await missing_ranges(connection, unit)
            if not ranges and task is None and not await has_unit(connection, unit):
                ranges = [unit.text]  # its blocks are there, in units of other bounds, which a join does not match
            if ranges:
                missing.append({"input_index": item.input_index, "dataset": dataset.name, "ranges": ranges})
        if missing:
            lacks = "; ".join(f"{item['dataset']} lacks {', '.join(item['ranges'][:5])}" for item in missing[:3])
            text = f"A run needs its whole unit, and {lacks}: compute what is missing first, or trigger another unit."
            raise TraceError("inputs_incomplete", text, field=_unit_field(request), missing=missing)
        assert task is not None


def _blocks(request: UnitRequest, task: NewTask | None) -> tuple[int | None, int | None]:
    if task is not None:
        return task.unit_start, task.unit_end
    return (request.start, request.end) if request.cursor is None else (request.cursor, request.cursor)


def _unit_field(request: UnitRequest) -> str:
    return "cursor" if request.cursor is not None else "partition_key" if request.start is None else "range"


def _outcome(task_id: UUID, result: TaskActionResult | BaseException) -> TaskActionOutcome:
    if isinstance(result, TraceError):
        error = ErrorInfo(code=result.code, message=result.message, details=result.details)
        return TaskActionOutcome(task_id=task_id, outcome="refused", error=error)
    assert isinstance(result, TaskActionResult)
    outcome: Literal["done", "duplicate", "changed"] = "duplicate" if result.duplicate else "done"
    if result.changed:
        outcome = "changed"
    return TaskActionOutcome(task_id=task_id, outcome=outcome, status=result.task.status.value)


async def _repeated(connection: Connection, org_id: UUID, key: str, request_hash: str) -> TriggerReply:
    row = await connection.fetchrow(_FIND_TRIGGER, org_id, key)
    assert row is not None
    if row["request_hash"] != request_hash:
        raise TraceError("trigger_conflict", field="idempotency_key")
    reply = msgspec.json.decode(row["reply"], type=TriggerReply)
    return msgspec.structs.replace(reply, duplicate=True)
