"""The drain under pressure: those who wait for a stop do not take the turns of others, and no queue is filled twice."""

import asyncio
from typing import Any

import pytest

from tests.backpressure.test_pressure import feed, level
from tests.routing.support import Flow, block
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.engine.catch_up import edge_drain
from tracelake.dispatcher.engine.routing import router

MANY = 3 * edge_drain._EDGES_A_ROUND
FEW = 8


def jobs(source: str, number: int, kind: str = "{kind: manual}") -> str:
    """A source and so many readers of it."""
    readers = "".join(
        f"  - {{name: {source}{index}, activation: reactive, operator: noop, inputs: [{{from: {{job: {source}}}}}]}}\n"
        for index in range(number)
    )
    return f"  - {{name: {source}, activation: source, source: {kind}}}\n{readers}"


def pause(flow: Flow, job: str, *, paused: bool = True) -> None:
    pauses = flow.harness.dispatcher.pauses
    flow.harness.run((pauses.pause if paused else pauses.resume)(flow.actor, "d", job))


def test_edges_that_must_wait_leave_their_turn_to_others(flow: Flow) -> None:
    flow.deploy(f"name: d\ndefaults: {{runtime: ecs_platform}}\njobs:\n{jobs('many', MANY)}{jobs('few', FEW)}")
    for source in ("many", "few"):
        pause(flow, source)
        flow.trigger("d", source, cursor=1)
    assert flow.drain() == 0
    pause(flow, "few", paused=False)
    flow.harness.run(flow.harness.dispatcher.drain.run_once())
    assert [len(flow.tasks(f"few{index}")) for index in range(FEW)] == [1] * FEW, "all of them in the first round"
    pause(flow, "many", paused=False)
    flow.drain()
    assert flow.harness.sql("SELECT count(*) AS number FROM tasks")[0]["number"] == MANY + FEW


def test_invalidations_that_must_wait_leave_their_turn_to_others(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "AT_ONCE", 0)
    kind = "{kind: always_on}, operator: noop"
    sources = jobs("many", MANY, kind) + jobs("few", FEW, kind)
    flow.deploy(f"name: d\ndefaults: {{runtime: ecs_platform}}\njobs:\n{sources}")
    flow.harness.run(flow.harness.dispatcher.monitor.run_once())
    for source in ("many", "few"):
        (run,) = flow.tasks(source)
        flow.harness.sql(
            "INSERT INTO dataset_runs VALUES ($1, $2, 10, 0, 0, 29)", *dags.output(flow.harness, "d", source)
        )
        wrong = {"start": 0, "end": 29, "reason": "reorg"}
        flow.say(run["task_id"], flow.claim(run["task_id"]), flow.event("d", source, **block(0, 9), invalidates=wrong))
    assert flow.harness.sql("SELECT count(*) AS number FROM invalidation_work")[0]["number"] == MANY + FEW
    pause(flow, "many")
    assert flow.harness.run(flow.harness.dispatcher.drain.run_once()) == FEW
    assert [len(flow.tasks(f"few{index}")) for index in range(FEW)] == [3] * FEW, "all of them in the first round"
    assert flow.drain() == 0
    pause(flow, "many", paused=False)
    flow.drain()
    assert flow.harness.sql("SELECT count(*) AS number FROM tasks")[0]["number"] == 3 * (MANY + FEW) + 2


LIMITED = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: slow, activation: reactive, operator: noop, inputs: [{from: {job: src}}], max_queue_depth: 10}
"""


def test_two_that_drain_at_once_do_not_fill_a_queue_twice(
    flow: Flow, harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find room for ten; the one that gets the lock second looks again."""
    flow.deploy(LIMITED)
    pause(flow, "src")
    feed(flow, range(50))
    pause(flow, "src", paused=False)
    loop = harness.dispatcher.drain
    room, arrived = loop._room, asyncio.Barrier(2)
    first_looks = 0

    async def both_look(*arguments: Any) -> int:
        nonlocal first_looks
        found = await room(*arguments)
        first_looks += 1
        if first_looks <= 2:
            await arrived.wait()
        return found

    monkeypatch.setattr(loop, "_room", both_look)

    async def at_once() -> None:
        await asyncio.gather(loop.run_once(), loop.run_once())

    harness.run(at_once())
    assert first_looks > 2
    assert level(flow) == (10, 2)
