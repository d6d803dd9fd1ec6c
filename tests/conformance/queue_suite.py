"""Every promise of the Queue port. Each adapter subclasses `QueueSuite` and provides a `harness` fixture.

Time is frozen and moved by the harness, so nothing here sleeps to let a visibility run out.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

import pytest

from tracelake.ports.queue import (
    MAX_BODY_BYTES,
    Delivery,
    Message,
    Queue,
    QueueDepth,
    QueueRejectedError,
)

Q = "tasks.test"


class Harness(Protocol):
    def open(self, max_receives: int = 10) -> Queue:
        """A new instance on the same messages; to be called inside a running event loop."""
        ...

    async def advance(self, seconds: float) -> None: ...


def message(key: str, queue: str = Q, body: bytes = b"body", group: str = "") -> Message:
    return Message(queue, key, body, group)


def run(harness: Harness, test: Callable[[Queue], Awaitable[None]], max_receives: int = 10) -> None:
    async def main() -> None:
        queue = harness.open(max_receives)
        try:
            await test(queue)
        finally:
            await queue.close()

    asyncio.run(main())


async def depth_of(queue: Queue, name: str = Q) -> QueueDepth:
    found = [depth for depth in await queue.depths() if depth.queue == name]
    return found[0] if found else QueueDepth(name, 0, 0, 0, 0.0)


class QueueSuite:
    def test_what_is_published_is_received_once(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message("a", body=b"\x00\xff"), message("b", body=b"")])
            deliveries = await queue.receive(Q, 10, 60)
            assert {(d.key, d.body, d.receives) for d in deliveries} == {("a", b"\x00\xff", 1), ("b", b"", 1)}
            assert len({d.message_id for d in deliveries}) == 2
            assert await queue.receive(Q, 10, 60) == []

        run(harness, test)

    def test_limit_and_queues_are_kept_apart(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message(str(n)) for n in range(5)] + [message("x", "tasks.other")])
            assert len(await queue.receive(Q, 3, 60)) == 3
            assert len(await queue.receive(Q, 3, 60)) == 2
            assert [d.key for d in await queue.receive("tasks.other", 3, 60)] == ["x"]
            assert await queue.receive("tasks.unheard_of", 3, 60) == []

        run(harness, test)

    def test_publishing_nothing_is_nothing(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([])
            assert await queue.ack([]) == 0
            assert await queue.extend([], 5) == 0
            assert await queue.absent(Q, []) == set()
            assert await queue.depths() == []

        run(harness, test)

    def test_one_key_may_have_many_messages(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message("same"), message("same")])
            first, second = await queue.receive(Q, 10, 60)
            assert first.key == second.key == "same"
            assert await queue.ack([first]) == 1
            assert await queue.absent(Q, ["same"]) == set()
            assert await queue.ack([second]) == 1
            assert await queue.absent(Q, ["same"]) == {"same"}

        run(harness, test)

    def test_what_nobody_needs_is_discarded_wherever_it_is(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message("a"), message("b"), message("a", "tasks.other")])
            (held,) = await queue.receive("tasks.other", 1, 60)
            assert await queue.discard(["a", "unheard_of"]) == 2
            assert await queue.discard(["a"]) == await queue.discard([]) == 0
            assert await queue.ack([held]) == 0
            assert [delivery.key for delivery in await queue.receive(Q, 10, 60)] == ["b"]

        run(harness, test)

    def test_a_queue_is_emptied_in_parts(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message(str(n)) for n in range(5)] + [message("x", "tasks.other")])
            await queue.receive(Q, 1, 60)
            assert [await queue.discard_queue(Q, 3) for _ in range(3)] == [3, 2, 0]
            assert [depth.queue for depth in await queue.depths()] == ["tasks.other"]

        run(harness, test)

    def test_an_acked_message_never_comes_back(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message("a")])
            deliveries = await queue.receive(Q, 1, 60)
            assert await queue.ack(deliveries) == 1
            assert await queue.ack(deliveries) == 0
            await harness.advance(1000)
            assert await queue.receive(Q, 1, 60) == []

        run(harness, test)

    def test_an_unacked_message_comes_back_when_its_time_is_out(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message("a")])
            first = await queue.receive(Q, 1, 60)
            await harness.advance(59)
            assert await queue.receive(Q, 1, 60) == []
            await harness.advance(2)
            second = await queue.receive(Q, 1, 60)
            assert [d.message_id for d in second] == [d.message_id for d in first]
            assert second[0].receives == 2
            assert second[0].receipt != first[0].receipt

        run(harness, test)

    def test_receipts_fence(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message("a")])
            old = await queue.receive(Q, 1, 60)
            await harness.advance(61)
            # Its time ran out: even before anybody else has it, an ack or extend changes nothing.
            assert await queue.ack(old) == 0
            assert await queue.extend(old, 60) == 0
            new = await queue.receive(Q, 1, 60)
            assert await queue.ack(old) == 0
            assert await queue.extend(old, 600) == 0
            assert await queue.ack(new) == 1

        run(harness, test)

    def test_foreign_receipts_are_held_by_nobody(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message("a")])
            (mine,) = await queue.receive(Q, 1, 60)
            for wrong in (
                replace(mine, receipt="1"),
                replace(mine, receipt="nonsense"),
                replace(mine, receipt=str(2**80)),
                replace(mine, message_id="nonsense"),
                replace(mine, message_id="-1"),
                replace(mine, key="other"),
            ):
                assert await queue.ack([wrong]) == 0
                assert await queue.extend([wrong], 5) == 0
            assert await queue.ack([replace(mine, receipt="1"), mine]) == 1

        run(harness, test)

    def test_extend_hides_from_now(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message("a"), message("b")])
            both = await queue.receive(Q, 2, 60)
            await harness.advance(50)
            kept = [d for d in both if d.key == "a"]
            assert await queue.extend(kept, 60) == 1
            await harness.advance(20)
            assert [d.key for d in await queue.receive(Q, 2, 1000)] == ["b"]
            await harness.advance(41)
            assert [d.key for d in await queue.receive(Q, 2, 1000)] == ["a"]

        run(harness, test)

    def test_extend_can_shorten_and_give_up(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message("a")])
            deliveries = await queue.receive(Q, 1, 600)
            assert await queue.extend(deliveries, 0) == 1
            assert [d.receives for d in await queue.receive(Q, 1, 60)] == [2]
            assert await queue.extend(deliveries, 60) == 0

        run(harness, test)

    def test_received_too_often_is_dead(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message("poison"), message("good")])
            for _ in range(3):
                deliveries = await queue.receive(Q, 10, 60)
                assert "poison" in {d.key for d in deliveries}
                await queue.ack([d for d in deliveries if d.key == "good"])
                await harness.advance(61)
            assert await queue.receive(Q, 10, 60) == []
            assert await depth_of(queue) == QueueDepth(Q, 0, 0, 1, 0.0)
            assert await queue.absent(Q, ["poison"]) == {"poison"}
            await harness.advance(1000)
            assert await queue.receive(Q, 10, 60) == []

        run(harness, test, max_receives=3)

    def test_dead_messages_do_not_stand_before_live_ones(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message(f"poison-{n}") for n in range(20)])
            await queue.receive(Q, 20, 60)
            await harness.advance(61)
            await queue.publish([message("fresh")])
            assert [d.key for d in await queue.receive(Q, 1, 60)] == ["fresh"]
            assert (await depth_of(queue)).dead == 20

        run(harness, test, max_receives=1)

    def test_a_backlog_of_one_group_does_not_stand_before_another_group(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message(f"a{n}", group="a") for n in range(1000)])
            await queue.receive(Q, 16, 60)
            await queue.publish([message("b", group="b"), message("none")])
            assert {d.key for d in await queue.receive(Q, 2, 60)} == {"b", "none"}

        run(harness, test)

    def test_groups_take_turns_however_short_their_messages_are_held(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message(f"{group}{n}", group=group) for group in "abc" for n in range(20)])
            turns = []
            for _ in range(12):
                (delivery,) = await queue.receive(Q, 1, 60)
                await queue.ack([delivery])
                turns.append(delivery.key[0])
            assert [sorted(turns[at : at + 3]) for at in range(0, 12, 3)] == [["a", "b", "c"]] * 4

        run(harness, test)

    def test_groups_share_what_is_in_flight_by_weight(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.set_weights({"heavy": 3, "gone": 5})
            await queue.set_weights({"heavy": 3})
            await queue.publish(
                [message(f"{group}{n}", group=group) for group in ("heavy", "light") for n in range(50)]
            )
            deliveries = await queue.receive(Q, 16, 60)
            assert Counter(d.key[:5] for d in deliveries) == {"heavy": 12, "light": 4}
            await queue.ack([d for d in deliveries if d.key.startswith("light")])
            assert {d.key[:5] for d in await queue.receive(Q, 4, 60)} == {"light"}

        run(harness, test)

    def test_a_small_group_leaves_its_share_to_the_others(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message(f"a{n}", group="a") for n in range(50)])
            await queue.publish([message("b", group="b"), message("c", group="c")])
            assert Counter(d.key[0] for d in await queue.receive(Q, 16, 60)) == {"a": 14, "b": 1, "c": 1}

        run(harness, test)

    def test_groups_that_wait_and_have_nothing_in_flight(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message(f"{group}{n}", group=group) for group in "ab" for n in range(5)])
            assert await queue.receive(Q, 8, 60, idle_after=5) == []
            await harness.advance(5)
            first = await queue.receive(Q, 8, 60, idle_after=5)
            assert {d.key[0] for d in first} == {"a", "b"}
            assert len(first) == 2
            waiting = asyncio.create_task(queue.receive(Q, 8, 60, wait_seconds=60, idle_after=5))
            assert await queue.receive(Q, 8, 60, wait_seconds=0.05, idle_after=5) == []
            await queue.ack([d for d in first if d.key.startswith("b")])
            assert [d.key[0] for d in await waiting] == ["b"]
            assert len(await queue.receive(Q, 100, 60)) == 7

        run(harness, test)

    def test_a_waiting_receiver_for_idle_groups_gets_what_is_published_meanwhile(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message("a", group="a"), message("more", group="a")])
            await queue.receive(Q, 1, 60)
            waiting = asyncio.create_task(queue.receive(Q, 8, 60, wait_seconds=60, idle_after=0))
            await asyncio.sleep(0)
            await queue.publish([message("b", group="b")])
            assert [d.key for d in await waiting] == ["b"]

        run(harness, test)

    def test_one_message_that_can_never_be_taken_refuses_the_whole_call(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            for bad in (
                message("big", body=b"x" * (MAX_BODY_BYTES + 1)),
                message(""),
                message("k" * 513),
                message("nul\x00"),
                message("half \ud800"),
                message("a", queue=""),
                message("a", queue="q" * 129),
                message("a", queue="one,two"),
                message("a", queue="*"),
                message("a", group="g" * 129),
                message("a", group="nul\x00"),
            ):
                with pytest.raises(QueueRejectedError):
                    await queue.publish([message("good"), bad])
            assert await queue.depths() == []
            await queue.publish([message("k" * 512, body=b"x" * MAX_BODY_BYTES)])
            (delivery,) = await queue.receive(Q, 1, 60)
            assert len(delivery.body) == MAX_BODY_BYTES

        run(harness, test)

    def test_bad_arguments(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            for limit, visibility in ((0, 60.0), (1, 0.0), (1, -1.0), (1, float("inf")), (1, float("nan"))):
                with pytest.raises(ValueError, match=r"is at least|is more than"):
                    await queue.receive(Q, limit, visibility)
            with pytest.raises(ValueError, match="is at least"):
                await queue.extend([], -1)

        run(harness, test)

    def test_absent_counts_visible_and_in_flight_as_live(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message("held"), message("elsewhere", "tasks.other")])
            await queue.receive(Q, 1, 60)
            await queue.publish([message("ready")])
            wanted = ["held", "ready", "elsewhere", "never"]
            assert await queue.absent(Q, wanted) == {"elsewhere", "never"}
            assert await queue.absent("tasks.other", wanted) == {"held", "ready", "never"}

        run(harness, test)

    def test_depths(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message("a"), message("b"), message("c"), message("x", "tasks.other")])
            await queue.receive(Q, 1, 60)
            await harness.advance(30)
            assert await queue.depths() == [
                QueueDepth("tasks.other", 1, 0, 0, 30.0),
                QueueDepth(Q, 2, 1, 0, 30.0),
            ]
            await harness.advance(40)
            assert await depth_of(queue) == QueueDepth(Q, 3, 0, 0, 70.0)

        run(harness, test)

    def test_a_waiting_receiver_gets_what_is_published_meanwhile(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            other = harness.open()
            try:
                waiting = asyncio.create_task(queue.receive(Q, 5, 60, wait_seconds=60))
                await asyncio.sleep(0)
                await other.publish([message("news")])
                assert [d.key for d in await waiting] == ["news"]
            finally:
                await other.close()

        run(harness, test)

    def test_waiting_ends_empty(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            assert await queue.receive(Q, 1, 60, wait_seconds=0.05) == []
            # A short patience beside a long one ends by itself.
            long = asyncio.create_task(queue.receive(Q, 1, 60, wait_seconds=60))
            assert await queue.receive(Q, 1, 60, wait_seconds=0.05) == []
            assert not long.done()
            await queue.publish([message("a")])
            assert len(await long) == 1

        run(harness, test)

    def test_receivers_share_what_there_is(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message(str(n)) for n in range(8)])
            shares = await asyncio.gather(*(queue.receive(Q, 8, 60, wait_seconds=30) for _ in range(4)))
            assert sorted(d.key for share in shares for d in share) == sorted(map(str, range(8)))
            assert [len(share) for share in shares] == [2, 2, 2, 2]

        run(harness, test)

    def test_a_cancelled_receiver_takes_nothing_with_it(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            for round_number in range(30):
                await queue.publish([message(f"{round_number}")])
                receiver = asyncio.create_task(queue.receive(Q, 1, 6000, wait_seconds=60))
                for _ in range(round_number):  # cancelled at another step each time
                    await asyncio.sleep(0)
                receiver.cancel()
                (outcome,) = await asyncio.gather(receiver, return_exceptions=True)
                deliveries = outcome if isinstance(outcome, list) else []
                if not deliveries:
                    deliveries = await queue.receive(Q, 1, 6000, wait_seconds=60)
                assert [(d.key, d.receives) for d in deliveries] == [(f"{round_number}", 1)]
                assert await queue.ack(deliveries) == 1

        run(harness, test)

    def test_many_receivers_never_hold_the_same_message(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            others = [harness.open() for _ in range(3)]
            total = 600
            seen: Counter[str] = Counter()
            acked = 0

            async def consume(mine: Queue) -> None:
                nonlocal acked
                while sum(seen.values()) < total:
                    deliveries = await mine.receive(Q, 7, 600, wait_seconds=0.05)
                    seen.update(d.key for d in deliveries)
                    removed = await mine.ack(deliveries)
                    acked += removed

            async def produce(first: int) -> None:
                for n in range(first, first + total // 4, 5):
                    await queue.publish([message(str(n + step)) for step in range(5)])

            try:
                consumers = [consume(mine) for mine in (queue, *others) for _ in range(3)]
                await asyncio.gather(*consumers, *(produce(part * total // 4) for part in range(4)))
                assert set(seen.values()) == {1}
                assert len(seen) == acked == total
                assert (await depth_of(queue)).in_flight == 0
            finally:
                for other in others:
                    await other.close()

        run(harness, test)

    def test_many_acks_and_extends_at_once_answer_each_caller(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message(str(n)) for n in range(64)])
            deliveries = await queue.receive(Q, 64, 60)

            async def settle(number: int, delivery: Delivery) -> tuple[int, int]:
                if number % 3 == 0:
                    delivery = replace(delivery, receipt="1")
                return await queue.extend([delivery], 600), await queue.ack([delivery])

            counts = await asyncio.gather(*(settle(n, d) for n, d in enumerate(deliveries)))
            assert counts == [(0, 0) if n % 3 == 0 else (1, 1) for n in range(64)]

        run(harness, test)

    def test_the_same_ack_twice_at_once_counts_once(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            await queue.publish([message("a")])
            deliveries = await queue.receive(Q, 1, 60)
            assert sum(await asyncio.gather(*(queue.ack(deliveries * 2) for _ in range(5)))) == 1

        run(harness, test)

    def test_a_bad_publish_beside_good_ones_is_its_own_trouble(self, harness: Harness) -> None:
        async def test(queue: Queue) -> None:
            bad = message("bad", body=b"x" * (MAX_BODY_BYTES + 1))
            calls = [queue.publish([bad if n == 3 else message(str(n))]) for n in range(8)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes].count(QueueRejectedError) == 1
            assert (await depth_of(queue)).ready == 7

        run(harness, test)
