"""Waiting for an org's routing lock without a connection.

The lock itself is Postgres'. What stands here is the queue of one process: of those who wait for the same org, one
asks at a time, with a pause that grows, and the end of a move in this process wakes it at once. However many wait,
an org costs the pool one connection for the length of one question.

Moves (deploys, cutovers) of one org follow each other here, so that at most one of them waits in Postgres, and let one
of those who wait go first; how many orgs may move at once is bounded too.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self
from uuid import UUID

_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.2
_TURN_SECONDS = 0.1
"""How long a move lets those go first who waited for the move before it."""


class RoutingBusyError(Exception):
    """The org's pointers are being moved; nothing was done."""

    def __init__(self, org_id: UUID) -> None:
        super().__init__(f"the pointers of org {org_id} are being moved")
        self.org_id = org_id


class _Gate:
    """What this process knows of one org's lock; it exists while somebody uses it."""

    def __init__(self) -> None:
        self.asking = asyncio.Lock()
        self.moving = asyncio.Lock()
        self.moved = asyncio.Event()
        self.entered = asyncio.Event()
        """Set when somebody who waited goes on."""
        self.users = 0


class RoutingGates:
    def __init__(self, *, movers: int) -> None:
        self._gates: dict[UUID, _Gate] = {}
        self._movers = asyncio.Semaphore(movers)

    def is_waited_for(self, org_id: UUID) -> bool:
        gate = self._gates.get(org_id)
        return gate is not None and gate.asking.locked()

    def hold(self, org_id: UUID) -> _Gate:
        gate = self._gates.setdefault(org_id, _Gate())
        gate.users += 1
        return gate

    def drop(self, org_id: UUID) -> None:
        gate = self._gates[org_id]
        gate.users -= 1
        if not gate.users:
            del self._gates[org_id]

    def enter(self, orgs: Collection[UUID], seconds: float) -> "RoutingWait":
        """The wait of one transaction that routes for these orgs."""
        return RoutingWait(self, orgs, seconds)

    @asynccontextmanager
    async def move(self, org_id: UUID, seconds: float) -> AsyncIterator[None]:
        """Held for the whole move. `RoutingBusyError` if the moves before it take too long."""
        gate = self.hold(org_id)
        try:
            await _acquire(gate.moving, org_id, asyncio.timeout(seconds))
            try:
                if gate.asking.locked():
                    await _let_one_enter(gate)
                await _acquire(self._movers, org_id, asyncio.timeout(seconds))
                try:
                    yield
                finally:
                    self._movers.release()
            finally:
                gate.moving.release()
                gate.moved.set()
        finally:
            self.drop(org_id)


async def _acquire(lock: asyncio.Lock | asyncio.Semaphore, org_id: UUID, limit: asyncio.Timeout) -> None:
    """`RoutingBusyError` if the limit passes first."""
    try:
        async with limit:
            await lock.acquire()
    except TimeoutError:
        raise RoutingBusyError(org_id) from None


async def _let_one_enter(gate: _Gate) -> None:
    """A try loses against a row of moves: between two of them one of those who wait has its turn."""
    await _next_signal(gate.entered, _TURN_SECONDS)


async def _next_signal(event: asyncio.Event, seconds: float) -> None:
    """Waits until the event is set again, at most so long."""
    event.clear()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class RoutingWait:
    """`async with` it around the attempts to begin; `pause` after each that met a busy org.

    Nothing happens for a transaction that begins at once, unless others of its org already wait: it then lines up
    behind them.
    """

    def __init__(self, gates: RoutingGates, orgs: Collection[UUID], seconds: float) -> None:
        self._gates = gates
        self._orgs = orgs
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._org_id: UUID | None = None
        self._gate: _Gate | None = None
        self._pause = _FIRST_PAUSE_SECONDS

    async def __aenter__(self) -> Self:
        for org_id in self._orgs:
            if self._gates.is_waited_for(org_id):
                await self._line_up(org_id)
                break
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    async def pause(self, busy: RoutingBusyError) -> None:
        """Return when it is worth another try; the error itself once patience is over."""
        if self._org_id != busy.org_id:
            self._leave()
            await self._line_up(busy.org_id)
        gate = self._gate
        assert gate is not None
        now = asyncio.get_running_loop().time()
        if now >= self._deadline:
            raise busy
        seconds = min(self._pause * random.uniform(0.75, 1.25), self._deadline - now)  # noqa: S311 - jitter
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        await _next_signal(gate.moved, seconds)

    async def _line_up(self, org_id: UUID) -> None:
        gate = self._gates.hold(org_id)
        try:
            await _acquire(gate.asking, org_id, asyncio.timeout_at(self._deadline))
        except BaseException:
            self._gates.drop(org_id)
            raise
        self._org_id, self._gate = org_id, gate

    def _leave(self) -> None:
        if self._gate is not None and self._org_id is not None:
            self._gate.entered.set()
            self._gate.asking.release()
            self._gates.drop(self._org_id)
            self._org_id = self._gate = None
