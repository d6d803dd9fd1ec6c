"""Removals beside everything else that goes on: other removals, deploys, sources, tables of other DAGs."""

import asyncio
from typing import Any

import pytest

from tests.api.support import User
from tests.removal import zoo
from tests.removal.support import Removal, find_orphans
from tests.removal.test_removal import PIPE, refused
from tests.routing.support import Flow
from tests.sources.webhook_support import Hook
from tests.support import dags
from tracelake.errors import TraceError

OWNER = """
name: owner
defaults: {runtime: ecs_platform}
jobs:
  - {name: own_src, activation: source, source: {kind: manual}}
  - {name: own, activation: reactive, operator: noop, inputs: [{from: {job: own_src}}]}
publish:
  shared:
    from: {job: own}
    storage: postgres
    write_mode: buffered
    writers: [guest]
    schema: {columns: [{name: k, type: int64, nullable: false}], unique: [k]}
"""
GUEST = """
name: guest
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: fill, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
publish:
  shared: {from: {job: fill}, storage: postgres, write_mode: buffered}
"""
CHECKING = """
name: checking
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - name: write
    activation: reactive
    operator: spark_sql
    inputs: [{from: {job: src}}]
    config: {inputs: {t: 0}, query: "SELECT 1 AS number FROM t"}
    checks: [{relationship: {column: number, to: {dataset: one_files, column: number}}}]
publish:
  checked: {from: {job: write}, storage: s3}
"""


def test_many_at_once_are_one(flow: Flow, removal: Removal) -> None:
    flow.deploy(PIPE)
    removals, actor = flow.harness.dispatcher.removals, flow.actor

    async def at_once(verb: str) -> list[Any]:
        calls = [getattr(removals, verb)(actor, "pipe") for _ in range(6)]
        return list(await asyncio.gather(*calls))

    for verb in ("remove", "restore", "remove", "purge"):
        replies = flow.harness.run(at_once(verb))
        assert sum(not reply.duplicate for reply in replies) == 1, verb

    async def delete_at_once() -> None:
        run_once = flow.harness.dispatcher.retention.removed_dags.run_once
        await asyncio.gather(*(run_once() for _ in range(4)))

    while removal.names("pipe"):
        flow.harness.run(delete_at_once())
    actions = flow.harness.sql("SELECT action, count(*) AS n FROM audit_log GROUP BY 1")
    counts = {row["action"]: row["n"] for row in actions}
    assert (counts["dag.remove"], counts["dag.restore"], counts["dag.purge"], counts["dag.purged"]) == (2, 1, 1, 1)
    assert find_orphans(flow.harness) == {}


def test_a_deploy_at_the_same_time_is_before_it_or_refused(flow: Flow, removal: Removal) -> None:
    flow.deploy(PIPE)
    dispatcher, actor = flow.harness.dispatcher, flow.actor

    async def both(number: int) -> list[Any]:
        text = PIPE + f"# {number}\n"
        text = text.replace("name: tail, ", f"name: tail, timeout_seconds: {number + 10}, ")
        deploy = dispatcher.deployments.deploy(actor, "pipe", text.encode(), dry_run=False, activate=True)
        return list(await asyncio.gather(deploy, dispatcher.removals.remove(actor, "pipe"), return_exceptions=True))

    for number in range(4):
        deployed, removed = flow.harness.run(both(number))
        assert removed.state == "removed"
        if isinstance(deployed, TraceError):
            assert deployed.code in ("dag_removed", "store_unavailable")
        (row,) = flow.harness.sql("SELECT active_version, building_version, removed_at FROM dags")
        assert (row["active_version"], row["building_version"]) == (None, None)
        assert row["removed_at"] is not None
        removal.restore("pipe")
    flow.trigger("pipe", "src", cursor=1)
    assert flow.run_all("step", "tail") == 2


def test_sources_end_and_go_on_as_they_were(flow: Flow, removal: Removal) -> None:
    flow.deploy(zoo.text("one"))
    hook = Hook(flow.harness, flow.org, path="one/hook", dag="one")
    hook.sent(delivery="first")
    secret = hook.secret()
    flow.harness.run(flow.harness.dispatcher.monitor.run_once())
    (run,) = zoo.own_tasks(flow, "one", "ticks")
    lease = flow.claim(run["task_id"])
    user = User(flow.harness, flow.org, "admin")
    assert user.call("POST", "/v1/dags/one/jobs/clock/pause").status == 200
    assert len(flow.harness.run(flow.harness.dispatcher.cron.list()).sources) == 1
    removal.remove("one")
    assert flow.harness.run(flow.harness.dispatcher.cron.list()).sources == []
    assert hook.send(b"{}", "second", secrets=[secret]).status == 401, "as a path that nobody has"
    assert refused(flow, "GET", "/v1/dags/one/jobs/hook/webhook") == "dag_removed"
    flow.harness.run(flow.harness.dispatcher.monitor.run_once())
    assert not zoo.own_tasks(flow, "one", "ticks"), "no new run"
    removal.restore("one")
    # The follower was told to stop, and comes back once it has.
    flow.complete(run["task_id"], lease, status="Canceled")
    dags.run_builds(flow.harness)
    assert [row["task_id"] for row in zoo.own_tasks(flow, "one", "ticks")] == [run["task_id"]]
    sources = {row["job"]: row["state"] for row in user.call("GET", "/v1/sources").body["sources"]}
    assert sources["clock"] == "paused", "as it was"
    hook.sent(delivery="third")


