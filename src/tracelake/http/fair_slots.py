"""A few places that many orgs share: each org in its turn, and none so many that the others have none.

Whoever waits holds nothing. An org that waits for too much already is refused with 429: what it asks for next would be
answered late, and would make the others' turn longer.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from tracelake.errors import TraceError


class FairSlots:
    """`total` places, of which one org has at most `per_org`; of each org at most `waiting` callers wait."""

    def __init__(
        self, total: int, *, per_org: int, waiting: int | None = None, retry_after_seconds: int = 2, what: str = "calls"
    ) -> None:
        self._free = total
        self._per_org = per_org
        self._waiting = waiting
        self._retry_after = retry_after_seconds
        self._what = what
        self._running: dict[Hashable, int] = {}
        self._queues: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        """Of orgs that wait, in the order of their turns."""

    @asynccontextmanager
    async def slot(self, org: Hashable, *, patient: bool = False) -> AsyncIterator[None]:
        """`patient`: waits however many others do; for callers who are never refused for being too many."""
        await self._enter(org, patient)
        try:
            yield
        finally:
            self._leave(org)

    async def _enter(self, org: Hashable, patient: bool) -> None:
        if self._free and self._running.get(org, 0) < self._per_org and org not in self._queues:
            self._take(org)
            return
        if not patient and self._waiting is not None and len(self._queues.get(org, ())) >= self._waiting:
            raise TraceError(
                "rate_limited",
                f"Too many {self._what} of this organisation at once: {self._waiting} are waiting already.",
                retry_after_seconds=self._retry_after,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(org, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(org)  # its turn came while it went away
            else:
                self._forget(org, turn)
            raise

    def _take(self, org: Hashable) -> None:
        self._free -= 1
        self._running[org] = self._running.get(org, 0) + 1

    def _leave(self, org: Hashable) -> None:
        self._free += 1
        self._running[org] -= 1
        if not self._running[org]:
            del self._running[org]
        self._give_turns()

    def _give_turns(self) -> None:
        while self._free:
            turns = ((org, queue) for org, queue in self._queues.items() if self._running.get(org, 0) < self._per_org)
            org, queue = next(turns, (None, None))
            if queue is None:
                return
            turn = queue.popleft()
            if queue:
                self._queues.move_to_end(org)
            else:
                del self._queues[org]
            if turn.done():  # whoever waited went away
                continue
            self._take(org)
            turn.set_result(None)

    def _forget(self, org: Hashable, turn: "asyncio.Future[None]") -> None:
        queue = self._queues.get(org)
        if queue is None or turn not in queue:
            return
        queue.remove(turn)
        if not queue:
            del self._queues[org]
