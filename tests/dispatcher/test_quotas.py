"""Quotas of orgs: each kind has its own answer, holds under concurrent callers, and loses no work that was accepted."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from tests.http.support import user_token
from tests.routing.support import Flow
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness, fence
from tests.support.postgres import TestCluster
from tracelake.errors import TraceError
from tracelake.model.ids import new_id
from tracelake.wire.jobs import TriggerRequest
from tracelake.wire.quotas import QuotaReply

DAG = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: feeder, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
  - {name: each, activation: reactive, operator: noop, inputs: [{from: {job: feeder}}]}
"""

SPLIT = """
name: s
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - name: split
    activation: reactive
    runtime: dispatcher
    operator: range_splitter
    config: {size: 10}
    inputs: [{from: {job: src}}]
"""


@pytest.fixture(scope="module")
def shared(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatcherHarness]:
    """One Dispatcher for all tests here, each with an org of its own. No loop runs by itself."""
    home = Path(tmp_path_factory.mktemp("quotas"))
    harness = DispatcherHarness.start(cluster.fresh("state"), cluster.fresh("queue"), home)
    try:
        yield harness
    finally:
        harness.stop()


@pytest.fixture
def flow(shared: DispatcherHarness) -> Flow:
    return Flow(shared, f"org_{uuid4().hex[:8]}")


def set_quota(flow: Flow, *defaults: str, **values: float) -> Any:
    body = {"org": flow.org, "values": values, "defaults": list(defaults)}
    reply = flow.harness.service("POST", "/internal/quotas", body)
    assert reply.status == 200, reply
    look(flow.harness)
    return reply.body


def look(harness: DispatcherHarness) -> bool:
    """What the loop does every second."""
    watch = harness.dispatcher.quota_watch
    watch._next_count = 0.0
    return harness.run(watch.run_once())


def use(flow: Flow) -> dict[str, tuple[int | None, int | None, bool]]:
    reply = flow.harness.service("GET", "/internal/quotas")
    orgs = msgspec.convert(reply.body["orgs"], list[QuotaReply])
    (mine,) = [item for item in orgs if item.org == flow.org]
    return {row.kind: (row.used, row.limit, row.exceeded) for row in mine.quotas}


def explain(flow: Flow, subject: str) -> str:
    headers = {"authorization": f"Bearer {user_token(flow.harness, org=flow.org, roles=['reader'])}"}
    reply = flow.harness.call("public", "GET", f"/v1/why/{subject}", None, headers)
    assert reply.status == 200, reply
    return " ".join(reason["text"] for reason in reply.body["reasons"])


def refusal(code: str, call: Any, *arguments: Any, **options: Any) -> TraceError:
    with pytest.raises(TraceError) as refused:
        call(*arguments, **options)
    assert refused.value.code == code
    return refused.value


def test_triggers_are_refused_above_the_quota_of_queued_tasks(flow: Flow) -> None:
    flow.deploy(DAG)
    set_quota(flow, queued_tasks=3)
    for cursor in range(3):
        flow.trigger("d", "src", cursor=cursor)
    error = refusal("quota_queued_tasks", flow.trigger, "d", "src", cursor=3)
    assert (error.status, error.details["quota"], error.details["used"]) == (429, 3, 3)
    assert error.details["retry_after_seconds"] > 0
    look(flow.harness)
    assert use(flow)["queued_tasks"] == (3, 3, True)
    flow.run_all("feeder")
    look(flow.harness)
    flow.drain()
    flow.run_all("feeder", "each")
    look(flow.harness)
    flow.trigger("d", "src", cursor=3)


def test_many_triggers_at_once_stay_within_the_quota(flow: Flow) -> None:
    flow.deploy(DAG)
    set_quota(flow, queued_tasks=5)
    actions, actor = flow.harness.dispatcher.actions, flow.actor

    async def all_at_once() -> list[Any]:
        bodies = [TriggerRequest(partition_key=f"p{unit}", idempotency_key=str(uuid4())) for unit in range(20)]
        calls = (actions.trigger(actor, "d", "src", body) for body in bodies)
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = Counter(getattr(item, "code", "done") for item in flow.harness.run(all_at_once()))
    assert outcomes == {"done": 5, "quota_queued_tasks": 15}
    assert len(flow.tasks("feeder", "Queued")) == 5


