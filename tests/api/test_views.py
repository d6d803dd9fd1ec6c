"""What the views show of rows whose meaning is known."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.api.support import Generation, Seed, User, World
from tests.backpressure.pipe import PIPE
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness
from tracelake.model.ids import new_id


@pytest.fixture
def world(harness: DispatcherHarness) -> World:
    return World(harness)


def id_at(at: datetime, number: int = 0) -> UUID:
    return UUID(int=(int(at.timestamp() * 1000) << 80) | (7 << 76) | number)


def test_dags(world: World) -> None:
    for state in ("Queued", "Held", "Running", "Waiting", "Completed", "Canceled", "Failed", "Skipped"):
        world.task(world.fetch, state)
    older = world.job("chain", "fetch", world.fetch_node)
    world.task(older, "Running")
    newer = world.version("chain", 2, {"fetch": world.fetch})
    world.activate("chain", newer, "Building")
    alarm, chain = world.user().get("/v1/dags")["dags"]
    assert chain.pop("activated_at") <= datetime.now(UTC).isoformat()
    assert chain == {
        "name": "chain",
        "active_version": 1,
        "building_version": 2,
        "versions": 2,
        "jobs": 2,
        "open_tasks": 5,
        "failed_tasks": 1,
    }
    assert (alarm["name"], alarm["jobs"], alarm["versions"]) == ("alarm", 1, 1)


def test_versions_and_the_progress_of_a_build(world: World) -> None:
    node = world.node("chain", "again")
    job = world.job("chain", "again", node)
    world.edge(node, job, world.ticks, phase="Staged", position=3, drain_until=9)
    world.edge(node, job, world.blocks, index=1, phase="Staged", position=9, drain_until=9)
    for state in ("Completed", "Completed", "Skipped", "Running", "Waiting", "Failed"):
        world.task(job, state)
    world.task(world.fetch, "Running")  # of a node that both versions have
    world.activate("chain", world.version("chain", 2, {"again": job, "fetch": world.fetch}), "Building")
    world.version("chain", 3, {})
    third, second, first = world.user().get("/v1/dags/chain/versions")["versions"]
    assert [third["number"], second["number"], first["number"]] == [3, 2, 1]
    assert [third["state"], second["state"], first["state"]] == ["Inactive", "Building", "Active"]
    assert second["build"] == {"done": 3, "open": 2, "failed": 1, "draining_edges": 1}
    assert [row["jobs"] for row in (third, second, first)] == [0, 2, 2]
    assert "activated_at" in first
    assert "activated_at" not in second
    assert first["created_by"] == "tester"


def test_the_source_comes_back_byte_for_byte(world: World) -> None:
    assert world.user().get("/v1/dags/chain/versions/1") == b"name: chain # one\n"
    assert world.user().call("GET", "/v1/dags/chain/versions/2").code == "dag_version_not_found"
    assert world.user().call("GET", "/v1/dags/other/versions/2").code == "dag_not_found"


def test_jobs(world: World) -> None:
    for state in ("Queued", "Waiting", "Held", "Running", "Running", "Failed", "Skipped", "Completed"):
        world.task(world.fetch, state)
    world.task(world.job("chain", "fetch", world.fetch_node), "Running")
    reply = world.user().get("/v1/dags/chain/jobs")
    assert (reply["dag"], reply["version"]) == ("chain", 1)
    clock, fetch = reply["jobs"]
    assert (clock["activation"], clock["source"]) == ("source", "manual")
    assert "operator" not in clock
    assert "runtime" not in clock
    counts = ("queued", "running", "held", "retrying", "failed")
    assert [fetch[name] for name in counts] == [1, 3, 1, 1, 1]
    assert [clock[name] for name in counts] == [0, 0, 0, 0, 0], "a zero is said, not left out"
    assert fetch["inputs"] == [
        {
            "input_index": 0,
            "dataset": "chain__clock_0",
            "dataset_version": str(world.ticks.dataset_version),
            "phase": "Active",
            "state": "live",
            "routed_cursor": 9,
            "backlog": 0,
            "failed_units": 0,
        }
    ]
    assert fetch["outputs"] == [
        {
            "output_index": 0,
            "dataset": "blocks",
            "dataset_uuid": str(world.blocks.dataset_uuid),
            "dataset_version": str(world.blocks.dataset_version),
            "storage": "s3",
        }
    ]


@pytest.mark.parametrize(
    ("columns", "state", "backlog"),
    [
        ({}, "live", 0),
        ({"position": 0}, "draining", 3),
        ({"position": 0, "failed_units": 2}, "held", 3),
        ({"position": 0, "phase": "Parked"}, "parked", 3),
        ({"position": 2**62}, "draining", 0),
    ],
)
def test_how_far_an_edge_has_come(world: World, columns: dict[str, Any], state: str, backlog: int) -> None:
    other = world.generation(world.blocks)
    for number in range(3):
        world.event(world.blocks, blocks=(number, number))
        world.event(world.blocks, key=f"waits{number}", state="AwaitsCommit")
        world.event(other, key=f"other{number}")
    for name, value in columns.items():
        world.sql(f"UPDATE edges SET {name} = $2 WHERE job_id = $1", world.alert, value)
    (job,) = world.user().get("/v1/dags/alarm/jobs")["jobs"]
    (edge,) = job["inputs"]
    assert (edge["state"], edge.get("backlog", 0)) == (state, backlog)
    assert edge["where"] == {"severity": ["high"]}
    consumers = world.user().get("/v1/datasets/blocks")["consumers"]
    expected = [] if state == "parked" else [{"dag": "alarm", "job": "alert", "edge": edge}]
    assert consumers == expected


def test_jobs_of_a_version_that_does_not_count(world: World) -> None:
    world.version("chain", 2, {"fetch": world.fetch})
    user = world.user()
    assert [job["name"] for job in user.get("/v1/dags/chain/jobs?version=2")["jobs"]] == ["fetch"]
    assert user.call("GET", "/v1/dags/chain/jobs?version=3").code == "dag_version_not_found"
    world.version("idle", 1, {})
    assert user.call("GET", "/v1/dags/idle/jobs").code == "dag_version_not_found", "none is active"
    assert user.call("GET", "/v1/dags/nothing/jobs").code == "dag_not_found"


def test_a_task_and_all_about_it(world: World) -> None:
    unit = {"partition_key": "0-9", "start": 0, "end": 9}
    read = {"input_index": 0, "unit": {"cursor": {"after": -1, "to": 9}}, "where": {"a": 1}, "name": "lies"}
    read |= {"dataset_uuid": str(world.ticks.dataset_uuid), "dataset_version": str(world.ticks.dataset_version)}
    task = world.task(world.fetch, "Failed", unit=unit, inputs=[read])
    world.sql("UPDATE tasks SET attempt = 2, worker_id = 'w2', result = '[{\"rows\": 3}]' WHERE task_id = $1", task)
    world.sql(
        """INSERT INTO task_attempts (task_id, attempt, lease_token, worker_id, claimed_at, outcome, error)
           VALUES ($1, 1, $1, 'w1', trace_now(), 'Timeout', NULL)""",
        task,
    )
    world.sql("INSERT INTO spark_metrics VALUES ($1, 1, '{\"stages\": 7}')", task)
    event = world.event(world.blocks, blocks=(0, 9), producer=str(task), attempt=2, state="AwaitsCommit")
    detail = world.user().get(f"/v1/tasks/{task}")
    row = detail["task"]
    assert (row["dag"], row["job"], row["operator"], row["status"]) == ("chain", "fetch", "udf", "Failed")
    assert (row["unit"], row["error"], row["attempt"]) == (unit, "broken", 2)
    assert [item["name"] for item in detail["inputs"]] == ["chain__clock_0"], "the registered name, not the caller's"
    assert detail["inputs"][0]["where"] == {"a": 1}
    assert [output["dataset"] for output in detail["outputs"]] == ["blocks"]
    assert [(item["attempt"], item["outcome"], item["worker_id"]) for item in detail["attempts"]] == [
        (1, "Timeout", "w1"),
        (2, "Failed", "w2"),
    ]
    assert [item.get("spark") for item in detail["attempts"]] == [{"stages": 7}, None]
    assert detail["result"] == [{"rows": 3}]
    assert [(item["event_id"], item["state"]) for item in detail["events"]] == [(event, "AwaitsCommit")]
    assert world.user().call("GET", f"/v1/tasks/{new_id()}").code == "task_not_found"


def listed(user: User, query: str = "") -> list[str]:
    return [row["task_id"] for row in user.get(f"/v1/tasks?{query}")["tasks"]]


def test_tasks_by_filter(world: World) -> None:
    start = datetime(2026, 5, 1, tzinfo=UTC)
    states = ["Queued", "Running", "Completed", "Failed", "Canceled", "Waiting", "Skipped"]
    ids = {
        name: str(world.task(world.fetch, name, id_at(start + timedelta(minutes=minute))))
        for minute, name in enumerate(states)
    }
    other = str(world.task(world.alert, "Running", id_at(start + timedelta(minutes=2, seconds=30))))
    user = world.user()
    newest_first = [
        ids["Skipped"],
        ids["Waiting"],
        ids["Canceled"],
        ids["Failed"],
        other,
        ids["Completed"],
        ids["Running"],
        ids["Queued"],
    ]
    assert listed(user) == newest_first
    assert listed(user, "dag=alarm") == [other]
    assert listed(user, "job=alert") == [other]
    assert listed(user, "status=Running") == [other, ids["Running"]]
    assert listed(user, "status=Failed") == [ids["Failed"]], "for good, and nobody went on without it"
    assert listed(user, "status=Retrying") == [ids["Waiting"]]
    assert listed(user, "status=Skipped") == [ids["Skipped"]]
    assert listed(user, "status=Completed") == [ids["Completed"]]
    assert listed(user, "status=Canceled") == [ids["Canceled"]]
    assert listed(user, "since=2026-05-01T00:02:00Z&until=2026-05-01T00:04:00Z") == [
        ids["Failed"],
        other,
        ids["Completed"],
    ]
    assert listed(user, "since=2026-05-01T02:02:00%2B02:00&until=2026-05-01T00:02:00.5Z") == [ids["Completed"]]
    for query, code in (
        ("dag=nothing", "dag_not_found"),
        ("dag=nothing&job=fetch", "dag_not_found"),
        ("dag=chain&job=alert", "job_not_found"),
        ("job=nothing", "job_not_found"),
    ):
        assert user.call("GET", f"/v1/tasks?{query}").code == code


def test_events(world: World) -> None:
    first = world.event(world.ticks, 1)
    second = world.event(world.blocks, blocks=(0, 9), revision="7", state="AwaitsCommit")
    third = world.event(world.ticks, 2, state="NotCurrent")
    user = world.user()

    def ids(query: str = "") -> list[int]:
        return [row["event_id"] for row in user.get(f"/v1/events?{query}")["events"]]

    assert ids() == [third, second, first]
    assert ids("dataset=blocks") == [second]
    assert ids("state=Routed") == [first]
    assert ids("state=AwaitsCommit&dataset=chain__clock_0") == []
    assert user.call("GET", "/v1/events?dataset=nothing").code == "dataset_not_found"
    row = user.get("/v1/events?dataset=blocks")["events"][0]
    assert (row["partition_key"], row["revision"], row["dataset"]) == ("0-9", "7", "blocks")


def runs(seed: Seed, of: Generation, size: int, start: int, end: int) -> None:
    seed.sql("INSERT INTO dataset_runs VALUES ($1, $2, $3, $4, $5, $6)", *of, size, start % size, start, end)


def test_datasets(world: World) -> None:
    runs(world, world.blocks, 10, 0, 99)
    runs(world, world.blocks, 100, 0, 199)  # half of it was covered before
    runs(world, world.blocks, 1, 2**63 - 1, 2**63 - 1)
    staged = world.generation(world.blocks)
    world.sql("UPDATE datasets SET staged_version = $2 WHERE dataset_uuid = $1", *staged)
    for cursor in (7, 6):
        world.event(world.ticks, cursor)
    alerts, blocks, ticks = world.user().get("/v1/datasets")["datasets"]
    assert blocks == {
        "name": "blocks",
        "dataset_uuid": str(world.blocks.dataset_uuid),
        "storage": "s3",
        "published": True,
        "dag": "chain",
        "job": "fetch",
        "writers": ["chain/fetch"],
        "current_version": str(world.blocks.dataset_version),
        "staged_version": str(staged.dataset_version),
        "generations": 2,
        "blocks": 201,
        "gap_count": 1,
    }
    assert (ticks["max_cursor"], ticks["generations"]) == (7, 1)
    assert "updated_at" in ticks
    assert "blocks" not in alerts
    assert not any("retired_after" in row for row in (alerts, blocks, ticks))


def test_a_dataset_that_no_job_writes_any_more_is_retired(world: World) -> None:
    first = world.sql("SELECT active_version FROM dags WHERE org_id = $1 AND dag_name = 'chain'", world.org_id)[0][0]
    world.sql("UPDATE activations SET cutover_at = trace_now() WHERE activation_id = $1", world.activation)
    second = world.version("chain", 2, {})
    world.point("chain", second)
    retired = {row["name"]: row.get("retired_after") for row in world.user().get("/v1/datasets")["datasets"]}
    assert retired["blocks"] == 1
    assert world.user().get("/v1/datasets/blocks")["dataset"]["retired_after"] == 1
    world.point("chain", first)
    assert "retired_after" not in world.user().get("/v1/datasets/blocks")["dataset"]


def test_a_dataset_and_all_about_it(world: World) -> None:
    runs(world, world.blocks, 10, 0, 99)
    task = world.task(world.fetch, "Completed")
    for revision in (1, 2):
        world.commit(world.blocks, (0, 9), task, revision)
    world.generation(world.blocks)
    for unit in ("c:1", "p:eu"):
        world.sql("INSERT INTO dataset_keys VALUES ($1, $2, $3)", *world.blocks, unit)
    world.sql(
        "INSERT INTO dataset_pointers (dataset_uuid, dataset_version, activation_id) VALUES ($1, $2, $3)",
        *world.blocks, world.activation,
    )  # fmt: skip
    world.sql(
        """INSERT INTO invalidations (invalidation_id, org_id, dataset_uuid, dataset_version, range_start, range_end,
                                      reason, producer) VALUES ($1, $2, $3, $4, 3, 5, 'reorg', 'x')""",
        f"i{world.org}", world.org_id, *world.blocks,
    )  # fmt: skip
    detail = world.user().get("/v1/datasets/blocks")
    current = next(row for row in detail["generations"] if row["state"] == "current")
    assert current["ranges"] == [{"start": 0, "end": 99, "unit_size": 10}]
    assert (current["range_count"], current["partition_keys"], current["commits"]) == (1, 1, 2)
    assert sorted(row["state"] for row in detail["generations"]) == ["current", "past"]
    assert detail["schema"] == {"columns": []}
    assert [row["dag_version"] for row in detail["pointers"]] == [1]
    assert [(row["start"], row["end"], row["reason"]) for row in detail["invalidations"]] == [(3, 5, "reorg")]
    assert world.user().call("GET", "/v1/datasets/nothing").code == "dataset_not_found"


def test_audit(world: World) -> None:
    for number in range(3):
        world.sql(
            "INSERT INTO audit_log (org_id, subject, action, target, details) VALUES ($1, 'me', 'task.retry', $2, $3)",
            world.org_id, f"t{number}", '{"n": 1}',
        )  # fmt: skip
    admin = world.user("admin")
    rows = admin.pages("/v1/audit?limit=2", "entries")
    assert [(row["target"], row["subject"], row["action"], row["details"]) for row in rows] == [
        (f"t{number}", "me", "task.retry", {"n": 1}) for number in (2, 1, 0)
    ]


def test_an_org_that_has_nothing(harness: DispatcherHarness) -> None:
    user = User(harness, "nobody_yet", "admin")
    for path, name in (
        ("/v1/dags", "dags"),
        ("/v1/tasks", "tasks"),
        ("/v1/events", "events"),
        ("/v1/datasets", "datasets"),
        ("/v1/audit", "entries"),
    ):
        assert user.get(path) == {name: []}
    made = Seed(harness, "nobody_yet")
    made.dataset("first")
    assert len(user.get("/v1/datasets")["datasets"]) == 1, "an org that was not there is looked for again"


def test_an_input_that_is_stopped_or_paused_is_neither_live_nor_draining(harness: DispatcherHarness) -> None:
    flow = Flow(harness, "stopped_inputs")
    flow.deploy(PIPE)
    user = User(harness, flow.org)

    def inputs() -> dict[str, str]:
        jobs = user.get("/v1/dags/d/jobs")["jobs"]
        return {job["name"]: job["inputs"][0]["state"] for job in jobs if job.get("inputs")}

    for cursor in range(10):
        flow.trigger("d", "src", cursor=cursor)
    flow.run_all("make")
    flow.run_all("step")
    stopped = inputs()
    assert {stopped[job] for job in ("make", "step", "slow")} == {"stopped"}
    flow.trigger("d", "src", cursor=10)
    assert inputs()["make"] == "stopped"
    flow.run_all("slow")
    assert inputs()["make"] == "draining"
    harness.run(harness.dispatcher.pauses.pause(flow.actor, "d", "src"))
    assert inputs()["make"] == "paused"
    harness.run(harness.dispatcher.pauses.resume(flow.actor, "d", "src"))
    flow.drain()
    assert inputs()["make"] == "live"
