"""Windows of time as people write them: in replies, as arguments, and in explanations."""

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.support import User
from tests.windows.support import WindowFlow
from tests.windows.test_windows import deploy, put
from tracelake.client.ranges import parse_range_or_windows, read_units
from tracelake.errors import TraceError
from tracelake.model.dag import UnitGrid
from tracelake.model.windows import Window, describe_range, parse_range, shift_window, window_at
from tracelake.wire.jobs import BlockRange
from tracelake.wire.run_logs import RunLog

HOURS = "units: {by: time, grain: hour}\n    inputs: [{from: {job: blocks}, by: timestamp}]"
GRIDS = [UnitGrid(by="time", grain="hour")] + [
    UnitGrid(by="time", grain=grain, time_zone=zone)
    for grain in ("day", "week", "month")
    for zone in ("UTC", "Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia")
]


@given(st.sampled_from(GRIDS), st.integers(86400 * 40, 4_000_000_000), st.integers(0, 3))
def test_what_is_shown_can_be_given(grid: UnitGrid, second: int, more: int) -> None:
    first = window_at(grid, second)
    last = shift_window(grid, first, more)
    text = describe_range(grid, first.start, last.end)
    assert parse_range(grid, text) == Window(first.start, last.end)
    assert parse_range_or_windows(text) == text, "and the command line takes it for windows, not for blocks"