def test_an_org_above_its_quota_keeps_its_events_and_loses_none(flow: Flow) -> None:
    """A completion is never refused for it; what it says becomes tasks later."""
    flow.deploy(DAG)
    for cursor in range(4):
        flow.trigger("d", "src", cursor=cursor)
    first = flow.tasks("feeder")[0]["task_id"]
    set_quota(flow, queued_tasks=2)
    flow.pass_on(first)
    assert flow.tasks("each") == [], "held back, with the event stored"
    assert flow.drain() == 0
    other = Flow(flow.harness, f"{flow.org}_b")
    other.deploy(DAG)
    other.trigger("d", "src", cursor=1)
    other.run_all("feeder")
    assert len(other.tasks("each")) == 1, "nobody else is held back"
    flow.run_all("feeder")
    assert look(flow.harness), "it goes on"
    assert flow.drain()
    flow.run_all("each")
    assert sorted(unit for unit, _ in flow.units("each")) == ["c:0", "c:1", "c:2", "c:3"]


def test_a_service_makes_no_tasks_for_an_org_above_its_quota(flow: Flow) -> None:
    harness = flow.harness
    job_id = harness.make_job(org=flow.org)["job_id"]
    set_quota(flow, queued_tasks=2)
    mine, more = str(new_id()), [str(new_id()), str(new_id())]

    def create(*task_ids: str) -> Any:
        body = {"tasks": [{"job_id": job_id, "task_id": task_id} for task_id in task_ids]}
        return harness.service("POST", "/internal/tasks", body)

    assert create(mine, more[0]).status == 200
    for refused in (create(more[1]), create(mine, more[1])):
        assert (refused.status, refused.code) == (429, "quota_queued_tasks")
    assert create(mine).body["tasks"][0]["duplicate"], "what was made before is answered"
    other = harness.make_job(org=f"{flow.org}_b")["job_id"]
    assert harness.service("POST", "/internal/tasks", {"tasks": [{"job_id": other}]}).status == 200
    for task_id in (mine, more[0]):
        flow.complete(task_id, flow.claim(task_id))
    look(harness)
    assert create(more[1]).status == 200


def test_running_tasks_wait_for_a_place_without_a_wake_up(flow: Flow) -> None:
    flow.deploy(DAG)
    for cursor in range(5):
        flow.trigger("d", "src", cursor=cursor)
    tasks = [task["task_id"] for task in flow.tasks("feeder")]
    running = {tasks[0]: flow.claim(tasks[0])}
    set_quota(flow, running_tasks=2)
    held = [task for task in flow.tasks("feeder", "Queued") if task["held"]]
    assert len(held) == 3, "one runs, one has the other place"
    assert flow.harness.claim(str(held[0]["task_id"])).body["reason"] == "NotReady"
    assert use(flow)["running_tasks"] == (2, 2, True)
    assert "quota of running tasks (2 of 2)" in explain(flow, f"task/{held[0]['task_id']}")
    flow.trigger("d", "src", cursor=9)
    assert len([task for task in flow.tasks("feeder", "Queued") if task["held"]]) == 4, "and so do new ones"
    flow.complete(tasks[0], running[tasks[0]])
    assert len([task for task in flow.tasks("feeder", "Queued") if not task["held"]]) == 2
    assert flow.run_all("feeder") == 5
    assert flow.harness.run(flow.harness.dispatcher.routing_reconciler.run_once()) == 0, "no counter is wrong"
    set_quota(flow, "running_tasks")
    for cursor in range(10, 15):
        flow.trigger("d", "src", cursor=cursor)
    assert not any(task["held"] for task in flow.tasks("feeder", "Queued"))


