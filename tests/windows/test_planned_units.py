"""How many windows a plan says that a deploy computes."""

import pytest

from tests.windows.support import WindowFlow
from tests.windows.test_windows import DAG, deploy, put

JOB = """
  - name: {name}
    activation: reactive
    operator: spark_sql
    config: {{query: SELECT * FROM x, inputs: {{x: 0}}}}
    units: {units}
    inputs: [{{{source}{by}}}]
"""


def plan(windows: WindowFlow, *jobs: str) -> list[tuple[str, int, bool, bool, bool]]:
    text = f"name: fresh\ndefaults: {{runtime: ecs_platform}}\njobs:{''.join(jobs)}"
    reply = windows.deploy(text, dry_run=True)
    return [(item.job, item.units, item.about, item.unknown, item.added) for item in reply.plan.rebuilds]


def job(name: str, units: str, source: str = "from: {dataset: blocks}") -> str:
    return JOB.format(name=name, units=units, source=source, by=", by: timestamp" if "time" in units else "")


@pytest.fixture
def flow(windows: WindowFlow) -> WindowFlow:
    """Block n has the time 10 n, so 800 blocks are hours 0, 1 and 2; they are in two units."""
    deploy(windows, "units: {by: time, grain: hour}\n    inputs: [{from: {job: blocks}, by: timestamp}]")
    put(windows, 0, 399, "a")
    put(windows, 400, 799, "b")
    return windows


def test_new_jobs_compute_about_as_many_windows_as_their_inputs_span(flow: WindowFlow) -> None:
    hourly = job("hourly", "{by: time, grain: hour}")
    daily = job("daily", "{by: time, grain: day}", "from: {job: hourly}").replace(", by: timestamp", "")
    ranges = job("ranges", "{by: blocks, size: 100}")
    assert plan(flow, hourly, daily, ranges) == [
        ("hourly", 3, True, False, True),
        ("daily", 1, True, False, True),
        ("ranges", 8, True, False, True),
    ]


def test_windows_of_inputs_without_times_are_unknown(windows: WindowFlow) -> None:
    windows.times = None
    deploy(windows, "units: {by: blocks, size: 100}\n    inputs: [{from: {job: blocks}}]")
    put(windows, 0, 399, "a")
    assert plan(windows, job("hourly", "{by: time, grain: hour}")) == [("hourly", 0, False, True, True)]


def test_a_changed_job_rebuilds_the_windows_that_it_has(flow: WindowFlow) -> None:
    body = "units: {{by: time, grain: {grain}}}\n    inputs: [{{from: {{job: blocks}}, by: timestamp}}]\n    {more}"
    flow.run_windows("model")
    for grain, more, expected in (
        ("hour", "config: {query: SELECT 1 AS x FROM blocks}", (2, False)),
        ("day", "config: {query: SELECT 1 AS x FROM blocks}", (1, True)),
    ):
        text = DAG.replace("    config: {{query: SELECT * FROM blocks}}\n", "")
        reply = flow.deploy(text.format(body=body.format(grain=grain, more=more)), dry_run=True)
        (item,) = reply.plan.rebuilds
        assert (item.job, item.added) == ("model", False)
        assert (item.units, item.about) == expected


def test_a_join_with_units_of_another_dag_that_have_another_size_is_warned_of(windows: WindowFlow) -> None:
    windows.times = None
    deploy(windows, "units: {by: blocks, size: 100}\n    inputs: [{from: {job: blocks}}]")
    put(windows, 0, 399, "a")
    text = """name: fresh
defaults: {runtime: ecs_platform}
jobs:
  - {name: tick, activation: source, source: {kind: manual}}
  - {name: cut, activation: reactive, runtime: dispatcher, operator: range_splitter, config: {size: SIZE},
     inputs: [{from: {job: tick}}]}
  - {name: join, activation: reactive, operator: noop, execution_strategy: PerPartition,
     inputs: [{from: {job: cut}}, {from: {dataset: blocks}}]}
"""
    for dry_run in (True, False):
        (note,) = windows.deploy(text.replace("SIZE", "500"), dry_run=dry_run).plan.notes
        assert "`cut` units of 500 blocks, `blocks` units of 400 blocks so far" in note
    assert windows.deploy(text.replace("SIZE", "400"), dry_run=True).plan.notes == []
