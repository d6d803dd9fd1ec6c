"""The loop that looks after queues: wrong counters, ages, who is stopped; and that nobody waits for it."""

import asyncio
from uuid import UUID

import pytest

from tests.backpressure.pipe import PIPE
from tests.backpressure.test_pressure import feed, level, work
from tests.routing.support import Flow
from tests.support import dags
from tests.support.state import set_depth, shift_depth
from tracelake.dispatcher.engine.pressure import queues, watch
from tracelake.dispatcher.engine.pressure.watch import PressureWatch

BULK_STEP = PIPE.replace("{name: step, activation: reactive,", "{name: step, priority: bulk, activation: reactive,")


def look(flow: Flow) -> int:
    return flow.harness.run(flow.harness.dispatcher.pressure.run_once())


def fill(flow: Flow, first: int, number: int) -> None:
    feed(flow, range(first, first + number))
    work(flow, "make", number)
    work(flow, "step", number)


def slow(flow: Flow) -> UUID:
    found: UUID = dags.job(flow.harness, "d", "slow")["node_id"]
    return found


@pytest.mark.parametrize("wrong", [-5, 3])
def test_a_wrong_counter_is_put_right(flow: Flow, wrong: int) -> None:
    flow.deploy(PIPE)
    fill(flow, 0, 8)
    assert level(flow) == (8, 1)
    shift_depth(flow.harness, wrong)
    flow.harness.restart()
    look(flow)
    assert level(flow) == (8, 1)
    look(flow)
    assert level(flow) == (8, 1), "what is right stays as it is"


def test_two_that_count_put_it_right_once(flow: Flow) -> None:
    flow.deploy(PIPE)
    fill(flow, 0, 6)
    set_depth(flow.harness, 1)
    node, store = slow(flow), flow.harness.dispatcher.ports.store
    counted, go_on = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with store.transaction() as connection:
            await queues.correct(connection, node)
            counted.set()
            await go_on.wait()

    async def second() -> None:
        await counted.wait()
        async with store.transaction() as connection:
            assert not await queues.correct(connection, node)
        go_on.set()

    async def both() -> None:
        await asyncio.gather(first(), second())

    flow.harness.run(both())
    assert level(flow) == (6, 0)


def test_counts_come_now_and_then(flow: Flow) -> None:
    flow.deploy(PIPE)
    fill(flow, 0, 6)
    look(flow)
    set_depth(flow.harness, 1)
    for _ in range(watch._ALL_EVERY - 1):
        look(flow)
    assert level(flow) == (1, 0)
    look(flow)
    assert level(flow) == (6, 0)


def test_nobody_waits_for_a_count(flow: Flow) -> None:
    """Whoever completes a task needs the queue's row; while it is counted, the row is free, and the other way round."""
    flow.deploy(PIPE)
    fill(flow, 0, 6)
    node, store = slow(flow), flow.harness.dispatcher.ports.store

    async def count() -> None:
        async with store.transaction() as counting, store.transaction() as working:
            await queues.correct(counting, node)
            await working.execute("SELECT FROM pressure WHERE node_id = $1 FOR UPDATE NOWAIT", node)
            await queues.correct(counting, node)

    flow.harness.run(count())


def test_a_count_that_nobody_waits_for_is_right_while_tasks_come_and_go(flow: Flow) -> None:
    flow.deploy(PIPE)
    fill(flow, 0, 4)
    set_depth(flow.harness, 3)
    node, store = slow(flow), flow.harness.dispatcher.ports.store

    async def compare() -> int:
        async with store.connection() as connection:
            row = await connection.fetchrow(queues._COMPARE, node)
            assert row is not None
            wrong: int = row["counted"] - row["depth"]
            return wrong

    assert flow.harness.run(compare()) == 1
    work(flow, "slow", 2)
    assert flow.harness.run(compare()) == 1, "what is wrong is wrong for good, whatever happens meanwhile"


def test_what_was_made_ready_uncounted_is_counted(flow: Flow) -> None:
    """A task that was cancelled before its job had a threshold, and that somebody wants after all."""
    flow.deploy(PIPE.replace(", max_queue_depth: 10", ""))
    fill(flow, 0, 3)
    cancelled = flow.tasks("slow")[0]["task_id"]
    flow.person("cancel", cancelled)
    flow.deploy(PIPE)
    assert level(flow) == (2, 0)
    flow.person("retry", cancelled)
    look(flow)
    dags.run_builds(flow.harness)
    assert level(flow) == (3, 0)
    flow.run_all("slow")
    assert level(flow) == (0, 0)


