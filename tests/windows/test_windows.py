"""Jobs with units of their own: which windows a change touches, when one is complete, and what its task reads."""

import pytest

from tests.api.support import User
from tests.windows.support import WindowFlow
from tracelake.errors import TraceError

DAG = """
name: w
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: src, activation: source, source: {{kind: manual}}}}
  - {{name: blocks, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
      inputs: [{{from: {{job: src}}}}]}}
  - name: model
    activation: reactive
    operator: spark_sql
    config: {{query: SELECT * FROM blocks}}
    {body}
publish:
  blocks: {{from: {{job: blocks}}, storage: s3}}
  model: {{from: {{job: model}}, storage: s3}}
"""


def deploy(windows: WindowFlow, body: str) -> None:
    windows.deploy(DAG.format(body=body))


def put(windows: WindowFlow, start: int, end: int, text: str) -> None:
    windows.commit_source("w", "blocks", start, end, text)


def test_a_window_of_blocks_is_computed_once_its_blocks_are_there(windows: WindowFlow) -> None:
    deploy(windows, "units: {by: blocks, size: 20}\n    inputs: [{from: {job: blocks}}]")
    put(windows, 0, 9, "a")
    assert windows.tasks("model") == []
    assert windows.pending() == [(0, 19, "input_gap")]
    put(windows, 10, 19, "b")
    assert windows.run_windows("model") == 1
    assert windows.rows("model") == {(0, 19): "(a,b)"}
    assert windows.pending() == []


def test_units_that_cut_across_windows_are_in_both(windows: WindowFlow) -> None:
    deploy(windows, "units: {by: blocks, size: 20}\n    inputs: [{from: {job: blocks}}]")
    for start, text in ((0, "a"), (15, "b"), (30, "c")):
        put(windows, start, start + 14, text)
    assert windows.run_windows("model") == 2
    assert windows.rows("model") == {(0, 19): "(a,b)", (20, 39): "(b,c)"}
    put(windows, 15, 29, "B")
    assert windows.run_windows("model") == 2
    assert windows.rows("model") == {(0, 19): "(a,B)", (20, 39): "(B,c)"}


def test_hours_are_found_by_the_times_of_units(windows: WindowFlow) -> None:
    """Block n has the time 10 n, so an hour has 360 blocks."""
    deploy(windows, "units: {by: time, grain: hour}\n    inputs: [{from: {job: blocks}, by: timestamp}]")
    for number, text in enumerate("abcde"):
        put(windows, number * 200, number * 200 + 199, text)
    assert windows.run_windows("model") == 2, "the third hour has not passed"
    assert windows.rows("model") == {(0, 3599): "(a,b)", (3600, 7199): "(b,c,d)"}
    assert windows.pending() == [(7200, 10799, "input_not_passed")]
    (task, *_) = windows.tasks("model")
    scope = task["inputs"][0]["scope"]
    assert (scope["column"], scope["first"], scope["last"]) == ("timestamp", 0, 3599)
    assert (scope["start"], scope["end"]) == (0, 399)
    put(windows, 200, 399, "B")
    assert windows.run_windows("model") == 2, "a rewritten unit recomputes the hours it is in, and no other"
    assert windows.rows("model") == {(0, 3599): "(a,B)", (3600, 7199): "(B,c,d)"}


@pytest.mark.parametrize(("reading", "again"), [("", 1), (", read: window, lookback: 1", 2), (", read: history", 3)])
def test_a_unit_that_begins_with_an_hour_changes_nothing_before_it(
    windows: WindowFlow, reading: str, again: int
) -> None:
    read = f"inputs: [{{from: {{job: blocks}}, by: timestamp{reading}}}]"
    deploy(windows, f"units: {{by: time, grain: hour}}\n    {read}")
    for number, text in enumerate("abcde"):
        put(windows, number * 360, number * 360 + 359, text)
    assert windows.run_windows("model") == 4
    put(windows, 360, 719, "B")
    assert windows.run_windows("model") == again
    assert windows.rows("model")[0, 3599] == "(a)"
    assert "B" in windows.rows("model")[3600, 7199]