def test_claims_at_once_stay_within_the_quota_of_running_tasks(flow: Flow) -> None:
    flow.deploy(DAG)
    set_quota(flow, running_tasks=3)
    for cursor in range(12):
        flow.trigger("d", "src", cursor=cursor)
    harness = flow.harness
    bodies = [{"task_id": str(task["task_id"]), "worker_id": "w"} for task in flow.tasks("feeder")]

    async def all_at_once() -> list[Any]:
        header = {"x-trace-worker-token": harness.worker_token}
        calls = (harness.call_async("internal", "POST", "/internal/task-claim", body, header) for body in bodies)
        return await asyncio.gather(*calls)

    outcomes = Counter(reply.body.get("reason", "Claimed") for reply in harness.run(all_at_once()))
    assert outcomes == {"Claimed": 3, "NotReady": 9}


def test_a_raised_quota_of_running_tasks_wakes_who_waits(flow: Flow) -> None:
    flow.deploy(DAG)
    set_quota(flow, running_tasks=1)
    for cursor in range(4):
        flow.trigger("d", "src", cursor=cursor)
    assert len([task for task in flow.tasks("feeder") if task["held"]]) == 3
    set_quota(flow, running_tasks=3)
    assert len([task for task in flow.tasks("feeder") if task["held"]]) == 1
    set_quota(flow, "running_tasks")
    assert not any(task["held"] for task in flow.tasks("feeder"))


def test_a_range_is_split_into_no_more_units_than_the_quota(flow: Flow) -> None:
    flow.deploy(SPLIT)
    set_quota(flow, units_per_range=5)
    flow.trigger("s", "src", range={"start": 0, "end": 49})
    flow.trigger("s", "src", range={"start": 0, "end": 59})
    while flow.harness.invoke():
        pass
    ended = flow.harness.sql(
        "SELECT t.status, t.error FROM tasks t JOIN orgs o USING (org_id) WHERE o.name = $1 ORDER BY t.task_id",
        flow.org,
    )
    assert [row["status"] for row in ended] == ["Completed", "Failed"]
    assert "quota_units_per_range: the range has 6 units" in ended[1]["error"]
    error = refusal("quota_units_per_range", flow.trigger, "s", "split", range={"start": 0, "end": 59})
    assert (error.status, error.details["used"], error.details["quota"]) == (422, 6, 5)


def test_stored_bytes_hold_an_org_back_until_it_stores_less(flow: Flow) -> None:
    flow.deploy(DAG)
    set_quota(flow, stored_bytes=1000)
    org_id = flow.harness.sql("SELECT org_id FROM orgs WHERE name = $1", flow.org)[0]["org_id"]
    flow.harness.sql("INSERT INTO stored_bytes_changes (org_id, bytes) VALUES ($1, 700), ($1, 500)", org_id)
    look(flow.harness)
    assert use(flow)["stored_bytes"] == (1200, 1000, True)
    error = refusal("quota_stored_bytes", flow.trigger, "d", "src", cursor=1)
    assert (error.status, error.details["quota"], error.details["used"]) == (422, 1000, 1200)
    refusal("quota_stored_bytes", flow.deploy, DAG.replace("each", "every"))
    flow.harness.sql("INSERT INTO stored_bytes_changes (org_id, bytes) VALUES ($1, -900)", org_id)
    assert look(flow.harness)
    assert use(flow)["stored_bytes"] == (300, 1000, False)
    flow.trigger("d", "src", cursor=1)


def test_committed_files_are_counted_and_their_removal_too(flow: Flow) -> None:
    harness = flow.harness
    job = harness.make_job(org=flow.org, outputs=[{"name": "cold", "storage": "s3"}])
    task_id = harness.make_task(job["job_id"])
    claim = harness.claim(task_id).body
    prefix = claim["task"]["outputs"][0]["storage"]["write_prefix"]
    harness.run(harness.objects.put(prefix + "cold_0_9.parquet", b"x" * 321))
    harness.run(harness.objects.put(prefix + "_SUCCESS", b""))
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
    dataset = {name: job["outputs"][0][name] for name in ("dataset_uuid", "dataset_version")}
    body = fence(task_id, claim, status="Completed", datasets_published=[dataset | {"storage_ref": ref}])
    assert harness.task("complete", claim["capability_token"], body).status == 200
    look(harness)
    assert use(flow)["stored_bytes"][0] == 321
    harness.sql("DELETE FROM dataset_units WHERE dataset_uuid = $1", UUID(dataset["dataset_uuid"]))
    harness.sql("DELETE FROM manifests WHERE dataset_uuid = $1", UUID(dataset["dataset_uuid"]))
    look(harness)
    assert use(flow)["stored_bytes"][0] == 0
    assert harness.sql("SELECT FROM stored_bytes_changes") == []


