"""Builds: a version that has history to read is built beside the active one, and counts when it is done."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.deploy.support import PassingStore, Text, chain, dataset, everything, node, say, state_of, task
from tests.deploy.test_cutover import Crash, CrashingStore
from tests.support.dags import activate, actor, deploy, edge, job, job_id, output, run_builds
from tests.support.dispatcher import DispatcherHarness
from tests.support.state import cancel_queued_tasks, set_edges
from tracelake.db.transaction import Store
from tracelake.dispatcher.deploy.builds import Builds
from tracelake.dispatcher.views.dags import list_versions
from tracelake.wire.dags import ActivateRequest, BuildProgress, DagVersionsReply, DeployReply


def start(harness: DispatcherHarness) -> DeployReply:
    """Version 1 of the chain has history; version 2 edits its first job."""
    deploy(harness, str(chain()))
    for cursor in (1, 2, 3):
        say(harness, output(harness, "d", "tick"), cursor)
    set_edges(harness, node(harness, "d", "a"), routed=3)
    return deploy(harness, str(chain(a=2)))


def drain(harness: DispatcherHarness, *nodes: Any) -> None:
    """As the drain loop leaves edges that have seen their history."""
    harness.sql(
        "UPDATE edges SET position = drain_until WHERE node_id = ANY($1) AND drain_until IS NOT NULL", list(nodes)
    )


def built(harness: DispatcherHarness, name: str = "a") -> Any:
    return node(harness, "d", name, building=True)


def versions(harness: DispatcherHarness) -> dict[int, tuple[str, BuildProgress | None]]:
    org_id = actor(harness).org_id
    assert org_id is not None

    async def read() -> DagVersionsReply:
        async with harness.dispatcher.ports.store.connection() as connection:
            return await list_versions(connection, org_id, "d")

    return {row.number: (row.state, row.build) for row in harness.run(read()).versions}


def pointers(harness: DispatcherHarness) -> tuple[Any, Any]:
    row = harness.sql("SELECT active_version, building_version FROM dags WHERE dag_name = 'd'")[0]
    numbers = {row["dag_version_id"]: row["number"] for row in harness.sql("SELECT * FROM dag_versions")}
    return numbers.get(row["active_version"]), numbers.get(row["building_version"])


def test_a_build_stands_beside_the_active_version(harness: DispatcherHarness) -> None:
    reply = start(harness)
    assert (reply.state, reply.plan.needs_build) == ("Building", True)
    assert pointers(harness) == (1, 2)
    newest = harness.sql("SELECT last_value FROM events_routed_seq")[0][0]
    fresh = edge(harness, "d", "a", building=True)
    assert (fresh["phase"], fresh["position"], fresh["drain_until"], fresh["routed"]) == ("Staged", 0, newest, -1)
    below = edge(harness, "d", "b", building=True)
    assert (below["phase"], below["position"], below["drain_until"]) == ("Staged", None, None)
    for name in ("a", "b"):
        row = edge(harness, "d", name)
        assert (row["phase"], row["position"]) == ("Active", None)
    out = dataset(harness, "d_out")
    assert out["current_version"] == output(harness, "d", "b")[1]
    assert out["staged_version"] == output(harness, "d", "b", building=True)[1]
    assert dataset(harness, "d__tick_0")["staged_version"] is None


def test_a_finished_build_cuts_over_by_itself(harness: DispatcherHarness) -> None:
    start(harness)
    old, fresh = node(harness, "d", "a"), built(harness)
    target = output(harness, "d", "b", building=True)
    assert run_builds(harness) == 0
    drain(harness, fresh)
    made = task(harness, job_id(harness, "d", "a", building=True), cursor=3)
    assert run_builds(harness) == 0
    cancel_queued_tasks(harness, made)
    late = say(harness, output(harness, "d", "tick"), 4)
    assert run_builds(harness) == 1
    assert run_builds(harness) == 0
    assert pointers(harness) == (2, None)
    row = edge(harness, "d", "a")
    # What came after the build began waits for the drain loop; the edge knows where to go on.
    assert (row["node_id"], row["phase"], row["drain_until"]) == (fresh, "Active", None)
    assert late is not None
    assert row["position"] < late
    assert harness.sql("SELECT phase FROM edges WHERE node_id = $1", old)[0]["phase"] == "Parked"
    out = dataset(harness, "d_out")
    assert (out["dataset_uuid"], out["current_version"], out["staged_version"]) == (*target, None)
    states = harness.sql("SELECT state FROM activations ORDER BY activation_id")
    assert [row["state"] for row in states] == ["Superseded", "Active"]
    last = harness.sql("SELECT * FROM audit_log ORDER BY audit_id DESC LIMIT 1")[0]
    assert (last["subject"], last["action"], last["target"]) == ("tester", "dag.cutover", "d")


def test_the_real_drain_loop_finishes_a_build(harness: DispatcherHarness) -> None:
    start(harness)
    assert run_builds(harness) == 0
    while harness.run(harness.dispatcher.drain.run_once()):
        pass
    a = job_id(harness, "d", "a", building=True)
    made = [row["task_id"] for row in harness.sql("SELECT task_id FROM tasks WHERE job_id = $1", a)]
    assert len(made) == 3
    assert run_builds(harness) == 0
    for task_id in made:
        claimed = harness.claim(str(task_id)).body
        body = {"task_id": str(task_id), "attempt": 1, "lease_token": claimed["lease_token"], "status": "Completed"}
        assert harness.task("complete", claimed["capability_token"], body).status == 200
    assert run_builds(harness) == 1
    assert pointers(harness) == (2, None)


@pytest.mark.parametrize("status", ["Queued", "Running"])
def test_unfinished_work_keeps_a_build_open(harness: DispatcherHarness, status: str) -> None:
    start(harness)
    drain(harness, built(harness))
    task(harness, job_id(harness, "d", "b", building=True), status)
    assert run_builds(harness) == 0


def test_events_that_an_edge_of_the_build_has_not_seen_keep_it_open(harness: DispatcherHarness) -> None:
    start(harness)
    drain(harness, built(harness))
    set_edges(harness, built(harness, "b"), position=0)
    say(harness, output(harness, "d", "a", building=True), 1)
    assert run_builds(harness) == 0


def test_what_failed_for_good_keeps_a_build_open_until_it_is_skipped(harness: DispatcherHarness) -> None:
    start(harness)
    drain(harness, built(harness))
    a = job_id(harness, "d", "a", building=True)
    failed = task(harness, a, "Failed", cursor=1)
    task(harness, a, "Completed", cursor=2)
    assert run_builds(harness) == 0
    state, progress = versions(harness)[2]
    assert (state, progress) == ("Building", BuildProgress(done=1, open=0, failed=1, draining_edges=0))
    harness.run(harness.dispatcher.actions.skip(actor(harness), failed))
    assert run_builds(harness) == 1


def test_tasks_of_other_nodes_do_not_keep_it_open(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain().job("side", "tick")))
    say(harness, output(harness, "d", "tick"), 1)
    deploy(harness, str(chain(a=2).job("side", "tick")))
    drain(harness, built(harness))
    side = task(harness, job_id(harness, "d", "side"))
    old = task(harness, job_id(harness, "d", "a"))
    assert run_builds(harness) == 1
    assert state_of(harness, side) == ("Queued", False)
    assert state_of(harness, old) == ("Canceled", False)


def test_a_build_may_be_forced(harness: DispatcherHarness) -> None:
    start(harness)
    failed = task(harness, job_id(harness, "d", "a", building=True), "Failed")
    assert activate(harness, "d", 2).state == "Building"
    assert activate(harness, "d", 2, now=True).state == "Active"
    assert pointers(harness) == (2, None)
    assert edge(harness, "d", "a")["position"] == 0
    assert state_of(harness, failed) == ("Failed", False)
    assert [row["state"] for row in harness.sql("SELECT state FROM activations ORDER BY 1")] == ["Active", "Superseded"]


def test_deploying_what_is_being_built_changes_nothing(harness: DispatcherHarness) -> None:
    first = start(harness)
    before = everything(harness)
    again = deploy(harness, str(chain(a=2)))
    assert (again.state, again.duplicate, again.dag_version_id) == ("Building", True, first.dag_version_id)
    assert everything(harness) == before


def test_a_kept_version_leaves_the_build_alone(harness: DispatcherHarness) -> None:
    start(harness)
    assert deploy(harness, str(chain(a=3)), activate=False).state == "Created"
    assert pointers(harness) == (1, 2)


def test_another_deploy_abandons_the_build(harness: DispatcherHarness) -> None:
    start(harness)
    queued = task(harness, job_id(harness, "d", "a", building=True))
    kept = task(harness, job_id(harness, "d", "a"))
    abandoned = built(harness)
    assert deploy(harness, str(chain(a=3))).state == "Building"
    assert pointers(harness) == (1, 3)
    row = harness.sql("SELECT * FROM edges WHERE node_id = $1", abandoned)[0]
    assert (row["phase"], row["position"], row["drain_until"]) == ("Parked", 0, None)
    assert state_of(harness, queued) == ("Canceled", False)
    assert state_of(harness, kept) == ("Queued", False)
    assert dataset(harness, "d_out")["staged_version"] == output(harness, "d", "b", building=True)[1]
    states = harness.sql("SELECT state FROM activations ORDER BY activation_id")
    assert [row["state"] for row in states] == ["Active", "Abandoned", "Building"]


def test_activating_the_active_version_calls_the_build_off(harness: DispatcherHarness) -> None:
    start(harness)
    queued = task(harness, job_id(harness, "d", "a", building=True))
    assert activate(harness, "d", 1).state == "Active"
    assert pointers(harness) == (1, None)
    assert state_of(harness, queued) == ("Canceled", False)
    assert not harness.sql("SELECT FROM edges WHERE phase = 'Staged'")
    assert not harness.sql("SELECT FROM datasets WHERE staged_version IS NOT NULL")
    assert run_builds(harness) == 0
    last = harness.sql("SELECT action, details FROM audit_log ORDER BY audit_id DESC LIMIT 1")[0]
    assert (last["action"], msgspec.json.decode(last["details"])["state"]) == ("dag.activate", "Active")


def test_an_abandoned_build_goes_on_where_it_stopped(harness: DispatcherHarness) -> None:
    start(harness)
    fresh = built(harness)
    generation = output(harness, "d", "b", building=True)
    queued = task(harness, job_id(harness, "d", "a", building=True))
    set_edges(harness, fresh, position=2, routed=2)
    activate(harness, "d", 1)
    newest = say(harness, output(harness, "d", "tick"), 4)
    reply = activate(harness, "d", 2)
    assert reply.state == "Building"
    assert {item.dataset: item.change for item in reply.plan.datasets}["d_out"] == "rebuilt"
    row = edge(harness, "d", "a", building=True)
    assert (row["node_id"], row["phase"], row["position"], row["routed"]) == (fresh, "Staged", 2, 2)
    assert row["drain_until"] == newest
    assert output(harness, "d", "b", building=True) == generation
    assert state_of(harness, queued) == ("Queued", False)


def test_nodes_that_the_next_build_shares_go_on(harness: DispatcherHarness) -> None:
    start(harness)
    fresh = built(harness)
    queued = task(harness, job_id(harness, "d", "a", building=True))
    running = task(harness, job_id(harness, "d", "b", building=True), "Running")
    assert deploy(harness, str(chain(a=2, b=2))).state == "Building"
    assert built(harness) == fresh
    assert edge(harness, "d", "a", building=True)["phase"] == "Staged"
    assert state_of(harness, queued) == ("Queued", False)
    assert state_of(harness, running) == ("Running", True)


def test_a_rollback_needs_no_build(harness: DispatcherHarness) -> None:
    start(harness)
    activate(harness, "d", 2, now=True)
    say(harness, output(harness, "d", "tick"), 9)
    reply = activate(harness, "d", 1)
    assert (reply.state, reply.plan.needs_build) == ("Active", False)


def test_the_first_version_counts_at_once(harness: DispatcherHarness) -> None:
    start(harness)
    activate(harness, "d", 2, now=True)
    say(harness, output(harness, "d", "b"), 1)
    reply = deploy(harness, str(Text("x").source("unused").job("reader", "dataset.d_out")))
    assert reply.state == "Active"
    assert edge(harness, "x", "reader")["position"] == 0


def test_a_reader_that_is_being_built_follows_the_dataset(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain()))
    say(harness, output(harness, "d", "b"), 1)
    reader = Text("x").source("unused").job("reader", "dataset.d_out")
    deploy(harness, str(reader))
    assert deploy(harness, str(reader.copy().job("reader", "dataset.d_out", seconds=1))).state == "Building"
    deploy(harness, str(chain(b=2)))
    second = output(harness, "d", "b")
    row = edge(harness, "x", "reader", building=True)
    newest = harness.sql("SELECT last_value FROM events_routed_seq")[0][0]
    assert (row["dataset_version"], row["phase"], row["position"], row["drain_until"]) == (
        second[1],
        "Staged",
        0,
        newest,
    )
    assert run_builds(harness) == 1


def test_parts_of_a_build_that_counted_before_wait_for_the_cutover(harness: DispatcherHarness) -> None:
    deploy(harness, str(chain().job("c", "b")))
    first = {name: node(harness, "d", name) for name in ("a", "b")}
    deploy(harness, str(chain(a=2).job("c", "b")))
    old = output(harness, "d", "b")
    activate(harness, "d", 1)
    say(harness, output(harness, "d", "b"), 1)
    activate(harness, "d", 2)
    reply = deploy(harness, str(chain(a=1).job("c", "b", seconds=9)))
    assert reply.state == "Building"
    assert dataset(harness, "d_out")["current_version"] == old[1]
    assert dataset(harness, "d_out")["staged_version"] is None
    for name in ("a", "b"):
        assert edge(harness, "d", name, building=True)["phase"] == "Parked"
    drain(harness, built(harness, "c"))
    assert run_builds(harness) == 1
    assert {name: node(harness, "d", name) for name in ("a", "b")} == first
    assert {edge(harness, "d", name)["phase"] for name in ("a", "b", "c")} == {"Active"}


def test_a_crash_during_the_cutover_leaves_the_build_as_it_was(harness: DispatcherHarness) -> None:
    start(harness)
    drain(harness, built(harness))
    task(harness, job_id(harness, "d", "a"))
    before = everything(harness)
    statements = 0
    while True:
        builds = Builds(CrashingStore(harness.dispatcher.ports.store, statements), harness.config)
        try:
            assert harness.run(builds.run_once()) == 1
            break
        except Crash:
            if pointers(harness) == (2, None):
                break  # it crashed after the cutover
            assert everything(harness) == before, f"after {statements} statements"
        statements += 1
    assert statements > 20
    assert pointers(harness) == (2, None)


def test_two_dispatchers_end_a_build_once(harness: DispatcherHarness) -> None:
    start(harness)
    drain(harness, built(harness))

    async def together() -> list[int]:
        loops = [Builds(harness.dispatcher.ports.store, harness.config) for _ in range(4)]
        return await asyncio.gather(*(loop.run_once() for loop in loops))

    assert sum(harness.run(together())) == 1
    assert len(harness.sql("SELECT FROM audit_log WHERE action = 'dag.cutover'")) == 1


def test_a_build_that_is_called_off_while_it_ends(harness: DispatcherHarness) -> None:
    start(harness)
    drain(harness, built(harness))
    who = actor(harness)

    async def together() -> None:
        await asyncio.gather(
            harness.dispatcher.builds.run_once(),
            harness.dispatcher.deployments.activate(who, "d", ActivateRequest(version=1)),
        )

    harness.run(together())
    assert pointers(harness)[1] is None
    active = harness.sql("SELECT dag_version_id FROM activations WHERE state = 'Active'")
    assert [row["dag_version_id"] for row in active] == [
        harness.sql("SELECT active_version FROM dags")[0]["active_version"]
    ]
    assert not harness.sql("SELECT FROM edges WHERE phase = 'Staged'")


def test_a_long_running_source_does_not_keep_a_build_open(harness: DispatcherHarness) -> None:
    feed = {"runtime": "ecs_platform", "operator": "noop", "source": {"kind": "always_on"}}
    deploy(harness, str(chain().source("feed", **feed)))
    say(harness, output(harness, "d", "tick"), 1)
    deploy(harness, str(chain(a=2).source("feed", secrets=["KEY"], **feed)))
    drain(harness, built(harness))
    task(harness, job_id(harness, "d", "feed", building=True), "Running")
    assert job(harness, "d", "feed", building=True)["job_id"] != job_id(harness, "d", "feed")
    assert run_builds(harness) == 1


def test_a_build_reads_a_buffered_dataset_that_counts_up_to_its_beginning(harness: DispatcherHarness) -> None:
    """Also if a job of the build writes to it: what comes in all the time must not keep the build open."""
    schema = {"columns": [{"name": "k", "type": "text", "nullable": False}], "unique": ["k"]}
    text = Text("d").source().job("w", "tick").job("reader", "dataset.rows")
    entry = {"from": [{"job": "w"}], "storage": "postgres", "write_mode": "buffered", "schema": schema}
    text.publish["rows"] = entry
    deploy(harness, str(text))
    rows = output(harness, "d", "w")
    newest = say(harness, rows, 1)
    text.job("w", "tick", seconds=1).job("reader", "dataset.rows", seconds=1)
    assert deploy(harness, str(text)).state == "Building"
    row = edge(harness, "d", "reader", building=True)
    assert (row["position"], row["drain_until"], row["dataset_version"]) == (0, newest, rows[1])
    drain(harness, built(harness, "reader"))
    say(harness, rows, 2)
    assert run_builds(harness) == 1


class Overtaken(PassingStore):
    """The store of a loop that somebody overtakes between its first look and its lock."""

    def __init__(self, store: Store, first: Coroutine[Any, Any, object]) -> None:
        super().__init__(store)
        self._first: Coroutine[Any, Any, object] | None = first

    @asynccontextmanager
    async def transaction(self, **options: Any) -> AsyncIterator[Any]:
        if self._first is not None:
            first, self._first = self._first, None
            await first
        async with super().transaction(**options) as connection:
            yield connection


def overtaken(harness: DispatcherHarness, first: Coroutine[Any, Any, object]) -> int:
    store = Overtaken(harness.dispatcher.ports.store, first)
    return harness.run(Builds(store, harness.config).run_once())


def test_what_came_between_two_looks_keeps_a_build_open(
    harness: DispatcherHarness, caplog: pytest.LogCaptureFixture
) -> None:
    start(harness)
    drain(harness, built(harness))
    # A coroutine, for between two reads of the loop.
    back = harness._sql("UPDATE edges SET position = 0 WHERE node_id = $1", built(harness))
    assert overtaken(harness, back) == 0
    assert pointers(harness) == (1, 2)
    drain(harness, built(harness))
    off = harness.dispatcher.deployments.activate(actor(harness), "d", ActivateRequest(version=1))
    assert overtaken(harness, off) == 0
    assert pointers(harness) == (1, None)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