def test_deliveries_are_kept_while_they_may_be_needed_again(flow: Flow, removal: Removal) -> None:
    flow.deploy(zoo.text("one"))
    Hook(flow.harness, flow.org, path="one/hook", dag="one").sent()
    flow.run_all("heard")
    removal.remove("one")
    flow.harness.sql("UPDATE dags SET restorable_until = NULL")
    flow.harness.advance(40 * 24 * 3600)
    flow.harness.run(flow.harness.dispatcher.pruner.run_once())
    assert flow.harness.sql("SELECT FROM webhook_deliveries")
    removal.restore("one")
    flow.harness.run(flow.harness.dispatcher.pruner.run_once())
    assert not flow.harness.sql("SELECT FROM webhook_deliveries")


def test_who_writes_or_checks_keeps_it_too(flow: Flow, removal: Removal) -> None:
    flow.deploy(OWNER)
    flow.deploy(GUEST)
    with pytest.raises(TraceError, match="guest/fill writes shared"):
        removal.remove("owner")
    flow.deploy(zoo.text("one"))
    flow.deploy(CHECKING)
    with pytest.raises(TraceError, match="checking/write checks one_files"):
        removal.remove("one")
    removal.remove("checking")
    removal.remove("one")


def test_rows_in_the_table_of_another_dag_follow_its_rule(flow: Flow, removal: Removal) -> None:
    flow.deploy(OWNER)
    flow.deploy(GUEST)
    flow.trigger("owner", "own_src", cursor=1)
    flow.trigger("guest", "src", cursor=1)

    def writers() -> set[str]:
        (table,) = flow.harness.run(flow.harness.dispatcher.buffers.list()).datasets
        rows = flow.harness.sql("SELECT dag_name FROM nodes WHERE node_id = ANY($1)", table.writers)
        return {row["dag_name"] for row in rows}

    guest = _publish(flow)
    assert writers() == {"owner", "guest"}
    removal.remove("guest")
    assert writers() == {"owner"}, "a sink hides its rows"
    removal.restore("guest")
    assert writers() == {"owner", "guest"}
    removal.remove("guest")
    removal.purge("guest")
    removal.delete_all()
    assert removal.names("guest"), "its batch waits for a sink, which will merge it"
    body = {"dataset_uuid": _shared(flow), "publish_ids": [guest], "commit_seq": 1}
    assert flow.harness.service("POST", "/internal/buffer-committed", body).status == 200
    nodes = [row["node_id"] for row in flow.harness.sql("SELECT node_id FROM nodes WHERE job_name = 'fill'")]
    removal.delete_all()
    assert removal.names("guest") == {}
    (table,) = flow.harness.run(flow.harness.dispatcher.buffers.list()).datasets
    assert set(nodes) <= set(table.retired), "sinks delete its rows"
    assert flow.harness.sql("SELECT FROM events WHERE producer LIKE 'publish:%'"), "the commit is the table's history"
    assert find_orphans(flow.harness) == {}


def _shared(flow: Flow) -> str:
    return str(flow.harness.sql("SELECT dataset_uuid FROM datasets WHERE name = 'shared'")[0]["dataset_uuid"])


def _publish(flow: Flow) -> str:
    return zoo.publish(flow, "guest", "shared")


def test_a_batch_query_is_waited_for(flow: Flow, removal: Removal) -> None:
    flow.deploy(zoo.text("one"))
    zoo.work(flow, "one")
    (row,) = flow.harness.sql(
        """SELECT d.dataset_uuid, d.current_version, d.org_id, t.task_id
           FROM datasets d, tasks t JOIN jobs j USING (job_id)
           WHERE d.name = 'one_files' AND j.name = 'heard' LIMIT 1"""
    )
    flow.harness.sql(
        """INSERT INTO batch_queries (org_id, query_id, task_id, subject, request_hash, config, sql_sha256, datasets,
                                      input_bytes)
           VALUES ($1, gen_random_uuid(), $2, 'ann', '', '{}', repeat('0', 64), '[]', 0)""",
        row["org_id"],
        row["task_id"],
    )
    flow.harness.sql(
        "INSERT INTO batch_query_inputs (task_id, dataset_uuid, dataset_version) VALUES ($1, $2, $3)",
        row["task_id"],
        row["dataset_uuid"],
        row["current_version"],
    )
    removal.remove("one")
    removal.purge("one")
    removal.delete_all()
    assert removal.names("one")["dags"] == 1
    flow.harness.sql("DELETE FROM batch_queries")
    removal.delete_all()
    assert removal.names("one") == {}


def test_the_plan_of_gc_lists_it_with_its_size(flow: Flow, removal: Removal) -> None:
    flow.deploy(zoo.text("one"))
    zoo.work(flow, "one")
    plan = User(flow.harness, flow.org, "reader").call("GET", "/v1/dags/one/removal").body
    assert (plan["versions"], plan["active_version"], plan["webhooks"]) == (1, 1, ["one/hook"])
    assert plan["sources"] == ["clock (cron)", "hook (webhook)", "src (manual)", "ticks (always_on)"]
    assert {row["name"]: row.get("bytes") for row in plan["datasets"]}["one_files"] == 1
    removal.remove("one")
    (listed,) = flow.harness.service("GET", "/internal/gc").body["removed_dags"]
    assert (listed["org"], listed["dag"], listed["is_due"], listed["bytes"]) == (flow.org, "one", False, 1)
    removal.purge("one")
    (listed,) = flow.harness.service("GET", "/internal/gc").body["removed_dags"]
    assert listed["is_due"]
    reply = flow.harness.service("POST", "/internal/gc")
    assert reply.body["removed"]["rows_of_removed_dags"] > 10
    assert flow.harness.service("GET", "/internal/gc").body["tables_to_drop"] == 1
