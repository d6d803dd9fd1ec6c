"""Weighted fair queueing over groups (orgs): who gets the next slot.

Pure. A group that holds nothing comes before every group that holds something, so each group with a backlog has one
slot before another has two. Beyond that the group with the fewest slots for its weight is next. Ties go by virtual time
(start-time fair queueing): a group's clock moves by 1/weight with each slot it gets, the smallest clock is next, and a
group that was idle starts at the time of those who were not, so that nobody saves up turns.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec


def reserved_slots(slots: int) -> int:
    """How many of so many slots are kept for groups that hold none: long work of one group must not delay the first
    piece of another's."""
    return slots // 8


@dataclass(frozen=True, slots=True)
class OrgBacklog:
    """A group with something due."""

    group: str
    in_flight: int
    """Slots that it holds at this moment."""
    weight: float = 1.0


class FairShares:
    """The virtual clocks of the groups that share one thing. Losing them costs nobody more than one turn."""

    def __init__(self) -> None:
        self._now = 0.0
        self._clocks: dict[str, float] = {}
        """Of groups that are ahead of `_now`; all others stand at it."""

    @classmethod
    def load(cls, text: str | None) -> "FairShares":
        shares = cls()
        if text is not None:
            shares._now, shares._clocks = 0.0, msgspec.json.decode(text, type=dict[str, float])
        return shares

    def dump(self) -> str | None:
        """The clocks as JSON, from now on; None if nobody is ahead."""
        clocks = {group: clock - self._now for group, clock in self._clocks.items()}
        return msgspec.json.encode(clocks).decode() if clocks else None

    def allot(self, backlogs: Sequence[OrgBacklog], limit: int, reserved: int = 0) -> dict[str, int]:
        """How many of `limit` slots each group gets if its backlog is long enough. Charges nothing.

        The last `reserved` slots are for groups that hold nothing, one for each.
        """
        if reserved:
            idle = sum(not item.in_flight for item in backlogs)
            limit = max(limit - reserved, min(limit, idle))
        order = [
            (_rank(item.in_flight, item.weight), self._clock(item.group), number)
            for number, item in enumerate(backlogs)
        ]
        heapq.heapify(order)
        allotted: dict[str, int] = {}
        for _ in range(limit if order else 0):
            _, clock, number = order[0]
            item = backlogs[number]
            slots = allotted[item.group] = allotted.get(item.group, 0) + 1
            heapq.heapreplace(order, (_rank(item.in_flight + slots, item.weight), clock + 1 / item.weight, number))
        return allotted

    def charge(self, received: Mapping[str, int], weights: Mapping[str, float]) -> None:
        """These groups got so many slots. Time is when the last of these turns began."""
        now = self._now
        for group, slots in received.items():
            if slots:
                clock, turn = self._clock(group), 1 / weights.get(group, 1.0)
                now = max(now, clock + (slots - 1) * turn)
                self._clocks[group] = clock + slots * turn
        self._now = now
        self._clocks = {group: clock for group, clock in self._clocks.items() if clock > now}

    def _clock(self, group: str) -> float:
        return max(self._clocks.get(group, self._now), self._now)


def _rank(slots: int, weight: float) -> float:
    return slots / weight if slots else 0.0
