"""The Spark process of an org holds nothing and reaches nothing of the worker or of another org; it ends alone."""

import dataclasses
import json
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.postgres import wait_until
from tracelake.catalogue.context import AttemptLostError, CanceledError, OperatorContext, OperatorResult
from tracelake.ports import ObjectMeta
from tracelake.spark.child import sandbox
from tracelake.spark.failures import SparkFailedError
from tracelake.spark.testing import BUCKET, DirectoryTransfer, Trial, make_unit
from tracelake.wire.units import PayloadInput
from tracelake.worker.org_process.launch import OrgProcessConfig
from tracelake.worker.org_process.pool import OrgProcesses
from tracelake.worker.org_process.process import OrgProcess
from tracelake.worker.org_process.process_tree import family, read_parents

SQL = "tracelake.spark.operators.spark_sql"
COUNT = "SELECT block_number, count(*) AS n FROM transfers GROUP BY block_number"
ROOT = Path(__file__).parents[2]


class Org:
    """Tasks of one org."""

    def __init__(self, name: str, pool: OrgProcesses, root: Path) -> None:
        self.name = name
        self.pool = pool
        self.trial = Trial(Mock(spec=SparkSession), root)
        self.said: list[str] = []

    def add(self) -> None:
        self.trial.add_input("transfers", pa.table({"block_number": [1, 1, 2], "amount": [1, 2, 3]}))
        self.trial.add_output("counts")

    def context(self, query: str = COUNT, **changes: object) -> OperatorContext:
        self.trial.attempts += 1
        work = self.trial.work("spark_sql", {"query": query}, make_unit((0, 9)), self.trial.attempts, {})
        given: dict[str, Any] = {"org": self.name, "progress": self.said.append, "cancel": threading.Event(), **changes}
        return dataclasses.replace(work.context, **given)

    def run(self, query: str = COUNT, module: str = SQL) -> OperatorResult:
        return self.pool.run("spark_sql", module, self.context(query))

    def begin(self, context: OperatorContext, module: str = SQL) -> "Running":
        return Running(lambda: self.pool.run("spark_sql", module, context))

    @property
    def process(self) -> OrgProcess:
        return next(process for process in self.pool.processes if process.org == self.name)


class Running(threading.Thread):
    """An attempt on a thread, as an operator has one."""

    def __init__(self, function: Callable[[], OperatorResult]) -> None:
        super().__init__(daemon=True)
        self.function = function
        self.result: OperatorResult | None = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.function()
        except BaseException as error:
            self.error = error

    def end(self) -> "Running":
        self.join(120)
        assert not self.is_alive(), "the attempt has not ended"
        return self


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="trace-orgs-") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def pool(root: Path) -> Iterator[OrgProcesses]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACE_WORKER_TOKEN", "worker-token")
        patch.setenv("PYTHONPATH", str(ROOT))
        config = OrgProcessConfig(
            scratch=root / "scratch",
            master="local[2]",
            memory="500m",
            memory_bytes=500 * 2**20,
            stop_seconds=1.0,
            log_level="error",
            readable=(ROOT / "tests" / "security", ROOT / "tests" / "__init__.py"),
        )
        pool = OrgProcesses(config, DirectoryTransfer(root / "objects"), lambda: "", limit=2, spare=False)
        yield pool
        pool.close()


@pytest.fixture(scope="module")
def first(pool: OrgProcesses, root: Path) -> Org:
    org = Org("first", pool, root)
    org.add()
    return org


@pytest.fixture(scope="module")
def second(pool: OrgProcesses, root: Path) -> Org:
    (root / "second").mkdir()
    org = Org("second", pool, root)
    org.add()
    return org


def test_orgs_have_processes_of_their_own(first: Org, second: Org) -> None:
    for org in (first, second):
        result = org.run()
        assert result.outputs[0].row_count == 2
        assert result.spark is not None
    assert first.process is not second.process
    before = first.process
    first.run()
    assert first.process is before


@pytest.mark.skipif(not sandbox.landlock_version(), reason="the kernel has no Landlock")
def test_python_in_the_process_of_an_org_reaches_nothing(first: Org, second: Org, root: Path) -> None:
    first.run()
    second.run()
    secret = root / "keys" / "worker.token"
    secret.parent.mkdir()
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        plan = {
            "secret": str(secret),
            "other": str(second.process._directory),
            "worker": os.getpid(),
            "port": server.getsockname()[1],
            "foreign": f"{BUCKET}foreign/1.parquet",
        }
        (first.process._directory / "plan.json").write_text(json.dumps(plan))
        first.said.clear()
        first.run(module="tests.security.intruder")
    reached = json.loads(first.said[-1])
    assert reached.pop("environment") == {}
    assert {name: answer for name, answer in reached.items() if not answer.startswith("refused: ")} == {}
    assert not secret.with_name("mark").exists()


def test_work_that_does_not_stop_ends_its_own_process_and_no_other(first: Org, second: Org) -> None:
    second.run()
    beside = second.process
    gate = threading.Event()
    runaway = first.context()
    neighbour = first.context(files=_files_at(gate, first))
    first.said.clear()
    threads = first.begin(runaway, "tests.security.endless"), first.begin(neighbour)
    wait_until(lambda: "begun" in first.said and len(first.process._attempts) == 2, "both attempts")
    before = first.process
    runaway.cancel.set()
    assert isinstance(threads[0].end().error, CanceledError)
    assert isinstance(threads[1].end().error, AttemptLostError), "it costs no attempt"
    gate.set()
    assert before.end_reason == "runaway"
    assert beside.alive
    second.run()
    assert second.process is beside
    first.run()
    assert first.process is not before


def test_a_crash_costs_an_attempt_only_of_the_task_that_ran_alone(first: Org) -> None:
    first.run()
    gates = threading.Event(), threading.Event()
    contexts = [first.context(files=_files_at(gate, first), task_id=uuid4()) for gate in gates]
    threads = [first.begin(context) for context in contexts]
    wait_until(lambda: len(first.process._attempts) == 2, "both attempts")
    _kill_java(first.process)
    for gate, thread in zip(gates, threads, strict=True):
        gate.set()
        assert isinstance(thread.end().error, AttemptLostError)
    # Nobody knows which of them it was: each is tried again by itself.
    gate = threading.Event()
    again = dataclasses.replace(contexts[0], attempt=contexts[0].attempt + 10, files=_files_at(gate, first))
    thread = first.begin(again)
    wait_until(lambda: any(process._attempts for process in first.pool.processes), "the attempt", 120)
    assert first.process.alone
    _kill_java(first.process)
    gate.set()
    assert isinstance(thread.end().error, SparkFailedError)


def _files_at(gate: threading.Event, org: Org) -> Callable[[PayloadInput], list[ObjectMeta]]:
    """What the Dispatcher answers late: the attempt waits for it in its process."""

    def files(item: PayloadInput) -> list[ObjectMeta]:
        gate.wait(120)
        return org.trial.inputs[item.input_index][1]

    return files


def _kill_java(process: OrgProcess) -> None:
    below = family(process.pid, read_parents())
    java = [pid for pid in below if Path(f"/proc/{pid}/comm").read_text() == "java\n"]
    assert java
    os.kill(java[0], signal.SIGKILL)