def test_the_age_is_that_of_the_oldest_that_still_waits(flow: Flow) -> None:
    flow.deploy(PIPE.replace("max_queue_depth: 10", "max_queue_age: 60s"))
    fill(flow, 0, 1)
    flow.harness.advance(40)
    fill(flow, 1, 1)
    flow.harness.advance(15)
    look(flow)
    assert level(flow) == (2, 1)
    assert flow.harness.sql("SELECT because FROM pressure")[0]["because"] == "the oldest waits 55 of 60 s"
    work(flow, "slow", 1)
    assert level(flow) == (1, 1)
    assert look(flow) == 1, "it eased"
    assert level(flow) == (1, 0)
    assert look(flow) == 0


def test_an_empty_queue_has_no_age(flow: Flow) -> None:
    flow.deploy(PIPE.replace("max_queue_depth: 10", "max_queue_depth: 10, max_queue_age: 60s"))
    fill(flow, 0, 1)
    look(flow)
    assert flow.harness.sql("SELECT oldest_ready_at FROM pressure")[0]["oldest_ready_at"] is not None
    work(flow, "slow", 1)
    assert flow.harness.sql("SELECT oldest_ready_at FROM pressure")[0]["oldest_ready_at"] is None
    flow.harness.advance(3600)
    fill(flow, 1, 1)
    assert level(flow) == (1, 0), "the hour was nobody's"


def test_since_and_because_are_of_the_level(flow: Flow) -> None:
    flow.deploy(PIPE.replace(", priority: bulk", ""))
    fill(flow, 0, 8)
    said = "SELECT since, because FROM pressure"
    first = flow.harness.sql(said)[0]
    assert first["because"] == "8 of 10 queued tasks"
    flow.harness.advance(60)
    fill(flow, 8, 1)
    assert flow.harness.sql(said)[0] == first, "the same level, since the same time, for the same reason"
    fill(flow, 9, 1)
    second = flow.harness.sql(said)[0]
    assert second["because"] == "10 of 10 queued tasks"
    assert (second["since"] - first["since"]).total_seconds() >= 60


@pytest.mark.parametrize("active", [True, False])
def test_the_priority_is_that_of_the_version_that_counts(flow: Flow, active: bool) -> None:
    flow.deploy(BULK_STEP)
    flow.deploy(PIPE, activate=active)
    if active:
        dags.activate(flow.harness, "d", 1)
    else:
        flow.deploy(BULK_STEP.replace("max_queue_depth: 10", "max_queue_depth: 5"))
    number = 8 if active else 4
    fill(flow, 0, number)
    assert level(flow) == (number, 1)
    feed(flow, range(number, number + 1))
    assert len(flow.tasks("make")) == number, "make and step are bulk again, or still"


def test_who_is_stopped_is_known_after_a_look(flow: Flow) -> None:
    flow.deploy(PIPE)
    pressure = flow.harness.dispatcher.pressure
    nodes = {name: dags.job(flow.harness, "d", name)["node_id"] for name in ("src", "make", "step", "slow", "other")}

    def stopped() -> set[str]:
        look(flow)
        found = {name for name, node in nodes.items() if pressure.is_stopped(node)}
        assert pressure.stopped == len(found)
        return found

    assert stopped() == set()
    fill(flow, 0, 10)
    assert stopped() == {"src", "make", "step"}
    flow.harness.run(flow.harness.dispatcher.pauses.pause(flow.actor, "d", "other"))
    assert stopped() == {"src", "make", "step", "other"}
    other = PressureWatch(flow.harness.dispatcher.ports.store, pressure._upstream)
    assert not other.is_stopped(nodes["src"]), "before its first look it knows nothing"
    work(flow, "slow", 10)
    flow.harness.run(flow.harness.dispatcher.pauses.resume(flow.actor, "d", "other"))
    assert stopped() == set()


def test_a_queue_that_is_held_up_hides_no_other(flow: Flow) -> None:
    text = PIPE.replace("max_queue_depth: 10", "max_queue_age: 60s") + (
        "  - {name: second, activation: reactive, operator: noop, inputs: [{from: {job: step}}], max_queue_age: 60s}\n"
    )
    flow.deploy(text)
    fill(flow, 0, 1)
    flow.harness.advance(61)
    first, other = sorted(
        (dags.job(flow.harness, "d", name)["node_id"] for name in ("slow", "second")), key=lambda node: node.bytes
    )
    shift_depth(flow.harness, 3, first)

    async def look_beside_a_lock() -> None:
        dispatcher = flow.harness.dispatcher
        async with dispatcher.ports.store.transaction() as connection:
            await connection.execute("SELECT FROM pressure WHERE node_id = $1 FOR UPDATE", first)
            await dispatcher.pressure.run_once()

    flow.harness.run(look_beside_a_lock())
    levels = {row["node_id"]: row["level"] for row in flow.harness.sql("SELECT node_id, level FROM pressure")}
    assert levels == {first: 0, other: 2}
    look(flow)
    levels = {row["node_id"]: row["level"] for row in flow.harness.sql("SELECT node_id, level FROM pressure")}
    assert levels == {first: 2, other: 2}
