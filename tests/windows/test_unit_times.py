"""Which times a unit has, and that no window of time is made of units without times."""

import pytest

from tests.api.support import User
from tests.windows.support import WindowFlow

HOUR = 3600
DAG = """
name: w
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: blocks, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
      inputs: [{from: {job: src}}]}
  - {name: other, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
      inputs: [{from: {job: src}}]}
  - name: pieces
    activation: reactive
    operator: spark_sql
    config: {query: SELECT * FROM blocks}
    units: {by: blocks, size: 360WHEN}
    inputs: [{from: {job: blocks}}INPUTS]
  - name: hourly
    activation: reactive
    operator: spark_sql
    config: {query: SELECT * FROM pieces}
    units: {by: time, grain: hour, when: HOURS}
    inputs: [{from: {job: pieces}}]
publish:
  blocks: {from: {job: blocks}, storage: s3}
  other: {from: {job: other}, storage: s3}
  pieces: {from: {job: pieces}, storage: s3}
  hourly: {from: {job: hourly}, storage: s3}
"""
FEED = """
name: w
defaults: {runtime: ecs_platform}
jobs:
  - {name: tick, activation: source, source: {kind: cron, schedule: "*/20 * * * *"}}
  - {name: prices, activation: reactive, operator: decode_logs, inputs: [{from: {job: tick}}]}
  - name: hourly
    activation: reactive
    operator: spark_sql
    config: {query: SELECT * FROM prices}
    units: {by: time, grain: hour}
    inputs: [{from: {job: prices}, by: at}]
publish:
  prices: {from: {job: prices}, storage: s3}
  hourly: {from: {job: hourly}, storage: s3}
"""


def deploy(windows: WindowFlow, inputs: str = "", pieces: str = "complete", hours: str = "complete") -> None:
    """Block n has the time 10 n, so an hour has 360 blocks, and each of `pieces` is an hour."""
    text = DAG.replace("INPUTS", inputs).replace("WHEN", f", when: {pieces}").replace("HOURS", hours)
    windows.deploy(text)


def put(windows: WindowFlow, start: int, end: int, text: str) -> None:
    windows.commit_source("w", "blocks", start, end, text)


def times(windows: WindowFlow, dataset: str) -> dict[int, tuple[int, int] | None]:
    rows = windows.harness.sql(
        """SELECT u.range_start, u.time_min, u.time_max
           FROM datasets d JOIN dataset_units u USING (dataset_uuid) WHERE d.name = $1 ORDER BY 1""",
        dataset,
    )
    return {start: None if first is None else (first, last) for start, first, last in rows}


def why(windows: WindowFlow, path: str) -> tuple[str, list[str]]:
    reply = User(windows.harness, windows.org).get(f"/v1/why/{path}")
    return reply["state"], [item["code"] for item in reply["reasons"]]


def test_a_unit_has_the_times_of_the_units_that_it_is_made_of(windows: WindowFlow) -> None:
    deploy(windows)
    for number, text in enumerate("abcdef"):
        put(windows, number * 180, number * 180 + 179, text)
    windows.run_windows("pieces")
    assert times(windows, "pieces") == {0: (0, 3590), 360: (3600, 7190), 720: (7200, 10790)}
    windows.run_windows("hourly")
    assert windows.rows("hourly") == {(0, 3599): "((a,b))", (3600, 7199): "((c,d))"}


def test_a_unit_that_begins_where_its_input_begins_has_its_times(windows: WindowFlow) -> None:
    deploy(windows)
    put(windows, 100, 359, "a")
    put(windows, 360, 719, "b")
    windows.run_windows("pieces")
    assert times(windows, "pieces") == {0: (1000, 3590), 360: (3600, 7190)}


def test_a_unit_that_cuts_its_inputs_has_no_times(windows: WindowFlow) -> None:
    """Of the second piece nobody knows the first time, of the first not the last."""
    deploy(windows)
    for number, text in enumerate("abc"):
        put(windows, number * 300, number * 300 + 299, text)
    windows.run_windows("pieces")
    assert times(windows, "pieces") == {0: None, 360: None}
    assert windows.run_windows("hourly") == 0
    for path in ("job/w/hourly", "dataset/hourly"):
        assert why(windows, path) == ("blocked", ["unit_without_times"])


