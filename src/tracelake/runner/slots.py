"""The slots of a runner, shared fairly by orgs: who gets the next one that is free.

An org that runs less for its weight comes first (`model/fair_share.py`), and within an org whoever waits longest.
Dispatchers hand over no more functions than there are slots, so that hardly anybody waits here: after a restart, while
ended attempts are being cleared away, or if they were told another limit.
"""

import asyncio
from collections import Counter, deque

from tracelake.errors import TraceError
from tracelake.model.fair_share import FairShares, OrgBacklog
from tracelake.wire.claims import InvokingOrg

MOST_WAITING = 16
"""Of one org: whoever comes then is refused at once, and the connections stay free for others."""


class FunctionSlots:
    def __init__(self, total: int, *, most_waiting: int = MOST_WAITING) -> None:
        self._free = total
        self._most_waiting = most_waiting
        self._shares = FairShares()
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._weights: dict[str, float] = {}
        """Of the orgs that wait."""

    async def acquire(self, org: InvokingOrg | None, seconds: float) -> str:
        """Returns the group to release the slot with. Raises `runner_busy` if no slot is free for so long."""
        group, weight = ("", 1.0) if org is None else (str(org.org_id), org.weight)
        if len(self._waiting.get(group, ())) >= self._most_waiting:
            raise _busy()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, deque()).append(turn)
        self._weights[group] = weight
        self._give_turns()
        try:
            await asyncio.wait({turn}, timeout=seconds)
        except asyncio.CancelledError:
            if turn.done():
                self.release(group)
            else:
                self._forget(group, turn)
            raise
        if not turn.done():
            self._forget(group, turn)
            raise _busy()
        return group

    def release(self, group: str) -> None:
        self._free += 1
        self._running[group] -= 1
        if not self._running[group]:
            del self._running[group]
        self._give_turns()

    def _give_turns(self) -> None:
        while self._free and self._waiting:
            backlogs = [OrgBacklog(group, self._running[group], self._weights[group]) for group in self._waiting]
            (group,) = self._shares.allot(backlogs, 1)
            self._shares.charge({group: 1}, self._weights)
            turn = self._waiting[group].popleft()
            self._drop_empty(group)
            self._free -= 1
            self._running[group] += 1
            turn.set_result(None)

    def _forget(self, group: str, turn: "asyncio.Future[None]") -> None:
        self._waiting[group].remove(turn)
        self._drop_empty(group)

    def _drop_empty(self, group: str) -> None:
        if not self._waiting[group]:
            del self._waiting[group], self._weights[group]


def _busy() -> TraceError:
    return TraceError("runner_busy", retry_after_seconds=1)
