"""`read: all` and `read: latest`: what a task reads, which windows a change recomputes, and when one is computed.

`prices` is a second dataset of blocks; `model` reads the windows of `blocks` beside it.
"""

from datetime import datetime

import pytest

from tests.api.support import User
from tests.windows.support import WindowFlow

DAG = """
name: w
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: src, activation: source, source: {{kind: manual}}}}
  - {{name: blocks, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
      inputs: [{{from: {{job: src}}}}]}}
  - {{name: quotes, activation: source, source: {{kind: manual}}}}
  - {{name: prices, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
      inputs: [{{from: {{job: quotes}}}}]}}
  - name: model
    activation: reactive
    operator: spark_sql
    config: {{query: SELECT * FROM blocks, inputs: {{blocks: 0, prices: 1}}}}
    {units}
    inputs: [{{from: {{job: blocks}}{first}}}, {{from: {{job: prices}}, read: {read}}}]
publish:
  model: {{from: {{job: model}}, storage: s3}}
"""
TENS = "units: {by: blocks, size: 10}"
HOURS = "units: {by: time, grain: hour}"
"""Block n has the time 10 n, so an hour has 360 blocks."""


def deploy(windows: WindowFlow, read: str, units: str = TENS, first: str = "") -> None:
    windows.deploy(DAG.format(read=read, units=units, first=first))


def put(windows: WindowFlow, text: str, start: int, end: int) -> None:
    """Units of blocks have small letters, those of prices have capital ones."""
    windows.commit_source(
        "w", *(("blocks", start, end, text, "src") if text.islower() else ("prices", start, end, text, "quotes"))
    )


def rows(windows: WindowFlow) -> list[str]:
    return list(windows.rows("model").values())


# --- all


@pytest.mark.parametrize(("units", "size"), [(TENS, 10), (HOURS, 360), ("", 10)])
def test_all_units_are_read_and_each_change_recomputes_all_windows(windows: WindowFlow, units: str, size: int) -> None:
    deploy(windows, "all", units)
    for number, text in enumerate("abc"):
        put(windows, text, number * size, number * size + size - 1)
    assert windows.run_windows("model") == 0
    put(windows, "A", 5000, 5009)
    computed = windows.run_windows("model")
    assert computed == (2 if units == HOURS else 3), "the third hour is not over"
    assert rows(windows) == ["(a|A)", "(b|A)", "(c|A)"][:computed]
    for text in ("B", "C"):
        put(windows, text, 7000, 7009)
        assert windows.run_windows("model") == computed
        assert rows(windows) == [f"(a|A,{text})", f"(b|A,{text})", f"(c|A,{text})"][:computed]
    (scope,) = {str(task["inputs"][1]["scope"]) for task in windows.tasks("model")}
    assert "'start'" not in scope, "it has no range"
    put(windows, "d", 3 * size, 4 * size - 1)
    assert windows.run_windows("model") == 1, "a window of its own"


# --- latest, in positions of the job's own units


def test_the_newest_unit_that_begins_before_the_window_ends(windows: WindowFlow) -> None:
    deploy(windows, "latest")
    for number, text in enumerate("abcd"):
        put(windows, text, number * 10, number * 10 + 9)
    put(windows, "B", 15, 29)
    assert windows.run_windows("model") == 4
    assert rows(windows) == ["(a|)", "(b|B)", "(c|B)", "(d|B)"], "before the first price there is none"
    put(windows, "C", 30, 34)
    assert windows.run_windows("model") == 1, "the windows from that unit on"
    assert rows(windows) == ["(a|)", "(b|B)", "(c|B)", "(d|C)"]
    put(windows, "A", 5, 9)
    windows.run_windows("model")
    assert rows(windows) == ["(a|A)", "(b|B)", "(c|B)", "(d|C)"]
    put(windows, "X", 15, 29)
    windows.run_windows("model")
    assert rows(windows) == ["(a|A)", "(b|X)", "(c|X)", "(d|C)"]


def test_windows_before_the_first_unit_wait_for_nothing_else(windows: WindowFlow) -> None:
    """Windows wait while the input has no unit at all. The first one may begin behind them."""
    deploy(windows, "latest")
    put(windows, "a", 0, 9)
    put(windows, "b", 10, 19)
    assert windows.run_windows("model") == 0
    assert windows.pending() == [(0, 9, "input_empty"), (10, 19, "input_empty")]
    put(windows, "C", 500, 509)
    assert windows.run_windows("model") == 2
    assert rows(windows) == ["(a|)", "(b|)"]


