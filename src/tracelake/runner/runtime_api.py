"""The AWS Lambda Runtime API (2018-06-01) of one attempt: one event, and one answer to it.

Everything that arrives here was written by the user's code, the protocol included: a forged call changes nothing but
the outcome of the attempt that made it.
"""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from tracelake.errors import CATALOGUE
from tracelake.runner.exchange import SandboxReply, SandboxRequest, json_reply

MAX_RESPONSE_BYTES = 6 * 1024 * 1024
"""As on Lambda."""
_PREFIX = "/2018-06-01/runtime"
_ANSWER = re.compile(rf"{_PREFIX}/invocation/([0-9A-Za-z-]{{1,64}})/(response|error)")
_MAX_FRAMES = 200
_MAY_PASS = frozenset(
    ("query_canceled", "query_failed", "query_file_invalid", "query_out_of_memory", "query_timeout", "query_too_costly")
)
"""Refusals of a query that depend on the load, or on files that are written again, and not on the query alone."""


class FunctionError(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a runtime reports when a handler raises."""

    error_type: str = "Error"
    error_message: str = ""
    stack_trace: Annotated[list[Any], msgspec.Meta(max_length=100_000)] = []
    retryable: bool = True

    @property
    def is_final(self) -> bool:
        """Another attempt would fail in the same way: the handler says so, or a query of it would be refused again. The
        SDKs of all languages report a refused call as `CallError`, with its code before the message."""
        if not self.retryable:
            return True
        return self.error_type == "CallError" and is_refused_again(self.error_message.partition(":")[0])

    @property
    def frames(self) -> list[str]:
        return [str(frame) for frame in self.stack_trace]


@dataclass(eq=False, kw_only=True)
class RuntimeApi:
    request_id: str
    event: bytes
    deadline_ms: int
    function_name: str
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """There is a response or an error."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """The runtime has asked for a second event, which never comes."""
    response: bytes | None = None
    error: FunctionError | None = None
    too_large: bool = False
    delivered: bool = False
    """Whether the event was fetched."""

    async def handle(self, request: SandboxRequest) -> SandboxReply:
        path = request.target
        if request.method == "GET" and path == f"{_PREFIX}/invocation/next":
            return await self._next()
        if request.method != "POST":
            return _refusal(404, "InvalidRequest")
        if path == f"{_PREFIX}/init/error":
            return self._fail(request.body)
        match = _ANSWER.fullmatch(path)
        if match is None:
            return _refusal(404, "InvalidRequest")
        if match[1] != self.request_id or not self.delivered:
            return _refusal(400, "InvalidRequestID")
        if match[2] == "error":
            return self._fail(request.body)
        return self._respond(request.body)

    def refuse_body(self, reason: str) -> None:
        """Called for a request that never became one: an answer that is too large is an outcome."""
        if reason == "body" and not self.answered.is_set():
            self.too_large = True
            self.answered.set()

    async def _next(self) -> SandboxReply:
        if self.delivered:
            self.done.set()
            await asyncio.Event().wait()  # until the sandbox ends
        self.delivered = True
        headers = [
            ("content-type", "application/json"),
            ("lambda-runtime-aws-request-id", self.request_id),
            ("lambda-runtime-deadline-ms", str(self.deadline_ms)),
            ("lambda-runtime-invoked-function-arn", f"arn:trace:lambda:local:0:function:{self.function_name}"),
        ]
        return SandboxReply(status=200, body=self.event, headers=headers)

    def _respond(self, body: bytes) -> SandboxReply:
        if self.answered.is_set():
            return _refusal(400, "InvalidStateTransition")
        self.response = body
        self.answered.set()
        return json_reply(202, {"status": "OK"})

    def _fail(self, body: bytes) -> SandboxReply:
        if self.answered.is_set():
            return _refusal(400, "InvalidStateTransition")
        try:
            error = msgspec.json.decode(body, type=FunctionError)
            # As text from here on: what is nested as deep as this stack allows may be too deep for the next one.
            frames = [str(frame) for frame in error.stack_trace[:_MAX_FRAMES]]
            self.error = msgspec.structs.replace(error, stack_trace=frames)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.error = FunctionError(
                error_type="InvalidErrorShape", error_message="the runtime's report is not valid"
            )
        self.answered.set()
        return json_reply(202, {"status": "OK"})


def is_refused_again(code: str) -> bool:
    """Whether the same query would be refused again, with the same code."""
    kind = CATALOGUE.get(code)
    if kind is None or not code.startswith("query_") or code in _MAY_PASS:
        return False
    return 400 <= kind.status < 500 and not kind.retryable


def _refusal(status: int, error_type: str) -> SandboxReply:
    return json_reply(status, {"errorType": error_type, "errorMessage": "not allowed in this state"})