def test_hours_inside_a_unit_do_not_wait_for_the_unit_before(windows: WindowFlow) -> None:
    """Hours that begin within a unit need no block before it, and the unit before says nothing about them."""
    deploy(windows, "units: {by: time, grain: hour}\n    inputs: [{from: {job: blocks}, by: timestamp}]")
    put(windows, 0, 399, "a")
    put(windows, 1500, 1999, "d")
    put(windows, 500, 1499, "c")
    assert windows.run_windows("model") == 4, "the first hour, and those from 7200 s on but the last"
    put(windows, 400, 499, "b")
    assert windows.run_windows("model") == 1
    assert windows.rows("model") == {
        (0, 3599): "(a)", (3600, 7199): "(a,b,c)", (7200, 10799): "(c)", (10800, 14399): "(c)", (14400, 17999): "(c,d)"
    }  # fmt: skip
    assert windows.pending() == [(18000, 21599, "input_not_passed")]


def test_an_hour_without_blocks_is_computed_and_empty(windows: WindowFlow) -> None:
    deploy(windows, "units: {by: time, grain: hour}\n    inputs: [{from: {job: blocks}}]")
    windows.times = lambda start, _end: (start * 1000, start * 1000 + 500)
    put(windows, 0, 0, "a")
    put(windows, 1, 1, "b")
    windows.times = lambda _start, _end: (12_000, 12_500)
    put(windows, 2, 2, "c")
    assert windows.run_windows("model") == 3
    assert windows.rows("model") == {(0, 3599): "(a,b)", (3600, 7199): "()", (7200, 10799): "()"}


def test_a_unit_whose_times_change_leaves_its_windows(windows: WindowFlow) -> None:
    deploy(windows, "units: {by: time, grain: hour}\n    inputs: [{from: {job: blocks}}]")
    times = {0: (100, 200), 1: (3_700, 3_800), 2: (20_000, 20_000)}
    windows.times = lambda start, _end: times[start]
    for start, text in enumerate("abc"):
        put(windows, start, start, text)
    windows.run_windows("model")
    assert windows.rows("model")[(3600, 7199)] == "(b)"
    times[1] = (7_300, 7_300)
    put(windows, 1, 1, "B")
    windows.run_windows("model")
    rows = windows.rows("model")
    assert (rows[(3600, 7199)], rows[(7200, 10799)]) == ("()", "(B)")


def test_lookback_reads_windows_before(windows: WindowFlow) -> None:
    deploy(windows, "units: {by: blocks, size: 10}\n    inputs: [{from: {job: blocks}, read: window, lookback: 2}]")
    for number, text in enumerate("abcd"):
        put(windows, number * 10, number * 10 + 9, text)
    windows.run_windows("model")
    assert list(windows.rows("model").values()) == ["(a)", "(a,b)", "(a,b,c)", "(b,c,d)"]
    put(windows, 10, 19, "B")
    assert windows.run_windows("model") == 3
    assert list(windows.rows("model").values()) == ["(a)", "(a,B)", "(a,B,c)", "(B,c,d)"]


def test_history_reads_everything_before(windows: WindowFlow) -> None:
    deploy(windows, "units: {by: blocks, size: 10}\n    inputs: [{from: {job: blocks}, read: history}]")
    for number, text in ((2, "c"), (0, "a"), (1, "b"), (3, "d")):
        put(windows, number * 10, number * 10 + 9, text)
        windows.run_windows("model")
    assert list(windows.rows("model").values()) == ["(a)", "(a,b)", "(a,b,c)", "(a,b,c,d)"]
    put(windows, 20, 29, "C")
    assert windows.run_windows("model") == 2
    assert list(windows.rows("model").values()) == ["(a)", "(a,b)", "(a,b,C)", "(a,b,C,d)"]


SELF = """units: {by: blocks, size: 10}
    inputs: [{from: {job: blocks}}, {self: previous, columns: {total: bigint}}]"""


def test_the_unit_before_is_read_in_order(windows: WindowFlow) -> None:
    deploy(windows, SELF)
    for number, text in ((0, "a"), (2, "c"), (1, "b"), (3, "d")):
        put(windows, number * 10, number * 10 + 9, text)
    assert len(windows.tasks("model", "Queued")) == 1, "units come one after another"
    windows.run_windows("model")
    assert list(windows.rows("model").values()) == ["(a|)", "(b|(a|))", "(c|(b|(a|)))", "(d|(c|(b|(a|))))"]
    put(windows, 10, 19, "B")
    assert windows.run_windows("model") == 3, "the days after a change are computed again, in order"
    assert list(windows.rows("model").values()) == ["(a|)", "(B|(a|))", "(c|(B|(a|)))", "(d|(c|(B|(a|))))"]