def test_windows_of_an_input_that_begins_late_do_not_wait_for_its_beginning_again(windows: WindowFlow) -> None:
    """The same of a window: what its input does not reach is empty there."""
    deploy(windows, "window")
    put(windows, "a", 0, 9)
    put(windows, "c", 20, 29)
    assert windows.run_windows("model") == 0
    put(windows, "C", 20, 29)
    assert windows.run_windows("model") == 2
    assert rows(windows) == ["(a|)", "(c|C)"]


def test_hours_before_an_input_begins_wait_for_its_first_unit_alone(windows: WindowFlow) -> None:
    deploy(windows, "window", HOURS)
    put(windows, "a", 0, 1799)
    windows.trigger("w", "quotes", range={"start": 800, "end": 899})
    put(windows, "C", 900, 1999)
    assert windows.run_windows("model") == 0
    assert windows.pending()[:4] == [
        (0, 3599, "input_gap"), (3600, 7199, "input_gap"), (7200, 10799, "input_gap"), (10800, 14399, "upstream_task")
    ]  # fmt: skip
    put(windows, "B", 800, 899)
    windows.run_windows("model")
    assert rows(windows) == ["(a|)", "(a|)", "(a|B,C)", "(a|C)"]


def test_many_windows_that_waited_for_the_beginning(windows: WindowFlow) -> None:
    """More than are settled with the event: the drain goes on with them."""
    deploy(windows, "latest", "units: {by: blocks, size: 2}")
    put(windows, "a", 0, 299)
    windows.drain()
    put(windows, "A", 500, 509)
    windows.drain()
    assert len(windows.tasks("model", "Queued")) == 150


# --- latest, by the times of blocks


def test_the_newest_unit_by_its_times(windows: WindowFlow) -> None:
    deploy(windows, "latest", HOURS)
    for number, text in enumerate("abcd"):
        put(windows, text, number * 360, number * 360 + 359)
    put(windows, "A", 0, 99)
    assert windows.run_windows("model") == 0, "another price of the hour may come"
    put(windows, "B", 500, 599)
    assert windows.run_windows("model") == 1
    assert windows.pending() == [
        (3600, 7199, "input_not_passed"), (7200, 10799, "input_not_passed"), (10800, 14399, "input_not_passed")
    ]  # fmt: skip
    put(windows, "D", 1200, 1299)
    assert windows.run_windows("model") == 2, "windows that the input passes, though the unit lies behind them"
    assert rows(windows) == ["(a|A)", "(b|B)", "(c|B)"]
    put(windows, "X", 500, 599)
    assert windows.run_windows("model") == 2
    assert rows(windows) == ["(a|A)", "(b|X)", "(c|X)"]


def test_a_unit_across_two_hours_is_the_newest_of_both(windows: WindowFlow) -> None:
    deploy(windows, "latest", HOURS)
    put(windows, "a", 0, 1199)
    put(windows, "A", 100, 399)
    put(windows, "B", 800, 900)
    assert windows.run_windows("model") == 2
    assert rows(windows) == ["(a|A)", "(a|A)"]


def test_a_newest_unit_whose_times_change(windows: WindowFlow) -> None:
    deploy(windows, "latest", HOURS)
    times = {0: (0, 15_000), 5000: (100, 100), 6000: (4_000, 4_000), 7000: (20_000, 20_000)}
    windows.times = lambda start, _end: times[start]
    put(windows, "a", 0, 9)
    for text, start in (("A", 5000), ("B", 6000), ("C", 7000)):
        put(windows, text, start, start + 9)
    windows.run_windows("model")
    assert rows(windows) == ["(a|A)", "(a|B)", "(a|B)", "(a|B)"]
    times[6000] = (7_300, 7_300)
    put(windows, "X", 6000, 6009)
    windows.run_windows("model")
    assert rows(windows) == ["(a|A)", "(a|A)", "(a|X)", "(a|X)"]


# --- computed as inputs grow


@pytest.mark.parametrize("first", ["", ", lookback: 2"])
def test_windows_in_a_gap_wait_until_it_is_covered(windows: WindowFlow, first: str) -> None:
    deploy(windows, "all", "units: {by: blocks, size: 10, when: updated}", first)
    put(windows, "A", 0, 9)
    put(windows, "a", 0, 9)
    assert windows.run_windows("model") == 1
    put(windows, "e", 40, 49)
    windows.run_windows("model")
    assert windows.rows("model") == {(0, 9): "(a|A)", (40, 49): "(e|A)"}
    for number, text in enumerate("bcd", 1):
        put(windows, text, number * 10, number * 10 + 9)
        windows.run_windows("model")
    back = ["a", "a,b", "a,b,c", "b,c,d", "c,d,e"] if first else list("abcde")
    assert rows(windows) == [f"({texts}|A)" for texts in back]


