"""The operators over Spark Connect: a server of its own, and a client without Java."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.cluster import checks, jobs
from tests.spark.cluster.daemons import ConnectServer
from tests.spark.cluster.driver import Driver, Task, driver
from tests.spark.cluster.flow import Flow
from tests.support.chain import ServedChain
from tests.support.postgres import wait_until
from tracelake.adapters.s3.access import S3Access
from tracelake.spark.failures import LOST


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect")).serving() as server:
        yield server


@pytest.fixture(scope="module")
def connected(
    server: ConnectServer, access: S3Access, chain: ServedChain, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    environment = {"TRACE_RPC_DEFAULT": chain.url, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
    with driver(server.place, access, tmp_path_factory.mktemp("client"), environment) as connected:
        yield connected


def test_operators_write_what_they_write_on_one_machine(connected: Driver, local_flow: Flow, access: S3Access) -> None:
    flow = Flow(connected.run, access).all()
    checks.writes_what_one_machine_writes(flow, local_flow)
    assert {result.spark for result in flow.results.values()} == {None}


def test_ranges_and_where_choose_the_same_rows(connected: Driver, local_flow: Flow, access: S3Access) -> None:
    checks.reads_what_one_machine_reads(connected, local_flow, access)


def test_executors_run_the_code_that_was_sent(connected: Driver) -> None:
    checks.runs_the_code_that_was_sent(connected)


def test_nothing_is_printed_but_the_log(connected: Driver) -> None:
    checks.prints_nothing_but_its_log(connected)


def test_cancelling_stops_the_executors_work(connected: Driver, marks: Path) -> None:
    checks.stops_what_was_cancelled(connected, marks)


def test_when_the_server_dies_the_task_is_for_another_attempt_and_the_next_one_runs(
    server: ConnectServer, connected: Driver, local_flow: Flow, access: S3Access, marks: Path
) -> None:
    running = connected.ask(jobs.wait_in_an_executor, Task("noop", {}, (0, 9), []), marks)
    wait_until(lambda: running.done() or any(marks.iterdir()), "the work to begin", 180)
    server.kill()
    server.start()
    assert running.result(timeout=200) == ("SparkFailedError", LOST)
    checks.reads_what_one_machine_reads(connected, local_flow, access)
