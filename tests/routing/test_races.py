"""Callers at the same time, on two Dispatchers: whatever the order, each unit is made once and none is left out."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from tests.routing.pair import READY, Caller, Pair, two_dispatchers
from tests.routing.support import block
from tests.routing.test_holds import LIMITED
from tests.routing.test_routing import FEED
from tests.routing.versions import Reader, Version
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster

_orgs = count(1)


@pytest.fixture(scope="module")
def both(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[DispatcherHarness]]:
    with two_dispatchers(cluster, tmp_path_factory.mktemp("races")) as harnesses:
        yield harnesses


@pytest.fixture
def pair(both: list[DispatcherHarness]) -> Iterator[Pair]:
    made = Pair(both, f"org{next(_orgs)}")
    yield made
    made.no_call_broke()


class Producers:
    """Two running tasks of `feeder`, one at each Dispatcher."""

    def __init__(self, pair: Pair, text: str = FEED) -> None:
        self.pair = pair
        pair.deploy(text)
        for cursor in (0, 1):
            pair.flow.trigger("d", "src", cursor=cursor)
        self.tasks = [task["task_id"] for task in pair.flow.tasks("feeder")]
        self.leases = [pair.flow.claim(task_id) for task_id in self.tasks]
        self.outputs = [pair.flow.event("d", "feeder", index) for index in (0, 1)]

    async def say(self, which: int, *units: dict[str, Any], index: int = 0) -> None:
        events = [self.outputs[index] | unit for unit in units]
        reply = await self.pair.callers[which].task("events", self.tasks[which], self.leases[which], events=events)
        assert reply.status == 200, reply
        assert all(answer["routed"] for answer in reply.body["events"]), "what feeds has not changed"


def test_two_inputs_of_a_join_at_the_same_time(pair: Pair) -> None:
    producers = Producers(pair)
    units = [block(number * 10, number * 10 + 9) for number in range(100)]
    for unit in units:
        pair.together(producers.say(0, unit), producers.say(1, unit, index=1))
    assert Counter(pair.flow.units("join")) == Counter((f"p:{unit['partition_key']}", "") for unit in units)
    for job in ("each", "part"):
        assert len(pair.flow.units(job)) == 100


def test_cursors_from_two_producers_leave_no_gap_and_no_overlap(pair: Pair) -> None:
    producers = Producers(pair)

    async def count_up(which: int) -> None:
        for cursor in range(which, 60, 2):
            await producers.say(which, {"cursor": cursor})

    pair.together(count_up(0), count_up(1))
    read = sorted((task["unit"]["cursor"]["after"], task["unit"]["cursor"]["to"]) for task in pair.flow.tasks("each"))
    assert [after for after, _ in read] == [-1, *(to for _, to in read[:-1])]
    assert read[-1][1] == 59


def test_units_that_nobody_reads_are_known_all_the_same(pair: Pair) -> None:
    """Without a reader there is no edge to wait for; the runs of the generation must not be torn."""
    producers = Producers(pair)
    pair.together(producers.say(0, block(0, 9), block(10, 19)))
    tasks = [task["task_id"] for task in pair.flow.tasks("part")]
    leases = [pair.flow.claim(task_id) for task_id in tasks]
    output = pair.flow.event("d", "part")

    async def say(which: int) -> None:
        for number in range(which, 80, 2):
            events = [output | block(number * 10, number * 10 + 9)]
            reply = await pair.callers[which].task("events", tasks[which], leases[which], events=events)
            assert reply.status == 200, reply

    pair.together(say(0), say(1))
    rows = pair.both[0].sql(
        "SELECT range_start, range_end FROM dataset_runs WHERE dataset_version = $1", UUID(output["dataset_version"])
    )
    assert [tuple(row) for row in rows] == [(0, 799)]


def test_two_drains_at_once(pair: Pair) -> None:
    producers = Producers(pair)
    pair.together(producers.say(0, {"cursor": 0}))
    (task,) = pair.flow.tasks("each")
    pair.flow.fail(task["task_id"])
    pair.together(*(producers.say(which, {"cursor": 1 + which}, block(which, which)) for which in (0, 1)))
    pair.together(producers.say(1, *({"cursor": cursor} for cursor in range(3, 40))))
    assert len(pair.flow.units("each")) == 1
    pair.flow.person("retry", task["task_id"])

    async def drain(which: int) -> int:
        return await pair.both[which].dispatcher.drain.run_once()

    pair.together(drain(0), drain(1), drain(0), drain(1))
    pair.flow.drain()
    assert len(pair.flow.units("each")) == 42
    assert dags.edge(pair.both[0], "d", "each", org=pair.org)["position"] is None


def test_a_retry_while_news_come(pair: Pair) -> None:
    producers = Producers(pair)
    pair.together(producers.say(0, {"cursor": 0}))
    for cursor in range(1, 25):
        newest = max(pair.flow.tasks("each", "Queued"), key=lambda task: task["unit"]["cursor"]["to"])
        pair.flow.fail(newest["task_id"])
        path = f"/tasks/{newest['task_id']}/retry"
        replies = pair.together(
            pair.callers[0].user("POST", path),
            producers.say(1, {"cursor": cursor}),
            pair.both[0].dispatcher.drain.run_once(),
            pair.both[1].dispatcher.drain.run_once(),
        )
        assert replies[0].status == 200, replies[0]
        pair.flow.drain()
        assert dags.edge(pair.both[0], "d", "each", org=pair.org)["position"] is None
    assert sorted(
        (task["unit"]["cursor"]["after"], task["unit"]["cursor"]["to"]) for task in pair.flow.tasks("each")
    ) == [(cursor - 1, cursor) for cursor in range(25)]


MANY = LIMITED.replace("max_concurrency: 2", "max_concurrency: 8")


def test_a_limit_is_never_passed_and_never_leaks(pair: Pair) -> None:
    pair.deploy(MANY)
    org_id = pair.flow.actor.org_id
    seen: set[int] = set()
    over = False

    async def trigger(which: int) -> None:
        for number in range(40):
            body = {"range": {"start": number * 20 + which, "end": number * 20 + which}}
            reply = await pair.callers[which].user("POST", "/dags/d/jobs/src/trigger", body)
            assert reply.status == 200, reply

    async def work(which: int) -> None:
        """Each task by itself, so that no two of them share a transaction more often than they must."""
        while True:
            last = all(item.done() for item in sent)
            rows = await pair.both[which]._sql(READY, pair.org, ["slow"])
            for row in rows:
                await pair.callers[which].pass_on(row["task_id"])
            if last and not rows:
                return

    async def watch(which: int) -> None:
        while not over:
            (row,) = await pair.both[which]._sql(
                """SELECT count(*)::int AS n, (SELECT used FROM limits WHERE limit_key = $2) AS used FROM tasks t
                   WHERE org_id = $1 AND node_id IS NOT NULL
                     AND (status = 'Running' OR (status = 'Queued' AND NOT held))""",
                org_id,
                f"job:{org_id}:d:slow",
            )
            assert row["n"] == (row["used"] or 0), "the counter is the tasks, at every moment"
            seen.add(row["n"])
            await asyncio.sleep(0.001)

    watching = pair.start(1, watch(1))
    sent = [pair.start(which, trigger(which)) for which in (0, 1)]
    working = [pair.start(which, work(which)) for which in (0, 1, 0, 1)]
    for sender in sent:
        sender.result(60)
    for worker in working:
        worker.result(60)
    over = True
    watching.result(60)
    assert max(seen) <= 8
    assert Counter(task["status"] for task in pair.flow.tasks("slow")) == {"Completed": 80}
    assert pair.both[0].sql("SELECT used FROM limits WHERE limit_key = $1", f"job:{org_id}:d:slow")[0]["used"] == 0


def test_a_place_that_is_freed_while_its_heir_is_looked_at_is_not_forgotten(pair: Pair) -> None:
    """A place is not given to a task that somebody has locked; so whoever locked it looks for one before leaving."""
    pair.deploy(LIMITED)
    for cursor in range(3):
        pair.flow.trigger("d", "src", cursor=cursor)
    (held,) = (task["task_id"] for task in pair.flow.tasks("slow") if task["held"])
    ready = [task["task_id"] for task in pair.flow.tasks("slow") if not task["held"]]
    leases = {task_id: pair.flow.claim(task_id) for task_id in ready}

    async def complete_while_it_is_locked() -> None:
        async with pair.both[1].dispatcher.ports.store.transaction() as connection:
            await connection.execute("SELECT FROM tasks WHERE task_id = $1 FOR UPDATE", held)
            reply = await pair.callers[1].task("complete", ready[0], leases[ready[0]], status="Completed")
            assert reply.status == 200, reply

    pair.both[1].run(complete_while_it_is_locked())
    assert pair.both[0].row(str(held))["held"]
    assert pair.together(pair.callers[0].claim(held))[0]["reason"] == "NotReady"
    assert not pair.both[0].row(str(held))["held"]
    assert pair.both[0].sql("SELECT count(*) AS n FROM outbox WHERE key = $1", held)[0]["n"] == 1
    pair.flow.complete(ready[1], leases[ready[1]])
    pair.settle("slow")
    assert {task["status"] for task in pair.flow.tasks("slow")} == {"Completed"}


def test_one_trigger_key_at_once(pair: Pair) -> None:
    pair.deploy(FEED)
    for number in range(5):
        body = {"idempotency_key": f"k{number}", "cursor": number}
        calls = [pair.callers[which % 2].user("POST", "/dags/d/jobs/src/trigger", body) for which in range(8)]
        replies = [reply.body for reply in pair.together(*calls)]
        assert len({reply["event_id"] for reply in replies}) == 1
        assert Counter(reply.get("duplicate", False) for reply in replies) == {False: 1, True: 7}
        again = {"idempotency_key": f"again{number}", "range": {"start": number, "end": number}}
        calls = [pair.callers[which % 2].user("POST", "/dags/d/jobs/feeder/trigger", again) for which in range(8)]
        assert len({reply.body["task_id"] for reply in pair.together(*calls)}) == 1
    assert len(pair.flow.units("feeder")) == 10


JOBS = ["feeder", "each", "after", "part", "join", "slow", "far", "meet"]


@pytest.mark.parametrize("rounds", [12, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_cutovers_and_rollbacks_among_everything_else(pair: Pair, rounds: int) -> None:
    first, second = Version(), Version(each=1, part=False, slow=3)
    producers = Producers(pair, first.text)
    pair.deploy(Reader().text)
    assert pair.deploy(second.text, activate=False).state == "Created"
    feeding = [block(number * 10, number * 10 + 9) for number in range(rounds * 4)]
    over = False

    async def feed(which: int) -> None:
        for unit in feeding:
            await producers.say(which, unit, index=which)

    async def switch(caller: Caller) -> None:
        for number in range(rounds):
            body = {"version": 1 if number % 2 else 2, "now": number % 3 != 1}
            reply = await caller.user("PUT", "/dags/d/active", body)
            assert reply.status == 200, reply

    async def loops(which: int) -> None:
        dispatcher = pair.both[which].dispatcher
        while not over:
            for run in (dispatcher.drain, dispatcher.reaper, dispatcher.builds, dispatcher.routing_reconciler):
                await run.run_once()
            await asyncio.sleep(0.01)

    busy = [pair.start(0, feed(0)), pair.start(1, feed(1)), pair.start(1, switch(pair.callers[1]))]
    looping = [pair.start(which, loops(which)) for which in (0, 1)]
    working = [
        pair.start(which, pair.callers[which].work(JOBS, lambda: all(item.done() for item in busy))) for which in (0, 1)
    ]
    for caller in busy:
        caller.result(250)
    for worker in working:
        worker.result(250)
    over = True
    for loop in looping:
        loop.result(60)
    pair.no_call_broke()
    for version, jobs in ((second, {"each", "after", "slow"}), (first, {"each", "after", "part", "slow"})):
        pair.deploy(version.text)
        pair.settle(*JOBS)
        check_all_is_done(pair, jobs | {"join", "far", "meet"}, {f"p:{unit['partition_key']}" for unit in feeding})


_ACTIVE_TASKS = """
    SELECT j.name, t.unit_key, t.status, t.held FROM tasks t JOIN jobs j USING (job_id)
    WHERE t.org_id = $1 AND t.node_id IN (
        SELECT k.node_id FROM dags d JOIN dag_version_jobs v ON v.dag_version_id = d.active_version
        JOIN jobs k ON k.job_id = v.job_id WHERE d.org_id = $1)"""

_OTHER_TASKS = """
    SELECT count(*) AS n FROM tasks t WHERE t.org_id = $1 AND t.status = 'Queued' AND NOT EXISTS (
        SELECT FROM edges e WHERE e.node_id = t.node_id AND e.phase <> 'Parked')"""


def check_all_is_done(pair: Pair, jobs: set[str], units: set[str]) -> None:
    org_id = pair.flow.actor.org_id
    rows = [row for row in pair.both[0].sql(_ACTIVE_TASKS, org_id) if row["unit_key"] in units]
    done = {
        job: [row["unit_key"] for row in rows if row["name"] == job and row["status"] == "Completed"] for job in jobs
    }
    for job in jobs:
        assert sorted(done[job]) == sorted(units), f"{job} did each unit once"
    assert pair.both[0].sql(_OTHER_TASKS, org_id)[0]["n"] == 0, "a task of a superseded node is ready"
    used = pair.both[0].sql("SELECT sum(used)::int AS n FROM limits WHERE limit_key LIKE $1", f"job:{org_id}:%")
    assert used[0]["n"] == 0
    assert pair.both[0].run(pair.both[0].dispatcher.routing_reconciler.run_once()) == 0


def test_who_waits_too_long_for_a_cutover_hears_to_come_again(pair: Pair) -> None:
    """A trigger and an event while somebody moves pointers for longer than anybody waits for a lock."""
    producers = Producers(pair)
    caller, harness = pair.callers[0], pair.both[1]
    actor = pair.flow.actor
    assert actor.org_id is not None

    async def meanwhile() -> list[Any]:
        async with harness.dispatcher.ports.store.transaction(moving=actor.org_id):
            head = {"x-trace-task-capability": producers.leases[0]["capability_token"]}
            event = {
                "task_id": str(producers.tasks[0]),
                "attempt": 1,
                "lease_token": producers.leases[0]["lease_token"],
                "events": [producers.outputs[0] | {"cursor": 1}],
            }
            user = {"authorization": f"Bearer {caller.token}"}
            public = ("public", "POST", "/v1/dags/d/jobs/src/trigger", {"cursor": 9}, user)
            calls = [("task", "POST", "/v1/task/events", event, head), public]
            return await asyncio.gather(*(harness.call_async(*call) for call in calls))

    assert [reply.status for reply in harness.run(meanwhile())] == [503, 503]
    assert pair.flow.units("each") == []
