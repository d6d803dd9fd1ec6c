"""From a chain to versioned files on a real stack: SeaweedFS, and a worker with Spark that is killed on the way."""

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.chain import recorded, serve_chain
from tests.support.postgres import scratch_directory, wait_until
from tracelake.adapters.s3.access import read_access
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.settings.home import Home
from tracelake.stack.machine import postgres_processes_in, socket_directory

BLOCKS = 120
DAG = """
name: flows
defaults: {runtime: ecs_platform}
jobs:
  - {name: ranges, activation: source, source: {kind: manual}}
  - name: split
    activation: reactive
    operator: range_splitter
    runtime: dispatcher
    config: {size: 60}
    inputs: [{from: {job: ranges}}]
  - name: ingest
    activation: reactive
    operator: evm_ingest
    execution_strategy: PerPartition
    config: {chain_id: 1337001}
    inputs: [{from: {job: split}}]
    outputs: 3
publish:
  blocks: {from: {job: ingest, output_index: 0}, storage: s3}
  transactions: {from: {job: ingest, output_index: 1}, storage: s3}
  logs: {from: {job: ingest, output_index: 2}, storage: s3}
"""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    root = scratch_directory()
    home = Home(root / "home")
    with serve_chain(BLOCKS) as chain:
        environment = os.environ | {"TRACE_RPC_DEFAULT": chain.url}
        command = [sys.executable, "-m", "tracelake", "up", "--json", "--home", str(home.root)]
        for setting in ("spark_master=local[2]", "lease_seconds=5", "heartbeat_seconds=1", "retry_min_seconds=0.2"):
            command += ["--set", setting]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), process.communicate()
            yield home
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=90) == 0
        finally:
            process.kill()
            process.communicate()
            for directory in (home.postgres_state, home.postgres_data):
                wait_until(lambda d=directory: not postgres_processes_in(d.resolve()), "postgres to end")  # type: ignore[misc]
            shutil.rmtree(socket_directory(home.root), ignore_errors=True)
            shutil.rmtree(root, ignore_errors=True)


def trace(home: Home, *arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "tracelake", *arguments, "--home", str(home.root), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def tables(home: Home) -> dict[str, pa.Table]:
    """What the files hold that were written, by the name of their dataset."""
    store = S3ObjectStore(read_access(home.object_store_file))

    async def read() -> dict[str, list[pa.Table]]:
        found: dict[str, list[pa.Table]] = {}
        for meta in await store.list("s3://trace-datasets/datasets/"):
            name = meta.uri.rsplit("/", 1)[1]
            if name.endswith(".parquet"):
                body = await store.get(meta.uri, if_match=meta.etag)
                assert body is not None
                found.setdefault(name.split("_")[0], []).append(pq.read_table(io.BytesIO(body)))
        return found

    return {name: pa.concat_tables(parts) for name, parts in asyncio.run(read()).items()}


def worker_pid(home: Home) -> int:
    parts = json.loads(home.parts_file.read_text())
    return next(int(part["pid"] or 0) for part in parts if part["name"] == "worker")


def test_a_range_becomes_files_though_the_worker_is_killed(home: Home, tmp_path: Path) -> None:
    (tmp_path / "flows.yaml").write_text(DAG)
    trace(home, "deploy", str(tmp_path / "flows.yaml"))
    trace(home, "trigger", "flows/ranges", "--range", f"0-{BLOCKS - 1}")
    wait_until(lambda: bool(trace(home, "tasks", "--status", "Running")["tasks"]), "a task to run")
    os.kill(worker_pid(home), signal.SIGKILL)
    done = "Completed"

    def finished() -> bool:
        found = trace(home, "tasks", "--job", "flows/ingest")["tasks"]
        assert isinstance(found, list)
        return len(found) == 2 and all(task["status"] == done for task in found)

    wait_until(finished, "both units", timeout=200)
    expected = recorded(BLOCKS)
    found = tables(home)
    assert sorted(found["blocks"]["block_number"].to_pylist()) == list(range(BLOCKS))
    assert found["transactions"].num_rows == sum(len(block.block["transactions"]) for block in expected)
    assert found["logs"].num_rows == sum(len(receipt["logs"]) for block in expected for receipt in block.receipts)
    tasks = trace(home, "tasks", "--job", "flows/ingest")["tasks"]
    assert isinstance(tasks, list)
    for task in tasks:
        attempts = trace(home, "tasks", task["task_id"])["attempts"]
        assert isinstance(attempts, list)
        assert attempts[-1]["spark"]["stages"] > 0, "what Spark did is kept"
