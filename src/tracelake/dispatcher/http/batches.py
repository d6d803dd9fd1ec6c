"""Batch routes: many calls in one body, each decoded, authorised and answered on its own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import CoroutineType
from typing import Any
from uuid import UUID

import msgspec

from tracelake.dispatcher.http.credentials import Gatekeeper
from tracelake.dispatcher.service import DispatcherService
from tracelake.errors import TraceError
from tracelake.http.app import decode, error_body
from tracelake.http.router import HttpRequest
from tracelake.tokens.token_claims import VerifiedClaims
from tracelake.wire import routes
from tracelake.wire.base import Answer, Answers
from tracelake.wire.claims import MAX_BATCH, ClaimBatchRequest, ClaimRequest
from tracelake.wire.task_calls import BatchCall, BatchRequest, CallName

logger = logging.getLogger(__name__)

_YIELD_EVERY = 16
_ENCODER = msgspec.json.Encoder()
_CLAIM = msgspec.json.Decoder(ClaimRequest)
_BATCH_CALL = msgspec.json.Decoder(BatchCall)
_BODIES = {name: msgspec.json.Decoder(route.body) for name, route in routes.BATCHED_CALLS.items()}


class Batches:
    def __init__(self, service: DispatcherService, gatekeeper: Gatekeeper) -> None:
        self._service = service
        self._gatekeeper = gatekeeper
        self._calls: dict[CallName, Callable[[VerifiedClaims, Any], Awaitable[msgspec.Struct]]] = {
            "heartbeat": service.heartbeat,
            "complete": service.complete,
            "events": service.events,
            "buffer-publish": service.buffer_publish,
        }

    async def claim(self, request: HttpRequest[ClaimBatchRequest]) -> Answers:
        items = request.body.claims
        _check_size(items, "claims")
        pending = [self._claim(raw) for raw in items]
        return Answers(answers=[await self._answer(work, request.route.path) for work in pending])

    def _claim(self, raw: msgspec.Raw) -> Awaitable[msgspec.Struct] | TraceError:
        try:
            return self._service.claim(decode(_CLAIM, raw))
        except TraceError as refusal:
            return refusal

    async def perform(self, request: HttpRequest[BatchRequest]) -> Answers:
        """Calls of one task run in the order they stand, also when one must ask the object store first."""
        items = request.body.calls
        _check_size(items, "calls")
        pending: list[Awaitable[msgspec.Struct] | TraceError] = []
        slow: dict[UUID, asyncio.Future[msgspec.Struct]] = {}
        for index, raw in enumerate(items):
            if index % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)  # checking signatures takes time that belongs to others too
            try:
                call, claims, body = self._read_item(raw, request)
                if body.task_id in slow:
                    await asyncio.wait([slow[body.task_id]])
                work = self._calls[call](claims, body)
            except TraceError as refusal:
                pending.append(refusal)
                continue
            if isinstance(work, CoroutineType):  # it asks the object store first, and only then gets in line
                work = slow[body.task_id] = asyncio.ensure_future(work)
            pending.append(work)
        return Answers(answers=[await self._answer(work, request.route.path) for work in pending])

    def _read_item(self, raw: msgspec.Raw, request: HttpRequest[BatchRequest]) -> tuple[CallName, VerifiedClaims, Any]:
        item = decode(_BATCH_CALL, raw)
        claims = self._gatekeeper.item_capability(item.capability_token)
        request.proven = True
        return item.call, claims, decode(_BODIES[item.call], item.body)

    async def _answer(self, work: Awaitable[msgspec.Struct] | TraceError, route: str) -> Answer:
        """What the single call would have answered, and counted."""
        try:
            if isinstance(work, TraceError):
                raise work
            return Answer(status=200, body=msgspec.Raw(_ENCODER.encode(await work)))
        except TraceError as refusal:
            if refusal.status == 409:
                self._service.metrics.fenced.labels(route, refusal.code).inc()
            return Answer(status=refusal.status, body=msgspec.Raw(error_body(refusal)))
        except Exception:
            # One item's failure is its own: what its neighbours have done is committed, and they must hear of it.
            logger.exception("an item of a batch failed", extra={"route": route})
            self._service.metrics.internal_errors.inc()
            return Answer(status=500, body=msgspec.Raw(error_body(TraceError("internal"))))


def _check_size(items: Sequence[msgspec.Raw], field: str) -> None:
    if not 1 <= len(items) <= MAX_BATCH:
        raise TraceError("body_invalid", f"A batch has 1 to {MAX_BATCH} items.", field=field)
