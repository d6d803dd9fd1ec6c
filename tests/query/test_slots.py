"""Admission: limits of a person, a task and an org; turns of orgs; heavy queries leave an engine to others."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tracelake.errors import TraceError
from tracelake.query.metrics import QueryMetrics
from tracelake.query.slots import QueryCaller, QuerySlots, SlotLimits

LIMITS = SlotLimits(engines=2, user_queries=3, task_queries=1, org_waiting=1, heavy_bytes=1000)


def person(org: str, subject: str = "ann") -> QueryCaller:
    return QueryCaller(org=org, subject=subject, is_task=False)


def task(org: str, subject: str = "task:1") -> QueryCaller:
    return QueryCaller(org=org, subject=subject, is_task=True)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_person_has_a_few_queries_at_once_and_is_told_when_to_come_again() -> None:
    async def main() -> None:
        slots = QuerySlots(LIMITS)
        async with AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(slots.enter(person("a")))
            with pytest.raises(TraceError) as refusal:
                await stack.enter_async_context(slots.enter(person("a")))
            assert (refusal.value.status, refusal.value.details["retry_after_seconds"]) == (429, 2)
            await stack.enter_async_context(slots.enter(person("a", "bob")))
        async with slots.enter(person("a")):
            pass

    asyncio.run(main())


def test_an_org_has_its_share_and_a_short_queue() -> None:
    async def main() -> None:
        slots = QuerySlots(LIMITS)
        async with AsyncExitStack() as stack:
            for number in range(4):
                await stack.enter_async_context(slots.enter(person("a", f"user {number}")))
            waiting = asyncio.create_task(stack.enter_async_context(slots.enter(person("a", "patient"))))
            await settle()
            with pytest.raises(TraceError, match="rate_limited"):
                await stack.enter_async_context(slots.enter(person("a", "late")))
            await stack.enter_async_context(slots.enter(person("b")))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(main())


def test_calls_of_a_task_wait_and_are_never_refused() -> None:
    async def main() -> None:
        slots = QuerySlots(LIMITS)
        order: list[int] = []

        async def query(number: int, go: asyncio.Event) -> None:
            async with slots.enter(task("a")):
                order.append(number)
                await go.wait()

        go = asyncio.Event()
        queries = [asyncio.create_task(query(number, go)) for number in range(20)]
        await settle()
        assert order == [0], "one at once"
        go.set()
        await asyncio.gather(*queries)
        assert order == list(range(20))

    asyncio.run(main())


def test_one_org_never_has_all_engines_and_heavy_queries_leave_one_to_small_ones() -> None:
    async def main() -> None:
        metrics = QueryMetrics()
        slots, waiting = QuerySlots(LIMITS, metrics), metrics.waiting_queries.labels("engine")._value
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(slots.engine(person("a"), 10))
            assert waiting.get() == 0
            second = asyncio.create_task(stack.enter_async_context(slots.engine(person("a"), 10)))
            await settle()
            assert not second.done()
            assert waiting.get() == 1
            async with slots.engine(person("b"), 10):
                pass
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(slots.engine(person("a"), 10**6))
            heavy = asyncio.create_task(stack.enter_async_context(slots.engine(person("b"), 10**6)))
            await settle()
            assert not heavy.done(), "two heavy queries would take both engines"
            async with slots.engine(person("c"), 10):
                pass
            heavy.cancel()
            await asyncio.gather(heavy, return_exceptions=True)

    asyncio.run(main())


class Crowd:
    """Queries that come at once and take their time: in steps, not seconds."""

    def __init__(self, limits: SlotLimits) -> None:
        self.slots = QuerySlots(limits)
        self.order: list[str] = []
        self.refused = 0
        self._working: list[asyncio.Event] = []

    async def query(self, caller: QueryCaller, name: str, size: int) -> None:
        try:
            async with self.slots.enter(caller), self.slots.engine(caller, size):
                self.order.append(name)
                done = asyncio.Event()
                self._working.append(done)
                await done.wait()
        except TraceError:
            self.refused += 1

    async def end_oldest(self) -> None:
        self._working.pop(0).set()
        await settle()

    async def ends_before(self, name: str) -> int:
        """How many queries had to end before this one began."""
        count = 0
        while name not in self.order and count < 20:
            await self.end_oldest()
            count += 1
        return count


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_heavy_caller_never_starves_small_ones() -> None:
    """One org keeps asking for more than it can have; each query of another org begins within two that end."""

    async def main() -> None:
        crowd = Crowd(SlotLimits(engines=3, user_queries=50, task_queries=50, org_waiting=20, heavy_bytes=1000))
        callers = [person("heavy", f"user {number % 7}") for number in range(60)]
        tasks = [
            asyncio.create_task(crowd.query(caller, "heavy", 10**6 if number % 2 else 10))
            for number, caller in enumerate(callers)
        ]
        await settle()
        assert crowd.refused > 0, "more than may wait"
        assert 0 < len(crowd.order) < 3, "an engine is free for others"
        for number in range(10):
            name = f"small {number}"
            tasks.append(asyncio.create_task(crowd.query(person(f"org {number}"), name, 10)))
            await settle()
            assert await crowd.ends_before(name) <= 2
        await end(tasks)

    asyncio.run(main())


def test_orgs_take_turns_however_many_each_has_waiting() -> None:
    async def main() -> None:
        crowd = Crowd(SlotLimits(engines=2, user_queries=50, task_queries=50, org_waiting=50, heavy_bytes=1000))
        tasks = [
            asyncio.create_task(crowd.query(person(org, f"user {number % 9}"), org, 10))
            for org in ("many", "lots")
            for number in range(20)
        ]
        await settle()
        tasks.append(asyncio.create_task(crowd.query(person("one"), "one", 10)))
        await settle()
        assert await crowd.ends_before("one") <= 6, "one turn of each org to be admitted, and one for an engine"
        await end(tasks)

    asyncio.run(main())


def test_a_person_of_an_org_does_not_keep_the_others_of_it_waiting_for_ever() -> None:
    """A person's queries are few, so those of the same org get in between."""

    async def main() -> None:
        crowd = Crowd(SlotLimits(engines=2, user_queries=4, task_queries=4, org_waiting=16, heavy_bytes=1000))
        tasks = [asyncio.create_task(crowd.query(person("a", "busy"), "busy", 10)) for _ in range(20)]
        await settle()
        assert crowd.refused == 16
        tasks.append(asyncio.create_task(crowd.query(person("a", "ann"), "ann", 10)))
        await settle()
        assert await crowd.ends_before("ann") <= 4
        await end(tasks)

    asyncio.run(main())
