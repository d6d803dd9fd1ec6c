"""`/v1/overview`: what it counts, where it stops counting, and that its cost follows what is live."""

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest

from tests.api.support import World
from tests.api.test_costs import assert_none_scans, plans
from tests.support.dispatcher import DispatcherHarness
from tests.support.state import QUEUED_TASKS
from tracelake.dispatcher.views import overview, paging
from tracelake.dispatcher.views.tasks import first_id
from tracelake.model.ids import new_id

_MANY_OLD = """
    INSERT INTO tasks (task_id, org_id, job_id, inputs, status, attempt, lease_token, outcome, finished_at)
    SELECT ('00000000' || substr(id::text, 9))::uuid, $1, $2, '[]', 'Completed', 1, id, 'Completed', trace_now()
    FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, $3)) ids"""
_EVENTS = """
    INSERT INTO events (org_id, producer, dataset_uuid, dataset_version, unit, cursor, state, routed_seq, created_at)
    SELECT $1, 'cron:' || n, $2, $3, 'c:' || n, n, 'Routed', nextval('events_routed_seq'), $6
    FROM generate_series($4::bigint, $5::bigint) n"""


@pytest.fixture
def world(harness: DispatcherHarness) -> World:
    return World(harness)


def now(world: World) -> datetime:
    found: datetime = world.sql("SELECT trace_now()")[0][0]
    return found


def read(world: World, since: datetime | None = None, more: str = "") -> Any:
    query = "" if since is None else f"since={quote(since.isoformat())}"
    return world.user().get(f"/v1/overview?{query}{more}")


def job(reply: Any, name: str) -> Any:
    (found,) = [row for row in reply["jobs"] if f"{row['dag']}/{row['job']}" == name]
    return found


def counts(row: Any) -> dict[str, int]:
    return {name: row[name] for name in ("made", "ready", "running", "held", "retrying", "failed")}


def test_every_job_of_an_active_version_is_there_with_its_open_tasks(world: World) -> None:
    for state in ("Queued", "Queued", "Held", "Running", "Waiting", "Failed", "Skipped", "Completed", "Canceled"):
        world.task(world.fetch, state)
    gone = world.job("chain", "gone")
    world.version("chain", 2, {"gone": gone})
    world.task(gone)
    reply = read(world)
    assert [f"{row['dag']}/{row['job']}" for row in reply["jobs"]] == ["alarm/alert", "chain/clock", "chain/fetch"]
    assert counts(job(reply, "chain/fetch")) == {
        "made": 9, "ready": 2, "running": 1, "held": 1, "retrying": 1, "failed": 1,
    }  # fmt: skip
    assert job(reply, "chain/fetch")["oldest_ready_seconds"] >= 0
    assert "oldest_ready_seconds" not in job(reply, "alarm/alert")
    assert job(reply, "chain/clock")["source"] == "manual"
    assert [row["job"] for row in reply["sources"]] == ["clock"]
    assert (reply["queues"], reply["stopped"]) == ([], [])


def test_tasks_of_a_definition_with_other_limits_are_the_jobs(world: World) -> None:
    earlier = world.job("chain", "fetch", world.fetch_node)
    world.task(earlier)
    world.task(world.fetch)
    assert counts(job(read(world), "chain/fetch"))["ready"] == 2


def test_the_window_starts_where_it_is_told(world: World) -> None:
    start = now(world)
    for age in (3, 2, 1):
        at = datetime.fromtimestamp(start.timestamp() - age * 100, start.tzinfo)
        world.task(world.fetch, "Completed", UUID(int=first_id(at).int + 1))
        world.sql(_EVENTS, world.org_id, *world.ticks, age, age, at)
    for age, expected in ((350, 3), (250, 2), (150, 1), (50, 0)):
        reply = read(world, datetime.fromtimestamp(start.timestamp() - age, start.tzinfo))
        assert job(reply, "chain/fetch")["made"] == expected
        assert job(reply, "chain/clock")["events"] == expected
    assert job(read(world), "chain/fetch")["made"] == 0, "ten seconds without a since"


def test_events_are_counted_over_many_steps_and_only_those_of_the_window(world: World) -> None:
    start = now(world)
    before = datetime.fromtimestamp(start.timestamp() - 60, start.tzinfo)
    world.sql(_EVENTS, world.org_id, *world.ticks, 1, 3000, before)
    world.sql(_EVENTS, world.org_id, *world.ticks, 3001, 3777, start)
    assert job(read(world, start), "chain/clock")["events"] == 777
    assert "cut" not in job(read(world, start), "chain/clock")


def count_to_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "CAP", 3)


def test_the_window_is_an_hour_at_most_and_the_answer_says_so(world: World) -> None:
    start = now(world)
    for number, age in enumerate((7200, 1800)):
        at = datetime.fromtimestamp(start.timestamp() - age, start.tzinfo)
        world.task(world.fetch, "Completed", UUID(int=first_id(at).int + 1))
        world.sql(_EVENTS, world.org_id, *world.ticks, number, number, at)
    reply = read(world, datetime(1970, 1, 1, tzinfo=UTC))
    assert job(reply, "chain/fetch")["made"] == 1
    assert job(reply, "chain/clock")["events"] == 1
    window = datetime.fromisoformat(reply["now"]) - datetime.fromisoformat(reply["since"])
    assert 3600 <= window.total_seconds() < 3660
    soon = datetime.fromtimestamp(start.timestamp() - 60, start.tzinfo)
    assert datetime.fromisoformat(read(world, soon)["since"]) == soon


