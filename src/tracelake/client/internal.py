"""Typed client of `/internal/*`.

A worker wrapper gives a worker credential (claim, fetch, token), a platform service a service credential (the
rest); calling what the given credential does not open is a `ValueError` before anything is sent. After a 401
the credential is read again, once, because tokens rotate.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar
from uuid import UUID

import msgspec

from tracelake.client.calls import call, encoder
from tracelake.client.credentials import Credential
from tracelake.client.errors import DispatcherUnavailableError, answer_or_error
from tracelake.client.http import HttpClient
from tracelake.errors import TraceError
from tracelake.wire.base import Answers
from tracelake.wire.buffers import (
    BufferCommittedReply,
    BufferCommittedRequest,
    BufferOpenReply,
    BufferOpenRequest,
    BufferRejectedReply,
    BufferRejectedRequest,
    BuffersReply,
)
from tracelake.wire.claims import (
    ClaimBatchRequest,
    ClaimReply,
    ClaimRequest,
    FetchReply,
    IntrospectReply,
    IntrospectRequest,
    TokenReply,
    TokenRequest,
)
from tracelake.wire.platform import (
    CancelReply,
    DatasetFilesReply,
    DatasetFilesRequest,
    DeadLettersReply,
    DropDeadLettersReply,
    DropDeadLettersRequest,
    JobReply,
    JobRequest,
    OutboxReply,
    RequeueReply,
    RequeueRequest,
    TasksReply,
    TasksRequest,
)
from tracelake.wire.quotas import QuotaChange, QuotaRequest, QuotasReply
from tracelake.wire.retention import GcPlan, GcReply
from tracelake.wire.sources import CronSourcesReply, FireReply, FireRequest

T = TypeVar("T")

WORKER_HEADER = "X-Trace-Worker-Token"
SERVICE_HEADER = "X-Trace-Service-Token"

_buffers = msgspec.json.Decoder(BuffersReply)
_buffer_committed = msgspec.json.Decoder(BufferCommittedReply)
_buffer_open = msgspec.json.Decoder(BufferOpenReply)
_buffer_rejected = msgspec.json.Decoder(BufferRejectedReply)
_answers = msgspec.json.Decoder(Answers)
_claim = msgspec.json.Decoder(ClaimReply)
_fetch = msgspec.json.Decoder(FetchReply)
_token = msgspec.json.Decoder(TokenReply)
_introspect = msgspec.json.Decoder(IntrospectReply)
_job = msgspec.json.Decoder(JobReply)
_tasks = msgspec.json.Decoder(TasksReply)
_cancel = msgspec.json.Decoder(CancelReply)
_dataset_files = msgspec.json.Decoder(DatasetFilesReply)
_outbox = msgspec.json.Decoder(OutboxReply)
_cron_sources = msgspec.json.Decoder(CronSourcesReply)
_fire = msgspec.json.Decoder(FireReply)
_requeue = msgspec.json.Decoder(RequeueReply)
_dead_letters = msgspec.json.Decoder(DeadLettersReply)
_drop = msgspec.json.Decoder(DropDeadLettersReply)
_gc_plan = msgspec.json.Decoder(GcPlan)
_gc = msgspec.json.Decoder(GcReply)
_quotas = msgspec.json.Decoder(QuotasReply)
_quota_change = msgspec.json.Decoder(QuotaChange)


class InternalClient:
    def __init__(
        self, http: HttpClient, *, worker: Credential | None = None, service: Credential | None = None
    ) -> None:
        self._http = http
        self._credentials = {WORKER_HEADER: worker, SERVICE_HEADER: service}

    # --- worker wrappers

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        return await self._worker("POST", "/internal/task-claim", _claim, request)

    async def claim_batch(self, requests: Sequence[ClaimRequest]) -> list[ClaimReply | TraceError]:
        """One answer per claim, in order; a claim that failed is an error in its place."""
        body = ClaimBatchRequest(claims=[msgspec.Raw(encoder.encode(request)) for request in requests])
        answers = (await self._worker("POST", "/internal/task-claim-batch", _answers, body)).answers
        if len(answers) != len(requests):
            raise DispatcherUnavailableError("the batch answer has another length than the batch")
        return [answer_or_error(_claim, answer) for answer in answers]

    async def fetch(self, task_id: UUID) -> FetchReply:
        return await self._worker("GET", f"/internal/task-fetch?task_id={task_id}", _fetch)

    async def token(self, request: TokenRequest) -> TokenReply:
        """A fresh capability token for a current attempt."""
        return await self._worker("POST", "/internal/task-token", _token, request)

    # --- platform services

    async def introspect(self, request: IntrospectRequest) -> IntrospectReply:
        return await self._service("POST", "/internal/task-introspect", _introspect, request)

    async def create_job(self, request: JobRequest) -> JobReply:
        return await self._service("POST", "/internal/jobs", _job, request)

    async def create_tasks(self, request: TasksRequest) -> TasksReply:
        return await self._service("POST", "/internal/tasks", _tasks, request)

    async def cancel_task(self, task_id: UUID) -> CancelReply:
        return await self._service("POST", f"/internal/tasks/{task_id}/cancel", _cancel, {})

    async def dataset_files(self, request: DatasetFilesRequest) -> DatasetFilesReply:
        """One page; the next one is asked for with what `next` says as `page`."""
        return await self._service("POST", "/internal/dataset-files", _dataset_files, request)

    async def buffers(self) -> BuffersReply:
        return await self._service("GET", "/internal/buffers", _buffers)

    async def buffer_committed(self, request: BufferCommittedRequest) -> BufferCommittedReply:
        return await self._service("POST", "/internal/buffer-committed", _buffer_committed, request)

    async def buffer_open(self, request: BufferOpenRequest) -> BufferOpenReply:
        return await self._service("POST", "/internal/buffer-open", _buffer_open, request)

    async def buffer_rejected(self, request: BufferRejectedRequest) -> BufferRejectedReply:
        return await self._service("POST", "/internal/buffer-rejected", _buffer_rejected, request)

    async def outbox(self, status: Literal["failed", "pending"] | None = None, limit: int = 100) -> OutboxReply:
        """Rows of that status, or of both."""
        status_filter = "" if status is None else f"status={status}&"
        return await self._service("GET", f"/internal/outbox?{status_filter}limit={limit:d}", _outbox)

    async def requeue_outbox(self, outbox_ids: Sequence[int] | None = None) -> RequeueReply:
        """Without ids, every failed row."""
        request = RequeueRequest(outbox_ids=None if outbox_ids is None else list(outbox_ids))
        return await self._service("POST", "/internal/outbox/requeue", _requeue, request)

    async def dead_letters(self, limit: int = 100) -> DeadLettersReply:
        return await self._service("GET", f"/internal/dead-letters?limit={limit:d}", _dead_letters)

    async def drop_dead_letters(self, message_ids: Sequence[str] | None = None) -> DropDeadLettersReply:
        """Without ids, every one of them."""
        request = DropDeadLettersRequest(message_ids=None if message_ids is None else list(message_ids))
        return await self._service("POST", "/internal/dead-letters/drop", _drop, request)

    async def plan_gc(self) -> GcPlan:
        return await self._service("GET", "/internal/gc", _gc_plan)

    async def run_gc(self) -> GcReply:
        """One bounded round; its reply says whether there is more."""
        return await self._service("POST", "/internal/gc", _gc)

    async def quotas(self) -> QuotasReply:
        return await self._service("GET", "/internal/quotas", _quotas)

    async def change_quota(self, request: QuotaRequest) -> QuotaChange:
        return await self._service("POST", "/internal/quotas", _quota_change, request)

    async def cron_sources(self) -> CronSourcesReply:
        return await self._service("GET", "/internal/sources?kind=cron", _cron_sources)

    async def fire_cron(self, job_id: UUID, slot: datetime) -> FireReply:
        """The same slot again is a duplicate."""
        return await self._service("POST", f"/internal/sources/{job_id}/fire", _fire, FireRequest(slot=slot))

    async def close(self) -> None:
        await self._http.close()

    async def _worker(self, method: str, path: str, decoder: "msgspec.json.Decoder[T]", body: Any = None) -> T:
        return await self._call(WORKER_HEADER, method, path, decoder, body)

    async def _service(self, method: str, path: str, decoder: "msgspec.json.Decoder[T]", body: Any = None) -> T:
        return await self._call(SERVICE_HEADER, method, path, decoder, body)

    async def _call(self, header: str, method: str, path: str, decoder: "msgspec.json.Decoder[T]", body: Any) -> T:
        credential = self._credentials[header]
        if credential is None:
            raise ValueError(f"this client was given nothing to send as {header}")
        token = credential.current()
        try:
            return await call(self._http, method, path, decoder, header=(header, token), body=body)
        except TraceError as error:
            newer = credential.newer_than(token) if error.status == 401 else None
            if newer is None:
                raise
        return await call(self._http, method, path, decoder, header=(header, newer), body=body)
