"""Slots of a runner between orgs, and metrics of any number of bundles, without a sandbox."""

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import pytest

from tracelake.errors import TraceError
from tracelake.runner.metrics import IDLE_SECONDS, MOST_BUNDLES, RunnerMetrics
from tracelake.runner.outcome import RunEnding, RunResult
from tracelake.runner.slots import MOST_WAITING, FunctionSlots
from tracelake.wire.claims import InvokingOrg


def make_org(number: int, weight: float = 1.0) -> InvokingOrg:
    return InvokingOrg(org_id=UUID(int=number), name=f"org_{number}", weight=weight)


A, B, C = (make_org(number) for number in range(3))


class Callers:
    """Whoever waits for slots, in the order of their turns."""

    def __init__(self, total: int) -> None:
        self.slots = FunctionSlots(total)
        self.turns: list[str] = []

    async def wait(self, org: InvokingOrg, count: int = 1) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._wait(org)) for _ in range(count)]
        await asyncio.sleep(0)
        return tasks

    async def _wait(self, org: InvokingOrg) -> None:
        group = await self.slots.acquire(org, 60)
        assert group == str(org.org_id)
        self.turns.append(org.name)

    async def release(self, org: InvokingOrg) -> str:
        """Who got the slot."""
        self.slots.release(str(org.org_id))
        before = len(self.turns)
        while len(self.turns) == before:
            await asyncio.sleep(0)
        return self.turns[-1]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_free_slot_goes_to_the_org_that_runs_least() -> None:
    async def work() -> None:
        callers = Callers(2)
        await callers.wait(A, 6)
        await callers.wait(B, 2)
        await callers.wait(C, 1)
        await asyncio.sleep(0)
        assert callers.turns == ["org_0", "org_0"], "nobody else was there"
        assert await callers.release(A) == "org_1"
        assert await callers.release(A) == "org_2"
        assert await callers.release(B) == "org_0"
        assert await callers.release(C) == "org_1"

    run(work())


def test_slots_follow_weights() -> None:
    async def work() -> None:
        callers = Callers(4)
        heavy = make_org(9, weight=3.0)
        await callers.wait(heavy, 12)
        await callers.wait(A, 12)
        await asyncio.sleep(0)
        running = {"org_9": 4, "org_0": 0}
        for org in [heavy, heavy, A, heavy, A, heavy, heavy, A]:
            if not running[org.name]:
                continue
            running[org.name] -= 1
            running[await callers.release(org)] += 1
        assert running == {"org_9": 3, "org_0": 1}

    run(work())


def test_whoever_waits_too_long_or_in_too_large_a_crowd_is_refused() -> None:
    async def work() -> None:
        callers = Callers(1)
        await callers.wait(A)
        with pytest.raises(TraceError, match="runner_busy"):
            await callers.slots.acquire(B, 0.01)
        waiting = await callers.wait(A, MOST_WAITING)
        with pytest.raises(TraceError, match="runner_busy"):
            await callers.slots.acquire(A, 60)
        await callers.wait(B)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        assert await callers.release(A) == "org_1", "who left holds up nobody"

    run(work())


def test_who_leaves_as_its_turn_comes_gives_the_slot_back() -> None:
    async def work() -> None:
        callers = Callers(1)
        await callers.wait(A)
        (leaver,) = await callers.wait(B)
        await callers.wait(C)
        callers.slots.release(str(A.org_id))
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        await asyncio.sleep(0)
        assert callers.turns == ["org_0", "org_2"]

    run(work())


def series(metrics: RunnerMetrics) -> set[tuple[str, str]]:
    return {
        (sample.labels["org"], sample.labels["bundle"])
        for family in metrics.registry.collect()
        for sample in family.samples
        if "bundle" in sample.labels
    }


def test_many_bundles_have_a_bounded_number_of_series() -> None:
    now = 0.0
    metrics = RunnerMetrics(monotonic=lambda: now)
    result = RunResult(ending=RunEnding.MEMORY, seconds=1.0)
    for number in range(3 * MOST_BUNDLES):
        metrics.count_run("acme", f"b{number}", "python", result, {"host": 1})
    assert len(series(metrics)) == MOST_BUNDLES + 1
    assert metrics.runs.labels("other", "other", "python", "memory")._value.get() == 2 * MOST_BUNDLES
    assert metrics.kills.labels("acme", "b0", "memory")._value.get() == 1
    now = IDLE_SECONDS + 1
    metrics.count_run("acme", "b1", "python", result, {})
    metrics.count_run("acme", "new", "python", result, {"host": 2})
    assert ("acme", "new") in series(metrics)
    assert ("acme", "b0") not in series(metrics), "it had not run for longest"
    assert ("acme", "b1") in series(metrics)
    assert len(series(metrics)) == MOST_BUNDLES + 1
