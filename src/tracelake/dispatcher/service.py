"""The Dispatcher's use cases: what each call does, without HTTP.

Each checks the call against its token first, then asks the object store where it must, and only then joins a
transaction through the group commit.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

from tracelake.catalogue import CATALOGUE
from tracelake.catalogue.sql.query_config import QUERY
from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.artifacts import check_artifact, list_publications
from tracelake.dispatcher.audit import record_query
from tracelake.dispatcher.buffers.writer_grants import check_grant
from tracelake.dispatcher.clock import StoreClock
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.calls.buffer_publish import BufferPublishCall
from tracelake.dispatcher.engine.calls.claim import ClaimAnswer, ClaimCall
from tracelake.dispatcher.engine.calls.completion import CompleteCall, CompletionResult
from tracelake.dispatcher.engine.calls.create import CreateCall
from tracelake.dispatcher.engine.calls.events import EventsCall
from tracelake.dispatcher.engine.calls.heartbeat import HeartbeatAnswer, HeartbeatCall
from tracelake.dispatcher.engine.calls.task_actions import CancelCall
from tracelake.dispatcher.engine.check_references import find_references
from tracelake.dispatcher.engine.group_commit import GroupCommit
from tracelake.dispatcher.engine.limits import limit_keys_of
from tracelake.dispatcher.engine.plan import EventReceipt, NewTask, wake_of
from tracelake.dispatcher.engine.routing.directory import EdgeDirectory
from tracelake.dispatcher.engine.tables import task_rows
from tracelake.dispatcher.engine.tables.batch_rows import find_pinned
from tracelake.dispatcher.engine.tables.query_rows import load_configs, read_pin
from tracelake.dispatcher.engine.transaction import decode_inputs
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.mint import GRACE_SECONDS, TokenMint
from tracelake.dispatcher.payload import build_payload
from tracelake.dispatcher.public_ids import PublicIds
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.read_pins import LivePin, decode_pins, moment_of
from tracelake.dispatcher.replies import cancel_reply, complete_reply, created_task, events_reply, publish_reply
from tracelake.dispatcher.task_credentials import GrantGroup, TaskCredentials, credential_seconds, record_mint
from tracelake.dispatcher.views.checks import list_org_results
from tracelake.dispatcher.views.deliveries import list_task_deliveries
from tracelake.dispatcher.views.files import (
    list_columns,
    list_dataset_files,
    list_files,
    list_live_files,
    read_direct_table,
    read_schema,
)
from tracelake.dispatcher.views.relations import list_inputs, list_published
from tracelake.errors import TraceError
from tracelake.model.ids import new_id
from tracelake.model.job import Job, Storage
from tracelake.model.lifecycle import NotClaimed, check_current, fenced
from tracelake.model.task import Task
from tracelake.ports import ObjectStore
from tracelake.tokens.token_claims import VerifiedClaims
from tracelake.wire.checks import OrgCheckResultsReply, OrgCheckResultsRequest
from tracelake.wire.claims import (
    ClaimReply,
    ClaimRequest,
    FetchReply,
    IntrospectReply,
    IntrospectRequest,
    TaskSecrets,
    TokenReply,
    TokenRequest,
)
from tracelake.wire.platform import CancelReply, CreatedTask, DatasetFilesReply, DatasetFilesRequest, TaskSpec
from tracelake.wire.query import (
    QueryAuditRecord,
    QueryAuditReply,
    RelationsReply,
    RelationsRequest,
    TaskInputsReply,
    TaskInputsRequest,
)
from tracelake.wire.task_calls import (
    BufferPublishReply,
    BufferPublishRequest,
    CompleteReply,
    CompleteRequest,
    CredentialsReply,
    CredentialsRequest,
    EventsReply,
    EventsRequest,
    Fenced,
    FilesReply,
    FilesRequest,
    HeartbeatReply,
    HeartbeatRequest,
    TaskDeliveriesReply,
    TaskDeliveriesRequest,
)
from tracelake.wire.units import EventIn, TaskInput

GRACE = timedelta(seconds=GRACE_SECONDS)
"""A token outlives its attempt's deadline by this much at most."""
Answer = TypeVar("Answer")
Reply = TypeVar("Reply")


