"""A purge leaves nothing of its DAG anywhere, and takes nothing from anybody else."""

from uuid import UUID

import pytest

from tests.removal import zoo
from tests.removal.support import Removal
from tests.routing.support import Flow
from tests.sources.webhook_support import Hook
from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.retention import removed_dags
from tracelake.model.job import buffer_queue

DAY = 24 * 3600


def fill(flow: Flow) -> None:
    """Two DAGs alike, with two versions each, and everything in them."""
    for name in ("one", "two"):
        flow.deploy(zoo.text(name))
        zoo.work(flow, name)
        flow.deploy(zoo.text(name, 1))
        flow.drain()
        zoo.write_files(flow, name, 0)
        flow.harness.run(flow.harness.dispatcher.builds.run_once())
    flow.harness.relay()


def drop_tables(flow: Flow) -> None:
    """As a sink does, without Postgres data."""
    removed = flow.harness.run(flow.harness.dispatcher.buffers.list()).removed
    if removed:
        body = {"dataset_uuids": [str(one) for one in removed]}
        assert flow.harness.service("POST", "/internal/tables-dropped", body).body == {"recorded": len(removed)}


def test_nothing_is_left_and_the_other_dag_has_lost_nothing(flow: Flow, removal: Removal) -> None:
    fill(flow)
    ids, before = removal.ids("one"), zoo.observe(flow, "two")
    assert len(removal.leftovers(ids)) > 20, "there was something to lose"
    removal.remove("one")
    removal.delete_all()
    assert removal.names("one"), "not before its time"
    flow.harness.advance(6 * DAY)
    removal.delete_all()
    assert removal.restore("one").state == "restored"
    assert zoo.observe(flow, "one")["files"], "nothing was lost"
    removal.remove("one")
    flow.harness.advance(8 * DAY)
    removal.delete_all()
    assert set(removal.leftovers(ids)) <= {"removed_tables", "messages"}, "a sink has not dropped the table yet"
    drop_tables(flow)
    removal.delete_all()
    assert (removal.leftovers(ids), removal.names("one")) == ({}, {})
    assert zoo.observe(flow, "two") == before
    zoo.work(flow, "two", 10)
    again = flow.deploy(zoo.text("one"))
    assert again.plan.version == 1
    zoo.work(flow, "one")


def test_a_running_task_is_waited_for(flow: Flow, removal: Removal) -> None:
    flow.deploy(zoo.text("one"))
    zoo.work(flow, "one")
    (run,) = zoo.own_tasks(flow, "one", "ticks")
    lease = flow.claim(run["task_id"])
    removal.remove("one")
    removal.purge("one")
    removal.delete_all()
    assert "tasks" in removal.leftovers([str(run["task_id"])])
    flow.complete(run["task_id"], lease, status="Canceled")
    removal.delete_all()
    assert removal.names("one") == {}
    reply = flow.harness.task(
        "heartbeat",
        lease["capability_token"],
        {"task_id": str(run["task_id"]), "attempt": 1, "lease_token": lease["lease_token"]},
    )
    assert (reply.status, reply.body["error"]["code"]) == (404, "task_not_found"), "late calls"


def test_a_webhook_of_the_same_name_has_another_secret(flow: Flow, removal: Removal) -> None:
    flow.deploy(zoo.text("one"))
    hook = Hook(flow.harness, flow.org, path="one/hook", dag="one")
    old = hook.secret()
    removal.remove("one")
    assert flow.harness.sql("SELECT FROM webhooks"), "restored it answers as before"
    removal.restore("one")
    assert hook.secret() == old
    removal.remove("one")
    removal.purge("one")
    removal.delete_all()
    assert not flow.harness.sql("SELECT FROM webhooks")
    flow.deploy(zoo.text("one"))
    assert hook.secret() != old


def test_messages_of_its_batches_go_with_the_table(flow: Flow, removal: Removal) -> None:
    flow.deploy(zoo.text("one"))
    zoo.work(flow, "one")
    flow.harness.relay()
    dataset: UUID = flow.harness.sql("SELECT dataset_uuid FROM buffered_tables")[0]["dataset_uuid"]
    queue = flow.harness.dispatcher.ports.queue
    name = buffer_queue(dataset)
    assert [depth.ready for depth in flow.harness.run(queue.depths()) if depth.queue == name] == [1]
    removal.remove("one")
    assert [item.name for item in flow.harness.run(flow.harness.dispatcher.buffers.list()).datasets] == ["one_rows"]
    removal.purge("one")
    removal.delete_all()
    listed = flow.harness.run(flow.harness.dispatcher.buffers.list())
    assert (listed.datasets, listed.removed) == ([], [dataset])
    drop_tables(flow)
    removal.delete_all()
    assert [depth for depth in flow.harness.run(queue.depths()) if depth.queue == name] == []
    assert flow.harness.run(flow.harness.dispatcher.buffers.list()).removed == []


class _CrashError(Exception):
    """The process died here."""


@pytest.mark.parametrize("after", [False, True], ids=["before commit", "after commit"])
def test_a_crash_at_any_commit_is_made_good(
    flow: Flow, removal: Removal, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Every round dies at one of its first five commits, until one comes through."""
    monkeypatch.setattr(removed_dags, "BATCH", 3)
    fill(flow)
    ids, before = removal.ids("one"), zoo.observe(flow, "two")
    removal.remove("one")
    removal.purge("one")
    commit = Store.commit
    crashes = left = 0

    async def crash(store: Store, connection: Connection) -> None:
        nonlocal left
        if await connection.fetchval("SELECT pg_current_xact_id_if_assigned() IS NULL"):
            return await commit(store, connection)
        left -= 1
        if left >= 0:
            return await commit(store, connection)
        if after:
            await commit(store, connection)
        raise _CrashError

    with monkeypatch.context() as patch:
        patch.setattr(Store, "commit", crash)
        while True:
            left = crashes % 5
            try:
                flow.harness.run(flow.harness.dispatcher.retention.removed_dags.run_once())
                flow.harness.run(flow.harness.dispatcher.retention.run_once())
            except _CrashError:
                crashes += 1
                assert crashes < 500
                continue
            break
    assert crashes > 20
    removal.delete_all()
    drop_tables(flow)
    removal.delete_all()
    assert (removal.leftovers(ids), removal.names("one")) == ({}, {})
    assert zoo.observe(flow, "two") == before


def test_the_objects_go_also_if_the_store_fails_in_between(
    flow: Flow, removal: Removal, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow.deploy(zoo.text("one"))
    zoo.work(flow, "one")
    ids = removal.ids("one")
    removal.remove("one")
    removal.purge("one")

    async def fail(_uri: str) -> None:
        raise RuntimeError("killed")

    flow.harness.run(flow.harness.dispatcher.retention.removed_dags.run_once())
    with monkeypatch.context() as patch:
        patch.setattr(flow.harness.objects, "delete", fail)
        assert flow.harness.service("POST", "/internal/gc").status == 500
    assert removal.names("one") == {}
    assert "trace-datasets/datasets" in removal.leftovers(ids)
    removal.delete_all()
    assert removal.leftovers(ids).keys() <= {"removed_tables"}
