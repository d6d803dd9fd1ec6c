"""From a chain to versioned files on a real stack with Spark, while its node, object store and worker go away."""

import asyncio
import io
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.chain import RECORDING, recorded
from tests.support.real_stack import ROOT, RealStack
from tests.support.template_package import TEMPLATE, install_template
from tracelake.adapters.s3.access import read_access
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.stack.machine import free_port

DAG = """
name: flows
defaults: {runtime: ecs_platform}
jobs:
  - {name: ranges, activation: source, source: {kind: manual}}
  - name: split
    activation: reactive
    operator: range_splitter
    runtime: dispatcher
    config: {size: 40}
    inputs: [{from: {job: ranges}}]
  - name: ingest
    activation: reactive
    operator: evm_ingest
    execution_strategy: PerPartition
    config: {chain_id: 1337001, retry_seconds: 1}
    inputs: [{from: {job: split}}]
    outputs: 3
  - name: decode
    activation: reactive
    operator: decode_logs
    execution_strategy: PerPartition
    inputs: [{from: {job: ingest, output_index: 2}}]
  - name: totals
    activation: reactive
    operator: spark_sql
    execution_strategy: PerPartition
    config: {query: "SELECT block_number, count(*) AS transfers FROM transfers GROUP BY block_number"}
    inputs: [{from: {job: decode}}]
publish:
  blocks: {from: {job: ingest, output_index: 0}, storage: s3}
  transactions: {from: {job: ingest, output_index: 1}, storage: s3}
  logs: {from: {job: ingest, output_index: 2}, storage: s3}
  transfers: {from: {job: decode}, storage: s3}
  block_totals:
    from: [{job: totals}]
    storage: postgres
    write_mode: buffered
    schema:
      columns: [{name: block_number, type: int64, nullable: false}, {name: transfers, type: int64}]
      unique: [block_number]
"""
SETTINGS = {
    "query_service": "true",
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
KEYS = ("passw0rd", "k3y-of-mine", "t0ken", "unspok3n")
"""What no log and no command may print."""
BLOCKS = 40
"""Of each unit."""


class PipelineStack(RealStack):
    """Units have numbers: unit n holds the blocks from n * BLOCKS on."""

    def __init__(self) -> None:
        super().__init__(settings=SETTINGS)
        # A package with an operator is installed beside Trace.
        self.variables["PYTHONPATH"] = f"{ROOT / 'src'}:{install_template(self.root)}"
        self.port = free_port()
        self.node: subprocess.Popen[str] | None = None
        self.home.root.mkdir()
        address = f"http://me:passw0rd@127.0.0.1:{self.port}/v2/k3y-of-mine?key=t0ken"
        self.home.rpc_file.write_text(f'default = "{address}"\n')

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

    def close(self) -> None:
        self.kill_node()
        super().close()

    def shell(self, line: str, *, fine: tuple[int, ...] = (0,)) -> str:
        printed = super().shell(line, fine=fine)
        assert not [key for key in KEYS if key in printed]
        return printed

    def trigger(self, first: int, last: int) -> None:
        self.shell(f"trace trigger flows/ranges --range {first * BLOCKS}-{(last + 1) * BLOCKS - 1}")

    def kill_part_at_work(self, name: str, first: int, last: int) -> int:
        """Kill a part of the stack while tasks of these units run: the node does not answer them until then."""
        assert self.node is not None
        self.node.send_signal(signal.SIGSTOP)
        try:
            self.trigger(first, last)
            self.wait_until(lambda: bool(self.tasks("flows", "ingest", "running")), "a task to run")
            return self.kill_part(name)
        finally:
            self.node.send_signal(signal.SIGCONT)

    def task(self, job: str, number: int) -> asyncpg.Record | None:
        """The task of a unit, or None while there is none."""
        rows = self.sql(TASK, job, f"{number * BLOCKS}-{(number + 1) * BLOCKS - 1}")
        return rows[0] if rows else None

    def await_failure(self, job: str, number: int, text: str) -> asyncpg.Record:
        """Waits until an attempt has failed with this text; returns the task as it was then."""
        failures: list[asyncpg.Record] = []

        def failed() -> bool:
            task = self.task(job, number)
            if task is not None and text in (task["error"] or ""):
                failures.append(task)
            return bool(failures)

        self.wait_until(failed, f"{job} to fail with {text!r}")
        return failures[0]

    def await_output(self, command: str, task_id: str, text: str) -> None:
        """Between two attempts, at least: while one runs, there is no error."""
        self.wait_until(
            lambda: text in self.shell(f"trace {command} {shlex.quote(task_id)} --json"), f"{command} to print {text!r}"
        )

    def await_units(self, *numbers: int) -> None:
        def done() -> bool:
            tasks = [self.task("decode", number) for number in numbers]
            return all(task is not None and task["status"] == "Completed" for task in tasks)

        self.wait_until(done, f"the units {numbers}")

    def committed(self) -> dict[str, pa.Table]:
        """What a reader of each dataset sees: exactly the files that were committed, as they were."""
        return asyncio.run(self._committed())

    async def _committed(self) -> dict[str, pa.Table]:
        dsn = self.home.state_dsn_file.read_text().strip()
        rows = await self._sql(dsn, "SELECT m.objects FROM dataset_units u JOIN manifests m USING (manifest_id)", ())
        store = S3ObjectStore(read_access(self.home.object_store_file))
        tables: dict[str, list[pa.Table]] = {}
        for file in (file for row in rows for file in json.loads(row["objects"])):
            body = await store.get(file["uri"], if_match=file["etag"])
            assert body is not None, file
            name = file["uri"].rsplit("/", 1)[1].split("_")[0]
            tables.setdefault(name, []).append(pq.read_table(io.BytesIO(body)))
        return {name: pa.concat_tables(parts) for name, parts in tables.items()}


@pytest.fixture
def stack() -> Iterator[PipelineStack]:
    stack = PipelineStack()
    with stack.running():
        yield stack


def assert_complete(stack: PipelineStack, units: int) -> None:
    """The datasets hold the first units of the chain, each row once."""
    blocks = recorded(400)[: units * BLOCKS]
    tables = stack.committed()
    assert sorted(tables["blocks"]["block_number"].to_pylist()) == list(range(units * BLOCKS))
    hashes = [transaction["hash"] for one in blocks for transaction in one.block["transactions"]]
    assert sorted("0x" + row.hex() for row in tables["transactions"]["transaction_hash"].to_pylist()) == sorted(hashes)
    logs = [(one.number, int(log["logIndex"], 16)) for one in blocks for fate in one.receipts for log in fate["logs"]]
    columns = [tables["logs"][name].to_pylist() for name in ("block_number", "log_index")]
    assert sorted(zip(*columns, strict=True)) == logs
    assert tables["transfers"].num_rows > 0
    assert set(tables["transfers"]["block_number"].to_pylist()) <= set(tables["logs"]["block_number"].to_pylist())


def check_batch_queries(stack: PipelineStack) -> None:
    """What a person asks of Spark: over files and tables, answered, refused, failed and canceled."""
    assert stack.stack.query_url is not None
    rows = stack.committed()["transfers"]
    merged = "query 'SELECT coalesce(sum(transfers), 0)::BIGINT FROM block_totals'"
    stack.wait_until(lambda: stack.trace(merged)["rows"] == [[rows.num_rows]], "the table of all units")
    result = stack.files / "result.parquet"
    stack.shell(
        "trace query --batch 'SELECT block_number, count(*) AS n, max(t.transfers) AS total FROM transfers"
        " JOIN block_totals t USING (block_number) WHERE block_number >= $low GROUP BY block_number"
        f" ORDER BY block_number DESC' --param low:int64=50 --output {result}"
    )
    table = pq.read_table(result)
    counts = {number: 0 for number in sorted(rows["block_number"].to_pylist(), reverse=True) if number >= 50}
    for number in rows["block_number"].to_pylist():
        if number in counts:
            counts[number] += 1
    assert table.column("block_number").to_pylist() == list(counts), "in the order of the query"
    assert table.column("n").to_pylist() == table.column("total").to_pylist() == list(counts.values())

    failed = stack.shell("trace query --batch 'SELECT block_number / 0 AS unspok3n FROM logs' 2>&1 | cat")
    assert "query_division_by_zero" in failed
    endless = "SELECT count(*) AS n FROM logs a" + "".join(
        f" JOIN logs {name} ON a.log_index * 0 = {name}.log_index * 0" for name in "bcde"
    )
    query_id = stack.shell(f"trace query --batch --detach '{endless}'").strip()

    def state() -> str:
        text = stack.shell(f"trace query --status {query_id} --json", fine=(0, 1))
        return str(json.loads(text)["state"])

    stack.wait_until(lambda: state() == "running", "the batch query to run")
    stack.shell(f"trace query --cancel {query_id}")
    stack.wait_until(lambda: state() == "canceled", "the batch query to be canceled")
    assert stack.shell("trace query --list").count("done") == 1
    entries = stack.trace("audit --queries")["entries"][::-1]
    submitted = [entry["query_id"] for entry in entries if entry["outcome"] == "submitted"]
    outcomes = [entry["outcome"] for entry in entries if entry["query_id"] in submitted]
    expected = ["ok", "query_division_by_zero", "query_canceled"]
    assert outcomes == [outcome for end in expected for outcome in ("submitted", end)]


def check_operator_of_a_package(stack: PipelineStack) -> None:
    """docs/operators/adding.md, its last step: the operator runs in the process of its org, and its version is kept."""
    rows = stack.trace("operators")["operators"]
    assert {row["name"]: row.get("package") for row in rows}["rows_per_block"] == "acme-operators 0.1.0"
    stack.shell(f"trace deploy {shlex.quote(str(TEMPLATE / 'dag.yaml'))}")
    stack.shell("trace trigger busy_blocks/backfill --range 0-99 --wait")
    result = stack.files / "busy_blocks.parquet"
    stack.shell(f"trace read busy_blocks --output {result.name}")
    counted = pq.read_table(result).to_pylist()
    logs = {one.number: sum(len(fate["logs"]) for fate in one.receipts) for one in recorded(400)[:100]}
    expected = {number: count for number, count in logs.items() if count >= 10}
    assert {row["block_number"]: row["rows"] for row in counted} == expected
    (task,) = stack.tasks("busy_blocks", "count", "completed")
    attempts = stack.trace(f"tasks {task}")["attempts"]
    assert attempts[-1]["operator_package"] == "acme-operators 0.1.0"


def test_a_range_becomes_files_whatever_goes_away(stack: PipelineStack) -> None:
    """One story, since a stack takes long to start: each part finds the datasets as the one before has left them."""
    stack.deploy("flows", DAG)
    assert "9-0" in stack.shell("trace trigger flows/ranges --range 9-0", fine=(2,))

    # The node is away while there is work, and is back.
    stack.trigger(0, 0)
    task = stack.await_failure("ingest", 0, "rpc_unavailable: blocks 0 to 39: node-1: ")
    assert task["status"] != "Completed"
    for command in ("tasks", "why"):
        stack.await_output(command, task["task_id"], "node-1: it takes no connections")
    stack.start_node()
    stack.await_units(0)
    completed = stack.task("ingest", 0)
    assert completed is not None
    assert completed["attempt"] > 1
    assert_complete(stack, 1)
    attempts: list[Any] = stack.trace(f"tasks {completed['task_id']}")["attempts"]
    assert attempts[-1]["spark"]["stages"] > 0, "what Spark did is kept"

    # The object store stands still, longer than anybody waits for it.
    object_store = stack.parts()["object-store"]["pid"]
    os.kill(object_store, signal.SIGSTOP)
    stack.trigger(1, 1)
    task = stack.await_failure("ingest", 1, "The object store is not available right now")
    stack.await_output("why", task["task_id"], "The object store is not available right now")
    assert len(stack.trace("events --dataset blocks")["events"]) == 1, "nothing of it was committed"
    os.kill(object_store, signal.SIGCONT)
    stack.await_units(1)
    assert_complete(stack, 2)

    # The object store, then the worker, is killed while tasks are at work; the supervisor starts it again.
    killed = {}
    killed["object-store"] = stack.kill_part_at_work("object-store", 2, 3)
    stack.await_units(2, 3)
    killed["worker"] = stack.kill_part_at_work("worker", 4, 4)
    stack.await_units(4)
    for name, pid in killed.items():
        assert stack.parts()[name]["pid"] != pid
    repeated = stack.task("ingest", 4)
    assert repeated is not None
    assert repeated["attempt"] > 1, "the lost attempt was repeated"
    assert_complete(stack, 5)

    check_batch_queries(stack)
    check_operator_of_a_package(stack)

    logs = "".join(path.read_text(errors="replace") for path in stack.home.root.rglob("*.log"))
    assert logs
    assert not [key for key in KEYS if key in logs]
