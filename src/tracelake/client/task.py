"""Typed client of `/v1/task/*`. Each call carries the capability token of its attempt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from tracelake.client.calls import call, encoder
from tracelake.client.errors import DispatcherUnavailableError, answer_or_error
from tracelake.client.http import HttpClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.contract import HEADERS, Principal, Route
from tracelake.wire.task_calls import (
    BatchCall,
    BatchRequest,
    BufferPublishReply,
    BufferPublishRequest,
    CompleteReply,
    CompleteRequest,
    EventsReply,
    EventsRequest,
    FilesReply,
    FilesRequest,
    HeartbeatReply,
    HeartbeatRequest,
    TaskDeliveriesReply,
    TaskDeliveriesRequest,
)

B = TypeVar("B")
R = TypeVar("R")

TaskRequest = HeartbeatRequest | CompleteRequest | EventsRequest | BufferPublishRequest
TaskReply = HeartbeatReply | CompleteReply | EventsReply | BufferPublishReply

_HEADER = HEADERS[Principal.TASK]
_NAMES = {route.body: name for name, route in routes.BATCHED_CALLS.items()}


@dataclass(frozen=True, slots=True)
class TaskCall:
    """One item of a batch."""

    capability_token: str
    request: TaskRequest


class TaskClient:
    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def call(self, route: Route[B, R], capability_token: str, request: B) -> R:
        return await call(self._http, route, request, {}, (_HEADER, capability_token))

    async def complete(self, capability_token: str, request: CompleteRequest) -> CompleteReply:
        return await self.call(routes.COMPLETE, capability_token, request)

    async def buffer_publish(self, capability_token: str, request: BufferPublishRequest) -> BufferPublishReply:
        return await self.call(routes.PUBLISH_BATCH, capability_token, request)

    async def files(self, capability_token: str, request: FilesRequest) -> FilesReply:
        return await self.call(routes.LIST_INPUT_FILES, capability_token, request)

    async def deliveries(self, capability_token: str, request: TaskDeliveriesRequest) -> TaskDeliveriesReply:
        return await self.call(routes.LIST_TASK_DELIVERIES, capability_token, request)

    async def batch(self, calls: Sequence[TaskCall]) -> list[TaskReply | TraceError]:
        """Returns one reply per call, in order; a failed call has its error instead."""
        names = [_NAMES[type(item.request)] for item in calls]
        items = [
            BatchCall(
                call=name,
                capability_token=item.capability_token,
                body=msgspec.Raw(encoder.encode(item.request)),
            )
            for name, item in zip(names, calls, strict=True)
        ]
        body = BatchRequest(calls=[msgspec.Raw(encoder.encode(item)) for item in items])
        # Every item has its own credential; the one in the header permits a large body.
        try:
            answers = (await self.call(routes.BATCH_TASK_CALLS, calls[0].capability_token, body)).answers
        except TraceError as refusal:
            if refusal.status != 401:
                raise
            return [refusal] * len(calls)  # each one fetches a fresh token and repeats its call
        if len(answers) != len(calls):
            raise DispatcherUnavailableError("the batch answer has another length than the batch")
        return [
            answer_or_error(routes.BATCHED_CALLS[name].reply_decoder, answer)
            for name, answer in zip(names, answers, strict=True)
        ]

    async def close(self) -> None:
        await self._http.close()
