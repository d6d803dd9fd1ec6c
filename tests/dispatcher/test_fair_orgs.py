"""What orgs share goes to them in turn: places under the limit of an operator, the relay, slots of the invoke loop."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness, fence
from tests.support.postgres import TestCluster
from tracelake.model.quota import Quotas
from tracelake.model.runtime import BUILT_IN

LIMIT = 2


@pytest.fixture
def limited(cluster: TestCluster, tmp_path: Path) -> Iterator[DispatcherHarness]:
    config = dispatcher_config(
        runtimes=replace(BUILT_IN, operator_limits={"noop": LIMIT}), relay_batch=8, invoke_slots=4
    )
    harness = DispatcherHarness.start(cluster.fresh("state"), cluster.fresh("queue"), tmp_path, config)
    try:
        yield harness
    finally:
        harness.stop()


def org_names(harness: DispatcherHarness) -> dict[Any, str]:
    return {row["org_id"]: row["name"] for row in harness.sql("SELECT org_id, name FROM orgs")}


def run_next(harness: DispatcherHarness) -> str:
    """Claims and completes the ready task that waits longest; answers its org."""
    row = harness.sql(
        "SELECT task_id, org_id FROM tasks WHERE status = 'Queued' AND NOT held ORDER BY ready_at LIMIT 1"
    )[0]
    task_id = str(row["task_id"])
    claimed = harness.claim(task_id).body
    body = fence(task_id, claimed, status="Completed")
    assert harness.task("complete", claimed["capability_token"], body).status == 200
    return org_names(harness)[row["org_id"]]


def add_tasks(harness: DispatcherHarness, org: str, count: int, **fields: Any) -> None:
    job = harness.make_job(org=org, **fields)["job_id"]
    reply = harness.service("POST", "/internal/tasks", {"tasks": [{"job_id": job}] * count})
    assert reply.status == 200, reply


def test_a_place_of_an_operator_goes_to_the_next_org(limited: DispatcherHarness) -> None:
    add_tasks(limited, "org_a", 20)
    add_tasks(limited, "org_b", 3)
    add_tasks(limited, "org_c", 3)
    used = limited.sql("SELECT used FROM limits WHERE limit_key = 'operator:noop'")[0]["used"]
    assert used == LIMIT
    turns = [run_next(limited) for _ in range(LIMIT + 9)]
    assert turns[:LIMIT] == ["org_a"] * LIMIT, "they had the places before anybody else came"
    assert Counter(turns[LIMIT:]) == {"org_a": 3, "org_b": 3, "org_c": 3}
    while limited.sql("SELECT FROM tasks WHERE status = 'Queued'"):
        run_next(limited)
    assert limited.sql("SELECT used FROM limits WHERE limit_key = 'operator:noop'")[0]["used"] == 0


def test_places_are_shared_by_weight(limited: DispatcherHarness) -> None:
    add_tasks(limited, "org_a", 20)
    add_tasks(limited, "org_b", 20)
    limited.sql("INSERT INTO org_quotas (org_id, weight) SELECT org_id, 3 FROM orgs WHERE name = 'org_b'")
    turns = [run_next(limited) for _ in range(LIMIT + 12)]
    assert Counter(turns[LIMIT:])["org_b"] in (9, 10), "three times as many, but for the turn that org A had alone"


def test_the_relay_publishes_for_every_org_in_each_round(limited: DispatcherHarness) -> None:
    add_tasks(limited, "org_a", 30, operator="sleep", config={"seconds": 0})
    add_tasks(limited, "org_b", 2, operator="sleep", config={"seconds": 0})
    assert limited.relay() == 6
    left = Counter(org_names(limited)[row["org_id"]] for row in limited.sql("SELECT org_id FROM outbox"))
    assert left == {"org_a": 26}
    while limited.relay():
        pass
    (depth,) = limited.run(limited.dispatcher.ports.queue.depths())
    assert depth.ready == 32
    deliveries = limited.run(limited.dispatcher.ports.queue.receive(depth.queue, 4, 60))
    assert {
        row["org_id"]
        for key in (d.key for d in deliveries)
        for row in limited.sql("SELECT org_id FROM tasks WHERE task_id = $1", key)
    } == set(org_names(limited))


def test_the_invoke_loop_starts_tasks_of_every_org(limited: DispatcherHarness) -> None:
    split = {"runtime": "dispatcher", "operator": "range_splitter", "config": {"size": 10}}
    add_tasks(limited, "org_a", 30, **split)
    add_tasks(limited, "org_b", 2, **split)
    assert limited.invoke() == 4
    left = Counter(org_names(limited)[row["org_id"]] for row in limited.sql("SELECT org_id FROM outbox"))
    assert left == {"org_a": 28}
    while limited.invoke():
        pass
    assert limited.sql("SELECT FROM outbox") == []


def left_by_org(harness: DispatcherHarness) -> Counter[str]:
    return Counter(org_names(harness)[row["org_id"]] for row in harness.sql("SELECT org_id FROM outbox"))


def test_the_invoke_loop_takes_turns_by_weight_and_counts_what_runs(limited: DispatcherHarness) -> None:
    """With one free slot a round: orgs take turns, and one that already has a slot comes after one that has none."""
    split = {"runtime": "dispatcher", "operator": "range_splitter", "config": {"size": 10}}
    add_tasks(limited, "org_a", 20, **split)
    add_tasks(limited, "org_b", 20, **split)
    ids = {name: org_id for org_id, name in org_names(limited).items()}
    invocations = limited.dispatcher.invocations
    invocations.config = replace(invocations.config, invoke_slots=1)
    slots = next(each for each in invocations._slots if each.runtime == "dispatcher")

    def run(rounds: int) -> Counter[str]:
        before = left_by_org(limited)
        assert [limited.invoke() for _ in range(rounds)] == [1] * rounds
        return before - left_by_org(limited)

    assert run(4) == {"org_a": 2, "org_b": 2}
    assert not slots.orgs, "what has ended is not counted"
    slots.orgs[str(ids["org_a"])] += 1
    assert run(4) == {"org_b": 4}
    slots.orgs.clear()
    invocations.quotas.set_quotas({ids["org_b"]: Quotas(weight=3)})
    assert run(8)["org_b"] in (5, 6), "three times as many, but for the turns that it has had"
