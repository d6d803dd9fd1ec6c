"""Long work in slices or in a thread, so that the event loop serves others meanwhile.

A call may carry a thousand events with many readers each. What is computed for them in one go is time in which nobody's
heartbeat is read, whatever lane it has.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from tracelake.http.fair_slots import FairSlots

P = ParamSpec("P")
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
    """Pauses now and then in a loop over single items, each of which takes a while."""
    if number % STRETCH == STRETCH - 1:
        await asyncio.sleep(0)


SWITCH_SECONDS = 0.0005
"""How long a thread keeps the interpreter while another one wants it (`sys.setswitchinterval`): the event loop waits
for a computation beside it no longer than that."""

_computations = ThreadPoolExecutor(1, thread_name_prefix="compute")
"""One at a time: each thread more would be another that the event loop takes turns with."""

_turns: "WeakKeyDictionary[asyncio.AbstractEventLoop, FairSlots]" = WeakKeyDictionary()
"""Of each event loop: orgs take turns at the thread, however much one of them has waiting."""


async def compute_beside(org: Hashable, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Computes a pure function in a thread, because it takes longer than a heartbeat should wait."""
    loop = asyncio.get_running_loop()
    if loop not in _turns:
        _turns[loop] = FairSlots(1, per_org=1)
    async with _turns[loop].slot(org):
        return await loop.run_in_executor(_computations, partial(function, *arguments, **keywords))