@pytest.mark.parametrize("ending", ["cancel", "skip"])
def test_a_unit_that_changed_goes_on_when_the_one_before_it_is_given_up(windows: WindowFlow, ending: str) -> None:
    """The unit before stays in its older revision. The one behind it has another reason to be computed again."""
    deploy(windows, SELF)
    put(windows, 0, 14, "a")
    put(windows, 15, 39, "b")
    windows.run_windows("model")
    put(windows, 0, 14, "A")
    (task,) = windows.tasks("model", "Queued")
    if ending == "skip":
        windows.fail(task["task_id"])
        assert windows.run_windows("model") == 0, "it may be tried again"
    windows.person(ending, task["task_id"])
    assert windows.run_windows("model") == 3
    assert list(windows.rows("model").values()) == [
        "(a|)", "(A,b|(a|))", "(b|(A,b|(a|)))", "(b|(b|(A,b|(a|))))"
    ]  # fmt: skip


@pytest.mark.parametrize("units", ["{by: blocks, size: 360, when: updated}", "{by: time, grain: hour, when: updated}"])
def test_a_running_state_that_is_updated_ends_where_its_inputs_end(windows: WindowFlow, units: str) -> None:
    deploy(windows, SELF.replace("{by: blocks, size: 10}", units))
    put(windows, 0, 99, "a")
    assert windows.run_windows("model", at_most=3) == 1, "the next window has not begun"
    (size,) = {end + 1 for _, end in windows.rows("model")}
    assert windows.rows("model") == {(0, size - 1): "(a|)"}
    assert windows.pending() == [(size, 2 * size - 1, "input_not_passed")]
    put(windows, 100, 399, "b")
    assert windows.run_windows("model", at_most=4) == 2
    assert windows.rows("model") == {(0, size - 1): "(a,b|)", (size, 2 * size - 1): "(b|(a,b|))"}


def test_a_window_that_is_updated_grows(windows: WindowFlow) -> None:
    deploy(windows, "units: {by: blocks, size: 30, when: updated}\n    inputs: [{from: {job: blocks}}]")
    put(windows, 0, 9, "a")
    windows.run_windows("model")
    assert windows.rows("model") == {(0, 29): "(a)"}
    put(windows, 20, 29, "c")
    put(windows, 10, 19, "b")
    assert windows.run_windows("model") == 1, "a queued task is brought up to date"
    assert windows.rows("model") == {(0, 29): "(a,b,c)"}


def test_a_change_while_a_task_runs_is_not_lost(windows: WindowFlow) -> None:
    deploy(windows, "units: {by: blocks, size: 10}\n    inputs: [{from: {job: blocks}}]")
    put(windows, 0, 9, "a")
    (task,) = windows.tasks("model", "Queued")
    lease = windows.claim(task["task_id"])
    put(windows, 0, 9, "A")
    read = windows.read(task["task_id"], lease, lease["task"]["inputs"][0])
    assert read == ["a"], "an attempt reads one moment, that of its claim"
    windows.finish(task["task_id"], "(a)", lease)
    assert windows.run_windows("model") == 1
    assert windows.rows("model") == {(0, 9): "(A)"}


@pytest.mark.parametrize("ending", ["skip", "retry"])
def test_a_unit_that_fails_keeps_the_window_waiting(windows: WindowFlow, ending: str) -> None:
    deploy(windows, "units: {by: blocks, size: 20}\n    inputs: [{from: {job: blocks}}]")
    windows.trigger("w", "src", range={"start": 0, "end": 9})
    windows.trigger("w", "src", range={"start": 10, "end": 19})
    first, second = windows.tasks("blocks", "Queued")
    windows.fail(first["task_id"])
    windows.finish(second["task_id"], "b")
    assert windows.run_windows("model") == 0, "the beginning is missing"
    assert windows.pending() == [(0, 19, "input_gap")]
    windows.person(ending, first["task_id"])
    if ending == "retry":
        windows.finish(first["task_id"], "a")
        assert windows.run_windows("model") == 1
        assert windows.rows("model") == {(0, 19): "(a,b)"}
    else:
        assert windows.run_windows("model") == 0
        assert windows.pending() == [(0, 19, "input_gap")]


def why(windows: WindowFlow) -> dict[str, str]:
    reply = User(windows.harness, windows.org).get("/v1/why/job/w/model")
    return {item["code"]: item["text"] for item in reply["reasons"]}


