"""Days of 23 and of 25 hours: which units of blocks they have, and which bounds their tasks get."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from tests.windows.support import WindowFlow
from tests.windows.test_windows import deploy, put

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3_600
DAYS = "units: {by: time, grain: day, time_zone: Europe/Berlin}\n    inputs: [{from: {job: blocks}, by: timestamp}]"


def moment(text: str, hours: int = 0) -> int:
    """A local time of Berlin in seconds since 1970, and so many hours later."""
    return int(datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()) + hours * HOUR


def commit(windows: WindowFlow, *units: tuple[str, int, int]) -> None:
    """Commits units of ten blocks, each with its text and its first and last time, in an order of no meaning."""
    times = {number * 10: (first, last) for number, (_, first, last) in enumerate(units)}
    windows.times = lambda start, _end: times[start]
    for number in sorted(range(len(units)), key=lambda number: number % 3):
        put(windows, number * 10, number * 10 + 9, units[number][0])
    windows.run_windows("model")


@pytest.mark.parametrize(
    ("day", "following", "hours"), [("2026-03-29", "2026-03-30", 23), ("2026-10-25", "2026-10-26", 25)]
)
def test_a_day_on_which_the_clock_changes(windows: WindowFlow, day: str, following: str, hours: int) -> None:
    """Units that end one second before midnight, and units that begin with it."""
    deploy(windows, DAYS)
    begin, end = moment(day), moment(day, hours)
    assert end == moment(following), "the test knows how long the day is"
    commit(
        windows,
        ("a", begin - 30 * HOUR, begin - 20 * HOUR),
        ("b", begin - 20 * HOUR, begin - 1),
        ("c", begin, begin + 1 * HOUR),
        ("d", begin + 1 * HOUR, end - 2 * HOUR),
        ("e", end - 2 * HOUR, end - 1),
        ("f", end, end + 5 * HOUR),
        ("g", end + 5 * HOUR, end + 24 * HOUR),
    )
    rows = windows.rows("model")
    assert rows[begin, end - 1] == "(c,d,e)"
    assert rows[end, end + 24 * HOUR - 1] == "(f,g)"
    (task,) = (task for task in windows.tasks("model") if task["unit"]["start"] == begin)
    scope = task["inputs"][0]["scope"]
    assert (scope["first"], scope["last"], scope["column"]) == (begin, end - 1, "timestamp")
    put(windows, 40, 49, "E")
    assert windows.run_windows("model") == 1, "the last hour of the day is in no other"
    assert windows.rows("model")[begin, end - 1] == "(c,d,E)"


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_units_across_midnight_and_across_the_change(windows: WindowFlow, day: str) -> None:
    deploy(windows, DAYS)
    begin, end = moment(day), moment(day, 23 if "03" in day else 25)
    change = begin + (2 if "03" in day else 3) * HOUR
    commit(
        windows,
        ("a", begin - 24 * HOUR, begin - 2 * HOUR),
        ("m", begin - 1, begin + HOUR),  # one second of it is on the day before
        ("x", change - 1, change),
        ("n", change + HOUR, end),  # one second of it is on the day after
        ("z", end + 30 * HOUR, end + 31 * HOUR),
    )
    rows = list(windows.rows("model").items())
    assert rows == [
        ((begin - 24 * HOUR, begin - 1), "(a,m)"),
        ((begin, end - 1), "(m,x,n)"),
        ((end, end + 24 * HOUR - 1), "(n)"),
    ]
    put(windows, 20, 29, "X")
    assert windows.run_windows("model") == 1
    put(windows, 30, 39, "N")
    assert windows.run_windows("model") == 2
    assert list(windows.rows("model").values()) == ["(a,m)", "(m,X,N)", "(N)"]
    put(windows, 10, 19, "M")
    assert windows.run_windows("model") == 2
    assert list(windows.rows("model").values()) == ["(a,M)", "(M,X,N)", "(N)"]


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_a_day_is_made_from_its_hours(windows: WindowFlow, day: str, hours: int) -> None:
    """Windows made from windows: the day reads as many hours as it has."""
    windows.deploy(CHAINED)
    begin, end = moment(day), moment(day, hours)
    windows.times = lambda start, _end: {0: (begin - HOUR, begin - 1), 10: (begin, end)}[start]
    put(windows, 0, 9, "a")
    put(windows, 10, 19, "b")
    windows.run_windows("hourly")
    (task,) = (task for task in windows.tasks("daily", "Queued") if task["unit"]["start"] == begin)
    assert windows.run(task["task_id"]).count("b") == hours


CHAINED = """
name: w
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: blocks, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
      inputs: [{from: {job: src}}]}
  - {name: hourly, activation: reactive, operator: spark_sql, config: {query: SELECT 1 AS a},
      units: {by: time, grain: hour}, inputs: [{from: {job: blocks}}]}
  - {name: daily, activation: reactive, operator: spark_sql, config: {query: SELECT 1 AS a},
      units: {by: time, grain: day, time_zone: Europe/Berlin}, inputs: [{from: {job: hourly}}]}
"""
