"""A deployed DAG whose work the Dispatcher does itself: ranges are split, passed on and put together again."""

import pytest

from tests.invoke.support import rows_waiting
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness

DAG = """
name: chain
jobs:
  - name: ranges
    activation: source
    source: {kind: manual}
  - name: cut
    activation: reactive
    runtime: dispatcher
    operator: range_splitter
    config: {size: 10}
    inputs: [{from: {job: ranges}}]
  - name: work
    activation: reactive
    runtime: lambda
    operator: noop
    execution_strategy: PerPartition
    inputs: [{from: {job: cut}}]
  - name: gather
    activation: reactive
    runtime: dispatcher
    operator: range_aggregator
    config: {size: 50}
    inputs: [{from: {job: work}}]
  - name: last
    activation: reactive
    runtime: dispatcher
    operator: noop
    inputs: [{from: {job: gather}}]
"""


@pytest.fixture
def flow(harness: DispatcherHarness) -> Flow:
    flow = Flow(harness)
    flow.deploy(DAG)
    return flow


def run_all(harness: DispatcherHarness) -> None:
    while rows_waiting(harness):
        harness.invoke()


def test_ranges_are_split_and_put_together(flow: Flow, harness: DispatcherHarness) -> None:
    flow.trigger("chain", "ranges", range={"start": 0, "end": 74})
    run_all(harness)
    assert flow.units("work") == sorted((f"p:{start}-{min(start + 9, 74)}", "") for start in range(0, 75, 10))
    assert flow.units("last") == [("p:0-49", "")]
    flow.trigger("chain", "ranges", range={"start": 75, "end": 99})
    run_all(harness)
    assert flow.units("last") == [("p:0-49", ""), ("p:50-99", "")]
    assert {row["status"] for row in harness.sql("SELECT DISTINCT status FROM tasks")} == {"Completed"}
    assert {row["attempt"] for row in harness.sql("SELECT DISTINCT attempt FROM tasks")} == {1}


def test_a_range_that_comes_again_is_not_worked_on_again(flow: Flow, harness: DispatcherHarness) -> None:
    for _ in range(2):
        flow.trigger("chain", "ranges", range={"start": 0, "end": 49})
        run_all(harness)
    assert (len(flow.tasks("work")), len(flow.tasks("last"))) == (5, 1)


def test_a_unit_that_is_made_anew_makes_its_window_anew(flow: Flow, harness: DispatcherHarness) -> None:
    flow.trigger("chain", "ranges", range={"start": 0, "end": 99})
    run_all(harness)
    flow.trigger("chain", "work", range={"start": 60, "end": 69})
    run_all(harness)
    (again,) = [task for task in flow.tasks("work") if task["revision"]]
    assert again["unit_key"] == "p:60-69"
    (window,) = [unit for unit in flow.units("last") if unit[1]]
    assert window == ("p:50-99", f"60-69@{again['revision']}")
    assert len(flow.tasks("last")) == 3
