"""What holds wherever Spark is."""

import json
from pathlib import Path

from tests.spark.cluster import jobs
from tests.spark.cluster.driver import Driver, Task
from tests.spark.cluster.flow import Flow
from tests.support.postgres import wait_until
from tracelake.adapters.s3.access import S3Access


def writes_what_one_machine_writes(here: Flow, there: Flow) -> None:
    ours, theirs = here.tables(), there.tables()
    assert list(ours) == list(theirs)
    for dataset, files in theirs.items():
        assert list(ours[dataset]) == list(files)
        for name, table in files.items():
            assert ours[dataset][name].schema == table.schema, name
            assert ours[dataset][name].to_pylist() == table.to_pylist(), name
    for name, result in there.results.items():
        rows = [(report.row_count, report.file_count) for report in here.results[name].outputs]
        assert rows == [(report.row_count, report.file_count) for report in result.outputs]
    assert sum(table.num_rows for table in ours["transfers"].values()) > 100, "there is something to compare"
    assert sum(table.num_rows for table in ours["findings"].values()) == 1


def reads_what_one_machine_reads(driver: Driver, local: Flow, access: S3Access) -> None:
    """A range that cuts files and leaves some out, and `where` with bytes, several values, and none."""
    (logs,) = [table for name, table in local.files("logs") if "_50_99" in name]
    addresses = sorted({row["address"] for row in logs.to_pylist()})[:3]
    where = {"address": ["0x" + address.hex() for address in addresses], "topic3": None}
    task = Task(
        "spark_sql",
        {"query": "SELECT * FROM logs", "order_by": ["block_number", "log_index"]},
        (70, 120),
        ["some"],
        [local.input("logs", **where)],
    )
    flow = Flow(driver.run, access)
    flow.do(task)
    (found,) = [table for _, table in flow.files("some")]
    wanted = [
        row
        for _, table in local.files("logs")
        for row in table.to_pylist()
        if 70 <= row["block_number"] <= 120 and row["address"] in addresses and row["topic3"] is None
    ]
    assert found.to_pylist() == sorted(wanted, key=lambda row: (row["block_number"], row["log_index"]))
    assert wanted


def runs_the_code_that_was_sent(driver: Driver) -> None:
    for file, python in driver.ask(jobs.where_code_comes_from).result(timeout=120):
        assert "tracelake.zip/tracelake/adapters" in file
        assert python.endswith("/python/bin/python"), "an interpreter that has no other way to it"


def stops_what_was_cancelled(driver: Driver, marks: Path) -> None:
    assert (
        driver.ask(jobs.cancel_when_it_works, Task("noop", {}, (0, 9), []), marks, 2).result(timeout=200) == "canceled"
    )
    workers = [mark.name for mark in marks.iterdir()]
    assert len(workers) == 2
    wait_until(lambda: not any(Path("/proc", pid).exists() for pid in workers), "the Python work to stop")


def prints_nothing_but_its_log(driver: Driver) -> None:
    """From the start of Spark on, whatever Java, Spark and their failures have to say."""
    driver.ask(jobs.open_session).result(timeout=200)
    driver.ask(jobs.fail_in_a_query).result(timeout=60)
    said = [json.loads(line) for line in driver.output.read_text().splitlines()]
    assert {entry["process"] for entry in said} <= {"worker"}
