"""Receivers of one queue, served together.

Every coroutine that waits for messages of the same queue with the same visibility shares one buffer. The
buffer runs one statement for all of them, shares the messages out in turn, and sleeps until a notification,
a new receiver, the moment the next hidden message becomes visible, or the poll interval. What nobody is left
to take (the receiver was cancelled meanwhile) is given back at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field

from tracelake.adapters.postgres_queue.gathering import own_copy
from tracelake.adapters.postgres_queue.notify_listener import NotifyListener
from tracelake.ports.queue import Delivery, QueueUnavailableError

MAX_TAKE = 1000


@dataclass(slots=True, eq=False)
class _Receiver:
    limit: int
    deadline: float
    answer: asyncio.Future[list[Delivery]]
    received: list[Delivery] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        # A cancelled receiver's future is done before its coroutine has left the buffer.
        return not self.answer.done()


class ReceiveBuffer:
    def __init__(
        self,
        queue: str,
        *,
        listener: NotifyListener,
        take: Callable[[int], Awaitable[list[Delivery]]],
        next_due: Callable[[], Awaitable[float | None]],
        give_back: Callable[[list[Delivery]], Coroutine[None, None, None]],
        poll_seconds: float,
    ) -> None:
        self._queue = queue
        self._listener = listener
        self._take = take
        self._next_due = next_due
        self._give_back = give_back
        self._poll_seconds = poll_seconds
        self._receivers: list[_Receiver] = []
        self._news = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return self._serving is None

    async def receive(self, limit: int, wait_seconds: float) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        receiver = _Receiver(limit, loop.time() + wait_seconds, loop.create_future())
        self._receivers.append(receiver)
        self._news.set()
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        try:
            return await receiver.answer
        except asyncio.CancelledError:
            if receiver.answer.done() and not receiver.answer.cancelled() and receiver.received:
                # The messages were ours already: hand them back without holding up the cancellation.
                self._return_later(receiver.received)
            raise
        finally:
            if receiver in self._receivers:
                self._receivers.remove(receiver)

    async def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])

    def _return_later(self, deliveries: list[Delivery]) -> None:
        task = asyncio.create_task(self._give_back(deliveries))
        _background.add(task)
        task.add_done_callback(_background.discard)

    async def _serve(self) -> None:
        self._listener.subscribe(self._queue, self._news)
        try:
            while self._receivers:
                # Cleared before looking: news that comes during the look leads to another look.
                self._news.clear()
                limit = min(sum(receiver.limit for receiver in self._receivers), MAX_TAKE)
                looked_for = list(self._receivers)
                deliveries = await self._take(limit)
                await self._share(deliveries)
                self._answer_those_who_are_done(looked_for)
                if self._receivers and not deliveries and not self._news.is_set():
                    await self._sleep()
        except Exception as error:
            self._fail(error)
        finally:
            self._fail(QueueUnavailableError("the queue is closed"))
            self._listener.unsubscribe(self._queue, self._news)
            self._serving = None

    async def _share(self, deliveries: list[Delivery]) -> None:
        """In turn, so that one greedy receiver does not starve the others."""
        left = list(reversed(deliveries))
        open_receivers = [receiver for receiver in self._receivers if receiver.waits]
        while left and open_receivers:
            for receiver in open_receivers:
                if not left:
                    break
                receiver.received.append(left.pop())
            open_receivers = [receiver for receiver in open_receivers if len(receiver.received) < receiver.limit]
        for receiver in [receiver for receiver in self._receivers if receiver.received]:
            self._receivers.remove(receiver)
            receiver.answer.set_result(receiver.received)
        if left:
            await self._give_back(left)

    def _answer_those_who_are_done(self, looked_for: list[_Receiver]) -> None:
        now = asyncio.get_running_loop().time()
        for receiver in looked_for:
            if receiver in self._receivers and receiver.waits and receiver.deadline <= now:
                self._receivers.remove(receiver)
                receiver.answer.set_result([])

    async def _sleep(self) -> None:
        due_in = await self._next_due()
        seconds = self._poll_seconds
        if due_in is not None:
            seconds = min(seconds, max(due_in, 0.001))
        patience = min((receiver.deadline for receiver in self._receivers), default=0.0)
        seconds = max(min(seconds, patience - asyncio.get_running_loop().time()), 0.0)
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass

    def _fail(self, error: Exception) -> None:
        for receiver in self._receivers:
            if receiver.waits:
                receiver.answer.set_exception(own_copy(error))
        self._receivers.clear()


_background: set[asyncio.Task[None]] = set()
