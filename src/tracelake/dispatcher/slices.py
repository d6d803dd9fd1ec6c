"""Long work in slices, so that the event loop serves others between two of them.

A call may carry a thousand events with many readers each. What is computed for them in one go is time in which nobody's
heartbeat is read, whatever lane it has.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")

SLICE = 64
"""Rows of one statement."""
STRETCH = 16
"""Items that are worked on between two pauses. A call takes several turns of the event loop, and may meet a stretch in
each of them."""


async def in_slices(items: Sequence[T], size: int = SLICE) -> AsyncIterator[Sequence[T]]:
    """The items in order; a single slice costs nothing extra."""
    if len(items) <= size:
        yield items
        return
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]


async def pause_between(number: int) -> None:
    """The same for a loop over single items, each of which takes a while."""
    if number % STRETCH == STRETCH - 1:
        await asyncio.sleep(0)
