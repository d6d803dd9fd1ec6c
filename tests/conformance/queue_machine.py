"""A hypothesis state machine that drives a queue against a small model of what the port promises."""

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from tests.conformance.queue_suite import Harness
from tracelake.ports.queue import Delivery, Message, QueueDepth

QUEUES = ("tasks.one", "tasks.two")
GROUPS = ("", "a", "b")
MAX_RECEIVES = 3


@dataclass
class Live:
    queue: str
    key: str
    visible_at: float
    receives: int = 0
    receipt: str | None = None
    group: str = ""


class QueueMachine(RuleBasedStateMachine):
    """`harness` is set by the test; the machine begins on an empty queue."""

    harness: Harness
    deliveries: Bundle[Delivery] = Bundle("deliveries")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.queue = self.loop.run_until_complete(self._open())
        self.now = 0.0
        self.published = 0
        self.live: dict[str, Live] = {}  # by key, which is unique here
        self.dead: list[Live] = []

    async def _open(self) -> Any:
        return self.harness.open(MAX_RECEIVES)

    def do(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    @rule(queue=st.sampled_from(QUEUES), group=st.sampled_from(GROUPS), count=st.integers(1, 4))
    def publish(self, queue: str, group: str, count: int) -> None:
        keys = [str(self.published + n) for n in range(count)]
        self.published += count
        self.do(self.queue.publish([Message(queue, key, key.encode(), group) for key in keys]))
        for key in keys:
            self.live[key] = Live(queue, key, self.now, group=group)

    @rule(
        target=deliveries,
        queue=st.sampled_from(QUEUES),
        limit=st.integers(1, 5),
        visibility=st.sampled_from([10.0, 100.0]),
    )
    def receive(self, queue: str, limit: int, visibility: float) -> Any:
        got: list[Delivery] = self.do(self.queue.receive(queue, limit, visibility))
        due = [m for m in self.live.values() if m.queue == queue and m.visible_at <= self.now]
        deliverable = [m for m in due if m.receives < MAX_RECEIVES]
        assert len(got) == min(limit, len(deliverable))
        self.check_shares(due, [self.live[delivery.key] for delivery in got], queue)
        for delivery in got:
            message = self.live[delivery.key]
            assert message in deliverable
            assert delivery.body == delivery.key.encode()
            assert delivery.receives == message.receives + 1
            assert delivery.receipt != message.receipt
            message.receives, message.receipt = delivery.receives, delivery.receipt
            message.visible_at = self.now + visibility
        # How many exhausted ones a receive comes upon is its own business; all of them when it found too few.
        exhausted = [m for m in due if m.receives >= MAX_RECEIVES and m.key not in {d.key for d in got}]
        gone = self.do(self.queue.absent(queue, [m.key for m in exhausted]))
        if len(got) < limit:
            assert gone == {m.key for m in exhausted}
        for key in gone:
            self.dead.append(self.live.pop(key))
        return multiple(*got)

    def check_shares(self, due: list[Live], got: list[Live], queue: str) -> None:
        """A group that is passed by has more in flight than the one that was served, or as much."""
        held = Counter(m.group for m in self.live.values() if m.queue == queue and m.visible_at > self.now)
        received = Counter(m.group for m in got)
        if any(m.receives >= MAX_RECEIVES for m in due):
            return  # messages that die at this receive take turns too
        left = Counter(m.group for m in due) - received
        for passed_by in left:
            assert all(held[group] + received[group] - 1 <= held[passed_by] + received[passed_by] for group in received)

    def holds(self, delivery: Delivery) -> Live | None:
        message = self.live.get(delivery.key)
        if message is None or message.receipt != delivery.receipt or message.visible_at <= self.now:
            return None
        return message

    @rule(chosen=st.lists(deliveries, max_size=4, unique_by=lambda d: (d.key, d.receipt)))
    def ack(self, chosen: list[Delivery]) -> None:
        held = {message.key for message in map(self.holds, chosen) if message is not None}
        assert self.do(self.queue.ack(chosen)) == len(held)
        for key in held:
            del self.live[key]

    @rule(
        chosen=st.lists(deliveries, max_size=4, unique_by=lambda d: (d.key, d.receipt)),
        visibility=st.sampled_from([0.0, 10.0, 100.0]),
    )
    def extend(self, chosen: list[Delivery], visibility: float) -> None:
        held = [message for message in map(self.holds, chosen) if message is not None]
        assert self.do(self.queue.extend(chosen, visibility)) == len(held)
        for message in held:
            message.visible_at = self.now + visibility

    @rule(delivery=deliveries)
    def forged_receipt(self, delivery: Delivery) -> None:
        forged = replace(delivery, receipt=str(int(delivery.receipt) ^ 1))
        assert self.do(self.queue.ack([forged])) == 0

    @rule(seconds=st.sampled_from([1.0, 10.0, 50.0, 100.0]))
    def advance(self, seconds: float) -> None:
        self.do(self.harness.advance(seconds))
        self.now += seconds

    @rule()
    def reopen(self) -> None:
        self.do(self.queue.close())
        self.queue = self.do(self._open())

    @invariant()
    def nothing_is_lost(self) -> None:
        for queue in QUEUES:
            keys = [str(n) for n in range(self.published)]
            here = {m.key for m in self.live.values() if m.queue == queue}
            assert self.do(self.queue.absent(queue, keys)) == set(keys) - here
        expected = []
        for queue in QUEUES:
            mine = [m for m in self.live.values() if m.queue == queue]
            ready = [m for m in mine if m.visible_at <= self.now]
            dead = sum(1 for m in self.dead if m.queue == queue)
            oldest = max((self.now - m.visible_at for m in ready), default=0.0)
            if mine or dead:
                expected.append(QueueDepth(queue, len(ready), len(mine) - len(ready), dead, oldest))
        assert self.do(self.queue.depths()) == expected

    def teardown(self) -> None:
        self.do(self.queue.close())
        self.loop.close()
