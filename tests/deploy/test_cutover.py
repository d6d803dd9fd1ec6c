"""The cutover: everything moves at once or nothing does, nothing is lost, and rollback is the way back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from tests.deploy.support import PassingStore, Text, chain, dataset, everything, generations, node, say, state_of, task
from tests.support.dags import activate, actor, deploy, edge, job, job_id, output, run_builds
from tests.support.dispatcher import DispatcherHarness
from tests.support.state import set_edges, set_used_places, stop_tasks
from tracelake.db.transaction import Store
from tracelake.dispatcher.deploy.deployments import Deployments
from tracelake.wire.dags import ActivateRequest

NEVER_AGAIN = ("activations", "dataset_pointers", "orgs", "dags", "audit_log", "outbox")
"""Tables in which each activation leaves a trace."""


def edges(harness: DispatcherHarness) -> dict[tuple[UUID, int], dict[str, Any]]:
    return {(row["node_id"], row["input_index"]): dict(row) for row in harness.sql("SELECT * FROM edges")}


def test_the_edit_onward_gets_new_generations(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    before = generations(harness, "d", "tick", "a", "b")
    old = node(harness, "d", "b")
    deploy(harness, str(chain(b=2)))
    after = generations(harness, "d", "tick", "a", "b")
    assert (after["tick"], after["a"]) == (before["tick"], before["a"])
    assert after["b"][0] == before["b"][0]
    assert after["b"][1] != before["b"][1]
    assert dataset(harness, "d_out")["current_version"] == after["b"][1]
    assert edges(harness)[old, 0]["phase"] == "Parked"
    assert edge(harness, "d", "b")["phase"] == "Active"


def test_rollback_restores_pointers_edges_and_cursors(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    set_edges(harness, node(harness, "d", "a"), routed=41)
    set_edges(harness, node(harness, "d", "b"), routed=7, position=3, failed_units=1)
    versions = "SELECT dataset_uuid, current_version, staged_version, name, published FROM datasets ORDER BY 1"
    pointers, before = harness.sql(versions), edges(harness)
    deploy(harness, str(chain(a=2)))
    assert not set(edges(harness)) <= set(before)
    reply = activate(harness, "d", "previous")
    assert reply.state == "Active"
    assert {item.dataset: item.change for item in reply.plan.datasets} == {
        "d__tick_0": "unchanged",
        "d__a_0": "restored",
        "d_out": "restored",
    }
    assert harness.sql(versions) == pointers
    assert {key: row for key, row in edges(harness).items() if row["phase"] != "Parked"} == before


def test_previous_goes_back_and_forth(harness: DispatcherHarness) -> None:
    for seconds in (1, 2, 3):
        deploy(harness, str(chain(a=seconds)))
    assert activate(harness, "d").plan.version == 2
    assert activate(harness, "d").plan.version == 3
    assert activate(harness, "d").plan.version == 2
    states = harness.sql("SELECT state, count(*) FROM activations GROUP BY 1 ORDER BY 1")
    assert [tuple(row) for row in states] == [("Active", 1), ("Superseded", 5)]


def test_what_came_meanwhile_is_drained_after_rollback(harness: DispatcherHarness) -> None:
    """Events wait for a parked edge, and it knows where to go on."""
    deploy(harness, str(chain()))
    tick = output(harness, "d", "tick")
    old = node(harness, "d", "a")
    first = say(harness, tick, 1)
    deploy(harness, str(chain(a=2)))
    activate(harness, "d", 2, now=True)
    parked = edges(harness)[old, 0]
    assert parked["phase"] == "Parked"
    assert first is not None
    assert parked["position"] >= first
    second = say(harness, tick, 2)
    assert second is not None
    assert second > parked["position"]
    activate(harness, "d", 1)
    back = edges(harness)[old, 0]
    assert (back["phase"], back["position"]) == ("Active", parked["position"])


def test_an_edge_without_anything_behind_it_is_live_at_once(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    say(harness, output(harness, "d", "tick"), 1)
    deploy(harness, str(chain(a=2)))
    activate(harness, "d", 2, now=True)
    assert edge(harness, "d", "a")["position"] == 0
    assert edge(harness, "d", "b")["position"] is None
    activate(harness, "d", 1)
    assert edge(harness, "d", "a")["position"] is None


def test_tasks_of_what_is_dropped_are_cancelled_and_come_back(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    a, tick = job_id(harness, "d", "a"), job_id(harness, "d", "tick")
    queued, held = task(harness, a, cursor=1), task(harness, a, held=True, limits=["job:x"], cursor=2)
    waiting, failed = task(harness, a, "Failed", waits=True, cursor=3), task(harness, a, "Failed", cursor=4)
    running, done = task(harness, a, "Running", cursor=5), task(harness, a, "Completed", cursor=6)
    other = task(harness, tick, cursor=7)
    asked = task(harness, a, "Running", cursor=8)
    harness.service("POST", f"/internal/tasks/{asked}/cancel")
    deploy(harness, str(chain(a=2)))
    for gone in (queued, held, waiting):
        row = harness.row(str(gone))
        assert (row["status"], row["error"]) == ("Canceled", "superseded by version 2 of the DAG")
        assert row["finished_at"] is not None
    assert state_of(harness, running) == ("Running", True)
    assert state_of(harness, failed) == ("Failed", False)
    assert state_of(harness, done) == ("Completed", False)
    assert state_of(harness, other) == ("Queued", False)
    harness.sql("DELETE FROM outbox")
    harness.sql("INSERT INTO limits (limit_key, max_running, used) VALUES ('job:x', 1, 1)")
    activate(harness, "d", 1)
    for back in (queued, waiting):
        assert state_of(harness, back) == ("Queued", False)
        assert harness.row(str(back))["error"] is None
    assert harness.row(str(held))["held"]
    woken = {row["key"] for row in harness.sql("SELECT key FROM outbox WHERE kind = 'task_wakeup'")}
    assert woken == {queued, waiting}
    # Told to stop, and still running: it comes back when it has stopped. What a person cancelled does not.
    assert state_of(harness, running) == ("Running", True)
    assert run_builds(harness) == 0
    stop_tasks(harness, running, asked)
    assert run_builds(harness) == 1
    assert state_of(harness, running) == ("Queued", False)
    assert state_of(harness, asked) == ("Canceled", True)


def test_a_task_that_was_stopped_in_its_last_attempt_gets_another_one(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    last = task(harness, job_id(harness, "d", "a"), "Running", attempt=3)
    deploy(harness, str(chain(a=2)))
    stop_tasks(harness, last, outcome="Timeout")
    activate(harness, "d", 1)
    row = harness.row(str(last))
    assert (row["status"], row["attempt"], row["max_attempts"]) == ("Queued", 3, 4)


def test_a_version_that_leaves_again_takes_its_returning_tasks_along(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    running = task(harness, job_id(harness, "d", "a"), "Running")
    deploy(harness, str(chain(a=2)))
    activate(harness, "d", 1)
    activate(harness, "d", 2)
    stop_tasks(harness, running)
    assert run_builds(harness) == 0
    activate(harness, "d", 1)
    assert state_of(harness, running) == ("Queued", False)


def test_places_are_given_back_and_handed_on(harness: DispatcherHarness) -> None:
    limited = chain(scaling={"max_concurrency": 3})
    deploy(harness, str(limited))
    deploy(harness, str(chain("e").job("a", "tick", scaling={"max_concurrency": 3})))
    own, shared = (f"job:{job(harness, dag, 'a')['org_id']}:{dag}:a" for dag in ("d", "e"))
    a, e = job_id(harness, "d", "a"), job_id(harness, "e", "a")
    for cursor in range(2):
        task(harness, a, limits=[own, shared], cursor=cursor)
    task(harness, a, "Running", limits=[own, shared], cursor=2)
    task(harness, a, held=True, limits=[own, shared], cursor=3)
    waits = [task(harness, e, held=True, limits=[shared], cursor=cursor) for cursor in range(3)]
    set_used_places(harness, 3)
    deploy(harness, str(chain(a=2, scaling={"max_concurrency": 3})))
    used = {row["limit_key"]: row["used"] for row in harness.sql("SELECT * FROM limits")}
    # The one that runs keeps its places until it ends; two of the three that waited got the others.
    assert used == {own: 1, shared: 3}
    assert sorted(harness.row(str(item))["held"] for item in waits) == [False, False, True]
    woken = {row["key"] for row in harness.sql("SELECT key FROM outbox")}
    assert woken == {item for item in waits if not harness.row(str(item))["held"]}
    assert harness.run(harness.dispatcher.routing_reconciler.run_once()) == 0


def test_a_wider_limit_lets_in_who_waits(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain(scaling={"max_concurrency": 1})))
    key = f"job:{job(harness, 'd', 'a')['org_id']}:d:a"
    waits = [task(harness, job_id(harness, "d", "a"), held=True, limits=[key], cursor=n) for n in range(4)]
    set_used_places(harness, 1)
    deploy(harness, str(chain(scaling={"max_concurrency": 3})))
    assert [harness.row(str(item))["held"] for item in waits].count(False) == 2
    deploy(harness, str(chain()))
    assert [harness.row(str(item))["held"] for item in waits].count(False) == 4


def test_readers_in_other_dags_follow_the_dataset(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    deploy(harness, str(Text("x").source("unused").job("reader", "dataset.d_out")))
    first = output(harness, "d", "b")
    set_edges(harness, node(harness, "x", "reader"), routed=5)
    reply = deploy(harness, str(chain(b=2)))
    assert reply.plan.subscribers == ["x/reader"]
    second = output(harness, "d", "b")
    row = edge(harness, "x", "reader")
    assert (row["dataset_version"], row["routed"], row["position"]) == (second[1], 5, None)
    # Back to a generation with events: all of them are shown, and make no second task.
    say(harness, first, 5)
    activate(harness, "d", 1)
    row = edge(harness, "x", "reader")
    assert (row["dataset_version"], row["phase"], row["position"], row["drain_until"]) == (first[1], "Active", 0, None)
    assert deploy(harness, str(chain(b=1))).plan.subscribers == []


def test_a_parked_reader_follows_when_it_counts_again(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    reader = Text("x").source("unused").job("reader", "dataset.d_out")
    deploy(harness, str(reader))
    deploy(harness, str(reader.copy().job("reader", "dataset.d_out", seconds=1)))
    deploy(harness, str(chain(b=2)))
    activate(harness, "x", 1)
    row = edge(harness, "x", "reader")
    assert (row["phase"], row["dataset_version"]) == ("Active", output(harness, "d", "b")[1])


def test_the_reader_of_a_dataset_that_is_gone_stays_where_it_is(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    deploy(harness, str(Text("x").source("unused").job("reader", "dataset.d_out")))
    before = dict(edge(harness, "x", "reader"))
    text = chain()
    del text.publish["d_out"]
    reply = deploy(harness, str(text))
    assert reply.plan.subscribers == ["x/reader"]
    assert dict(edge(harness, "x", "reader")) == before


def test_outputs_are_reset_once_for_each_version(harness: DispatcherHarness) -> None:
    text = chain(bootstrap={"reset_outputs": True})
    deploy(harness, str(text))
    first = output(harness, "d", "a")
    assert deploy(harness, str(text)).state == "Active"
    assert output(harness, "d", "a") == first
    text.job("c", "tick")
    deploy(harness, str(text))
    second = output(harness, "d", "a")
    assert second != first
    for version, expected in ((1, first), (2, second), (1, first)):
        activate(harness, "d", version)
        assert output(harness, "d", "a") == expected


def test_events_that_nobody_was_meant_to_hear_are_heard_when_their_generation_counts_again(
    harness: DispatcherHarness,
) -> None:
    deploy(harness, str(chain()))
    a = output(harness, "d", "a")
    deploy(harness, str(chain(a=2)))
    for cursor in (3, 4):
        say(harness, a, cursor, state="NotCurrent")
    activate(harness, "d", 1)
    rows = harness.sql("SELECT cursor, state, routed_seq FROM events ORDER BY routed_seq")
    assert [(row["cursor"], row["state"]) for row in rows] == [(3, "Routed"), (4, "Routed")]
    assert edge(harness, "d", "b")["position"] < rows[0]["routed_seq"]


class Crash(BaseException):
    """The process ends here."""


class CrashingStore(PassingStore):
    """The store of a process that ends before its Nth statement; COMMIT is one of them."""

    def __init__(self, store: Store, statements: int) -> None:
        super().__init__(store)
        self.left = statements

    @asynccontextmanager
    async def transaction(self, **options: Any) -> AsyncIterator[Any]:
        async with super().transaction(**options) as connection:
            yield _CrashingConnection(connection, self)
            self.count()

    def count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash


class _CrashingConnection:
    def __init__(self, connection: Any, store: CrashingStore) -> None:
        self._connection = connection
        self._store = store

    def __getattr__(self, name: str) -> Any:
        self._store.count()
        return getattr(self._connection, name)


def test_a_cutover_that_is_cut_short_leaves_no_trace(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain(scaling={"max_concurrency": 2})))
    deploy(harness, str(Text("x").source("unused").job("reader", "dataset.d_out")))
    say(harness, output(harness, "d", "b"), 1)
    key = f"job:{job(harness, 'd', 'a')['org_id']}:d:a"
    task(harness, job_id(harness, "d", "a"), limits=[key], cursor=1)
    task(harness, job_id(harness, "d", "b"), "Running", cursor=2)
    set_used_places(harness, 1)
    before = everything(harness)
    who, text = actor(harness), str(chain(a=2)).encode()
    statements = 0
    while True:
        store = CrashingStore(harness.dispatcher.ports.store, statements)
        documents = harness.dispatcher.documents
        deployments = Deployments(store, harness.config, lambda: None, documents)
        try:
            harness.run(deployments.deploy(who, "d", text, dry_run=False, activate=True))
            break
        except Crash:
            assert everything(harness) == before, f"after {statements} statements"
        statements += 1
    assert statements > 30
    assert everything(harness) != before


def test_readers_see_one_version_or_the_other(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    deploy(harness, str(chain(a=2)))
    look = """
        SELECT d.active_version,
               (SELECT array_agg(current_version ORDER BY name) FROM datasets) AS pointers,
               (SELECT array_agg(node_id ORDER BY node_id) FROM edges WHERE phase = 'Active') AS nodes,
               (SELECT dag_version_id FROM activations WHERE state = 'Active') AS activated
        FROM dags d"""
    seen: set[Any] = set()
    looked = asyncio.Event()

    async def watch(stop: asyncio.Event) -> None:
        async with harness.dispatcher.ports.store.connection() as connection:
            while not stop.is_set():
                row = (await connection.fetch(look))[0]
                seen.add((row["active_version"], tuple(row["pointers"]), tuple(row["nodes"]), row["activated"]))
                looked.set()

    async def toggle() -> None:
        stop = asyncio.Event()
        watching = asyncio.create_task(watch(stop))
        await looked.wait()
        for _ in range(20):
            await harness.dispatcher.deployments.activate(who, "d", ActivateRequest(version="previous"))
            looked.clear()
            await looked.wait()  # also between two versions, however slow the machine is
        stop.set()
        await watching

    who = actor(harness)
    harness.run(toggle())
    assert len(seen) == 2
    assert all(version == activated for version, _, _, activated in seen)


@pytest.mark.parametrize("table", ["edges", "datasets", "jobs", "nodes", "dataset_versions"])
def test_going_back_and_forth_makes_no_rows(harness: DispatcherHarness, table: str) -> None:
    deploy(harness, str(chain()))
    deploy(harness, str(chain(a=2)))
    before = everything(harness, without=NEVER_AGAIN)
    activate(harness, "d")
    activate(harness, "d")
    assert everything(harness, without=NEVER_AGAIN)[table] == before[table]