def test_deploys_and_dry_runs_have_quotas(flow: Flow) -> None:
    flow.deploy(DAG)
    set_quota(flow, deploys_per_hour=3, dry_runs_per_minute=2)
    versions = [DAG.replace("each", f"each_{number}") for number in range(4)]
    deployments, actor = flow.harness.dispatcher.deployments, flow.actor

    async def all_at_once() -> list[Any]:
        calls = (deployments.deploy(actor, "d", text.encode(), dry_run=False, activate=False) for text in versions)
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = Counter(getattr(item, "code", "done") for item in flow.harness.run(all_at_once()))
    assert outcomes == {"done": 2, "quota_deploys": 2}
    assert flow.deploy(DAG, activate=False).duplicate, "a repeat is none"
    for _ in range(2):
        flow.deploy(versions[0], dry_run=True)
    error = refusal("quota_dry_runs", flow.deploy, versions[0], dry_run=True)
    assert (error.status, error.details["quota"]) == (429, 2)
    assert 1 <= error.details["retry_after_seconds"] <= 60
    assert use(flow)["deploys_per_hour"] == (3, 3, True)
    assert use(flow)["dry_runs_per_minute"] == (2, 2, True)


def test_weights_reach_the_queue_and_the_invoke_loop(flow: Flow) -> None:
    flow.deploy(DAG)
    body = set_quota(flow, weight=2.5)
    assert body["quota"]["weight"] == 2.5
    org_id = flow.actor.org_id
    assert org_id is not None
    assert flow.harness.dispatcher.quotas.weight_of(org_id) == 2.5
    assert flow.harness.dispatcher.quotas.weights[str(org_id)] == 2.5
    set_quota(flow, "weight")
    assert flow.harness.dispatcher.quotas.weight_of(org_id) == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"values": {"queued": 1}}, "values"),
        ({"values": {}, "defaults": []}, "values"),
        ({"values": {"weight": 0}}, "values"),
        ({"values": {"running_tasks": 1.5}}, "values"),
        ({"values": {"queued_tasks": -1}}, "values"),
        ({"defaults": ["nonsense"]}, "defaults"),
        ({"values": {"weight": 2}, "defaults": ["weight"]}, "defaults"),
    ],
)
def test_bad_changes_are_refused(flow: Flow, body: dict[str, Any], field: str) -> None:
    flow.deploy(DAG)
    reply = flow.harness.service("POST", "/internal/quotas", {"org": flow.org} | body)
    assert (reply.status, reply.code, reply.body["error"]["details"]["field"]) == (422, "body_invalid", field)
    missing = flow.harness.service("POST", "/internal/quotas", {"org": "nobody", "values": {"weight": 2}})
    assert (missing.status, missing.code) == (404, "org_not_found")


def test_a_default_quota_of_running_tasks_holds_for_every_org(cluster: TestCluster, tmp_path: Path) -> None:
    config = dispatcher_config()
    config = replace(config, quotas=replace(config.quotas, running_tasks=1))
    harness = DispatcherHarness.start(cluster.fresh("state"), cluster.fresh("queue"), tmp_path, config)
    try:
        flow = Flow(harness)
        flow.deploy(DAG)
        look(harness)
        for cursor in range(3):
            flow.trigger("d", "src", cursor=cursor)
        assert len([task for task in flow.tasks("feeder") if task["held"]]) == 2
        assert flow.run_all("feeder") == 3
    finally:
        harness.stop()
