"""Typed client of `/internal/*`.

A worker passes a worker credential, a platform service a service credential; a call of a route that needs another one
raises `ValueError` before anything is sent. After a 401 the credential is read again once, because tokens rotate.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar, overload
from uuid import UUID

import msgspec

from tracelake.client.calls import call, encoder
from tracelake.client.credentials import Credential
from tracelake.client.errors import DispatcherUnavailableError, answer_or_error
from tracelake.client.http import HttpClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.buffers import (
    BufferCommittedReply,
    BufferCommittedRequest,
    BufferOpenReply,
    BufferOpenRequest,
    BufferRejectedReply,
    BufferRejectedRequest,
    BuffersReply,
    TablesDroppedReply,
    TablesDroppedRequest,
    TablesMeasuredReply,
    TablesMeasuredRequest,
)
from tracelake.wire.claims import ClaimBatchRequest, ClaimReply, ClaimRequest, TokenReply, TokenRequest
from tracelake.wire.contract import HEADERS, Principal, Route
from tracelake.wire.run_logs import StoreLogsReply, StoreLogsRequest
from tracelake.wire.sources import CronSourcesReply, FireReply, FireRequest

B = TypeVar("B")
R = TypeVar("R")


class InternalClient:
    """Calls any route of the internal listener; the methods are those that workers, sinks and the scheduler use."""

    def __init__(
        self, http: HttpClient, *, worker: Credential | None = None, service: Credential | None = None
    ) -> None:
        self._http = http
        self._credentials = {Principal.WORKER: worker, Principal.SERVICE: service}

    @overload
    async def call(self, route: Route[None, R], /, **parameters: Any) -> R: ...
    @overload
    async def call(self, route: Route[B, R], body: B, /, **parameters: Any) -> R: ...
    async def call(self, route: Route[Any, R], body: Any = None, /, **parameters: Any) -> R:
        if route.principal is Principal.NOBODY:
            return await call(self._http, route, body, parameters)
        header, credential = HEADERS[route.principal], self._credentials.get(route.principal)
        if credential is None:
            raise ValueError(f"this client was given nothing to send as {header}")
        token = credential.current()
        try:
            return await call(self._http, route, body, parameters, (header, token))
        except TraceError as error:
            newer = credential.newer_than(token) if error.status == 401 else None
            if newer is None:
                raise
        return await call(self._http, route, body, parameters, (header, newer))

    async def close(self) -> None:
        await self._http.close()

    # --- worker wrappers

    async def claim_batch(self, requests: Sequence[ClaimRequest]) -> list[ClaimReply | TraceError]:
        """Returns one reply per claim, in order; a failed claim has its error instead."""
        body = ClaimBatchRequest(claims=[msgspec.Raw(encoder.encode(request)) for request in requests])
        answers = (await self.call(routes.CLAIM_TASKS, body)).answers
        if len(answers) != len(requests):
            raise DispatcherUnavailableError("the batch answer has another length than the batch")
        return [answer_or_error(routes.CLAIM_TASK.reply_decoder, answer) for answer in answers]

    async def token(self, request: TokenRequest) -> TokenReply:
        """A fresh capability token for a current attempt."""
        return await self.call(routes.RENEW_TOKEN, request)

    async def store_logs(self, request: StoreLogsRequest) -> StoreLogsReply:
        return await self.call(routes.STORE_LOGS, request)

    # --- sinks

    async def buffers(self) -> BuffersReply:
        return await self.call(routes.LIST_BUFFERS)

    async def buffer_open(self, request: BufferOpenRequest) -> BufferOpenReply:
        return await self.call(routes.LIST_OPEN_BATCHES, request)

    async def buffer_committed(self, request: BufferCommittedRequest) -> BufferCommittedReply:
        return await self.call(routes.COMMIT_BATCHES, request)

    async def buffer_rejected(self, request: BufferRejectedRequest) -> BufferRejectedReply:
        return await self.call(routes.REJECT_BATCH, request)

    async def tables_dropped(self, request: TablesDroppedRequest) -> TablesDroppedReply:
        return await self.call(routes.REPORT_DROPPED_TABLES, request)

    async def tables_measured(self, request: TablesMeasuredRequest) -> TablesMeasuredReply:
        return await self.call(routes.REPORT_TABLE_SIZES, request)

    # --- the scheduler

    async def cron_sources(self) -> CronSourcesReply:
        return await self.call(routes.LIST_CRON_SOURCES, kind="cron")

    async def fire_cron(self, job_id: UUID, slot: datetime) -> FireReply:
        """The same slot again is a duplicate."""
        return await self.call(routes.FIRE_SOURCE, FireRequest(slot=slot), job_id=job_id)