def test_what_a_window_waits_for_is_explained(windows: WindowFlow) -> None:
    deploy(windows, "units: {by: time, grain: day, time_zone: Europe/Berlin}\n    inputs: [{from: {job: blocks}}]")
    put(windows, 0, 999, "a")
    assert "1970-01-01 is not over" in why(windows)["window_open"]
    put(windows, 20_000, 30_000, "c")
    assert why(windows)["unit_waits"].startswith("The unit 1970-01-01, and ")
    assert "a unit of an input is missing" in why(windows)["unit_waits"]


def test_a_window_that_no_block_has_reached_is_not_told_of(windows: WindowFlow) -> None:
    """Of a job that computes windows as they grow: what its inputs have not reached is not about to be computed."""
    updated = "units: {by: time, grain: hour, when: updated}"
    deploy(windows, updated + "\n    inputs: [{from: {job: blocks}, lookback: 1}]")
    put(windows, 0, 359, "a")
    windows.run_windows("model")
    assert [(start, reason) for start, _, reason in windows.pending()] == [(3600, "input_not_passed")]
    assert why(windows).keys() == {"up_to_date"}
    reply = User(windows.harness, windows.org).get("/v1/why/dataset/model")
    assert [item["code"] for item in reply["reasons"]] == ["fresh"]


def test_a_unit_that_is_computed_again_needs_nobody(windows: WindowFlow) -> None:
    deploy(windows, "units: {by: blocks, size: 10}\n    inputs: [{from: {job: blocks}}]")
    put(windows, 0, 9, "a")
    (task,) = windows.tasks("model", "Queued")
    windows.claim(task["task_id"])
    put(windows, 0, 9, "b")
    windows.harness.advance(5)
    assert why(windows)["unit_awaits_task"] == (
        "The unit 0-9 has waited 5s: a task of the unit runs, and the unit has changed since it began."
    )
    summary = User(windows.harness, windows.org).get("/v1/why/job/w/model")["summary"]
    assert summary.endswith("Wait for the task.")


def test_a_window_is_computed_again_on_demand(windows: WindowFlow) -> None:
    deploy(windows, "units: {by: blocks, size: 10}\n    inputs: [{from: {job: blocks}}]")
    put(windows, 0, 9, "a")
    assert windows.run_windows("model") == 1
    reply = windows.trigger("w", "model", range={"start": 0, "end": 9})
    assert reply.task_id is not None
    assert windows.run(reply.task_id) == "(a)"
    with pytest.raises(TraceError, match="like 0-9"):
        windows.trigger("w", "model", range={"start": 3, "end": 5})
    with pytest.raises(TraceError, match="do not cover"):
        windows.trigger("w", "model", range={"start": 10, "end": 19})


def test_lineage_shows_what_was_read(windows: WindowFlow) -> None:
    deploy(windows, "units: {by: blocks, size: 30}\n    inputs: [{from: {job: blocks}}]")
    for start, text in ((0, "a"), (10, "b"), (20, "c")):
        put(windows, start, start + 9, text)
    put(windows, 10, 19, "B")
    windows.run_windows("model")
    (unit,) = User(windows.harness, windows.org).get("/v1/datasets/model/lineage")["units"]
    assert [(part["start"], part["end"], part["revision"]) for part in unit["read"]] == [
        (0, 9, 1),
        (10, 19, 2),
        (20, 29, 1),
    ]


def test_a_changed_query_builds_its_windows_beside_the_old_ones(windows: WindowFlow) -> None:
    body = (
        "units: {by: blocks, size: 10}\n    inputs: [{from: {job: blocks}}, {self: previous, columns: {total: bigint}}]"
    )
    deploy(windows, body)
    for number, text in enumerate("abc"):
        put(windows, number * 10, number * 10 + 9, text)
    windows.run_windows("model")
    before = windows.rows("model")
    reply = windows.deploy(DAG.format(body=body).replace("SELECT * FROM blocks", "SELECT 1L AS total FROM blocks"))
    assert reply.state == "Building"
    builds = windows.harness.dispatcher.builds
    assert windows.harness.run(builds.run_once()) == 0, "the old windows count until the new ones are there"
    windows.drain()
    assert windows.harness.run(builds.run_once()) == 0
    while tasks := windows.tasks("model", "Queued"):
        assert windows.rows("model") == before
        windows.run(tasks[0]["task_id"])
    windows.harness.run(builds.run_once())
    assert windows.rows("model") == before, "the same rows, in a generation of their own"
    put(windows, 30, 39, "d")
    assert windows.run_windows("model") == 1