def test_a_running_state_waits_for_a_gap(windows: WindowFlow) -> None:
    windows.deploy(
        DAG.format(read="all", units="units: {by: blocks, size: 10, when: updated}", first="")
        .replace("{from: {job: prices}, read: all}", "{self: previous, columns: {total: bigint}}")
        .replace("SELECT * FROM blocks", "SELECT 1L AS total FROM blocks")
    )
    put(windows, "a", 0, 9)
    assert windows.run_windows("model", at_most=3) == 1
    put(windows, "d", 30, 39)
    assert windows.run_windows("model", at_most=9) == 0
    for text, start in (("c", 20), ("b", 10)):
        put(windows, text, start, start + 9)
    assert windows.run_windows("model", at_most=9) == 3
    assert rows(windows) == ["(a|)", "(b|(a|))", "(c|(b|(a|)))", "(d|(c|(b|(a|))))"]


# --- latest, of what comes on a schedule

FEED = """
name: w
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: src, activation: source, source: {{kind: manual}}}}
  - {{name: blocks, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
      inputs: [{{from: {{job: src}}}}]}}
  - name: hours
    activation: reactive
    operator: spark_sql
    config: {{query: SELECT * FROM blocks, inputs: {{blocks: 0}}}}
    units: {{by: time, grain: hour}}
    inputs: [{{from: {{job: blocks}}}}]
  - {{name: tick, activation: source, source: {{kind: cron, schedule: "*/20 * * * *"}}}}
  - {{name: feed, activation: reactive, operator: decode_logs, inputs: [{{from: {{job: tick}}}}]}}
  - name: model
    activation: reactive
    operator: spark_sql
    config: {{query: SELECT * FROM hours, inputs: {{hours: 0, feed: 1}}}}
    {units}
    inputs: [{{from: {{job: hours}}{first}}}, {{from: {{job: feed}}, read: latest}}]
publish:
  model: {{from: {{job: model}}, storage: s3}}
"""


FIRST_SLOT = "2026-01-31T05:40:00Z"


@pytest.mark.parametrize(("units", "first"), [("", ", read: unit"), (HOURS, "")])
def test_windows_before_a_feed_read_what_it_brings_first(windows: WindowFlow, units: str, first: str) -> None:
    """They wait for it, and are computed when it is there: as they would be if it had been there before."""
    windows.deploy(FEED.format(units=units, first=first))
    for number, text in enumerate("abc"):
        put(windows, text, number * 360, number * 360 + 359)
    windows.run_windows("hours", "model")
    reasons = User(windows.harness, windows.org).get("/v1/why/job/w/model")["reasons"]
    item = next(item for item in reasons if item["code"] == "unit_waits")
    assert item["text"].startswith("The unit 1970-01-01 00:00, and 1 other have waited "), item
    assert item["text"].endswith(": its input w__feed_0 has no data yet.")
    assert item["steps"][0]["command"] == "trace why w__feed_0"
    feed(windows, FIRST_SLOT, "05:40")
    assert windows.run_windows("model") == 2
    expected = ["((a)|05:40)", "((b)|05:40)"]
    assert rows(windows) == expected
    feed(windows, "2026-01-31T06:00:00Z", "06:00")
    assert windows.run_windows("model") == 0, "a later list is of later windows"
    for window in ("1970-01-01 00:00", "1970-01-01 01:00"):
        windows.trigger("w", "model", window=window)
    assert windows.run_windows("model") == 2
    assert rows(windows) == expected, "computed again, they are the same"
    windows.trigger("w", "feed", cursor=int(datetime.fromisoformat(FIRST_SLOT).timestamp()))
    bring(windows, "corrected")
    assert windows.run_windows("model") == 2
    assert rows(windows) == ["((a)|corrected)", "((b)|corrected)"]


def feed(windows: WindowFlow, slot: str, text: str) -> None:
    windows.times = None
    job = windows.harness.sql("SELECT job_id FROM jobs WHERE name = 'tick'")[0]["job_id"]
    assert windows.harness.service("POST", f"/internal/sources/{job}/fire", {"slot": slot}).status == 200
    windows.drain()
    bring(windows, text)


def bring(windows: WindowFlow, text: str) -> None:
    (task,) = windows.tasks("feed", "Queued")
    lease = windows.claim(task["task_id"])
    windows.complete(task["task_id"], lease, **windows.write(lease, text))
