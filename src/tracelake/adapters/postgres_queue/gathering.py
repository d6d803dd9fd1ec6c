"""Group commit without a timer: calls that arrive while the last batch is in flight go as one.

A caller who goes away does not disturb the others, and an error of one is not an error of its neighbours
unless the whole batch failed.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from tracelake.ports.queue import QueueUnavailableError

Call = TypeVar("Call")
Outcome = TypeVar("Outcome")


class Gatherer(Generic[Call, Outcome]):
    """`run` gets the calls of one batch and answers one outcome, or one exception, for each in order."""

    def __init__(
        self,
        run: Callable[[list[Call]], Awaitable[Sequence[Outcome | Exception]]],
        *,
        weigh: Callable[[Call], int],
        max_weight: int,
    ) -> None:
        self._run = run
        self._weigh = weigh
        self._max_weight = max_weight
        self._waiting: deque[tuple[Call, asyncio.Future[Outcome]]] = deque()
        self._drain: asyncio.Task[None] | None = None

    async def submit(self, call: Call) -> Outcome:
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        if self._drain is None:
            self._drain = asyncio.create_task(self._run_batches())
        return await answer

    async def close(self) -> None:
        """Lets what was submitted finish."""
        if self._drain is not None:
            await asyncio.wait([self._drain])

    async def _run_batches(self) -> None:
        try:
            while self._waiting:
                await self._run_one(self._next_batch())
        finally:
            self._drain = None
            for _, answer in self._waiting:  # only when this task itself was cancelled
                if not answer.done():
                    answer.set_exception(QueueUnavailableError("the queue is closed"))
            self._waiting.clear()

    def _next_batch(self) -> list[tuple[Call, asyncio.Future[Outcome]]]:
        batch: list[tuple[Call, asyncio.Future[Outcome]]] = []
        weight = 0
        while self._waiting:
            weight += self._weigh(self._waiting[0][0])
            if batch and weight > self._max_weight:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _run_one(self, batch: list[tuple[Call, asyncio.Future[Outcome]]]) -> None:
        try:
            outcomes = await self._run([call for call, _ in batch])
        except BaseException as error:
            failure = error if isinstance(error, Exception) else QueueUnavailableError("the queue is closed")
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(own_copy(failure))
            if not isinstance(error, Exception):
                raise
            return
        for (_, answer), outcome in zip(batch, outcomes, strict=True):
            if answer.done():
                continue
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)


def own_copy(error: Exception) -> Exception:
    """Each caller gets an exception object of its own: a shared one would collect tracebacks."""
    if isinstance(error, QueueUnavailableError):
        fresh = QueueUnavailableError(*error.args)
        fresh.__cause__ = error.__cause__
        return fresh
    return error
