"""Retries never duplicate outputs: an attempt dies at every step of its outputs, and the next one does all of it again.

Rows of a buffered dataset go through a real sink into a real table; files are committed by copy, as users' files are.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.http.support import Claimed, claimed, make_job
from tests.sink.flow import BufferFlow
from tests.support.dispatcher import DispatcherHarness, Reply, fence
from tests.support.postgres import TestCluster
from tracelake.db.transaction import Connection, Store
from tracelake.errors import StoreUnavailableError

ROWS = [{"key": 1, "value": "a"}, {"key": 2, "value": "b"}]
UNIT = {"partition_key": "0-9", "start": 0, "end": 9}


@pytest.fixture(scope="module")
def harness(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatcherHarness]:
    state, queue = cluster.fresh("state"), cluster.fresh("queue", role="trace_queue")
    home: Path = tmp_path_factory.mktemp("dispatcher")
    running = DispatcherHarness.start(state, queue, home)
    running.use_movable_clock()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def data_dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


class Died(Exception):
    pass


def walk(steps: dict[str, Callable[[], object]], fault: str) -> None:
    """Takes the steps of an attempt until the fault."""
    for name, step in steps.items():
        if fault == f"before {name}":
            raise Died
        step()
        if fault == f"after {name}":
            raise Died


def claim_again(harness: DispatcherHarness, task_id: str) -> Any:
    """The lease of the dead attempt expires, and the task is tried again."""
    harness.reap()
    harness.advance(harness.config.default_lease_seconds + 1)
    harness.reap()
    harness.advance(60)
    assert harness.requeue_due() >= 1
    lease = harness.claim(task_id, worker_id="another").body
    assert lease["attempt"] == 2, lease
    return lease


def is_finished(harness: DispatcherHarness, task_id: str) -> bool:
    return bool(harness.row(task_id)["status"] == "Completed")


def repeat(call: Callable[[], Reply]) -> Reply:
    """As the runner does until there is an answer."""
    for _ in range(5):
        reply = call()
        if reply.status != 503:
            return reply
    raise AssertionError("no answer")


class CommitFault:
    """The Dispatcher dies before or after the next commit that wrote something about tasks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
        self.reached = 0
        commit, number = Store.commit, self

        async def failing(store: Store, connection: Connection) -> None:
            wrote = await connection.fetchval("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
            if not wrote or number.reached:
                await commit(store, connection)
                return
            number.reached += 1
            if fault == "after commit":
                await commit(store, connection)
            raise asyncpg.ConnectionDoesNotExistError("killed")

        monkeypatch.setattr(Store, "commit", failing)


@pytest.mark.parametrize(
    "fault", ["before put", "after put", "after publish", "before complete", "before commit", "after commit"]
)
def test_rows_are_published_once(
    harness: DispatcherHarness, data_dsn: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = BufferFlow(harness, data_dsn, org=f"rows_{fault.replace(' ', '_')}")
    task_id, first = flow.attempt("left")

    def steps(lease: Any) -> dict[str, Callable[[], object]]:
        uri = lease["task"]["outputs"][0]["storage"]["buffer_prefix"] + "batch.jsonl"
        data = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
        body = fence(task_id, lease, status="Completed")
        return {
            "put": lambda: harness.run(harness.objects.put(uri, data)),
            "publish": lambda: repeat(lambda: flow.try_publish(task_id, lease, None, dedupe_scope="large")),
            "complete": lambda: repeat(lambda: harness.task("complete", lease["capability_token"], body)),
        }

    if "commit" in fault:
        steps(first)["put"]()
        for name in ("publish", "complete"):
            with monkeypatch.context() as patch:
                commits = CommitFault(patch, fault)
                steps(first)[name]()
                assert commits.reached == 1
    else:
        with pytest.raises(Died):
            walk(steps(first), fault)
        second = claim_again(harness, task_id)
        late = flow.try_publish(task_id, first, ROWS, dedupe_scope="large")
        assert (late.status, late.code) == (409, "fenced"), "the dead attempt comes back"
        walk(steps(second), "")
    assert is_finished(harness, task_id)
    flow.sink()
    assert flow.rows("key", "value") == [(1, "a"), (2, "b")]
    assert (flow.open_batches(), flow.letters(), len(flow.reader_units())) == (0, [], 1)


@pytest.mark.parametrize(
    "fault",
    [
        "before put",
        "after put",
        "after mark",
        "before complete",
        "before copy",
        "after copy",
        "before commit",
        "after commit",
    ],
)
def test_files_are_committed_once(harness: DispatcherHarness, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"timeout_seconds": 600, "heartbeat_timeout_seconds": 60}
    task = claimed(harness, make_job(harness, operator="udf", limits=limits), unit=UNIT)

    def steps(attempt: Claimed) -> dict[str, Callable[[], object]]:
        prefix = attempt.where("s3")["write_prefix"]
        published = [attempt.publication(range_start=0, range_end=9)]
        events = [attempt.output("s3") | UNIT]
        return {
            "put": lambda: attempt.put(prefix + "blocks_0_9.parquet", b"PAR1"),
            "mark": lambda: attempt.put(prefix + "_SUCCESS", b""),
            "complete": lambda: repeat(
                lambda: attempt.call("complete", status="Completed", datasets_published=published, events=events)
            ),
        }

    if "commit" in fault:
        walk({name: step for name, step in steps(task).items() if name != "complete"}, "")
        with monkeypatch.context() as patch:
            commits = CommitFault(patch, fault)
            steps(task)["complete"]()
            assert commits.reached == 1
    elif "copy" in fault:
        with monkeypatch.context() as patch:
            copy, copies = harness.objects.copy, []

            async def failing(uri: str, to: str) -> Any:
                copies.append(to)
                if len(copies) > 1:
                    return await copy(uri, to)
                if fault == "after copy":
                    await copy(uri, to)
                raise StoreUnavailableError("killed")

            patch.setattr(harness.objects, "copy", failing)
            walk(steps(task), "")
            assert len(copies) > 1, "the report was repeated"
    else:
        with pytest.raises(Died):
            walk(steps(task), fault)
        second = Claimed(harness, task.task_id, task.job, claim_again(harness, task.task_id))
        assert task.call("complete", status="Completed").code == "fenced", "the dead attempt comes back"
        walk(steps(second), "")
    assert is_finished(harness, task.task_id)
    rows = harness.sql("SELECT objects FROM manifests WHERE task_id = $1", task.task_id)
    (file,) = [file for row in rows for file in json.loads(row["objects"])]
    assert harness.run(harness.objects.get(file["uri"], if_match=file["etag"])) == b"PAR1"
    events = harness.sql("SELECT FROM events WHERE producer = $1", task.task_id)
    assert len(events) == 1