@pytest.mark.parametrize(
    ("grain", "text", "problem"),
    [
        ("day", "2026-3-3", "expected a window like 2026-03-03, received 2026-3-3"),
        ("day", "2026-02-30", "expected a window like 2026-03-03, received 2026-02-30"),
        ("day", "", "received nothing"),
        ("day", "2026-03-03..2026-03-01", "in their order"),
        ("hour", "2026-03-03 13:30", "expected a window like 2026-03-03 13:00"),
        ("hour", "2026-03-03 24:00", "expected a window like"),
        ("week", "2026-W60", "expected a window like 2026-W10"),
        ("month", "2026-13", "expected a window like 2026-03, received 2026-13"),
        ("month", "9999-12", "expected a window like"),
    ],
)
def test_other_spellings_are_refused(grain: str, text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_range(UnitGrid(by="time", grain=grain), text)  # type: ignore[arg-type]


def test_a_date_that_a_clock_leaves_out_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves it out"):
        parse_range(UnitGrid(by="time", grain="day", time_zone="Pacific/Apia"), "2011-12-30")


def test_a_range_of_blocks_stays_one() -> None:
    assert parse_range_or_windows("1_000-2_000") == BlockRange(start=1000, end=2000)
    for text in ("2000-1000", "2026-03-03 13:30", "x"):
        with pytest.raises(ValueError, match=r"starts after its end|neither a range"):
            parse_range_or_windows(text)


def test_pairs_are_blocks_or_dates() -> None:
    assert read_units((0, 999)) == read_units("0-999") == BlockRange(start=0, end=999)
    assert read_units(("2026-03-02", "2026-03-04")) == "2026-03-02..2026-03-04"
    assert read_units(("2026-03-02", "2026-03-02")) == read_units("2026-03-02") == "2026-03-02"


def test_replies_have_the_date_and_take_it(windows: WindowFlow) -> None:
    """Block n has the time 10 n, so an hour has 360 blocks."""
    deploy(windows, HOURS)
    put(windows, 0, 799, "a")
    windows.run_windows("model")
    user = User(windows.harness, windows.org, "writer")
    tasks = user.get("/v1/tasks?job=model")["tasks"]
    # Ids of tasks that were created in one millisecond have no order.
    assert sorted((task["unit"]["start"], task["window"]) for task in tasks) == [
        (0, "1970-01-01 00:00"),
        (3600, "1970-01-01 01:00"),
    ]
    assert user.get("/v1/tasks?job=blocks")["tasks"][0].get("window") is None
    for unit, starts in (
        ("1970-01-01 01:00", [3600]),
        ("1970-01-01T00:00..1970-01-01T01:00", [0, 3600]),
        ("3600-7199", [3600]),
        ("1970-01-02 00:00", []),
    ):
        units = user.get(f"/v1/datasets/model/lineage?unit={unit.replace(' ', '%20')}")["units"]
        assert [item["unit"]["start"] for item in units] == starts
        assert all(item["window"] == f"1970-01-01 0{item['unit']['start'] // 3600}:00" for item in units)
    refused = user.call("GET", "/v1/datasets/model/lineage?unit=1970-01-01")
    assert refused.status == 422, refused
    assert "expected a window like 2026-03-03 13:00, received 1970-01-01" in refused.body["error"]["message"]


def test_every_view_has_the_date_of_a_window(windows: WindowFlow) -> None:
    deploy(windows, HOURS)
    put(windows, 0, 799, "a")
    windows.run_windows("model")
    user = User(windows.harness, windows.org, "writer")
    dates = ["1970-01-01 00:00", "1970-01-01 01:00"]
    rows = {row["name"]: row for row in user.get("/v1/datasets")["datasets"]}
    assert rows["model"]["windows"] == "1970-01-01 00:00..1970-01-01 01:00"
    assert rows["blocks"].get("windows") is None
    detail = user.get("/v1/datasets/model")
    assert [run["window"] for run in detail["generations"][0]["ranges"]] == ["1970-01-01 00:00..1970-01-01 01:00"]
    events = user.get("/v1/events?dataset=model")["events"]
    assert sorted(event["window"] for event in events) == dates
    assert all(event.get("window") is None for event in user.get("/v1/events?dataset=blocks")["events"])
    for task in user.get("/v1/tasks?job=model")["tasks"]:
        shown = user.get(f"/v1/tasks/{task['task_id']}")
        assert [item["window"] for item in shown["inputs"]] == [task["window"]]
        assert [event["window"] for event in shown["events"]] == [task["window"]]
    (task,) = user.get("/v1/tasks?job=blocks")["tasks"]
    assert "window" not in user.get(f"/v1/tasks/{task['task_id']}")["inputs"][0]
    units = user.get("/v1/datasets/model/lineage")["units"]
    assert [[item["window"] for item in unit["inputs"]] for unit in units] == [[date] for date in dates]


def test_logs_have_the_date_of_a_window(windows: WindowFlow) -> None:
    deploy(windows, HOURS)
    put(windows, 0, 799, "a")
    windows.run_windows("model")
    task_id = windows.tasks("model")[0]["task_id"]
    windows.harness.sql(
        """INSERT INTO run_logs (task_id, attempt, org_id, job_id, worker_id, writable_until, body)
           SELECT task_id, 1, org_id, job_id, 'w1', trace_now(), $2 FROM tasks WHERE task_id = $1""",
        task_id,
        zlib.compress(msgspec.json.encode(RunLog(ending="completed"))),
    )
    user = User(windows.harness, windows.org)
    date = user.get(f"/v1/tasks/{task_id}")["task"]["window"]
    assert [run["window"] for run in user.get("/v1/dags/w/jobs/model/runs")["runs"]] == [date]
    assert user.get(f"/v1/tasks/{task_id}/log")["window"] == date


def test_a_window_is_triggered_by_its_date(windows: WindowFlow) -> None:
    deploy(windows, HOURS)
    put(windows, 0, 799, "a")
    windows.run_windows("model")
    windows.trigger("w", "model", window="1970-01-01 01:00")
    assert [task["unit_key"] for task in windows.tasks("model", "Queued")] == ["p:3600-7199"]
    for job, window, message in (
        ("model", "1970-01-01", "expected a window like 2026-03-03 13:00, received 1970-01-01"),
        ("model", "1970-01-01 00:00..1970-03-01 00:00", "at most 1,000 units, received more"),
        ("model", "1970-01-03 00:00", "do not cover 1970-01-03 00:00"),
        ("blocks", "1970-01-01 00:00", "no windows of time"),
        ("src", "1970-01-01 00:00", "no windows of time"),
    ):
        with pytest.raises(TraceError, match=message):
            windows.trigger("w", job, window=window)


def test_a_range_of_windows_is_triggered_at_once(windows: WindowFlow) -> None:
    deploy(windows, HOURS)
    put(windows, 0, 1499, "a")
    windows.run_windows("model")
    reply = windows.trigger("w", "model", window="1970-01-01 00:00..1970-01-01 02:00", idempotency_key="again")
    assert (reply.task_id, len(reply.tasks), reply.duplicate) == (None, 3, False)
    queued = windows.tasks("model", "Queued")
    assert {task["unit_key"] for task in queued} == {"p:0-3599", "p:3600-7199", "p:7200-10799"}
    assert {task["task_id"] for task in queued} == set(reply.tasks)
    repeated = windows.trigger("w", "model", window="1970-01-01 00:00..1970-01-01 02:00", idempotency_key="again")
    assert (repeated.tasks, repeated.duplicate) == (reply.tasks, True)
    user = User(windows.harness, windows.org)
    for task_id, still_open in zip(reply.tasks, (3, 2, 1), strict=True):
        progress = user.get("/v1/triggers?key=again")
        assert (progress["open"], progress["finished"]) == (still_open, False)
        windows.run(task_id)
    progress = user.get("/v1/triggers?key=again")
    assert (progress["finished"], progress["done"], progress["failed"]) == (True, 3, 0)
    before = len(windows.tasks("model"))
    for blocks, message in (
        ({"start": 0, "end": 7000}, "or several side by side; received 0-7000"),
        ({"start": 10, "end": 7199}, "Expected a unit of the job, like 0-3599"),
        ({"start": 7200, "end": 17_999}, "do not cover 1970-01-01 04:00"),
    ):
        with pytest.raises(TraceError, match=message):
            windows.trigger("w", "model", range=blocks)
    assert len(windows.tasks("model")) == before, "all windows of a range, or none"


def test_a_dataset_tells_of_the_window_that_is_open(windows: WindowFlow) -> None:
    deploy(windows, HOURS)
    put(windows, 0, 99, "a")
    user = User(windows.harness, windows.org)
    reply = user.get("/v1/why/dataset/model")
    assert [item["code"] for item in reply["reasons"]] == ["window_open"], "there is no unit yet, and none is due"
    put(windows, 100, 799, "b")
    windows.run_windows("model")
    reply = user.get("/v1/why/dataset/model")
    assert [item["code"] for item in reply["reasons"]] == ["fresh", "window_open"]
    assert "Last computed: 1970-01-01 01:00" in reply["summary"]
    assert "The window 1970-01-01 02:00 is not over" in reply["summary"]
    job = user.get("/v1/why/job/w/model")
    assert "The window 1970-01-01 02:00 is not over" in job["summary"]


@pytest.mark.parametrize(("zone", "expected"), [("UTC", None), ("America/New_York", "America/New_York")])
def test_a_task_knows_whose_days_the_dates_of_its_window_are(
    windows: WindowFlow, zone: str, expected: str | None
) -> None:
    grid = f"units: {{by: time, grain: day, time_zone: {zone}, when: updated}}"
    deploy(windows, f"{grid}\n    inputs: [{{from: {{job: blocks}}, by: day, read: history}}]")
    put(windows, 0, 99, "a")
    (task,) = windows.tasks("model")
    assert task["inputs"][0]["scope"].get("time_zone") == expected