def test_all_jobs_share_one_budget(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three jobs: what the quiet ones leave over is for the busy ones."""
    monkeypatch.setattr(overview, "LOOKED_AT", 30)
    monkeypatch.setattr(overview, "_LEAST", 2)
    start = now(world)
    in_order(world, world.fetch, *["Queued"] * 20)
    row = job(read(world, start), "chain/fetch")
    assert (row["made"], row["ready"], "cut" in row) == (20, 20, False), "nobody else has anything"
    in_order(world, world.alert, *["Queued"] * 40)
    world.sql(_EVENTS, world.org_id, *world.ticks, 1, 50, start)
    reply = read(world, start)
    for name in ("chain/fetch", "alarm/alert"):
        assert job(reply, name)["made"] == 10
        assert "made" in job(reply, name)["cut"]
    assert (job(reply, "chain/clock")["events"], job(reply, "chain/clock")["cut"]) == (10, ["events"])
    assert job(reply, "chain/fetch")["ready"] == 20, "of live tasks twice as many are looked at"


@pytest.mark.parametrize(("sharers", "share"), [(0, 10_000), (1, 10_000), (2, 10_000), (20, 1000), (500, 100)])
def test_the_share_of_a_job(sharers: int, share: int) -> None:
    assert overview._share(paging.LOOKED_AT, sharers) == share


def in_order(world: World, job_id: UUID, *states: str) -> None:
    """Tasks of these states, each made after the one before it."""
    first = first_id(now(world)).int
    for number, state in enumerate(states, start=1):
        world.task(job_id, state, UUID(int=first + number + (job_id.int & 0xFFFF) * 2**16))


def test_a_count_that_stops_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    count_to_three(monkeypatch)
    start = now(world)
    in_order(world, world.fetch, *["Failed"] * 4, *["Queued"] * 4)
    world.sql(_EVENTS, world.org_id, *world.blocks, 1, 40, start)
    row = job(read(world, start), "chain/fetch")
    assert (row["made"], row["events"], row["ready"], row["failed"]) == (3, 3, 4, 3)
    assert sorted(row["cut"]) == ["events", "failed", "held", "made", "ready", "retrying", "running"]
    in_order(world, world.alert, *["Queued"] * 6)
    row = job(read(world, start), "alarm/alert")
    assert (row["ready"], row["cut"]) == (6, ["made"])


def test_what_failed_does_not_hide_a_queue_nor_a_queue_what_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_to_three(monkeypatch)
    in_order(world, world.fetch, *["Failed"] * 9, *["Skipped"] * 9, *["Queued"] * 2)
    in_order(world, world.alert, "Failed", *["Queued"] * 9)
    row = job(read(world), "chain/fetch")
    assert (row["ready"], row["failed"], "ready" in row["cut"]) == (2, 3, True)
    row = job(read(world), "alarm/alert")
    assert (row["ready"], row["failed"], "failed" in row["cut"]) == (6, 1, True)


def test_full_queues_and_what_they_stop(world: World) -> None:
    world.sql("INSERT INTO pressure (node_id, org_id, max_depth, depth, level, since) "
              "VALUES ($1, $2, 1, 5, 2, trace_now())", world.fetch_node, world.org_id)  # fmt: skip
    reply = read(world)
    assert [(row["job"], row["state"], row["depth"]) for row in reply["queues"]] == [("fetch", "stopped", 5)]
    assert [(row["job"], row["state"], row["queue"]) for row in reply["stopped"]] == [
        ("fetch", "stopped", "chain/fetch")
    ]
    assert read(world, more="dag=alarm")["queues"] == []
    assert read(world, more="dag=alarm")["stopped"] == []


def test_of_one_dag(world: World) -> None:
    reply = read(world, more="dag=alarm")
    assert [row["job"] for row in reply["jobs"]] == ["alert"]
    assert reply["sources"] == []
    assert world.user().call("GET", "/v1/overview?dag=none").code == "dag_not_found"


def test_an_org_sees_its_own_alone(world: World, harness: DispatcherHarness) -> None:
    other = World(harness)
    other.task(other.fetch)
    other.event(other.ticks, cursor=1)
    for row in read(world)["jobs"]:
        assert not any(counts(row).values())
        assert row["events"] == 0


def test_costs_follow_what_is_live(world: World, harness: DispatcherHarness) -> None:
    """With many finished tasks and stored events, all is found by the indexes of live tasks, of ids and of events."""
    other = World(harness)
    start = now(world)
    before = datetime.fromtimestamp(start.timestamp() - 3600, start.tzinfo)
    for owner, rows in ((other, 40_000), (world, 20_000)):
        owner.sql(_MANY_OLD, owner.org_id, owner.fetch, rows)
        owner.sql(_EVENTS, owner.org_id, *owner.ticks, 1, rows, before)
    world.sql(QUEUED_TASKS, world.org_id, world.fetch, 10, 0.0)
    world.sql("VACUUM ANALYZE tasks")
    world.sql("VACUUM ANALYZE events")
    arguments = (world.org_id, start, new_id(), None, paging.CAP, None)
    assert_none_scans(world, {"overview": (overview._JOBS, arguments)})
    for text in plans(world, overview._JOBS, arguments):
        assert text.count("tasks_live") == 2, text
        assert text.count("tasks_by_job") == 1, text
        assert text.count("events_by_dataset") == 1, text
    rows = world.sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {overview._JOBS}", *arguments)
    looked_at = sum(_rows_read(rows[0][0]))
    assert looked_at < 200, f"{looked_at} rows of tasks and events were read"


def _rows_read(plan: Any) -> list[float]:
    found: list[float] = []

    def walk(node: dict[str, Any]) -> None:
        if node.get("Relation Name") in ("tasks", "events"):
            found.append(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)))
        for child in node.get("Plans", []):
            walk(child)

    walk((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    return found
