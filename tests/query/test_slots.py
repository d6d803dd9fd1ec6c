"""Admission: limits of a person, a task and an org; turns of orgs; heavy queries leave an engine to others."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tracelake.errors import TraceError
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
        slots = QuerySlots(LIMITS)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(slots.engine(person("a"), 10))
            second = asyncio.create_task(stack.enter_async_context(slots.engine(person("a"), 10)))
            await settle()
            assert not second.done()
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
