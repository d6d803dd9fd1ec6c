"""Every way in which work could have been stranded, and that the reconcilers repair exactly that; and nothing else."""

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.routing.support import Flow, block
from tests.routing.test_holds import LIMITED
from tests.routing.test_routing import Feeder, cursors
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tests.support.state import hold_task, set_used_places
from tracelake.dispatcher.engine.catch_up import routing_reconciler

_orgs = count(1)

_BLOCKED = (
    "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())"
)

_EVERYTHING = """
    SELECT (SELECT json_agg(t ORDER BY task_id) FROM tasks t),
           (SELECT json_agg(e ORDER BY node_id, input_index) FROM edges e),
           (SELECT json_agg(l ORDER BY limit_key) FROM limits l),
           (SELECT json_agg(o ORDER BY outbox_id) FROM outbox o)"""


@pytest.fixture(scope="module")
def shared(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatcherHarness]:
    home: Path = tmp_path_factory.mktemp("reconciler")
    running = DispatcherHarness.start(cluster.fresh("state"), cluster.fresh("queue"), home)
    running.use_movable_clock()
    yield running
    running.stop()


@pytest.fixture
def flow(shared: DispatcherHarness) -> Flow:
    made = Flow(shared, f"org{next(_orgs)}")
    assert repair(made) == 0, "an earlier test left something stranded"
    return made


@pytest.fixture
def feeder(flow: Flow) -> Feeder:
    return Feeder(flow)


def repair(flow: Flow) -> int:
    """One round of both reconcilers, long after everything happened, and what they leave to the drain loop."""
    flow.harness.advance(120)
    dispatcher = flow.harness.dispatcher
    repaired = flow.harness.run(dispatcher.routing_reconciler.run_once())
    flow.drain()
    return repaired + flow.harness.run(dispatcher.reconciler.run_once())


def everything(flow: Flow) -> Any:
    return tuple(flow.harness.sql(_EVERYTHING)[0])


def lose(flow: Flow, job: str, unit: str, revision: str = "") -> dict[str, Any]:
    """As if the task had never been written."""
    found = [task for task in flow.tasks(job) if (task["unit_key"], task["revision"]) == (unit, revision)]
    (task,) = found
    flow.harness.sql("DELETE FROM outbox WHERE key = $1", task["task_id"])
    flow.harness.sql("DELETE FROM tasks WHERE task_id = $1", task["task_id"])
    return task


def wakeups(flow: Flow, task_id: UUID) -> int:
    found: int = flow.harness.sql("SELECT count(*) AS n FROM outbox WHERE key = $1", task_id)[0]["n"]
    return found


def limits(flow: Flow) -> tuple[int | None, int]:
    org_id = flow.actor.org_id
    row = flow.harness.sql("SELECT max_running, used FROM limits WHERE limit_key LIKE $1", f"job:{org_id}:%")[0]
    return row["max_running"], row["used"]


def set_limits(flow: Flow, column: str, value: int) -> None:
    """Makes a counter or a limit wrong, for the reconciler to correct."""
    org_id = flow.actor.org_id
    flow.harness.sql(f"UPDATE limits SET {column} = $2 WHERE limit_key LIKE $1", f"job:{org_id}:%", value)


def test_where_nothing_is_wrong_nothing_is_touched(flow: Flow, feeder: Feeder) -> None:
    feeder.say({"cursor": 5}, {"cursor": 9}, block(0, 9), block(10, 19), {"partition_key": "eu"})
    feeder.say({"cursor": 5}, {"cursor": 7}, {"cursor": 7, "revision": "r"}, block(0, 9) | {"revision": "r"})
    feeder.say(block(20, 29) | {"invalidates": {"start": 0, "end": 12, "reason": "x"}})
    feeder.say(block(10, 19), {"partition_key": "us"}, index=1)
    flow.fail(flow.tasks("each", "Queued")[0]["task_id"])
    feeder.say({"cursor": 30})
    flow.drain()
    flow.harness.restart()
    before = everything(flow)
    for _ in range(3):
        assert repair(flow) == 0
    assert everything(flow) == before


def test_a_wakeup_that_was_never_sent_or_got_lost_is_written_again(flow: Flow, feeder: Feeder) -> None:
    feeder.say(block(0, 9), block(10, 19))
    unsent, lost = (task["task_id"] for task in flow.tasks("part"))
    flow.harness.sql("DELETE FROM outbox WHERE key = $1", unsent)
    assert repair(flow) == 1
    assert (wakeups(flow, unsent), wakeups(flow, lost)) == (1, 1)
    while flow.harness.relay():
        pass
    queue = flow.harness.dispatcher.ports.queue
    received = flow.harness.run(queue.receive("tasks.ecs_platform", 100, 30.0))
    flow.harness.run(queue.ack([delivery for delivery in received if delivery.key == str(lost)]))
    assert repair(flow) == 1
    assert (wakeups(flow, unsent), wakeups(flow, lost)) == (0, 1)


