"""The Python SDK against a real Dispatcher and a real object store: what it says is what they take."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.support import Claimed, claimed, make_job
from tests.support.dispatcher import DispatcherHarness
from tests.support.object_store import object_store
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.adapters.s3.sts import EndpointMinter
from tracelake.sdk import CallError, FencedError, FunctionTask
from tracelake.stack import listeners
from tracelake.stack.seaweedfs import EmbeddedObjectStore
from tracelake.stack.store_roles import TASK_ROLE


@pytest.fixture(scope="module")
def seaweed() -> Iterator[EmbeddedObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def harness(
    seaweed: EmbeddedObjectStore, state_dsn: str, queue_dsn: str, tmp_path: Path
) -> Iterator[DispatcherHarness]:
    access = seaweed.access()
    running = DispatcherHarness.start(
        state_dsn, queue_dsn, tmp_path, store=S3ObjectStore(access), minter=EndpointMinter(access, TASK_ROLE)
    )
    try:
        yield running
    finally:
        running.stop()


def open_task(harness: DispatcherHarness) -> tuple[Claimed, FunctionTask]:
    job = make_job(harness, operator="udf", limits={"timeout_seconds": 600})
    source = harness.make_job("source", org="source", outputs=[])
    assert source
    unit = {"partition_key": "0-9", "start": 0, "end": 9}
    outputs = job["outputs"][0]
    read = {"input_index": 0, "dataset_uuid": outputs["dataset_uuid"], "dataset_version": outputs["dataset_version"]}
    task = claimed(harness, job, unit=unit, inputs=[read | {"unit": unit}])
    lease = task.lease
    event: dict[str, Any] = lease["task"] | {name: lease[name] for name in ("lease_token", "capability_token")}
    environment = {
        "TRACE_TASK_URL": listeners.url(harness.sockets["task"], "127.0.0.1"),
        "TRACE_CA_FILE": str(harness.tls.ca),
    }
    return task, FunctionTask(event, environment)


def test_a_function_from_its_first_call_to_its_report(harness: DispatcherHarness) -> None:
    claim, task = open_task(harness)
    assert task.heartbeat()["cancel"] is False
    assert task.get(task.put("state/ä b+c.json", b"{}")) == b"{}"
    assert task.publish([{"k": "1:0xab"}, {"k": "2:0xcd"}], key="k") == 2
    assert task.publish([{"k": "1:0xab"}, {"k": "2:0xcd"}], key="k") == 2
    [batch] = harness.sql("SELECT * FROM buffer_publishes WHERE task_id = $1", claim.task_id)
    assert (batch["record_count"], batch["attempt"]) == (2, 1)
    task.emit(output="none_set")
    task.publish_files({"part_0_9.parquet": b"PAR1"})
    with pytest.raises(CallError) as refusal:
        task.put(f"s3://{harness.config.layout.dataset_bucket}/datasets/elsewhere/x", b"1")
    assert refusal.value.code == "prefix_forbidden"
    with pytest.raises(CallError) as missing:
        task.get("nothing")
    assert missing.value.code == "object_not_found"
    reply = claim.call("complete", status="Completed", **task.final_report())
    assert reply.status == 200, reply
    [manifest] = harness.sql("SELECT objects FROM manifests WHERE task_id = $1", claim.task_id)
    [file] = json.loads(manifest["objects"])
    assert "/datasets/" in file["uri"]
    assert harness.run(harness.objects.get(file["uri"], if_match=file["etag"])) == b"PAR1"
    # Its keys still work where it wrote, and change nothing that counts.
    task.put(f"{claim.where('s3')['write_prefix']}part_0_9.parquet", b"late")
    assert harness.run(harness.objects.get(file["uri"], if_match=file["etag"])) == b"PAR1"
    with pytest.raises(FencedError):
        task.heartbeat()
