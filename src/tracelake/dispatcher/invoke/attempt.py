"""An attempt that this Dispatcher started, and its way to speak: the group commit, without HTTP and token.

While the store is away it repeats what it has to say, as a worker does. It gives up when the Dispatcher stops: the
lease then runs out, and the task is tried again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar
from uuid import UUID

from tracelake.dispatcher.engine.calls.claim import ClaimedAttempt
from tracelake.dispatcher.engine.calls.completion import CompleteCall
from tracelake.dispatcher.engine.calls.events import EventsCall
from tracelake.dispatcher.engine.calls.heartbeat import HeartbeatCall
from tracelake.dispatcher.engine.group_commit import GroupCommit
from tracelake.dispatcher.metrics import Metrics
from tracelake.errors import StoreUnavailableError
from tracelake.model.backoff import Backoff
from tracelake.model.job import Job
from tracelake.model.task import Task
from tracelake.wire.task_calls import CompleteRequest, EventsRequest, FinalStatus, HeartbeatRequest
from tracelake.wire.units import EventIn, TaskInput

T = TypeVar("T")

_AWAY = Backoff(0.2, 5.0)
_MAX_ERROR_TEXT = 2000


class LeftError(Exception):
    """The Dispatcher stops while the store is away: the attempt is left to its lease."""


class OwnAttempt:
    def __init__(self, claimed: ClaimedAttempt, group: GroupCommit, metrics: Metrics, stopping: asyncio.Event) -> None:
        self.task: Task = claimed.task
        self.job: Job = claimed.job
        self.inputs: list[TaskInput] = claimed.inputs
        assert claimed.task.lease_token is not None
        self.lease_token: UUID = claimed.task.lease_token
        self._group = group
        self._metrics = metrics
        self._stopping = stopping

    async def say_events(self, events: Sequence[EventIn]) -> None:
        body = EventsRequest(
            task_id=self.task.task_id, attempt=self.task.attempt, lease_token=self.lease_token, events=list(events)
        )
        await self.repeated(lambda: self._group.enqueue(EventsCall(body, self.task.org_id)))

    async def beat(self) -> bool:
        """Extend the lease; True if the attempt was asked to stop."""
        body = HeartbeatRequest(task_id=self.task.task_id, attempt=self.task.attempt, lease_token=self.lease_token)
        answer = await self.repeated(lambda: self._group.enqueue(HeartbeatCall(body)))
        return answer.task.cancel_requested

    async def finish(
        self,
        status: FinalStatus,
        *,
        events: Sequence[EventIn] = (),
        error: str | None = None,
        retryable: bool = True,
        not_started: bool = False,
    ) -> str:
        """The final word; answers what was recorded. `not_started`: nobody took the attempt over, so it costs none."""
        body = CompleteRequest(
            task_id=self.task.task_id,
            attempt=self.task.attempt,
            lease_token=self.lease_token,
            status=status,
            events=list(events),
            error_message=None if error is None else _plain(error),
            retryable=retryable,
        )
        call = CompleteCall(body, self.task.org_id, not_started=not_started)
        result = await self.repeated(lambda: self._group.enqueue(call))
        if not result.duplicate:
            self._metrics.completions.labels(result.status).inc()
        return result.status

    async def repeated(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until the store answers."""
        tries = 0
        while True:
            try:
                return await ask()
            except StoreUnavailableError:
                tries += 1
                if self._stopping.is_set():
                    raise LeftError from None
            with suppress(TimeoutError):
                async with asyncio.timeout(_AWAY.seconds(tries)):
                    await self._stopping.wait()


def _plain(text: str) -> str:
    """Text that Postgres and JSON can carry, however strange the exception was."""
    return text[:_MAX_ERROR_TEXT].replace("\0", "\ufffd").encode("utf-8", "replace").decode()