@pytest.mark.parametrize("unit", ["p:0-9", "p:eu"])
def test_a_lost_task_of_a_partition_is_made_again(flow: Flow, feeder: Feeder, unit: str) -> None:
    feeder.say(block(0, 9), block(10, 19), {"partition_key": "eu"}, {"cursor": 3})
    before = {job: flow.units(job) for job in ("each", "part")}
    for job in before:
        lose(flow, job, unit)
    assert repair(flow) == 2
    assert {job: flow.units(job) for job in before} == before
    assert repair(flow) == 0
    assert dags.edge(flow.harness, "d", "each", org=flow.org)["position"] is None


def test_a_lost_task_of_a_revision_is_made_again(flow: Flow, feeder: Feeder) -> None:
    feeder.say(block(0, 9), {"cursor": 5}, {"cursor": 8})
    feeder.say(block(0, 9) | {"revision": "r"}, {"cursor": 5, "revision": "r"})
    before = flow.units("each")
    (unit,) = (task["unit"] for task in flow.tasks("each") if task["unit_key"] == "c:5" and task["revision"])
    lose(flow, "each", "p:0-9", "r")
    lose(flow, "each", "c:5", "r")
    assert repair(flow) == 1, "one edge"
    assert flow.units("each") == before
    assert unit in [task["unit"] for task in flow.tasks("each") if task["revision"]]


@pytest.mark.parametrize("lost", [(5,), (7,), (12,), (5, 7), (5, 7, 12)])
def test_a_lost_task_of_a_cursor_is_made_again_as_it_was(flow: Flow, feeder: Feeder, lost: tuple[int, ...]) -> None:
    for cursor in (5, 7, 12, 6, 11):  # the last two are news of nothing
        feeder.say({"cursor": cursor})
    before = cursors(flow, "each")
    for cursor in lost:
        lose(flow, "each", f"c:{cursor}")
    assert repair(flow) == 1
    assert cursors(flow, "each") == before
    feeder.say({"cursor": 13})
    assert cursors(flow, "each")[-1] == (12, 13, "")
    assert repair(flow) == 0


def test_what_a_person_asked_for_stands_in_for_no_lost_task(flow: Flow, feeder: Feeder) -> None:
    feeder.say({"cursor": 5})
    feeder.say({"cursor": 9})
    flow.trigger("d", "each", cursor=9, idempotency_key="k")
    before = cursors(flow, "each")
    lose(flow, "each", "c:9")
    assert repair(flow) == 1
    assert cursors(flow, "each") == before
    assert repair(flow) == 0


def test_a_lost_task_of_a_join_is_made_again(flow: Flow, feeder: Feeder) -> None:
    feeder.say(block(0, 9), block(10, 19), block(20, 29))
    feeder.say(block(10, 19), block(20, 29), index=1)
    before = flow.units("join")
    lose(flow, "join", "p:20-29", "")
    assert repair(flow) > 0
    assert flow.units("join") == before == [("p:10-19", ""), ("p:20-29", "")]
    assert repair(flow) == 0, "what a join waits for is not lost"


def test_units_that_a_join_waits_for_hide_nothing(flow: Flow, feeder: Feeder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing_reconciler, "PAGE", 3)
    feeder.say(*(block(start, start + 9) for start in range(0, 200, 10)))
    before = flow.units("part")
    lose(flow, "part", "p:190-199")
    assert repair(flow) == 1
    assert flow.units("part") == before


@pytest.mark.parametrize("wrong", [0, 1, 7])
def test_a_counter_of_running_work_is_counted_anew(flow: Flow, wrong: int) -> None:
    flow.deploy(LIMITED)
    for cursor in range(4):
        flow.trigger("d", "src", cursor=cursor)
    assert limits(flow) == (2, 2)
    held = {task["task_id"] for task in flow.tasks("slow") if task["held"]}
    set_limits(flow, "used", wrong)
    assert repair(flow) == 0
    assert limits(flow) == (2, 2)
    assert {task["task_id"] for task in flow.tasks("slow") if task["held"]} == held
    flow.run_all("slow")
    assert limits(flow) == (2, 0)
    set_limits(flow, "used", 2)
    flow.trigger("d", "src", cursor=9)
    assert flow.tasks("slow", "Queued")[0]["held"], "by a place that nobody has"
    assert repair(flow) == 1
    assert not flow.tasks("slow", "Queued")[0]["held"]
    assert limits(flow) == (2, 1)
    flow.run_all("slow")


