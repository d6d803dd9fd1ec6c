"""Typed client of `/v1/task/*`. Each call carries the capability token of the attempt it speaks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from tracelake.client.calls import call, encoder
from tracelake.client.errors import DispatcherUnavailableError, answer_or_error
from tracelake.client.http import HttpClient
from tracelake.errors import TraceError
from tracelake.wire.base import Answer, Answers
from tracelake.wire.task_calls import (
    BatchCall,
    BatchRequest,
    BufferPublishReply,
    BufferPublishRequest,
    CallName,
    CompleteReply,
    CompleteRequest,
    EventsReply,
    EventsRequest,
    FilesReply,
    FilesRequest,
    HeartbeatReply,
    HeartbeatRequest,
)

T = TypeVar("T")

CAPABILITY_HEADER = "X-Trace-Task-Capability"

TaskRequest = HeartbeatRequest | CompleteRequest | EventsRequest | BufferPublishRequest
TaskReply = HeartbeatReply | CompleteReply | EventsReply | BufferPublishReply

_answers = msgspec.json.Decoder(Answers)
_heartbeat = msgspec.json.Decoder(HeartbeatReply)
_complete = msgspec.json.Decoder(CompleteReply)
_events = msgspec.json.Decoder(EventsReply)
_files = msgspec.json.Decoder(FilesReply)
_buffer_publish = msgspec.json.Decoder(BufferPublishReply)


@dataclass(frozen=True, slots=True)
class TaskCall:
    """One item of a batch."""

    capability_token: str
    request: TaskRequest


class TaskClient:
    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def heartbeat(self, capability_token: str, request: HeartbeatRequest) -> HeartbeatReply:
        return await self._call("heartbeat", capability_token, request, _heartbeat)

    async def complete(self, capability_token: str, request: CompleteRequest) -> CompleteReply:
        return await self._call("complete", capability_token, request, _complete)

    async def events(self, capability_token: str, request: EventsRequest) -> EventsReply:
        return await self._call("events", capability_token, request, _events)

    async def buffer_publish(self, capability_token: str, request: BufferPublishRequest) -> BufferPublishReply:
        return await self._call("buffer-publish", capability_token, request, _buffer_publish)

    async def files(self, capability_token: str, request: FilesRequest) -> FilesReply:
        header = (CAPABILITY_HEADER, capability_token)
        return await call(self._http, "POST", "/v1/task/files", _files, header=header, body=request)

    async def batch(self, calls: Sequence[TaskCall]) -> list[TaskReply | TraceError]:
        """One answer per call, in order; a call that failed is an error in its place."""
        items = [
            BatchCall(
                call=_name(item.request),
                capability_token=item.capability_token,
                body=msgspec.Raw(encoder.encode(item.request)),
            )
            for item in calls
        ]
        body = BatchRequest(calls=[msgspec.Raw(encoder.encode(item)) for item in items])
        # Every item brings its own credential; the one in the header opens the door to large bodies.
        header = (CAPABILITY_HEADER, calls[0].capability_token)
        try:
            answers = (await call(self._http, "POST", "/v1/task/batch", _answers, header=header, body=body)).answers
        except TraceError as refusal:
            if refusal.status != 401:
                raise
            return [refusal] * len(calls)  # each one fetches a fresh token and repeats its call
        if len(answers) != len(calls):
            raise DispatcherUnavailableError("the batch answer has another length than the batch")
        return [_read(item.request, answer) for item, answer in zip(calls, answers, strict=True)]

    async def close(self) -> None:
        await self._http.close()

    async def _call(
        self, name: CallName, capability_token: str, request: TaskRequest, decoder: "msgspec.json.Decoder[T]"
    ) -> T:
        header = (CAPABILITY_HEADER, capability_token)
        return await call(self._http, "POST", f"/v1/task/{name}", decoder, header=header, body=request)


def _name(request: TaskRequest) -> CallName:
    match request:
        case HeartbeatRequest():
            return "heartbeat"
        case CompleteRequest():
            return "complete"
        case EventsRequest():
            return "events"
        case BufferPublishRequest():
            return "buffer-publish"


def _read(request: TaskRequest, answer: Answer) -> TaskReply | TraceError:
    match request:
        case HeartbeatRequest():
            return answer_or_error(_heartbeat, answer)
        case CompleteRequest():
            return answer_or_error(_complete, answer)
        case EventsRequest():
            return answer_or_error(_events, answer)
        case BufferPublishRequest():
            return answer_or_error(_buffer_publish, answer)
