"""Functions wait for a place before they are claimed: fairly over orgs, within quotas, and without losing attempts."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.dispatcher.test_fair_orgs import add_tasks, org_names
from tests.http.support import user_token
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness, fence
from tests.support.postgres import TestCluster
from tracelake.model.runtime import BUILT_IN

SLOTS = 8


@pytest.fixture
def harness(cluster: TestCluster, tmp_path: Path) -> Iterator[DispatcherHarness]:
    config = dispatcher_config(runtimes=replace(BUILT_IN, operator_limits={"udf": SLOTS}))
    harness = DispatcherHarness.start(cluster.fresh("state"), cluster.fresh("queue"), tmp_path, config)
    try:
        yield harness
    finally:
        harness.stop()


def add_functions(harness: DispatcherHarness, org: str, count: int, **fields: Any) -> None:
    add_tasks(harness, org, count, operator="udf", runtime="ecs_platform", name=f"{org}_functions", **fields)


def ready(harness: DispatcherHarness) -> Counter[str]:
    """Tasks with a place that nobody has claimed yet, by org."""
    names = org_names(harness)
    rows = harness.sql("SELECT org_id FROM tasks WHERE status = 'Queued' AND NOT held")
    return Counter(names[row["org_id"]] for row in rows)


def claim_all(harness: DispatcherHarness) -> dict[str, list[tuple[str, Any]]]:
    """Claims what has a place; leases by org."""
    names = org_names(harness)
    leases: dict[str, list[tuple[str, Any]]] = {}
    rows = harness.sql("SELECT task_id, org_id FROM tasks WHERE status = 'Queued' AND NOT held ORDER BY ready_at")
    for row in rows:
        task_id = str(row["task_id"])
        leases.setdefault(names[row["org_id"]], []).append((task_id, harness.claim(task_id).body))
    return leases


def complete(harness: DispatcherHarness, task_id: str, lease: Any) -> None:
    body = fence(task_id, lease, status="Completed")
    assert harness.task("complete", lease["capability_token"], body).status == 200


def set_quota(harness: DispatcherHarness, org: str, *defaults: str, **values: float) -> None:
    body = {"org": org, "values": values, "defaults": list(defaults)}
    assert harness.service("POST", "/internal/quotas", body).status == 200
    harness.run(harness.dispatcher.quota_watch.run_once())


def quota_of(harness: DispatcherHarness, org: str) -> tuple[Any, Any, Any]:
    reply = harness.service("GET", "/internal/quotas").body
    (rows,) = [item["quotas"] for item in reply["orgs"] if item["org"] == org]
    (row,) = [row for row in rows if row["kind"] == "running_functions"]
    return row.get("used"), row.get("limit"), row["exceeded"]


def test_a_backlog_of_one_org_leaves_a_place_for_another(harness: DispatcherHarness) -> None:
    add_functions(harness, "org_a", 30)
    assert ready(harness) == {"org_a": SLOTS - 1}
    running = claim_all(harness)["org_a"]
    add_functions(harness, "org_b", 3)
    assert ready(harness) == {"org_b": 1}, "although every function of org A goes on"
    assert quota_of(harness, "org_a") == (SLOTS - 1, None, False)
    running_b = claim_all(harness)["org_b"]
    complete(harness, *running[0])
    assert not ready(harness), "the last place is kept for a third org"
    # The next ones are org B's until both have as many.
    for task_id, lease in running[1:3]:
        complete(harness, task_id, lease)
        assert ready(harness) == {"org_b": 1}
        running_b += claim_all(harness)["org_b"]
    complete(harness, *running[3])
    assert ready(harness) == {"org_a": 1}, "org B has nothing left that waits"
    assert {row["attempt"] for row in harness.sql("SELECT attempt FROM tasks WHERE held")} == {0}


def test_places_follow_weights(harness: DispatcherHarness) -> None:
    add_functions(harness, "org_a", 30)
    set_quota(harness, "org_a", weight=1)
    add_functions(harness, "org_b", 30)
    set_quota(harness, "org_b", weight=3)
    leases = claim_all(harness)
    for _ in range(30):  # all of org A's first places end, and then whichever runs longest
        org = max(leases, key=lambda name: (len(leases[name]) > 2, name == "org_a", len(leases[name])))
        complete(harness, *leases[org].pop(0))
        for name, more in claim_all(harness).items():
            leases.setdefault(name, []).extend(more)
    running = {name: len(items) for name, items in leases.items()}
    assert running["org_b"] > running["org_a"], running


def test_a_quota_of_functions_holds_and_gives_its_places_to_others(harness: DispatcherHarness) -> None:
    add_functions(harness, "org_a", 1)
    set_quota(harness, "org_a", running_functions=2)
    add_functions(harness, "org_a", 9)
    assert ready(harness) == {"org_a": 2}
    assert quota_of(harness, "org_a") == (2, 2, True)
    held = harness.sql("SELECT task_id FROM tasks WHERE held LIMIT 1")[0]["task_id"]
    header = {"authorization": f"Bearer {user_token(harness, org='org_a', roles=['reader'])}"}
    reply = harness.call("public", "GET", f"/v1/why/task/{held}", None, header)
    (why,) = reply.body["reasons"]
    assert "your organisation's quota of running functions (2 of 2)" in why["text"]
    assert why["code"] == "at_quota"
    add_functions(harness, "org_b", 20)
    leases = claim_all(harness)
    assert {name: len(items) for name, items in leases.items()} == {"org_a": 2, "org_b": SLOTS - 3}
    # An org at its quota does not take its own place again while others wait for one.
    add_functions(harness, "org_c", 1)
    leases |= claim_all(harness)
    add_functions(harness, "org_d", 1)
    assert not ready(harness)
    complete(harness, *leases["org_a"].pop())
    assert ready(harness) == {"org_d": 1}
    set_quota(harness, "org_a", "running_functions")
    assert quota_of(harness, "org_a")[1:] == (None, False)


def test_a_raised_quota_wakes_who_waits(harness: DispatcherHarness) -> None:
    set_quota_before = harness.make_job("first", org="org_a", operator="noop")
    assert set_quota_before
    set_quota(harness, "org_a", running_functions=1)
    add_functions(harness, "org_a", 5)
    assert ready(harness) == {"org_a": 1}
    set_quota(harness, "org_a", running_functions=3)
    assert ready(harness) == {"org_a": 3}
    set_quota(harness, "org_a", running_functions=0)
    assert ready(harness) == {"org_a": 5}


def test_the_limit_of_a_job_does_not_keep_places_in_an_org(harness: DispatcherHarness) -> None:
    """A job with `max_concurrency` that is at its limit must not hand its places on to itself for ever."""
    add_functions(harness, "org_a", 1)
    harness.sql("UPDATE limits SET used = $1 WHERE limit_key = 'operator:udf'", SLOTS)  # others have the rest
    harness.sql("UPDATE tasks SET limit_keys = array_prepend('job:a', limit_keys)")
    harness.sql("INSERT INTO limits (limit_key, max_running, used) VALUES ('job:a', 1, 1)")
    add_functions(harness, "org_a", 3)
    harness.sql("UPDATE tasks SET limit_keys = array_prepend('job:a', limit_keys), held_by = 'job:a' WHERE held")
    add_functions(harness, "org_b", 1)
    assert ready(harness) == {"org_a": 1}
    (task_id, lease), *_ = claim_all(harness)["org_a"]
    complete(harness, task_id, lease)
    assert ready(harness) == {"org_b": 1}
