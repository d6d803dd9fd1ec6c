"""Handlers of tasks, wrappers, platform services and senders of webhooks: from a checked request to a use case, and
back. No decision is made here.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from types import CoroutineType
from typing import Any
from uuid import UUID

import msgspec

from tracelake import __version__
from tracelake.dispatcher import jobs
from tracelake.dispatcher.buffers.commits import BufferCommits
from tracelake.dispatcher.deploy.reading import FairReader
from tracelake.dispatcher.http.app import decode, error_body
from tracelake.dispatcher.http.credentials import Gatekeeper
from tracelake.dispatcher.http.health import Health
from tracelake.dispatcher.http.routing import Raw, Request
from tracelake.dispatcher.outbox import admin as outbox
from tracelake.dispatcher.quotas.admin import QuotaAdmin
from tracelake.dispatcher.retention.loop import Retention
from tracelake.dispatcher.service import DispatcherService
from tracelake.dispatcher.sources.cron import CronSources
from tracelake.dispatcher.sources.deliveries import Deliveries
from tracelake.dispatcher.tokens.claims import VerifiedClaims
from tracelake.dispatcher.tokens.verify import KeyDirectory
from tracelake.errors import TraceError
from tracelake.ports import Queue
from tracelake.wire import platform
from tracelake.wire.base import Answer, Answers
from tracelake.wire.claims import MAX_BATCH, ClaimRequest
from tracelake.wire.task_calls import (
    BatchCall,
    BufferPublishRequest,
    CallName,
    CompleteRequest,
    EventsRequest,
    HeartbeatRequest,
)

logger = logging.getLogger(__name__)

_YIELD_EVERY = 16
_ENCODER = msgspec.json.Encoder()
_CLAIM = msgspec.json.Decoder(ClaimRequest)
_BATCH_CALL = msgspec.json.Decoder(BatchCall)
_BODIES: dict[str, msgspec.json.Decoder[Any]] = {
    "heartbeat": msgspec.json.Decoder(HeartbeatRequest),
    "complete": msgspec.json.Decoder(CompleteRequest),
    "events": msgspec.json.Decoder(EventsRequest),
    "buffer-publish": msgspec.json.Decoder(BufferPublishRequest),
}


@dataclass(frozen=True, slots=True)
class Handlers:
    service: DispatcherService
    gatekeeper: Gatekeeper
    keys: KeyDirectory
    health: Health
    deliveries: Deliveries
    cron: CronSources
    buffers: BufferCommits
    queue: Queue
    documents: FairReader
    retention: Retention
    quotas: QuotaAdmin

    # Worker wrappers

    async def claim(self, request: Request) -> msgspec.Struct:
        return await self.service.claim(request.body)

    async def claim_batch(self, request: Request) -> msgspec.Struct:
        items: Sequence[msgspec.Raw] = request.body.claims
        _check_size(items, "claims")

        def claim(raw: msgspec.Raw) -> Awaitable[msgspec.Struct] | TraceError:
            try:
                return self.service.claim(decode(_CLAIM, raw))
            except TraceError as refusal:
                return refusal

        waiting = [claim(raw) for raw in items]
        return Answers(answers=[await self._answer(work, request.route.path) for work in waiting])

    async def fetch(self, request: Request) -> msgspec.Struct:
        return await self.service.fetch(request.query["task_id"])

    async def token(self, request: Request) -> msgspec.Struct:
        return await self.service.token(request.body)

    # The task itself

    async def heartbeat(self, request: Request) -> msgspec.Struct:
        return await self.service.heartbeat(request.task_claims, request.body)

    async def complete(self, request: Request) -> msgspec.Struct:
        return await self.service.complete(request.task_claims, request.body)

    async def events(self, request: Request) -> msgspec.Struct:
        return await self.service.events(request.task_claims, request.body)

    async def buffer_publish(self, request: Request) -> msgspec.Struct:
        return await self.service.buffer_publish(request.task_claims, request.body)

    async def files(self, request: Request) -> msgspec.Struct:
        return await self.service.files(request.task_claims, request.body)

    async def batch(self, request: Request) -> msgspec.Struct:
        """Calls of one task run in the order they stand, also when one must ask the object store first."""
        items: Sequence[msgspec.Raw] = request.body.calls
        _check_size(items, "calls")
        waiting: list[Awaitable[msgspec.Struct] | TraceError] = []
        slow: dict[UUID, asyncio.Future[msgspec.Struct]] = {}
        for index, raw in enumerate(items):
            if index % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)  # checking signatures takes time that belongs to others too
            try:
                call, claims, body = self._read_item(raw, request)
                if body.task_id in slow:
                    await asyncio.wait([slow[body.task_id]])
                work = self._perform(call, claims, body)
            except TraceError as refusal:
                waiting.append(refusal)
                continue
            if isinstance(work, CoroutineType):  # it asks the object store first, and only then gets in line
                work = slow[body.task_id] = asyncio.ensure_future(work)
            waiting.append(work)
        return Answers(answers=[await self._answer(work, request.route.path) for work in waiting])

    def _read_item(self, raw: msgspec.Raw, request: Request) -> tuple[CallName, VerifiedClaims, Any]:
        item: BatchCall = decode(_BATCH_CALL, raw)
        claims = self.gatekeeper.item_capability(item.capability_token)
        request.proven = True
        return item.call, claims, decode(_BODIES[item.call], item.body)

    def _perform(self, call: CallName, claims: VerifiedClaims, body: Any) -> Awaitable[msgspec.Struct]:
        match call:
            case "heartbeat":
                return self.service.heartbeat(claims, body)
            case "complete":
                return self.service.complete(claims, body)
            case "events":
                return self.service.events(claims, body)
            case "buffer-publish":
                return self.service.buffer_publish(claims, body)

    async def _answer(self, work: Awaitable[msgspec.Struct] | TraceError, route: str) -> Answer:
        """What the single call would have answered, and counted."""
        try:
            if isinstance(work, TraceError):
                raise work
            return Answer(status=200, body=msgspec.Raw(_ENCODER.encode(await work)))
        except TraceError as refusal:
            if refusal.status == 409:
                self.service.metrics.fenced.labels(route, refusal.code).inc()
            return Answer(status=refusal.status, body=msgspec.Raw(error_body(refusal)))
        except Exception:
            # One item's failure is its own: what its neighbours have done is committed, and they must hear of it.
            logger.exception("an item of a batch failed", extra={"route": route})
            self.service.metrics.internal_errors.inc()
            return Answer(status=500, body=msgspec.Raw(error_body(TraceError("internal"))))

    # Webhooks

    async def deliver(self, request: Request) -> msgspec.Struct:
        return await self.deliveries.deliver(request.path["path"], request.signed_head, request.body)

    # Platform services

    async def introspect(self, request: Request) -> msgspec.Struct:
        return await self.service.introspect(request.body)

    async def register_job(self, request: Request) -> msgspec.Struct:
        if jobs.takes_config(request.body):
            await self.documents.check_config(request.body.org, request.body.operator, request.body.config)
        return await jobs.register_job(self.service.store, request.body, self.service.config)

    async def create_tasks(self, request: Request) -> msgspec.Struct:
        return platform.TasksReply(tasks=await self.service.create_tasks(request.body.tasks))

    async def dataset_files(self, request: Request) -> msgspec.Struct:
        return await self.service.dataset_files(request.body)

    async def cancel(self, request: Request) -> msgspec.Struct:
        return await self.service.cancel(request.path["task_id"])

    async def list_outbox(self, request: Request) -> msgspec.Struct:
        status = request.query["status"]
        return await outbox.list_rows(self.service.store, status and status.title(), request.query["limit"])

    async def requeue_outbox(self, request: Request) -> msgspec.Struct:
        requeued = await outbox.requeue(self.service.store, request.body.outbox_ids)
        if request.body.outbox_ids and not requeued:
            raise TraceError("outbox_row_not_found")
        return platform.RequeueReply(requeued=requeued)

    async def list_dead_letters(self, request: Request) -> msgspec.Struct:
        return await outbox.dead_letters(self.queue, request.query["limit"])

    async def drop_dead_letters(self, request: Request) -> msgspec.Struct:
        dropped = await outbox.drop_dead_letters(self.queue, request.body.message_ids)
        if request.body.message_ids and not dropped:
            raise TraceError("dead_letter_not_found")
        return platform.DropDeadLettersReply(dropped=dropped)

    async def plan_gc(self, _request: Request) -> msgspec.Struct:
        return await self.retention.plan()

    async def run_gc(self, _request: Request) -> msgspec.Struct:
        return await self.retention.run_round()

    async def list_quotas(self, _request: Request) -> msgspec.Struct:
        return await self.quotas.list()

    async def change_quota(self, request: Request) -> msgspec.Struct:
        return await self.quotas.change(request.body)

    # Sources

    async def list_sources(self, _request: Request) -> msgspec.Struct:
        return await self.cron.list()

    async def fire_source(self, request: Request) -> msgspec.Struct:
        return await self.cron.fire(request.path["job_id"], request.body)

    # Sinks

    async def list_buffers(self, _request: Request) -> msgspec.Struct:
        return await self.buffers.list()

    async def buffer_open(self, request: Request) -> msgspec.Struct:
        return await self.buffers.open(request.body)

    async def buffer_committed(self, request: Request) -> msgspec.Struct:
        return await self.buffers.committed(request.body)

    async def buffer_rejected(self, request: Request) -> msgspec.Struct:
        return await self.buffers.rejected(request.body)

    # Everybody

    async def jwks(self, _request: Request) -> Raw:
        keys = self.keys.jwks(self.service.clock.now())
        return Raw(_ENCODER.encode(keys), "application/json", max_age=self.service.config.jwks_cache_seconds)

    async def healthz(self, _request: Request) -> Raw:
        if self.health.is_alive():
            return _health({})
        return _health({"lifecycle": "stalled"})

    async def readyz(self, _request: Request) -> Raw:
        return _health(await self.health.check())

    async def metrics(self, _request: Request) -> Raw:
        return Raw(self.service.metrics.render(), "text/plain; version=0.0.4; charset=utf-8")


def _health(checks: dict[str, str]) -> Raw:
    healthy = all(state == "ok" for state in checks.values())
    body = platform.Health(status="ok" if healthy else "unavailable", checks=checks, version=__version__)
    return Raw(_ENCODER.encode(body), "application/json", 200 if healthy else 503)


def _check_size(items: Sequence[msgspec.Raw], field: str) -> None:
    if not 1 <= len(items) <= MAX_BATCH:
        raise TraceError("body_invalid", f"A batch has 1 to {MAX_BATCH} items.", field=field)
