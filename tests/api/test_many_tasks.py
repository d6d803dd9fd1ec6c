"""Failed tasks grouped by error, and actions on many of them, on real Postgres."""

import asyncio
import itertools
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.support import Seed, User
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.views.failures import comparable
from tracelake.model.ids import new_id
from tracelake.wire.failures import TaskActionsRequest

_orgs = itertools.count()

DAG = """\
name: pools
defaults: {{ runtime: ecs_platform }}
jobs:
  - {{ name: head, activation: source, source: {{ kind: manual }} }}
  - {{ name: other, activation: reactive, operator: noop, execution_strategy: PerPartition, inputs: [{{ from: {{ job: head }} }}] }}
  - name: prices
    activation: reactive
    operator: {operator}
    execution_strategy: PerPartition
    inputs: [{{ from: {{ job: head }} }}]
"""  # noqa: E501 - one job in a line


@pytest.fixture
def flow(harness: DispatcherHarness) -> Flow:
    made = Flow(harness, f"many_{next(_orgs)}")
    made.deploy(DAG.format(operator="noop"))
    return made


def fail(flow: Flow, units: int, job: str = "prices", error: str = "no node at {}") -> list[UUID]:
    for number in range(units):
        flow.trigger("pools", "head", range={"start": 10 * number, "end": 10 * number + 9})
    tasks = [task["task_id"] for task in flow.tasks(job, "Queued")]
    for number, task_id in enumerate(tasks):
        fields = {"status": "Failed", "error_message": error.format(number), "retryable": False}
        flow.complete(task_id, flow.claim(task_id), **fields)
    return tasks


def user(flow: Flow) -> User:
    return User(flow.harness, flow.org, "writer")


def act(flow: Flow, action: str, *tasks: tuple[UUID, int]) -> list[str]:
    body = {"action": action, "tasks": [{"task_id": str(task_id), "attempt": attempt} for task_id, attempt in tasks]}
    reply = user(flow).call("POST", "/v1/task-actions", body)
    assert reply.status == 200, reply
    return [item["outcome"] for item in reply.body["outcomes"]]


def test_tasks_with_the_same_error_are_one_group(flow: Flow) -> None:
    tasks = fail(flow, 3)
    fail(flow, 0, "other", "a longer error\nwith a second line")
    reply = user(flow).get("/v1/task-failures?dag=pools")
    second, first = sorted(reply["groups"], key=lambda group: group["jobs"])
    assert (first["tasks"], first["jobs"], first["task_id"]) == (3, ["pools/prices"], str(max(tasks)))
    assert (first["error"], first["unit"]) == ("no node at 2", "20-29")
    assert (second["tasks"], second["error"]) == (3, "a longer error\nwith a second line")
    assert (reply["tasks"], reply["grouped"], reply.get("more")) == (6, 6, None)
    assert user(flow).get("/v1/task-failures?dag=pools&job=other")["tasks"] == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("block 18,000,000 is not there", "block 7 is not there"),
        ("task 01890000-0000-7000-8000-000000000001 ended", "task 01890000-0000-7000-8000-0000000000ff ended"),
        ("0xdeadbeef reverted after 1.5s", "0x00 reverted after 20s"),
    ],
)
def test_what_differs_from_task_to_task_is_not_compared(one: str, other: str) -> None:
    assert comparable(one) == comparable(other)


@given(st.text(max_size=300))
def test_any_text_is_compared(text: str) -> None:
    assert comparable(comparable(text)) == comparable(text)


def test_only_the_newest_failures_are_grouped_and_all_are_counted(harness: DispatcherHarness) -> None:
    seed = Seed(harness)
    job_id = seed.job("pools", "prices")
    seed.sql(
        """INSERT INTO tasks (task_id, org_id, job_id, status, inputs, attempt, lease_token, outcome, finished_at,
                              error)
           SELECT gen_random_uuid(), $1, $2, 'Failed', '[]', 1, gen_random_uuid(), 'Failed', trace_now(), 'error ' || n
           FROM generate_series(1, 1500) n""",
        seed.org_id,
        job_id,
    )
    reply = seed.user().get("/v1/task-failures?dag=pools")
    assert (reply["tasks"], reply["grouped"]) == (1500, 1000)
    assert [group["tasks"] for group in reply["groups"]] == [1000]


