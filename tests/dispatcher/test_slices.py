"""Long work leaves the event loop to others now and then, and is otherwise what it was."""

import asyncio
from collections.abc import Awaitable

import pytest

from tests.support.virtual_loop import run_virtually
from tracelake.dispatcher.slices import STRETCH, in_slices, pause_between


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