class Submitted(Generic[Answer, Reply]):
    """A call that is already in line for its transaction; awaiting it gives the reply or raises the refusal.

    Not a coroutine: a batch puts all its calls in line first and needs no task for each of them.
    """

    __slots__ = ("_finish", "_future")

    def __init__(self, future: "asyncio.Future[Answer]", finish: Callable[[Answer], Reply]) -> None:
        """`finish` makes the wire reply from the engine's answer."""
        self._future = future
        self._finish = finish

    def __await__(self) -> Generator[Any, None, Reply]:
        answer = yield from self._future.__await__()
        return self._finish(answer)

    async def outcome(self) -> "Reply | TraceError":
        """Waits for the reply; returns a refusal as a value."""
        try:
            return await self
        except TraceError as refusal:
            return refusal


@dataclass(eq=False, kw_only=True)
class DispatcherService:
    store: Store
    objects: ObjectStore
    group: GroupCommit
    definitions: Definitions
    directory: EdgeDirectory
    mint: TokenMint
    clock: StoreClock
    config: DispatcherConfig
    metrics: Metrics
    ids: PublicIds
    task_credentials: TaskCredentials = field(default_factory=lambda: TaskCredentials(None))
    quotas: QuotaBook = field(default_factory=QuotaBook)

    def __post_init__(self) -> None:
        self._claimed = self.metrics.claims.labels("Claimed")

    # Worker wrappers

    def claim(self, body: ClaimRequest) -> "Submitted[ClaimAnswer, ClaimReply]":
        started = time.perf_counter()

        def finish(answer: ClaimAnswer) -> ClaimReply:
            if isinstance(answer, NotClaimed):
                self.metrics.claims.labels(answer.value).inc()
                self.metrics.claim_seconds.observe(time.perf_counter() - started)
                return ClaimReply(status="NotClaimed", reason=answer.value)
            task, job, inputs = answer.task, answer.job, answer.inputs
            reads = [*inputs, *answer.references]
            payload = build_payload(
                task,
                job,
                inputs,
                self.config.layout,
                self.definitions.dataset_name,
                answer.config,
                answer.checks,
                answer.references,
            )
            reply = ClaimReply(
                status="Claimed",
                attempt=task.attempt,
                lease_token=task.lease_token,
                lease_expires_at=task.lease_expires_at,
                capability_token=self.mint.mint(task, job, reads, self.clock.now()),
                task=payload,
                always_on=_is_always_on(job),
                pause=answer.paused,
                org=job.org,
                secrets=TaskSecrets(org=job.org, names=list(job.secrets)) if job.secrets else None,
            )
            self._claimed.inc()
            if answer.waited_seconds is not None:
                self.metrics.task_wait.observe(answer.waited_seconds)
            self.metrics.claim_seconds.observe(time.perf_counter() - started)
            return reply

        return Submitted(self.group.enqueue(ClaimCall(body)), finish)

    async def fetch(self, task_id: UUID) -> FetchReply:
        task, job, inputs, _ = await self._read(task_id)
        config = None
        if job.operator == QUERY:
            async with self.store.connection() as connection:
                config = (await load_configs(connection, [task_id])).get(task_id)
        return FetchReply(
            status=task.status.value,
            task=build_payload(task, job, inputs, self.config.layout, self.definitions.dataset_name, config),
        )

    async def token(self, body: TokenRequest) -> TokenReply:
        """A fresh token for a wrapper whose own ran out while the Dispatcher was away."""
        task, job, inputs, now = await self._read(body.task_id)
        if not task.is_current(body.attempt, body.lease_token):
            raise fenced(task)
        if task.deadline_at is not None and now >= task.deadline_at + GRACE:
            raise TraceError("deadline_exceeded", attempt=task.attempt, status=task.status.value)
        async with self.store.connection() as connection:
            if job.node_id is not None:
                await self.definitions.load_current_jobs(connection, {job.node_id: (job.org_id, 0)})
            units = {task.task_id: inputs[0].unit} if inputs else {}
            references = await find_references(connection, self.definitions, {task.task_id: job}, units)
        token = self.mint.mint(task, job, [*inputs, *references.get(task.task_id, ())], now)
        return TokenReply(capability_token=token, lease_expires_at=task.lease_expires_at)

    async def introspect(self, body: IntrospectRequest) -> IntrospectReply:
        task, _, _, _ = await self._read(body.task_id)
        lease_token = body.lease_token or task.lease_token
        return IntrospectReply(current=task.is_current(body.attempt, lease_token), status=task.status.value)

    # The task itself

    def heartbeat(self, claims: VerifiedClaims, body: HeartbeatRequest) -> "Submitted[HeartbeatAnswer, HeartbeatReply]":
        _check_token(claims, body)

        def finish(answer: HeartbeatAnswer) -> HeartbeatReply:
            task = answer.task
            assert task.lease_expires_at is not None
            return HeartbeatReply(
                lease_expires_at=task.lease_expires_at,
                cancel=task.cancel_requested,
                pause=answer.paused,
                capability_token=self.mint.renew(claims, task, answer.job, answer.now),
            )

        return Submitted(self.group.enqueue(HeartbeatCall(body, claims.org_id)), finish)

    def events(self, claims: VerifiedClaims, body: EventsRequest) -> "Submitted[list[EventReceipt], EventsReply]":
        _check_token(claims, body)
        readers = self._readers(claims, body.events)
        return Submitted(self.group.enqueue(EventsCall(body, claims.org_id, readers=readers)), events_reply)

    def complete(self, claims: VerifiedClaims, body: CompleteRequest) -> "Awaitable[CompleteReply]":
        started = time.perf_counter()
        _check_token(claims, body)
        if body.datasets_published:
            return self._complete_published(claims, body, started)
        return self._complete(CompleteCall(body, claims.org_id, readers=self._readers(claims, body.events)), started)

    async def _complete_published(self, claims: VerifiedClaims, body: CompleteRequest, started: float) -> CompleteReply:
        """What needs the object store comes before the transaction; a repeat is answered whatever it says."""
        try:
            await self._check_copying(claims, body)
            listed = await list_publications(
                self.objects, body.datasets_published, claims, self.config.layout, body.outputs
            )
            call = CompleteCall(body, claims.org_id, listed, readers=self._readers(claims, body.events))
        except TraceError as objection:
            if objection.retryable:
                raise
            call = CompleteCall(body, claims.org_id, objection=objection)
        return await self._complete(call, started)

    async def _check_copying(self, claims: VerifiedClaims, body: CompleteRequest) -> None:
        """Files in staging are copied before the transaction: not for an attempt that it would refuse anyway."""
        layout = self.config.layout
        if any(layout.committed_prefix(prefix) != prefix for prefix in claims.s3.write_prefixes):
            task, _, _, _ = await self._read(body.task_id)
            check_current(task, body.attempt, body.lease_token)

    def _readers(self, claims: VerifiedClaims, events: Sequence[EventIn]) -> int:
        generations = {(event.dataset_uuid, event.dataset_version) for event in events}
        return self.directory.known_readers(claims.org_id, generations) if generations else 1

    def _complete(self, call: CompleteCall, started: float) -> "Submitted[CompletionResult, CompleteReply]":
        def finish(result: CompletionResult) -> CompleteReply:
            self.metrics.complete_seconds.observe(time.perf_counter() - started)
            if not result.duplicate:
                self.metrics.completions.labels(result.status).inc()
            return complete_reply(result)

        return Submitted(self.group.enqueue(call), finish)

    async def buffer_publish(self, claims: VerifiedClaims, body: BufferPublishRequest) -> BufferPublishReply:
        _check_token(claims, body)
        try:
            async with self.store.connection() as connection:
                await check_grant(connection, body)
            artifact = await check_artifact(self.objects, body, claims, self.config.artifact_max_bytes)
            call = BufferPublishCall(body, artifact)
        except TraceError as objection:
            if objection.retryable:
                raise
            # A repeat is answered by what was pinned then, whatever became of the artifact since.
            async with self.store.connection() as connection:
                pinned = await find_pinned(connection, body)
            call = BufferPublishCall(body, pinned, None if pinned else objection)
        reply = publish_reply(await self.group.enqueue(call))
        ids = await self.ids.of(claims.org_id)
        return msgspec.structs.replace(reply, publish_seq=ids.batches.seal(reply.publish_seq))

    async def files(self, claims: VerifiedClaims, body: FilesRequest) -> FilesReply:
        _check_token(claims, body)
        generation = (body.dataset_uuid, body.dataset_version)
        grants = {(grant.dataset_uuid, grant.dataset_version): grant for grant in claims.datasets}
        task, job, inputs, _ = await self._read(body.task_id)
        check_current(task, body.attempt, body.lease_token)
        own_output = next(
            (output for output in job.outputs if (output.dataset_uuid, output.dataset_version) == generation), None
        )
        storage = None if own_output is None else own_output.storage
        writes = storage is Storage.BUFFERED
        writes_directly = storage is Storage.POSTGRES and _may_write_directly(job)
        is_live = own_output is not None and own_output.dataset.storage is Storage.LIVE
        if generation not in grants and not writes and not writes_directly and not is_live:
            raise TraceError("dataset_forbidden", "The task does not read this dataset.", field="dataset_uuid")
        pin = decode_pins(task.read_as_of).get(body.dataset_version)
        async with (
            self.store.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            schema = await read_schema(connection, body.dataset_uuid) if writes else None
            operator = CATALOGUE.get(job.operator)
            keeps_table = writes_directly or (is_live and operator is not None and operator.trusted)
            table = await read_direct_table(connection, body.dataset_uuid) if keeps_table else None
            own = FilesReply(units=[], schema=schema, table=table)
            if generation not in grants:
                if not is_live or writes_directly:
                    return own
                columns = await list_columns(connection, generation, task.job_id)
                boundary = pin.boundary if isinstance(pin, LivePin) else None
                return msgspec.structs.replace(own, columns=columns, by_position=True, live=True, boundary=boundary)
            kinds = grants[generation].storage
            if Storage.S3 not in kinds:
                columns = await list_columns(connection, generation, task.job_id)
                return msgspec.structs.replace(own, columns=columns, by_position=Storage.POSTGRES in kinds)
            if Storage.POSTGRES in kinds:
                return await self._live_files(connection, task, body, pin if isinstance(pin, LivePin) else LivePin())
            as_of = body.as_of or moment_of(pin)
            if job.operator == QUERY:
                as_of = await read_pin(connection, task.task_id, generation)
                if as_of is None:
                    raise fenced(task)
            reply = await list_files(connection, generation, body.start, body.end, body.after, as_of)
        is_own = any((output.dataset_uuid, output.dataset_version) == generation for output in job.outputs)
        return _without_unit(reply, inputs) if is_own and body.start is None else reply

    async def _live_files(self, connection: Connection, task: Task, body: FilesRequest, pin: LivePin) -> FilesReply:
        """Files up to the boundary that the attempt is pinned to; the rest of its rows is in the table."""
        generation = (body.dataset_uuid, body.dataset_version)
        columns = await list_columns(connection, generation, task.job_id)
        reply = FilesReply(units=[], columns=columns, by_position=True, live=True, boundary=pin.boundary)
        if pin.as_of is None:
            return reply
        files = await list_live_files(connection, generation, body.start, body.end, body.after, pin)
        return msgspec.structs.replace(reply, units=files.units, next=files.next, as_of=files.as_of)

    async def deliveries(self, claims: VerifiedClaims, body: TaskDeliveriesRequest) -> TaskDeliveriesReply:
        """Only for an operator that reads deliveries, and only those of the task's own unit."""
        _check_token(claims, body)
        task, job, inputs, _ = await self._read(body.task_id)
        check_current(task, body.attempt, body.lease_token)
        spec = CATALOGUE.get(job.operator)
        generation = (body.dataset_uuid, body.dataset_version)
        granted = any((grant.dataset_uuid, grant.dataset_version) == generation for grant in claims.datasets)
        own = [item for item in inputs if (item.dataset_uuid, item.dataset_version) == generation]
        if spec is None or not spec.reads_deliveries or not granted or not own:
            message = "The task does not read deliveries of this dataset."
            raise TraceError("dataset_forbidden", message, field="dataset_uuid")
        async with self.store.connection() as connection:
            return await list_task_deliveries(connection, task.org_id, generation, own[0].unit, body.after)

    async def credentials(self, claims: VerifiedClaims, body: CredentialsRequest) -> CredentialsReply:
        _check_token(claims, body)
        task, job, _, now = await self._read(body.task_id)
        check_current(task, body.attempt, body.lease_token)
        if not job.is_untrusted:
            raise TraceError("credentials_forbidden")
        seconds = credential_seconds(claims, now.timestamp())

        async def audit(groups: Sequence[GrantGroup]) -> None:
            async with self.store.transaction() as connection:
                await record_mint(connection, claims, job, groups, seconds)

        groups = self.task_credentials.choose_groups(claims, body.locations)
        return await self.task_credentials.issue(claims, groups, seconds, audit)

    # Platform services

    async def create_tasks(self, specs: Sequence[TaskSpec]) -> list[CreatedTask]:
        """An unknown job, a task_id that is another task's, or an org that is held back by a quota refuses the whole
        call before anything is written."""
        await self._load_jobs(specs)
        await self._check_inputs(specs)
        new = [self._new_task(spec) for spec in specs]
        if len(specs) > 1:  # a single clash refuses itself, at the price of no query
            await self._check_clashes([task for task, spec in zip(new, specs, strict=True) if spec.task_id is not None])
        await self._check_quotas(new)
        submitted = [Submitted(self.group.enqueue(CreateCall(task)), created_task) for task in new]
        outcomes = [await item.outcome() for item in submitted]
        for outcome in outcomes:
            if isinstance(outcome, TraceError):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, TraceError)]

    async def dataset_files(self, body: DatasetFilesRequest) -> DatasetFilesReply:
        async with (
            self.store.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            return await list_dataset_files(connection, body)

    async def relations(self, body: RelationsRequest) -> RelationsReply:
        async with self.store.connection() as connection:
            return await list_published(connection, body.org, body.dags)

    async def check_results(self, body: OrgCheckResultsRequest) -> OrgCheckResultsReply:
        async with self.store.connection() as connection:
            return await list_org_results(connection, body)

    async def task_inputs(self, body: TaskInputsRequest) -> TaskInputsReply:
        """Refuses an attempt that is not current: whoever gets a reply has asked whether it may still read."""
        task, job, inputs, _ = await self._read(body.task_id)
        check_current(task, body.attempt, body.lease_token)
        async with (
            self.store.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            return TaskInputsReply(org=job.org, relations=await list_inputs(connection, job.job_id, inputs))

    async def record_query(self, body: QueryAuditRecord) -> QueryAuditReply:
        async with self.store.connection() as connection:
            return await record_query(connection, body)

    async def cancel(self, task_id: UUID) -> CancelReply:
        return cancel_reply(await self.group.enqueue(CancelCall(task_id)))

    async def _load_jobs(self, specs: Sequence[TaskSpec]) -> None:
        job_ids = {spec.job_id for spec in specs}
        if not all(self.definitions.knows_job(job_id) for job_id in job_ids):
            async with self.store.connection() as connection:
                await self.definitions.load_jobs(connection, job_ids)
        for job_id in job_ids:
            if not self.definitions.knows_job(job_id):
                raise TraceError("job_not_found", field="tasks.job_id")

    async def _check_inputs(self, specs: Sequence[TaskSpec]) -> None:
        """A task reads datasets of its own org: its token will open exactly these."""
        generations = {(item.dataset_uuid, item.dataset_version) for spec in specs for item in spec.inputs}
        if not generations:
            return
        async with self.store.connection() as connection:
            await self.definitions.load_generations(connection, generations)
        for spec in specs:
            org_id = self.definitions.job(spec.job_id).org_id
            for item in spec.inputs:
                if not self.definitions.knows_generation(org_id, (item.dataset_uuid, item.dataset_version)):
                    raise TraceError(
                        "dataset_not_found",
                        "The org of the job has no such generation of a dataset.",
                        field="tasks.inputs.dataset_uuid",
                    )

    async def _check_clashes(self, named_tasks: Sequence[NewTask]) -> None:
        definitions = {task.task_id: task.definition for task in named_tasks}
        clash = any(definitions[task.task_id] != task.definition for task in named_tasks)
        if named_tasks and not clash:
            async with self.store.connection() as connection:
                existing = await task_rows.existing(connection, definitions)
            clash = any(definitions[task_id] != definition for task_id, (definition, _) in existing.items())
        if clash:
            raise TraceError("task_conflict", field="tasks.task_id")

    async def _check_quotas(self, new: Sequence[NewTask]) -> None:
        """Refuses tasks of orgs that a quota holds back, unless they exist already."""
        held_back = {task.task_id: task for task in new if self.quotas.holds_back(task.org_id) is not None}
        if not held_back:
            return
        async with self.store.connection() as connection:
            existing = await task_rows.existing(connection, held_back)
        for task in held_back.values():
            if task.task_id not in existing:
                self.quotas.check_new_work(task.org_id)

    def _new_task(self, spec: TaskSpec) -> NewTask:
        job = self.definitions.job(spec.job_id)
        return NewTask(
            task_id=spec.task_id or new_id(),
            org_id=job.org_id,
            job_id=job.job_id,
            max_attempts=job.max_attempts,
            inputs=msgspec.json.encode(spec.inputs, order="deterministic").decode() if spec.inputs else "[]",
            unit=None if spec.unit is None else msgspec.json.encode(spec.unit).decode(),
            wake=wake_of(self.config.runtimes, job.runtime),
            limit_keys=limit_keys_of(self.config.runtimes, job, org_limited=self.quotas.limits_running(job.org_id)),
        )

    async def _read(self, task_id: UUID) -> tuple[Task, Job, list[TaskInput], datetime]:
        async with self.store.connection() as connection:
            record = await task_rows.read(connection, task_id)
            if record is None:
                raise TraceError("task_not_found")
            await self.definitions.follow(connection, {record["org_id"]: record["epoch"]})
            await self.definitions.load_jobs(connection, [record["job_id"]])
            inputs = decode_inputs(record["inputs"])
            await self.definitions.load_datasets(connection, (item.dataset_uuid for item in inputs))
        task = task_rows.snapshot(record)
        return task, self.definitions.job(task.job_id), inputs, record["now"]


def _is_always_on(job: Job) -> bool:
    """Returns whether it is the run of an always_on source: nothing else has endless time and attempts."""
    return job.timeout_seconds is None and job.max_attempts is None and job.node_id is not None


def _may_write_directly(job: Job) -> bool:
    """Only code of the platform writes tables itself."""
    spec = CATALOGUE.get(job.operator)
    return spec is not None and spec.fills_tables and not job.is_untrusted


def _check_token(claims: VerifiedClaims, body: Fenced) -> None:
    if claims.task_id != body.task_id or claims.attempt != body.attempt:
        raise TraceError("token_mismatch")


def _without_unit(reply: FilesReply, inputs: Sequence[TaskInput]) -> FilesReply:
    """The other units of an output: what the task makes anew is not compared with what it replaces."""
    if not inputs:
        return reply
    unit = inputs[0].unit.blocks
    return msgspec.structs.replace(reply, units=[item for item in reply.units if (item.start, item.end) != unit])