def test_a_window_waits_for_the_times_of_each_unit_that_may_be_in_it(windows: WindowFlow) -> None:
    """The units 0-359 and 360-719 have times, and 720-1079 has none, nor has 1080-1439."""
    deploy(windows)
    for start, end in ((0, 359), (360, 719), (720, 1279), (1280, 1799), (1800, 2159)):
        put(windows, start, end, f"{start}")
    windows.run_windows("pieces")
    assert times(windows, "pieces") == {0: (0, 3590), 360: (3600, 7190), 720: None, 1080: None, 1440: None,
                                        1800: (18000, 21590)}  # fmt: skip
    windows.run_windows("hourly")
    assert windows.rows("hourly") == {(0, 3599): "((0))"}, "blocks after 7190 s may be in the second hour"
    assert {reason for _, _, reason in windows.pending()} == {"input_without_times", "input_not_passed"}
    assert why(windows, "job/w/hourly")[0] == "blocked"
    for start, end in ((720, 1079), (1080, 1439), (1440, 1799)):  # its tasks know them
        task = windows.trigger("w", "pieces", range={"start": start, "end": end}).task_id
        assert task is not None
        lease = windows.claim(task)
        report = windows.write(lease, f"x{start}")
        report["datasets_published"][0] |= {"time_min": start * 10, "time_max": end * 10}
        windows.complete(task, lease, **report)
    windows.run_windows("hourly")
    assert windows.rows("hourly") == {(0, 3599): "((0))", (3600, 7199): "((360))", (7200, 10799): "(x720)",
                                      (10800, 14399): "(x1080)", (14400, 17999): "(x1440)"}  # fmt: skip
    assert why(windows, "job/w/hourly") == ("fine", ["window_open"])


def test_a_window_that_grows_hears_of_a_unit_without_times(windows: WindowFlow) -> None:
    deploy(windows, hours="updated")
    put(windows, 0, 359, "a")
    put(windows, 360, 1019, "b")
    windows.run_windows("pieces", "hourly")
    put(windows, 1020, 1499, "c")
    windows.run_windows("pieces", "hourly")
    assert times(windows, "pieces") == {0: (0, 3590), 360: None, 720: None, 1080: None}
    assert windows.rows("hourly") == {(0, 3599): "((a))"}
    waiting = {(start, end): reason for start, end, reason in windows.pending()}
    assert waiting[0, 3599] == "input_without_times", "a block of 360-719 may be in it"


@pytest.mark.parametrize("read", ["all", "latest"])
def test_what_is_only_looked_up_has_no_part_in_the_times(windows: WindowFlow, read: str) -> None:
    deploy(windows, inputs=f", {{from: {{job: other}}, read: {read}}}")
    windows.times = lambda start, end: (start * 20 + 1, end * 20 + 1)
    windows.commit_source("w", "other", 0, 179, "o")
    windows.commit_source("w", "other", 180, 359, "p")
    windows.times = lambda start, end: (start * 10, end * 10)
    put(windows, 0, 179, "a")
    put(windows, 180, 359, "b")
    windows.run_windows("pieces")
    assert times(windows, "pieces") == {0: (0, 3590)}


def test_windows_are_made_of_what_comes_on_a_schedule(windows: WindowFlow) -> None:
    """The units of a schedule are seconds: what came after the slot before, up to the slot."""
    windows.deploy(FEED)
    windows.times = None
    job = windows.harness.sql("SELECT job_id FROM jobs WHERE name = 'tick'")[0]["job_id"]
    for minute in ("05:40", "06:00", "06:20", "06:40", "07:00", "07:20"):
        reply = windows.harness.service("POST", f"/internal/sources/{job}/fire", {"slot": f"2026-01-31T{minute}:00Z"})
        assert reply.status == 200, reply
        (task,) = windows.tasks("prices", "Queued")
        lease = windows.claim(task["task_id"])
        windows.complete(task["task_id"], lease, **windows.write(lease, minute))
    windows.run_windows("hourly")
    six = 1_769_839_200
    assert windows.rows("hourly") == {
        (six - HOUR, six - 1): "(05:40,06:00)", (six, six + HOUR - 1): "(06:00,06:20,06:40,07:00)"
    }  # fmt: skip
    (task, *_) = windows.tasks("hourly")
    scope = task["inputs"][0]["scope"]
    assert (scope["column"], scope["in_seconds"]) == ("at", True)
    assert windows.pending() == [(six + HOUR, six + 2 * HOUR - 1, "input_gap")], "no window before the first slot"
