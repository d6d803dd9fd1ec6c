"""At-least-once delivery of events: each arrives some time after it was accepted, in any order, once or several times.

A reader takes events by their keys and reads what each of them names, as it is by then.
"""

import random
from collections.abc import Callable, Sequence
from uuid import UUID

from tracelake.wire.units import EventIn

EventKey = tuple[UUID, int | str | None, str]


def event_key(event: EventIn) -> EventKey:
    position = event.partition_key if event.cursor is None else event.cursor
    return event.dataset_uuid, position, event.revision


class Deliveries:
    """Between those who announce events and those who take them."""

    def __init__(self, rng: random.Random, take: Callable[[EventIn], None]) -> None:
        self.repeated = 0
        """Deliveries of events that had been delivered before."""
        self.reordered = 0
        """First deliveries after that of a later event of the same dataset."""
        self._rng = rng
        self._take = take
        self._accepted: dict[EventKey, EventIn] = {}
        self._waiting: list[tuple[int, EventIn]] = []
        self._delivered: list[tuple[int, EventIn]] = []
        self._arrived: set[EventKey] = set()
        self._newest: dict[UUID, int] = {}
        self._count = 0

    def accept(self, event: EventIn) -> None:
        known = self._accepted.setdefault(event_key(event), event)
        assert known == event, "two events have one key, so the second would be taken for a repeated one"
        self._count += 1
        self._waiting.append((self._count, event))

    def pass_some(self) -> None:
        rng = self._rng
        for _ in range(rng.choice((0, 1, 2, 6))):
            if self._waiting and rng.random() < 0.7:
                # Most stay near their order; some overtake all others.
                near = min(len(self._waiting), rng.choice((1, 4, 10_000)))
                self._pass(self._waiting.pop(rng.randrange(near)))
            elif self._delivered:
                self._pass(rng.choice(self._delivered))

    def pass_all(self) -> None:
        """Whatever waits, and then some of the oldest once more."""
        self._rng.shuffle(self._waiting)
        while self._waiting:
            self._pass(self._waiting.pop())
        for delivery in self._rng.sample(self._delivered, min(5, len(self._delivered))):
            self._pass(delivery)

    def _pass(self, delivery: tuple[int, EventIn]) -> None:
        number, event = delivery
        if event_key(event) in self._arrived:
            self.repeated += 1
        else:
            self._arrived.add(event_key(event))
            self._delivered.append(delivery)
            newest = self._newest.get(event.dataset_uuid, 0)
            self.reordered += number < newest
            self._newest[event.dataset_uuid] = max(number, newest)
        self._take(event)


def accept_some(
    events: Sequence[EventIn], rng: random.Random, crashes: float, accept: Callable[[EventIn], None]
) -> bool:
    """Hands events over, and returns whether the process lives on: it may end before all are accepted, or after."""
    count = len(events)
    if rng.random() < crashes:
        count = rng.randrange(count + 1)
    for event in events[:count]:
        accept(event)
    return count == len(events) and rng.random() >= crashes
