"""What the worker says to the Dispatcher, and how it takes the answers.

The Protocols are the parts of the clients that are used; tests give their own.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from tracelake.catalogue.context import (
    Batch,
    CanceledError,
    EmitRefusedError,
    LiveInput,
    LiveOutput,
    NonRetryableError,
    StoredDelivery,
    TableInput,
)
from tracelake.client import DispatcherUnavailableError, TaskCall
from tracelake.client.task import TaskReply
from tracelake.errors import TraceError
from tracelake.model.backoff import Backoff
from tracelake.model.dag import Schema
from tracelake.ports import ObjectMeta
from tracelake.wire.claims import MAX_BATCH, ClaimReply, ClaimRequest, TokenReply, TokenRequest
from tracelake.wire.direct import DirectTable
from tracelake.wire.task_calls import (
    BufferPublishReply,
    BufferPublishRequest,
    CompleteReply,
    CompleteRequest,
    EventsReply,
    EventsRequest,
    FilesReply,
    FilesRequest,
    HeartbeatReply,
    TaskDeliveriesReply,
    TaskDeliveriesRequest,
)
from tracelake.wire.units import EventIn, PayloadInput, TaskOutput
from tracelake.worker.attempt import Attempt

logger = logging.getLogger(__name__)

T = TypeVar("T")

FENCED = frozenset({404, 409})
"""Not current, or no such task any more: there is nothing left to say about this attempt."""
MAX_EVENTS = 1000
"""In one call."""
MAX_DELIVERY_BYTES = 64 * 2**20
"""Bodies of one task's deliveries."""
FIXED_BY_ANOTHER_ATTEMPT = frozenset({"output_incomplete"})
"""Refusals of a result that are about this attempt's files; whatever else is refused would be refused again."""


class ClaimCalls(Protocol):
    async def claim_batch(self, requests: Sequence[ClaimRequest]) -> list[ClaimReply | TraceError]: ...

    async def token(self, request: TokenRequest) -> TokenReply: ...


class TaskCalls(Protocol):
    async def batch(self, calls: Sequence[TaskCall]) -> list[TaskReply | TraceError]: ...

    async def files(self, capability_token: str, request: FilesRequest) -> FilesReply: ...

    async def buffer_publish(self, capability_token: str, request: BufferPublishRequest) -> BufferPublishReply: ...

    async def deliveries(self, capability_token: str, request: TaskDeliveriesRequest) -> TaskDeliveriesReply: ...


def may_pass(error: TraceError) -> bool:
    """The same call may succeed later without anybody changing it."""
    return error.retryable or error.status >= 500 or error.status == 429


