"""The Dispatcher's use cases: what each call does, without HTTP.

Each checks the call against its token first, then asks the object store where it must, and only then joins a
transaction through the group commit.
"""

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from tracelake.db.transaction import Store
from tracelake.dispatcher.clock import StoreClock
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.jobs import Definitions
from tracelake.dispatcher.lifecycle import rows
from tracelake.dispatcher.lifecycle.artifacts import check_artifact, list_publications
from tracelake.dispatcher.lifecycle.calls import (
    BufferPublishCall,
    CancelCall,
    ClaimCall,
    Claimed,
    CompleteCall,
    CreateCall,
    EventsCall,
    HeartbeatCall,
)
from tracelake.dispatcher.lifecycle.group import GroupCommit
from tracelake.dispatcher.lifecycle.plan import NewTask
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.payload import build_payload
from tracelake.dispatcher.tokens.claims import VerifiedClaims
from tracelake.dispatcher.tokens.mint import GRACE_SECONDS, TokenMint
from tracelake.errors import TraceError
from tracelake.model.ids import new_id
from tracelake.model.job import Job
from tracelake.model.lifecycle import NotClaimed, fenced
from tracelake.model.task import Task
from tracelake.ports import ObjectStore
from tracelake.wire.claims import (
    ClaimReply,
    ClaimRequest,
    FetchReply,
    IntrospectReply,
    IntrospectRequest,
    TokenReply,
    TokenRequest,
)
from tracelake.wire.platform import CancelReply, CreatedTask, TaskSpec
from tracelake.wire.task_calls import (
    BufferPublishReply,
    BufferPublishRequest,
    CompleteReply,
    CompleteRequest,
    EventsReply,
    EventsRequest,
    Fenced,
    HeartbeatReply,
    HeartbeatRequest,
)
from tracelake.wire.units import TaskInput

GRACE = timedelta(seconds=GRACE_SECONDS)
"""A token outlives its attempt's deadline by this much at most."""
_INPUTS = msgspec.json.Decoder(list[TaskInput])