def test_who_waits_while_there_is_room_is_let_in(flow: Flow) -> None:
    flow.deploy(LIMITED)
    for cursor in range(5):
        flow.trigger("d", "src", cursor=cursor)
    set_limits(flow, "max_running", 4)
    assert repair(flow) == 2
    ready = [task["task_id"] for task in flow.tasks("slow") if not task["held"]]
    assert [wakeups(flow, task_id) for task_id in ready] == [1, 1, 1, 1]
    assert limits(flow) == (4, 4)
    assert repair(flow) == 0


def test_a_failed_unit_that_a_person_asked_for_holds_no_edge(flow: Flow, feeder: Feeder) -> None:
    feeder.say({"cursor": 1})
    failed = flow.tasks("each")[0]["task_id"]
    flow.fail(failed)
    asked = flow.trigger("d", "each", cursor=1, idempotency_key="k").task_id
    assert asked is not None
    flow.fail(asked)
    feeder.say({"cursor": 2})
    assert repair(flow) == 0
    assert dags.edge(flow.harness, "d", "each", org=flow.org)["failed_units"] == 1
    flow.person("skip", failed)
    flow.drain()
    assert ("c:2", "") in flow.units("each")


def test_a_limit_that_is_rightly_full_is_not_locked(flow: Flow) -> None:
    """However many wait for it: who works with the limit is not held up by a proof that finds nothing."""
    flow.deploy(LIMITED)
    for cursor in range(5):
        flow.trigger("d", "src", cursor=cursor)

    async def prove() -> int:
        other = await asyncpg.connect(flow.harness.state_dsn)
        try:
            async with other.transaction():
                await other.execute("SELECT FROM limits FOR UPDATE")
                return await flow.harness.dispatcher.routing_reconciler._prove_places()
        finally:
            await other.close()

    assert limits(flow) == (2, 2)
    assert flow.harness.run(prove()) == 0
    flow.run_all("slow")


def test_limits_are_locked_in_their_order_also_by_the_proof(flow: Flow) -> None:
    """Who waits for a limit may need another one that comes before it."""
    flow.deploy(LIMITED)
    flow.trigger("d", "src", cursor=1)
    (waiting,) = flow.tasks("slow")
    first, last = f"a:{flow.org}", f"z:{flow.org}"
    sql = flow.harness.sql
    sql("INSERT INTO limits (limit_key, max_running, used) VALUES ($1, 5, 0), ($2, 1, 1)", first, last)
    set_used_places(flow.harness, 0, flow.actor.org_id)
    hold_task(flow.harness, waiting["task_id"], first, last)

    async def prove() -> int:
        other, watcher = [await asyncpg.connect(flow.harness.state_dsn) for _ in range(2)]
        try:
            async with other.transaction():
                await other.execute("SELECT FROM limits WHERE limit_key = $1 FOR UPDATE", first)
                proof = asyncio.create_task(flow.harness.dispatcher.routing_reconciler._prove_places())
                while not await watcher.fetchval(_BLOCKED):
                    await asyncio.sleep(0.01)
                await other.execute("SELECT FROM limits WHERE limit_key = $1 FOR UPDATE NOWAIT", last)
            return await proof
        finally:
            await other.close()
            await watcher.close()

    assert flow.harness.run(prove()) == 1
    used = sql("SELECT used FROM limits WHERE limit_key = ANY($1)", [first, last])
    assert [row["used"] for row in used] == [1, 1]
    flow.run_all("slow")
    assert repair(flow) == 0


@pytest.mark.parametrize("failures", [0, 1])
def test_an_edge_that_is_held_for_nothing_goes_on(flow: Flow, feeder: Feeder, failures: int) -> None:
    feeder.say({"cursor": 1})
    (task,) = flow.tasks("each")
    if failures:
        flow.fail(task["task_id"])
    # A wrong counter.
    flow.harness.sql(
        "UPDATE edges SET failed_units = 3, position = coalesce(position, (SELECT last_value FROM events_routed_seq)) "
        "WHERE node_id = $1",
        dags.edge(flow.harness, "d", "each", org=flow.org)["node_id"],
    )
    feeder.say({"cursor": 2})
    assert flow.drain() == 0
    assert repair(flow) == 1
    edge = dags.edge(flow.harness, "d", "each", org=flow.org)
    assert edge["failed_units"] == failures
    assert len(flow.units("each")) == (1 if failures else 2)
    if failures:
        flow.person("skip", task["task_id"])
        flow.drain()
        assert len(flow.units("each")) == 2
