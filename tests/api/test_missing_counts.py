"""What is missing is visible in every overview: failed units, gaps that nobody will fill, refused batches."""

import itertools
from typing import Any

import pytest

from tests.api.support import User, World
from tests.routing.support import Flow
from tests.sink.flow import BufferFlow
from tests.support.dispatcher import DispatcherHarness
from tests.support.state import FINISHED_TASKS
from tracelake.dispatcher.views.given_up import MOST_LOOKED_AT

_orgs = itertools.count()


@pytest.fixture
def tables(harness: DispatcherHarness) -> BufferFlow:
    return BufferFlow(harness, "postgresql://nowhere", f"missing_{next(_orgs)}")


def shown(tables: BufferFlow) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The DAG, its job `left`, and the load of that job."""
    user = User(tables.harness, tables.org)
    (dag,) = user.get("/v1/dags")["dags"]
    (job,) = (job for job in user.get("/v1/dags/transfers/jobs")["jobs"] if job["name"] == "left")
    (load,) = (load for load in user.get("/v1/overview")["jobs"] if load["job"] == "left")
    return dag, job, load


def test_a_refused_batch_is_counted_until_it_is_dropped(tables: BufferFlow) -> None:
    publish_id = tables.publish([{"key": "x"}])["publish_id"]
    tables.reject(publish_id)
    dag, job, load = shown(tables)
    assert (dag["dead_letters"], job["outputs"][0]["dead_letters"], load["dead_letters"]) == (1, 1, 1)
    user = User(tables.harness, tables.org, "writer")
    assert user.call("POST", "/v1/dlq-drop", {"publish_ids": [publish_id]}).status == 200
    dag, _, load = shown(tables)
    assert (dag.get("dead_letters"), load.get("dead_letters")) == (None, None)


def test_a_failed_unit_becomes_a_gap_when_it_is_skipped(tables: BufferFlow) -> None:
    flow: Flow = tables.flow
    flow.trigger("transfers", "head", range={"start": 1, "end": 1})
    (task,) = flow.tasks("left")
    flow.fail(task["task_id"])
    dag, job, load = shown(tables)
    assert (dag["failed_tasks"], job["failed"], load["failed"]) == (1, 1, 1)
    assert (dag.get("gaps"), job.get("gaps"), load.get("gaps")) == (None, None, None)
    flow.person("skip", task["task_id"])
    dag, job, load = shown(tables)
    assert (dag["failed_tasks"], job["failed"], load["failed"]) == (0, 0, 0)
    assert (dag["gaps"], job["gaps"], load["gaps"]) == (1, 1, 1)
    flow.person("retry", task["task_id"])
    flow.complete(task["task_id"], flow.claim(task["task_id"]))
    dag, job, load = shown(tables)
    assert (dag.get("gaps"), job.get("gaps"), load.get("gaps")) == (None, None, None)
    assert job["done"] == 1


def test_gaps_and_done_tasks_are_counted_up_to_a_bound(harness: DispatcherHarness) -> None:
    world = World(harness)
    world.sql(FINISHED_TASKS, world.org_id, world.fetch, "Completed", 12_000)
    world.sql(
        """INSERT INTO tasks (task_id, org_id, job_id, status, inputs, finished_at, node_id, edge, unit_key, unit_start,
                              unit_end)
           SELECT gen_random_uuid(), $1, $2, 'Canceled', '[]', trace_now(), $3, -1, 'p:' || n || '-' || n, n, n
           FROM generate_series(1, $4::bigint) n""",
        world.org_id, world.fetch, world.fetch_node, MOST_LOOKED_AT + 5,
    )  # fmt: skip
    jobs = world.user().get("/v1/dags/chain/jobs")["jobs"]
    (fetch,) = (job for job in jobs if job["name"] == "fetch")
    assert fetch["gaps"] == MOST_LOOKED_AT
    assert fetch["done_more"]
    assert 0 < fetch["done"] <= 20_000 // len(jobs) + 1