class Reporter:
    """Heartbeats, events and final words of all attempts of one worker."""

    def __init__(self, claims: ClaimCalls, tasks: TaskCalls, backoff: Backoff) -> None:
        self._claims = claims
        self._tasks = tasks
        self._backoff = backoff
        self._waiting: deque[tuple[TaskCall, asyncio.Future[TaskReply | TraceError]]] = deque()
        self._sending: asyncio.Task[None] | None = None

    async def finish(self, attempt: Attempt, final: CompleteRequest) -> bool:
        """Says the final word until it was heard, however long that takes. True: nothing is left to be done."""
        tries = 0
        while True:
            answer = await self._submit(TaskCall(attempt.capability_token, final))
            if isinstance(answer, CompleteReply):
                attempt.heard = (final, answer)
                return True
            error = answer if isinstance(answer, TraceError) else DispatcherUnavailableError("not a reply to complete")
            if error.status in FENCED:
                logger.info("attempt was fenced", extra={**attempt.log_fields, "code": error.code})
                return True
            if error.code == "cancel_requested" and final.status == "Completed":
                final = attempt.final("Canceled")
                continue
            if error.status == 401:
                problem = await self._refresh(attempt)
                if problem is not None and problem.status in FENCED:
                    return True
            elif not may_pass(error):
                if final.status == "Failed":
                    # Left to the lease: the Dispatcher will judge it lost and try again.
                    logger.error("the final word was refused", extra={**attempt.log_fields, "code": error.code})
                    return False
                final = attempt.final(
                    "Failed",
                    f"the result was refused: {error.code}: {error.message}",
                    retryable=error.code in FIXED_BY_ANOTHER_ATTEMPT,
                )
                continue
            attempt.unheard = True
            tries += 1
            if tries == 1 or tries % 10 == 0:
                logger.warning("final word not yet heard", extra={**attempt.log_fields, "code": error.code})
            await asyncio.sleep(self._backoff.seconds(tries))

    async def emit(self, attempt: Attempt, events: Sequence[EventIn]) -> None:
        """Says it until it was heard; raises as `OperatorContext.emit` does."""
        for start in range(0, len(events), MAX_EVENTS):
            await self._emit(attempt, attempt.events_request(events[start : start + MAX_EVENTS]))

    async def _emit(self, attempt: Attempt, request: EventsRequest) -> None:
        tries = 0
        while True:
            if attempt.stopping.is_set():
                raise CanceledError
            answer = await self._submit(TaskCall(attempt.capability_token, request))
            if isinstance(answer, EventsReply):
                return
            error = answer if isinstance(answer, TraceError) else DispatcherUnavailableError("not a reply to events")
            refreshed = await self._take_refusal(attempt, error)
            if attempt.fenced.done():
                raise CanceledError
            if not refreshed and error.status != 401 and not may_pass(error):
                raise EmitRefusedError(f"{error.code}: {error.message}")
            tries += 1
            if tries == 1 or tries % 10 == 0:
                logger.warning("events not yet heard", extra={**attempt.log_fields, "code": error.code})
            await self._wait(attempt, tries)

    async def files(self, attempt: Attempt, item: PayloadInput) -> list[ObjectMeta] | TableInput | LiveInput:
        """Asks until it was answered; raises as `OperatorContext.files` does."""
        objects: list[ObjectMeta] = []
        request = attempt.files_request(item)
        while True:
            reply = await self._files(attempt, request)
            table = None if reply.columns is None else TableInput(tuple(reply.columns), reply.by_position)
            if table is not None and not reply.live:
                return table
            objects += [
                ObjectMeta(file.uri, file.size, file.etag, file.sha256) for unit in reply.units for file in unit.files
            ]
            if reply.next is None:
                return objects if table is None else LiveInput(objects, table, reply.boundary)
            request = msgspec.structs.replace(request, after=reply.next, as_of=reply.as_of)

    async def publish(self, attempt: Attempt, batch: Batch) -> None:
        """Says it until it was heard; raises as `OperatorContext.publish` does."""
        request = attempt.publish_request(batch)
        await self._ask(attempt, lambda token: self._tasks.buffer_publish(token, request))

    async def schema(self, attempt: Attempt, output: TaskOutput) -> Schema | None:
        """Asks until it was answered; raises as `OperatorContext.files` does."""
        request = attempt.schema_request(output)
        return (await self._files(attempt, request)).schema

    async def direct_table(self, attempt: Attempt, output: TaskOutput) -> DirectTable | None:
        """Asks until it was answered; raises as `OperatorContext.files` does."""
        return (await self._files(attempt, attempt.schema_request(output))).table

    async def live_output(self, attempt: Attempt, output: TaskOutput) -> LiveOutput:
        """Asks until it was answered; raises as `OperatorContext.files` does."""
        reply = await self._files(attempt, attempt.schema_request(output))
        if not reply.live or reply.table is None:
            raise NonRetryableError(
                f"the output {output.name} has no table: publish it with `storage: live`, from a job that writes rows"
                " too"
            )
        return LiveOutput(reply.table, reply.boundary)

    async def deliveries(self, attempt: Attempt, item: PayloadInput) -> list[StoredDelivery]:
        """Asks until it was answered; raises as `OperatorContext.files` does."""
        deliveries: list[StoredDelivery] = []
        request = attempt.deliveries_request(item)
        while True:
            page = request
            reply = await self._ask(attempt, lambda token, page=page: self._tasks.deliveries(token, page))  # type: ignore[misc]
            deliveries += [
                StoredDelivery(part.number, part.delivery_id, part.received_at, part.content_type, part.body)
                for part in reply.deliveries
            ]
            if sum(len(part.body) for part in deliveries) > MAX_DELIVERY_BYTES:
                raise NonRetryableError(
                    f"the deliveries of the unit have more than {MAX_DELIVERY_BYTES:,} bytes together: trigger the job"
                    " for fewer of them at a time"
                )
            if reply.next is None:
                return deliveries
            request = msgspec.structs.replace(request, after=reply.next)

    async def _files(self, attempt: Attempt, request: FilesRequest) -> FilesReply:
        return await self._ask(attempt, lambda token: self._tasks.files(token, request))

    async def _ask(self, attempt: Attempt, question: Callable[[str], Awaitable[T]]) -> T:
        tries = 0
        while True:
            if attempt.stopping.is_set():
                raise CanceledError
            try:
                return await question(attempt.capability_token)
            except TraceError as error:
                refreshed = await self._take_refusal(attempt, error)
                if attempt.fenced.done():
                    raise CanceledError from error
                if not refreshed and error.status != 401 and not may_pass(error):
                    raise NonRetryableError(f"{error.code}: {error.message}") from error
            tries += 1
            await self._wait(attempt, tries)

    async def _wait(self, attempt: Attempt, tries: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._backoff.seconds(tries)):
                await attempt.stopping.wait()

    async def heartbeat(self, attempts: Sequence[Attempt]) -> bool:
        """One call for all. False if the Dispatcher did not take it."""
        is_accepted = True
        for start in range(0, len(attempts), MAX_BATCH):
            refreshed = await self._beat(attempts[start : start + MAX_BATCH])
            if refreshed is None:
                is_accepted = False
            elif refreshed:
                is_accepted = await self._beat(refreshed) is not None and is_accepted
        return is_accepted

    async def _beat(self, attempts: Sequence[Attempt]) -> list[Attempt] | None:
        """Answers those whose token was replaced, to be tried again; None if nobody answered."""
        calls = [TaskCall(attempt.capability_token, attempt.heartbeat_request()) for attempt in attempts]
        try:
            answers = await self._tasks.batch(calls)
        except TraceError as error:
            logger.warning("heartbeat not heard", extra={"code": error.code, "tasks": len(attempts)})
            return None
        refreshed: list[Attempt] = []
        for attempt, answer in zip(attempts, answers, strict=True):
            if attempt.finishing and not attempt.unheard:
                continue  # the final word went out meanwhile and has made this answer meaningless
            if isinstance(answer, HeartbeatReply):
                if answer.capability_token is not None:
                    attempt.capability_token = answer.capability_token
                attempt.pause(answer.pause)
                if answer.cancel:
                    attempt.stop_canceled()
            elif isinstance(answer, TraceError) and await self._take_refusal(attempt, answer):
                refreshed.append(attempt)
        return refreshed

    async def _take_refusal(self, attempt: Attempt, error: TraceError) -> bool:
        """True if the token was replaced."""
        if error.status == 401:
            problem = await self._refresh(attempt)
            if problem is None:
                return True
            error = problem
        if error.status in FENCED:
            logger.info("attempt was fenced", extra={**attempt.log_fields, "code": error.code})
            attempt.stop_fenced()
        elif not may_pass(error):
            logger.error("call refused", extra={**attempt.log_fields, "code": error.code})
        return False

    async def _refresh(self, attempt: Attempt) -> TraceError | None:
        try:
            attempt.capability_token = (await self._claims.token(attempt.token_request())).capability_token
        except TraceError as error:
            return error
        return None

    async def _submit(self, call: TaskCall) -> TaskReply | TraceError:
        """Words that are ready together go as one call; no timer, at most one in flight."""
        answer: asyncio.Future[TaskReply | TraceError] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())
        return await answer

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))]
                answers: Sequence[TaskReply | TraceError]
                try:
                    answers = await self._tasks.batch([call for call, _ in batch])
                except TraceError as error:
                    if error.status == 413 and len(batch) > 1:
                        await self._send_singly(batch)
                        continue
                    answers = [error] * len(batch)
                except Exception as bug:
                    # Whoever waits must get an answer, or its slot is lost for good.
                    logger.exception("a batch could not be sent")
                    answers = [DispatcherUnavailableError(f"not sent: {type(bug).__name__}")] * len(batch)
                _settle(batch, answers)
        finally:
            self._sending = None

    async def _send_singly(self, batch: Sequence[tuple[TaskCall, asyncio.Future[TaskReply | TraceError]]]) -> None:
        for item in batch:
            try:
                _settle([item], await self._tasks.batch([item[0]]))
            except TraceError as error:
                _settle([item], [error])


def _settle(
    batch: Sequence[tuple[TaskCall, "asyncio.Future[TaskReply | TraceError]"]],
    answers: Sequence[TaskReply | TraceError],
) -> None:
    for (_, waiting), answer in zip(batch, answers, strict=True):
        if not waiting.done():
            waiting.set_result(answer)
