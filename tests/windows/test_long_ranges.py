"""Units that lie in many windows, and gaps as long as years: what one commit costs, and whom it concerns."""

from typing import Any

import msgspec
import pytest

from tests.windows.support import WindowFlow
from tests.windows.test_windows import SELF, deploy, put, why
from tracelake.dispatcher.engine.catch_up import unit_drain
from tracelake.dispatcher.engine.routing import changed_units
from tracelake.dispatcher.engine.routing.changed_units import AT_ONCE
from tracelake.dispatcher.engine.routing.pending_units import MORE
from tracelake.model.dag import UnitGrid
from tracelake.model.windows import LAST_TIME, Window, window_at
from tracelake.runner.outcome import read_response
from tracelake.wire.units import EventIn

HOUR, YEAR = 3600, 365 * 86_400
HOURS = "units: {by: time, grain: hour}\n    inputs: [{from: {job: blocks}, by: timestamp}]"
UPDATED = HOURS.replace("hour}", "hour, when: updated}")
NOW = 1_700_000_000
UUID_TEXT = "00000000-0000-0000-0000-000000000001"
STORAGE = {"scheme": "s3", "bucket": "b", "prefix": "p", "glob": "*"}


@pytest.fixture
def made_windows(monkeypatch: pytest.MonkeyPatch) -> list[Window]:
    """The windows that were made to be touched."""
    made: list[Window] = []

    def iterate(grid: UnitGrid, start: int, end: int) -> Any:
        window = window_at(grid, start)
        while True:
            made.append(window)
            yield window
            if window.end >= end:
                return
            window = window_at(grid, window.end + 1)

    monkeypatch.setattr(changed_units, "iterate_windows", iterate)
    return made


def touched(windows: WindowFlow) -> set[int]:
    """The starts of all windows that have a task or wait for one."""
    rows = windows.harness.sql("SELECT unit_start FROM pending_units")
    return {row["unit_start"] for row in rows} | {task["unit"]["start"] for task in windows.tasks("model")}


def test_a_unit_of_many_windows_is_gone_through_in_pages(windows: WindowFlow, made_windows: list[Window]) -> None:
    deploy(windows, HOURS)
    hours = 3 * AT_ONCE + 7
    windows.times = lambda _start, _end: (0, hours * HOUR)
    put(windows, 0, 99, "a")
    assert len(made_windows) == AT_ONCE + 1, "a commit makes a page of them"
    (rest,) = [item for item in windows.pending() if item[2] == MORE]
    assert rest[:2] == (AT_ONCE * HOUR, (hours + 1) * HOUR - 1), "and one row stands for the others"
    assert "it is about to be looked at" in why(windows)["unit_waits"]
    windows.drain()
    assert {task["unit"]["start"] for task in windows.tasks("model", "Queued")} == {n * HOUR for n in range(hours)}
    assert windows.pending() == [(hours * HOUR, (hours + 1) * HOUR - 1, "input_not_passed")]


@pytest.mark.parametrize("units", ["{by: blocks, size: 1}", "{by: time, grain: hour}"])
def test_the_largest_unit_takes_as_long_as_any(windows: WindowFlow, made_windows: list[Window], units: str) -> None:
    deploy(windows, f"units: {units}\n    inputs: [{{from: {{job: blocks}}}}]")
    windows.times = lambda _start, _end: (0, LAST_TIME)
    put(windows, 0, 2**62, "a")
    assert len(made_windows) == AT_ONCE + 1
    before = len(made_windows)
    assert windows.harness.run(windows.harness.dispatcher.drain.run_once()) > 0
    assert len(made_windows) - before <= AT_ONCE + 1


def test_a_change_of_a_large_unit_is_gone_through_once_more(windows: WindowFlow) -> None:
    deploy(windows, "units: {by: blocks, size: 1}\n    inputs: [{from: {job: blocks}}]")
    count = AT_ONCE + 20
    put(windows, 0, count - 1, "a")
    assert windows.run_windows("model") == count
    put(windows, 0, count - 1, "b")
    assert windows.run_windows("model") == count
    assert set(windows.rows("model").values()) == {"(b)"}
    assert windows.pending() == []


