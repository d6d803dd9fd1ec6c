"""A node and an object store that go away under a running stack: clean retries, clear words, and the right tables."""

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.chain import RECORDING, recorded
from tests.support.postgres import scratch_directory, wait_until
from tracelake.adapters.s3.access import read_access
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.settings.home import Home
from tracelake.stack.machine import free_port, postgres_processes_in, socket_directory

DAG = """
name: flows
defaults: {runtime: ecs_platform}
jobs:
  - {name: ranges, activation: source, source: {kind: manual}}
  - name: ingest
    activation: reactive
    operator: evm_ingest
    execution_strategy: PerPartition
    config: {chain_id: 1337001, retry_seconds: 1}
    inputs: [{from: {job: ranges}}]
    outputs: 3
  - name: decode
    activation: reactive
    operator: decode_logs
    execution_strategy: PerPartition
    inputs: [{from: {job: ingest, output_index: 2}}]
publish:
  blocks: {from: {job: ingest, output_index: 0}, storage: s3}
  transactions: {from: {job: ingest, output_index: 1}, storage: s3}
  logs: {from: {job: ingest, output_index: 2}, storage: s3}
  transfers: {from: {job: decode}, storage: s3}
"""
SETTINGS = {
    "spark_master": "local[2]",
    "lease_seconds": "6",
    "heartbeat_seconds": "1",
    "retry_min_seconds": "2",
    "retry_max_seconds": "2",
    "max_attempts": "100",
    "s3_timeout_seconds": "1",
    "s3_retry_seconds": "1",
}
TASK = """
    SELECT t.task_id::text, t.status, t.attempt, t.error FROM tasks t JOIN jobs j USING (job_id)
    WHERE j.name = $1 AND t.unit->>'partition_key' = $2"""
KEYS = ("passw0rd", "k3y-of-mine", "t0ken")
BLOCKS = 40
"""Of each range."""


