"""The operators on a standalone cluster: a master and two workers, each a process of its own."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.cluster import checks, jobs
from tests.spark.cluster.daemons import standalone
from tests.spark.cluster.driver import Driver, Task, driver
from tests.spark.cluster.flow import Flow
from tests.support.chain import ServedChain
from tests.support.postgres import wait_until
from tracelake.adapters.s3.access import S3Access
from tracelake.spark.failures import LOST


@pytest.fixture(scope="module")
def cluster(access: S3Access, chain: ServedChain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    root = tmp_path_factory.mktemp("standalone")
    with (
        standalone(root / "cluster") as place,
        driver(place, access, root / "driver", {"TRACE_RPC_DEFAULT": chain.url}) as cluster,
    ):
        yield cluster


def two_executors(cluster: Driver) -> None:
    wait_until(lambda: cluster.ask(jobs.executors).result(timeout=120) == 2, "both workers to have an executor", 180)


def test_operators_write_what_they_write_on_one_machine(cluster: Driver, local_flow: Flow, access: S3Access) -> None:
    flow = Flow(cluster.run, access).all()
    checks.writes_what_one_machine_writes(flow, local_flow)
    for result in flow.results.values():
        assert result.spark is not None
        assert result.spark.stages > 0


def test_ranges_and_where_choose_the_same_rows(cluster: Driver, local_flow: Flow, access: S3Access) -> None:
    checks.reads_what_one_machine_reads(cluster, local_flow, access)


def test_executors_run_the_code_that_was_sent(cluster: Driver) -> None:
    checks.runs_the_code_that_was_sent(cluster)


def test_nothing_is_printed_but_the_log(cluster: Driver) -> None:
    checks.prints_nothing_but_its_log(cluster)


def test_cancelling_stops_the_executors_work(cluster: Driver, marks: Path) -> None:
    two_executors(cluster)
    checks.stops_what_was_cancelled(cluster, marks)


def test_an_executor_that_is_killed_costs_nothing_but_time(cluster: Driver, access: S3Access, marks: Path) -> None:
    """It is killed when it has uploaded a part and not yet said so: the part is made and uploaded once more."""
    two_executors(cluster)
    task = Task("noop", {}, (0, 3999), ["numbers"])
    running = cluster.ask(jobs.write_with_a_part_that_hangs, task, marks)
    wait_until(lambda: running.done() or any(marks.glob("hangs-*")), "a part to be uploaded", 180)
    assert not running.done(), running.exception()
    (worker,) = (int(mark.name.partition("-")[2]) for mark in marks.glob("hangs-*"))
    os.kill(_executor_of(worker), signal.SIGKILL)
    flow = Flow(lambda _: running.result(timeout=200), access)
    result = flow.do(task, repeated=1)
    rows = [row["block_number"] for _, table in flow.files("numbers") for row in table.to_pylist()]
    assert sorted(rows) == list(range(4000))
    assert result.outputs[0].row_count == 4000
    assert result.outputs[0].file_count == len(flow.written["numbers"]) == 4
    uploads = [line.split()[1] for line in (marks / "uploads").read_text().splitlines()]
    parts = [uri for uri in uploads if uri.endswith(".parquet")]
    assert len(parts) == len(set(parts)) == 5, "one part was made twice, and replaced nothing"
    wait_until(lambda: not Path("/proc", str(worker)).exists(), "the Python work to end with its executor")
    assert result.spark is not None
    assert result.spark.failed_tasks > 0


def test_when_java_dies_the_task_is_for_another_attempt_and_the_next_one_runs(
    cluster: Driver, local_flow: Flow, access: S3Access, marks: Path
) -> None:
    task = Task("noop", {}, (0, 9), [])
    running = cluster.ask(jobs.wait_in_an_executor, task, marks)
    wait_until(lambda: running.done() or any(marks.iterdir()), "the work to begin", 180)
    java = int((marks.parent / "java").read_text())
    os.kill(java, signal.SIGKILL)
    assert running.result(timeout=120) == ("SparkFailedError", LOST)
    checks.reads_what_one_machine_reads(cluster, local_flow, access)
    assert cluster.ask(jobs.java_process).result(timeout=60) != java


def _executor_of(worker: int) -> int:
    """The Java process above a Python worker."""
    pid = worker
    while "CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1
    return pid