def test_a_retry_is_fenced_by_the_attempt_that_was_seen(flow: Flow) -> None:
    first, second, third = fail(flow, 3)
    assert act(flow, "retry", (first, 1), (second, 7), (new_id(), 1)) == ["done", "changed", "refused"]
    assert act(flow, "retry", (first, 1)) == ["duplicate"]
    flow.claim(first)
    assert act(flow, "retry", (first, 1)) == ["changed"], "it runs, as the one who retried it wanted"
    flow.person("skip", third)
    assert act(flow, "retry", (third, 1)) == ["changed"], "somebody has decided otherwise"
    assert [task["status"] for task in flow.tasks("prices")] == ["Running", "Failed", "Failed"]


def test_a_skip_is_fenced_by_the_attempt_that_was_seen(flow: Flow) -> None:
    first, second = fail(flow, 2)
    assert act(flow, "skip", (first, 1), (first, 1), (second, 2)) == ["done", "done", "changed"], "a task counts once"
    assert act(flow, "skip", (first, 1)) == ["duplicate"]
    flow.person("retry", second)
    assert act(flow, "skip", (second, 1)) == ["changed"]
    entries = flow.harness.sql("SELECT action FROM audit_log WHERE org_id = $1", flow.actor.org_id)
    assert [row["action"] for row in entries].count("task.skip") == 1


def test_open_tasks_are_cancelled_and_ended_ones_are_not(flow: Flow) -> None:
    (failed,) = fail(flow, 1)
    (queued,) = (task["task_id"] for task in flow.tasks("other"))
    assert act(flow, "cancel", (queued, 0), (failed, 1)) == ["done", "changed"]
    assert act(flow, "cancel", (queued, 0)) == ["duplicate"]


def test_two_people_at_once_retry_each_task_once(flow: Flow) -> None:
    tasks = fail(flow, 8)
    body = {"action": "retry", "tasks": [{"task_id": str(task_id), "attempt": 1} for task_id in tasks]}

    actor = flow.actor

    async def both() -> tuple[Any, Any]:
        actions = flow.harness.dispatcher.actions
        request = msgspec.convert(body, TaskActionsRequest)
        return await asyncio.gather(actions.act_on_many(actor, request), actions.act_on_many(actor, request))

    replies = flow.harness.run(both())
    for outcomes in zip(*(reply.outcomes for reply in replies), strict=True):
        assert sorted(item.outcome for item in outcomes) == ["done", "duplicate"]
    entries = flow.harness.sql("SELECT action FROM audit_log WHERE org_id = $1", flow.actor.org_id)
    assert [row["action"] for row in entries].count("task.retry") == 8


def test_another_org_and_a_reader_do_nothing(flow: Flow) -> None:
    (task_id,) = fail(flow, 1)
    stranger = Flow(flow.harness, f"many_{next(_orgs)}")
    stranger.deploy(DAG.format(operator="noop"))
    assert act(stranger, "retry", (task_id, 1)) == ["refused"]
    body = {"action": "retry", "tasks": [{"task_id": str(task_id), "attempt": 1}]}
    assert User(flow.harness, flow.org, "reader").call("POST", "/v1/task-actions", body).status == 403
    too_many = {"action": "retry", "tasks": [{"task_id": str(new_id()), "attempt": 1}] * 201}
    assert user(flow).call("POST", "/v1/task-actions", too_many).status == 422


def test_tasks_of_an_abandoned_version_count_for_it_alone(flow: Flow) -> None:
    fail(flow, 2)
    flow.deploy(DAG.format(operator="sleep\n    config: { seconds: 0 }"))
    numbers = {row["number"]: row["state"] for row in user(flow).get("/v1/dags/pools/versions")["versions"]}
    assert numbers == {1: "Active", 2: "Building"}
    assert user(flow).call("PUT", "/v1/dags/pools/active", {"version": 2, "now": True}).status == 200
    (dag,) = user(flow).get("/v1/dags")["dags"]
    assert (dag["active_version"], dag["failed_tasks"]) == (2, 0), "version 1 failed, not version 2"

    def failed(query: str) -> int:
        return len(user(flow).get(f"/v1/tasks?dag=pools&status=Failed{query}")["tasks"])

    assert [failed(query) for query in ("", "&version=1", "&version=2", "&current=true")] == [2, 2, 0, 0]
    assert user(flow).get("/v1/task-failures?dag=pools&current=true")["tasks"] == 0
    assert user(flow).get("/v1/task-failures?dag=pools&version=1")["tasks"] == 2
    assert user(flow).call("GET", "/v1/tasks?dag=pools&version=3").code == "dag_version_not_found"
    assert user(flow).call("GET", "/v1/tasks?version=1").code == "body_invalid"
    assert len(user(flow).get("/v1/tasks?dag=pools&version=2&job=other")["tasks"]) == 2, "it did not change"