@dataclass
class Stack:
    root: Path
    port: int = field(default_factory=free_port)
    node: "subprocess.Popen[str] | None" = None

    @property
    def home(self) -> Home:
        return Home(self.root / "home")

    def start_node(self) -> None:
        command = [sys.executable, "-m", "tracelake.demo.chain.server", "--recording", str(RECORDING)]
        self.node = subprocess.Popen([*command, "--port", str(self.port)], stdout=subprocess.PIPE, text=True)
        assert self.node.stdout is not None
        assert self.node.stdout.readline()

    def kill_node(self) -> None:
        if self.node is not None:
            self.node.kill()
            self.node.communicate()
            self.node = None

    def trace(self, *arguments: str, fine: tuple[int, ...] = (0,)) -> Any:
        command = [sys.executable, "-m", "tracelake", *arguments, "--home", str(self.home.root), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode in fine, done.stdout + done.stderr
        assert not [key for key in KEYS if key in done.stdout + done.stderr]
        return json.loads(done.stdout) if done.stdout else done.stderr

    def trigger(self, number: int) -> None:
        self.trace("trigger", "flows/ranges", "--range", f"{number * BLOCKS}-{(number + 1) * BLOCKS - 1}")

    def task(self, job: str, number: int) -> Any:
        """The task of a range, or None while there is none."""
        key = f"{number * BLOCKS}-{(number + 1) * BLOCKS - 1}"
        found = asyncio.run(self.sql(TASK, job, key))
        return found[0] if found else None

    async def sql(self, query: str, *arguments: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.home.state_dsn_file.read_text().strip())
        try:
            return await connection.fetch(query, *arguments)
        finally:
            await connection.close()

    def fails(self, job: str, number: int, said: str) -> Any:
        """Waits until an attempt has failed with these words; answers the task."""

        seen: list[Any] = []

        def failed() -> bool:
            task = self.task(job, number)
            if task is not None and said in (task["error"] or ""):
                seen.append(task)
            return bool(seen)

        wait_until(failed, f"{job} to fail with {said!r}", timeout=200)
        return seen[0]

    def says(self, command: str, task_id: str, said: str) -> None:
        """Between two attempts, at least: while one runs, there is no error."""
        wait_until(lambda: said in json.dumps(self.trace(command, task_id)), f"{command} to say {said!r}", timeout=200)

    def completes(self, number: int) -> None:
        def done() -> bool:
            task = self.task("decode", number)
            return task is not None and task["status"] == "Completed"

        wait_until(done, f"range {number}", timeout=200)

    def part(self, name: str) -> int:
        parts = json.loads(self.home.parts_file.read_text())
        return next(int(part["pid"]) for part in parts if part["name"] == name)

    def committed(self) -> dict[str, pa.Table]:
        """What a reader of each dataset sees: exactly the files that were committed, as they were."""
        return asyncio.run(self._committed())

    async def _committed(self) -> dict[str, pa.Table]:
        rows = await self.sql("SELECT m.objects FROM dataset_units u JOIN manifests m USING (manifest_id)")
        store = S3ObjectStore(read_access(self.home.object_store_file))
        found: dict[str, list[pa.Table]] = {}
        for file in (file for row in rows for file in json.loads(row["objects"])):
            body = await store.get(file["uri"], if_match=file["etag"])
            assert body is not None, file
            name = file["uri"].rsplit("/", 1)[1].split("_")[0]
            found.setdefault(name, []).append(pq.read_table(io.BytesIO(body)))
        return {name: pa.concat_tables(parts) for name, parts in found.items()}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    stack = Stack(scratch_directory())
    stack.start_node()
    stack.home.root.mkdir()
    address = f"http://me:passw0rd@127.0.0.1:{stack.port}/v2/k3y-of-mine?key=t0ken"
    stack.home.rpc_file.write_text(f'default = "{address}"\n')
    command = [sys.executable, "-m", "tracelake", "up", "--json", "--home", str(stack.home.root)]
    for name, value in SETTINGS.items():
        command += ["--set", f"{name}={value}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), process.communicate()
        (stack.root / "flows.yaml").write_text(DAG)
        stack.trace("deploy", str(stack.root / "flows.yaml"))
        yield stack
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=90) == 0
    finally:
        process.kill()
        process.communicate()
        stack.kill_node()
        for directory in (stack.home.postgres_state, stack.home.postgres_data):
            wait_until(lambda d=directory: not postgres_processes_in(d.resolve()), "postgres to end")  # type: ignore[misc]
        shutil.rmtree(socket_directory(stack.home.root), ignore_errors=True)
        shutil.rmtree(stack.root, ignore_errors=True)


def assert_right(stack: Stack, ranges: int) -> None:
    """The datasets hold the first ranges of the chain, each row once."""
    blocks = recorded(400)[: ranges * BLOCKS]
    found = stack.committed()
    assert sorted(found["blocks"]["block_number"].to_pylist()) == list(range(ranges * BLOCKS))
    hashes = [transaction["hash"] for one in blocks for transaction in one.block["transactions"]]
    assert sorted("0x" + row.hex() for row in found["transactions"]["transaction_hash"].to_pylist()) == sorted(hashes)
    logs = [(one.number, int(log["logIndex"], 16)) for one in blocks for fate in one.receipts for log in fate["logs"]]
    assert (
        sorted(zip(*(found["logs"][name].to_pylist() for name in ("block_number", "log_index")), strict=True)) == logs
    )
    assert found["transfers"].num_rows > 0
    assert set(found["transfers"]["block_number"].to_pylist()) <= set(found["logs"]["block_number"].to_pylist())


def test_faults_of_a_pipeline(stack: Stack) -> None:
    """One story, since a stack takes long to start: each part finds the datasets as the one before has left them."""
    refused = stack.trace("trigger", "flows/ranges", "--range", "9-0", fine=(2,))
    assert "9-0" in refused

    # The node dies while there is work, and is back.
    stack.kill_node()
    stack.trigger(0)
    task = stack.fails("ingest", 0, "rpc_unavailable: blocks 0 to 39: node-1: ")
    assert task["status"] != "Completed"
    for command in ("tasks", "why"):
        stack.says(command, task["task_id"], "node-1: it takes no connections")
    stack.start_node()
    stack.completes(0)
    assert stack.task("ingest", 0)["attempt"] > 1
    assert_right(stack, 1)

    # The object store stands still, longer than anybody waits for it.
    os.kill(stack.part("object-store"), signal.SIGSTOP)
    stack.trigger(1)
    task = stack.fails("ingest", 1, "The object store is not available right now")
    stack.says("why", task["task_id"], "The object store is not available right now")
    assert len(stack.trace("events", "--dataset", "blocks")["events"]) == 1, "nothing of it was committed"
    os.kill(stack.part("object-store"), signal.SIGCONT)
    stack.completes(1)
    assert_right(stack, 2)

    # It is killed while tasks are at work, and is started again by the supervisor.
    for number in range(2, 4):
        stack.trigger(number)
    before = stack.part("object-store")
    os.kill(before, signal.SIGKILL)
    for number in range(2, 4):
        stack.completes(number)
    assert stack.part("object-store") != before
    assert_right(stack, 4)

    logs = "".join(path.read_text(errors="replace") for path in stack.home.root.rglob("*.log"))
    assert logs
    assert not [key for key in KEYS if key in logs]
