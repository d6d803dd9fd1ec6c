"""Long work leaves the event loop to others now and then, and is otherwise what it was."""

import asyncio
import threading
from collections.abc import Awaitable

import pytest

from tests.support.virtual_loop import run_virtually
from tracelake.dispatcher.slices import STRETCH, compute_beside, in_slices, pause_between


async def count_turns(work: Awaitable[object]) -> int:
    """How often somebody else ran before the work was done."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await work
    beside.cancel()
    return turns


@pytest.mark.parametrize(("count", "turns"), [(0, 0), (1, 0), (10, 0), (11, 1), (95, 9)])
def test_slices_are_the_items_in_order_with_turns_for_others_between(count: int, turns: int) -> None:
    parts: list[list[int]] = []

    async def work() -> None:
        parts.extend([list(part) async for part in in_slices(list(range(count)), 10)])

    assert run_virtually(count_turns(work())) == turns
    assert [item for part in parts for item in part] == list(range(count))
    assert all(len(part) <= 10 for part in parts)


def test_a_loop_over_single_items_pauses_now_and_then() -> None:
    async def work() -> None:
        for number in range(3 * STRETCH):
            await pause_between(number)

    assert run_virtually(count_turns(work())) == 3


def test_the_event_loop_goes_on_beside_a_computation() -> None:
    began, done = threading.Event(), threading.Event()

    def compute(value: int) -> int:
        began.set()
        assert done.wait(30), "the event loop stood still"
        return value + 1

    async def drive() -> int:
        computation = asyncio.create_task(compute_beside("acme", compute, 1))
        while not began.is_set():
            await asyncio.sleep(0)
        done.set()
        return await computation

    assert asyncio.run(drive()) == 2


def test_an_error_of_a_computation_is_its_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(compute_beside("acme", divmod, 1, 0))


def test_orgs_take_turns_at_the_thread() -> None:
    began, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def compute(org: str) -> None:
        began.set()
        assert go_on.wait(30)
        order.append(org)

    async def drive() -> None:
        many = [asyncio.create_task(compute_beside("many", compute, "many")) for _ in range(5)]
        while not began.is_set():
            await asyncio.sleep(0)
        one = asyncio.create_task(compute_beside("one", compute, "one"))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(*many, one)

    asyncio.run(drive())
    assert order.index("one") <= 2, order