@pytest.mark.parametrize("body", [HOURS, UPDATED])
def test_a_backfill_behind_a_followed_head_touches_its_own_windows(
    windows: WindowFlow, made_windows: list[Window], body: str
) -> None:
    """Ten years lie between the backfill and the head: they are not gone through, whatever is committed."""
    deploy(windows, body)
    windows.times = lambda start, end: (start, end)
    put(windows, NOW, NOW + 99, "head")
    first = NOW - 10 * YEAR
    for start in range(first, first + 4 * HOUR, HOUR):
        made_windows.clear()
        put(windows, start, start + HOUR - 1, "old")
        assert len(made_windows) <= 4
    windows.run_windows("model")
    start = first - first % HOUR
    assert touched(windows) == {*range(start, start + 5 * HOUR, HOUR), NOW - NOW % HOUR}
    complete = {start + HOUR * number for number in range(5 if body == UPDATED else 4)}
    assert {window[0] for window in windows.rows("model")} == complete | (
        {NOW - NOW % HOUR} if body == UPDATED else set()
    )


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 2, 1), (3, 0, 1, 2), (2, 0, 3, 1)])
def test_windows_in_a_gap_are_computed_once_it_is_covered(windows: WindowFlow, order: tuple[int, ...]) -> None:
    """Blocks are rare: most hours have none, and are computed when the units around them adjoin."""
    deploy(windows, UPDATED)
    times = {0: (0, 100), 10: (4 * HOUR, 4 * HOUR), 20: (9 * HOUR, 9 * HOUR), 30: (12 * HOUR, 12 * HOUR)}
    windows.times = lambda start, _end: times[start]
    committed: set[int] = set()
    for number in order:
        put(windows, 10 * number, 10 * number + 9, "x")
        committed.add(number)
        windows.run_windows("model")
        first = [times[10 * one][0] // HOUR for one in range(4)]
        known = {first[one] for one in committed}
        for one in range(3):
            if {one, one + 1} <= committed:
                known |= set(range(first[one], first[one + 1]))
        assert {start // HOUR for start, _ in windows.rows("model")} == known
    assert windows.pending() == []


def test_a_gap_keeps_a_running_state_waiting(windows: WindowFlow) -> None:
    deploy(windows, SELF.replace("{by: blocks, size: 10}", "{by: time, grain: hour, when: updated}"))
    times = {0: (0, 100), 10: (2 * HOUR, 2 * HOUR), 20: (1000 * HOUR, 1000 * HOUR)}
    windows.times = lambda start, _end: times[start]
    put(windows, 0, 9, "a")
    put(windows, 20, 29, "c")
    assert windows.run_windows("model", at_most=5) == 1
    assert (HOUR, 2 * HOUR - 1, "input_gap") in windows.pending(), "it is not known whether the hour has blocks"
    put(windows, 10, 19, "b")
    assert windows.run_windows("model", at_most=5) == 5, "from here on they follow each other"


def test_the_window_before_a_gap_says_that_it_waits_for_a_unit(windows: WindowFlow) -> None:
    deploy(windows, HOURS)
    windows.times = lambda start, end: (start, end)
    put(windows, 0, 99, "a")
    assert windows.pending() == [(0, HOUR - 1, "input_not_passed")]
    put(windows, 100 * HOUR, 100 * HOUR + 9, "c")
    assert windows.pending()[0] == (0, HOUR - 1, "input_gap")
    assert touched(windows) == {0, 100 * HOUR}, "and of the hours between nobody speaks"


def test_times_of_older_releases_are_no_windows(windows: WindowFlow) -> None:
    """They took any number for a time, and 0 for that of a block without one."""
    deploy(windows, HOURS)
    windows.times = lambda _start, _end: (NOW, NOW + 10)
    put(windows, 0, 9, "a")
    put(windows, 10, 19, "b")
    windows.harness.sql("UPDATE manifests SET time_min = 0 WHERE unit = 'p:0-9'")
    windows.harness.sql("UPDATE manifests SET time_max = 2::bigint ^ 62 WHERE unit = 'p:10-19'")
    put(windows, 0, 9, "A")
    put(windows, 10, 19, "B")
    assert NOW - NOW % HOUR <= min(touched(windows)) <= max(touched(windows)) < LAST_TIME


def test_a_unit_at_the_end_of_all_blocks_is_routed(windows: WindowFlow) -> None:
    deploy(windows, "units: {by: blocks, size: 7}\n    inputs: [{from: {job: blocks}, read: window, lookback: 9}]")
    windows.times = None
    put(windows, 2**63 - 20, 2**63 - 1, "a")
    windows.run_windows("model")
    assert [end for _, end in windows.rows("model")][-1] == 2**63 - 1


def test_a_range_that_is_declared_wrong_is_cut_to_what_is_there(
    windows: WindowFlow, made_windows: list[Window], monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(windows, "units: {by: blocks, size: 1}\n    inputs: [{from: {job: blocks}}]")
    put(windows, 0, 2, "a")
    put(windows, 3, 5, "b")
    assert windows.run_windows("model") == 6
    made_windows.clear()
    wrong, complete = {"start": 1, "end": 2**62, "reason": "x"}, windows.complete

    def declare(*place: Any, events: list[Any], **fields: Any) -> Any:
        return complete(*place, events=[event | {"invalidates": wrong} for event in events], **fields)

    monkeypatch.setattr(windows, "complete", declare)
    put(windows, 3, 5, "B")
    assert {window.start for window in made_windows} == {1, 2, 3, 4, 5}
    assert windows.pending() == []
    assert len(windows.tasks("model", "Queued")) == 5


def test_windows_that_are_left_over_wait_for_room_in_the_queue(windows: WindowFlow) -> None:
    deploy(windows, "max_queue_depth: 150\n    units: {by: blocks, size: 1}\n    inputs: [{from: {job: blocks}}]")
    windows.times = None
    put(windows, 0, 2**40, "a")
    windows.drain()
    assert len(windows.tasks("model", "Queued")) == 150
    assert [item[0] for item in windows.pending()] == [150]
    for task in windows.tasks("model", "Queued")[:100]:
        windows.run(task["task_id"])
    windows.drain()
    assert len(windows.tasks("model", "Queued")) > 50


def test_nodes_with_much_to_do_do_not_take_the_turns_of_others(
    windows: WindowFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_drain, "_NODES_A_ROUND", 1)
    jobs = "".join(
        f"  - {{name: m{number}, activation: reactive, operator: spark_sql, config: {{query: SELECT * FROM blocks}},"
        " units: {by: blocks, size: 1}, inputs: [{from: {job: blocks}}]}\n"
        for number in range(3)
    )
    windows.deploy(
        "name: w\ndefaults: {runtime: ecs_platform}\njobs:\n"
        "  - {name: src, activation: source, source: {kind: manual}}\n"
        "  - {name: blocks, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,\n"
        f"      inputs: [{{from: {{job: src}}}}]}}\n{jobs}publish:\n  blocks: {{from: {{job: blocks}}, storage: s3}}\n"
    )
    put(windows, 0, 10 * AT_ONCE, "a")
    before = {number: len(windows.tasks(f"m{number}")) for number in range(3)}
    for _ in range(3):
        windows.harness.run(windows.harness.dispatcher.drain.run_once())
    assert all(len(windows.tasks(f"m{number}")) > before[number] for number in range(3))


@pytest.mark.parametrize("time", [LAST_TIME + 1, 253_370_592_000, NOW * 1000])
def test_times_that_no_block_has_are_refused(windows: WindowFlow, time: int) -> None:
    """Milliseconds, above all. Whoever writes a unit is told; nothing is routed."""
    deploy(windows, HOURS)
    windows.times = lambda _start, _end: (NOW, time)
    refusal = f"expected the time of a block in seconds since 1970, at most {LAST_TIME}, received {time}"
    with pytest.raises(AssertionError, match=f"status=422, .*body_invalid.*{refusal}"):
        put(windows, 0, 9, "a")
    published = {"dataset_uuid": UUID_TEXT, "dataset_version": UUID_TEXT, "storage_ref": STORAGE, "time_min": 0}
    answer = msgspec.json.encode({"datasets_published": [published | {"time_max": time}]})
    with pytest.raises(ValueError, match=f"does not fit a final report: {refusal}"):
        read_response(answer)
    unit: Any = {"dataset_uuid": UUID_TEXT, "dataset_version": UUID_TEXT, "partition_key": "0-0", "start": 0, "end": 0}
    wrong = {"start": 0, "end": 0, "reason": "x", "time_min": 0, "time_max": time}
    for fields in ({"first": 0, "times": [time]}, {"invalidates": wrong}):
        with pytest.raises(msgspec.ValidationError, match=refusal):
            msgspec.convert(unit | fields, EventIn, strict=False)


def test_a_genesis_without_a_time_is_in_no_window_of_1970(windows: WindowFlow) -> None:
    """A unit of block 0 alone has no times then. It keeps nothing waiting, and a running state begins with block 1."""
    deploy(windows, SELF.replace("{by: blocks, size: 10}", "{by: time, grain: hour}"))
    windows.times = lambda start, end: None if start == 0 else (NOW + start * HOUR, NOW + end * HOUR)
    put(windows, 0, 0, "genesis")
    assert windows.pending() == []
    put(windows, 1, 2, "a")
    put(windows, 3, 4, "b")
    assert windows.run_windows("model") == 3
    first = NOW - NOW % HOUR + HOUR
    assert [start for start, _ in windows.rows("model")] == [first, first + HOUR, first + 2 * HOUR]