class DispatcherService:
    def __init__(
        self,
        *,
        store: Store,
        objects: ObjectStore,
        group: GroupCommit,
        definitions: Definitions,
        mint: TokenMint,
        clock: StoreClock,
        config: DispatcherConfig,
        metrics: Metrics,
    ) -> None:
        self.store = store
        self.clock = clock
        self.config = config
        self.metrics = metrics
        self._objects = objects
        self._group = group
        self._definitions = definitions
        self._mint = mint

    # Worker wrappers

    async def claim(self, body: ClaimRequest) -> ClaimReply:
        started = time.perf_counter()
        answer = await self._group.submit(ClaimCall(body))
        if isinstance(answer, NotClaimed):
            self.metrics.claims.labels(answer.value).inc()
            return ClaimReply(status="NotClaimed", reason=answer.value)
        assert isinstance(answer, Claimed)
        inputs = await self._inputs(answer.inputs)
        task, job = answer.task, answer.job
        reply = ClaimReply(
            status="Claimed",
            attempt=task.attempt,
            lease_token=task.lease_token,
            lease_expires_at=task.lease_expires_at,
            capability_token=self._mint.mint(task, job, inputs, self.clock.now()),
            task=build_payload(task, job, inputs, self.config.layout),
        )
        self.metrics.claims.labels("Claimed").inc()
        self.metrics.claim_seconds.observe(time.perf_counter() - started)
        return reply

    async def fetch(self, task_id: UUID) -> FetchReply:
        task, job, inputs, _ = await self._read(task_id)
        return FetchReply(status=task.status.value, task=build_payload(task, job, inputs, self.config.layout))

    async def token(self, body: TokenRequest) -> TokenReply:
        """A fresh token for a wrapper whose own ran out while the Dispatcher was away."""
        task, job, inputs, now = await self._read(body.task_id)
        if not task.is_current(body.attempt, body.lease_token):
            raise fenced(task)
        if task.deadline_at is not None and now >= task.deadline_at + GRACE:
            raise TraceError("deadline_exceeded", attempt=task.attempt, status=task.status.value)
        token = self._mint.mint(task, job, inputs, now)
        return TokenReply(capability_token=token, lease_expires_at=task.lease_expires_at)

    async def introspect(self, body: IntrospectRequest) -> IntrospectReply:
        task, _, _, _ = await self._read(body.task_id)
        lease_token = body.lease_token or task.lease_token
        return IntrospectReply(current=task.is_current(body.attempt, lease_token), status=task.status.value)

    # The task itself

    async def heartbeat(self, claims: VerifiedClaims, body: HeartbeatRequest) -> HeartbeatReply:
        _check_token(claims, body)
        answer = await self._group.submit(HeartbeatCall(body))
        task, job, now = _as_beat(answer)
        assert task.lease_expires_at is not None
        return HeartbeatReply(
            lease_expires_at=task.lease_expires_at,
            cancel=task.cancel_requested,
            pause=False,
            capability_token=self._mint.renew(claims, task, job, now),
        )

    async def events(self, claims: VerifiedClaims, body: EventsRequest) -> EventsReply:
        _check_token(claims, body)
        answer = await self._group.submit(EventsCall(body))
        assert isinstance(answer, EventsReply)
        return answer

    async def complete(self, claims: VerifiedClaims, body: CompleteRequest) -> CompleteReply:
        started = time.perf_counter()
        _check_token(claims, body)
        call = CompleteCall(body)
        if body.datasets_published:
            try:
                listed = await list_publications(self._objects, body.datasets_published, claims)
                call = CompleteCall(body, listed)
            except TraceError as objection:
                if objection.retryable:
                    raise
                call = CompleteCall(body, objection=objection)
        answer = await self._group.submit(call)
        assert isinstance(answer, CompleteReply)
        if not answer.duplicate:
            self.metrics.completions.labels(answer.status).inc()
            self.metrics.complete_seconds.observe(time.perf_counter() - started)
        return answer

    async def buffer_publish(self, claims: VerifiedClaims, body: BufferPublishRequest) -> BufferPublishReply:
        _check_token(claims, body)
        try:
            artifact = await check_artifact(self._objects, body, claims, self.config.artifact_max_bytes)
            call = BufferPublishCall(body, artifact)
        except TraceError as objection:
            if objection.retryable:
                raise
            call = BufferPublishCall(body, None, objection)
        answer = await self._group.submit(call)
        assert isinstance(answer, BufferPublishReply)
        return answer

    # Platform services

    async def create_tasks(self, specs: Sequence[TaskSpec]) -> list[CreatedTask]:
        """An unknown job or a task_id that is another task's refuses the whole call before anything is written."""
        await self._load_jobs(specs)
        if len(specs) > 1:  # a single clash refuses itself, at the price of no query
            await self._check_clashes(specs)
        futures = [self._group.enqueue(CreateCall(self._new_task(spec))) for spec in specs]
        created = []
        refusal: Exception | None = None
        for future in futures:
            try:
                answer = await future
            except TraceError as error:
                refusal = refusal or error
            else:
                assert isinstance(answer, CreatedTask)
                created.append(answer)
        if refusal is not None:
            raise refusal
        return created

    async def cancel(self, task_id: UUID) -> CancelReply:
        answer = await self._group.submit(CancelCall(task_id))
        assert isinstance(answer, CancelReply)
        return answer

    async def _load_jobs(self, specs: Sequence[TaskSpec]) -> None:
        job_ids = {spec.job_id for spec in specs}
        if not all(self._definitions.knows_job(job_id) for job_id in job_ids):
            async with self.store.connection() as connection:
                await self._definitions.load_jobs(connection, job_ids)
        for job_id in job_ids:
            if not self._definitions.knows_job(job_id):
                raise TraceError("job_not_found", field="tasks.job_id")

    async def _check_clashes(self, specs: Sequence[TaskSpec]) -> None:
        named = [(spec.task_id, spec.job_id) for spec in specs if spec.task_id is not None]
        jobs = dict(named)
        clash = any(jobs[task_id] != job_id for task_id, job_id in named)
        if named and not clash:
            async with self.store.connection() as connection:
                there = await rows.existing(connection, list(jobs))
            clash = any(jobs[task_id] != job_id for task_id, job_id in there.items())
        if clash:
            raise TraceError("task_conflict", field="tasks.task_id")

    def _new_task(self, spec: TaskSpec) -> NewTask:
        job = self._definitions.job(spec.job_id)
        return NewTask(
            task_id=spec.task_id or new_id(),
            org_id=job.org_id,
            job_id=job.job_id,
            max_attempts=job.max_attempts,
            inputs=msgspec.json.encode(spec.inputs).decode() if spec.inputs else "[]",
            unit=None if spec.unit is None else msgspec.json.encode(spec.unit).decode(),
            queue=job.queue,
        )

    async def _read(self, task_id: UUID) -> tuple[Task, Job, list[TaskInput], datetime]:
        async with self.store.connection() as connection:
            record = await rows.read(connection, task_id)
            if record is None:
                raise TraceError("task_not_found")
            await self._definitions.load_jobs(connection, [record["job_id"]])
        task = rows.snapshot(record)
        inputs = await self._inputs(record["inputs"])
        return task, self._definitions.job(task.job_id), inputs, record["now"]

    async def _inputs(self, text: str) -> list[TaskInput]:
        """The inputs, with the datasets behind them at hand for the token's grants."""
        if text == "[]":
            return []
        inputs = _INPUTS.decode(text)
        wanted = [item.dataset_uuid for item in inputs if self._definitions.dataset(item.dataset_uuid) is None]
        if wanted:
            async with self.store.connection() as connection:
                await self._definitions.load_datasets(connection, wanted)
        return inputs


def _check_token(claims: VerifiedClaims, body: Fenced) -> None:
    if claims.task_id != body.task_id or claims.attempt != body.attempt:
        raise TraceError("token_mismatch")


def _as_beat(answer: object) -> tuple[Task, Job, datetime]:
    assert isinstance(answer, tuple)
    return answer
