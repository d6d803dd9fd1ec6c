"""Mistakes that a failed task would find, refused when the task is asked for."""

import itertools
from dataclasses import replace

import pytest

from tests.support.dispatcher import DispatcherHarness
from tests.windows.support import WindowFlow
from tracelake.dispatcher.audit import Actor
from tracelake.errors import TraceError
from tracelake.wire.jobs import BlockRange, TriggerRequest

_orgs = itertools.count()

DAG = """\
name: d
defaults: { runtime: ecs_platform }
jobs:
  - { name: src, activation: source, source: { kind: manual } }
  - name: blocks
    activation: reactive
    operator: decode_logs
    execution_strategy: PerPartition
    inputs: [{ from: { job: src } }]
publish:
  blocks: { from: { job: blocks }, storage: s3 }
"""


@pytest.fixture
def flow(harness: DispatcherHarness) -> WindowFlow:
    return WindowFlow(harness, f"early_{next(_orgs)}")


def test_a_range_that_cuts_across_committed_units_is_refused_with_them(flow: WindowFlow) -> None:
    flow.deploy(DAG)
    for start in (0, 500, 1000):
        flow.commit_source("d", "blocks", start, start + 499, "x")
    for start, end, named in ((250, 749, "0-499, 500-999"), (500, 509, "500-999"), (0, 1499, "0-499, 500-999, 1000")):
        with pytest.raises(TraceError, match="trigger_invalid") as refusal:
            flow.trigger("d", "blocks", range={"start": start, "end": end})
        assert f"{start}-{end} overlaps {named}" in refusal.value.message
        assert refusal.value.details["field"] == "range"
    assert flow.tasks("blocks", "Queued") == []
    assert flow.trigger("d", "blocks", range={"start": 500, "end": 999}).task_id is not None, "a unit as it is"
    assert flow.trigger("d", "src", range={"start": 1500, "end": 1999}).tasks, "and a new one beside them"


CHAIN = """\
name: chain
defaults: { runtime: ecs_platform }
jobs:
  - { name: src, activation: source, source: { kind: manual } }
  - { name: other, activation: source, source: { kind: manual } }
  - { name: relay, activation: reactive, operator: noop, inputs: [{ from: { job: src } }] }
publish:
  passed: { from: { job: relay }, storage: none }
"""
READERS = """\
name: readers
defaults: { runtime: ecs_platform }
jobs:
  - { name: again, activation: reactive, operator: noop, inputs: [{ from: { dataset: passed } }] }
  - { name: blocks, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
      inputs: [{ from: { job: again } }] }
publish:
  blocks: { from: { job: blocks }, storage: s3 }
"""
HOURS = """\
name: hours
defaults: { runtime: ecs_platform }
jobs:
  - { name: hour, activation: reactive, operator: spark_sql, config: { query: SELECT * FROM blocks },
      units: { by: time, grain: hour }, inputs: [{ from: { dataset: blocks }, by: timestamp }] }
publish:
  hour: { from: { job: hour }, storage: s3 }
"""
SPLIT = """\
name: chain
defaults: { runtime: ecs_platform }
jobs:
  - { name: src, activation: source, source: { kind: manual } }
  - { name: large, activation: reactive, runtime: dispatcher, operator: range_splitter, config: { size: 1000 },
      inputs: [{ from: { job: src } }] }
  - { name: small, activation: reactive, runtime: dispatcher, operator: range_splitter, config: { size: 500 },
      inputs: [{ from: { job: large } }] }
  - { name: blocks, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
      inputs: [{ from: { job: small } }] }
publish:
  blocks: { from: { job: blocks }, storage: s3 }
"""
COUNTS = """SELECT (SELECT count(*) FROM events) AS events, (SELECT count(*) FROM tasks) AS tasks,
                   (SELECT count(*) FROM triggers) AS triggers, (SELECT count(*) FROM audit_log) AS audit"""


def refuse(flow: WindowFlow, dag: str, job: str, start: int, end: int, actor: Actor | None = None) -> TraceError:
    """The refusal of a trigger. It leaves nothing behind."""
    before = tuple(flow.harness.sql(COUNTS)[0])
    body = TriggerRequest(range=BlockRange(start=start, end=end))
    with pytest.raises(TraceError, match="trigger_invalid") as refusal:
        flow.harness.run(flow.harness.dispatcher.actions.trigger(actor or flow.actor, dag, job, body))
    assert tuple(flow.harness.sql(COUNTS)[0]) == before
    assert refusal.value.details["field"] == "range"
    return refusal.value


def commit(flow: WindowFlow, *starts: int) -> None:
    """Units of 500 blocks from the source to the files."""
    for start in starts:
        flow.trigger("chain", "src", range={"start": start, "end": start + 499})
    flow.run_all("relay", "again")
    for task in flow.tasks("blocks", "Queued"):
        flow.finish(task["task_id"], "x")


def test_a_source_is_not_triggered_across_units_of_its_readers(flow: WindowFlow) -> None:
    flow.deploy(CHAIN)
    flow.deploy(READERS)
    commit(flow, 0, 500)
    for job in ("src", "relay"):
        error = refuse(flow, "chain", job, 250, 749)
        assert error.message.startswith("readers/blocks would compute the range, too. Units of blocks do not overlap,")
        assert "250-749 overlaps 0-499, 500-999: trigger readers/blocks for one of these" in error.message
        units = ["0-499", "500-999"]
        assert error.details == {"field": "range", "units": units, "dataset": "blocks", "job": "readers/blocks"}
    assert flow.trigger("chain", "src", range={"start": 500, "end": 999}).event_id, "a unit as it is"
    assert flow.trigger("chain", "relay", range={"start": 500, "end": 999}).task_id
    assert flow.trigger("chain", "src", range={"start": 1000, "end": 1009}).tasks, "a new one, of any size"
    assert flow.trigger("chain", "other", range={"start": 250, "end": 749}).event_id, "nobody reads this source"
    stranger = WindowFlow(flow.harness, f"early_{next(_orgs)}")
    stranger.deploy(CHAIN)
    assert stranger.trigger("chain", "src", range={"start": 250, "end": 749}).tasks, "another org has its own units"


def test_a_limited_token_learns_no_names_of_other_dags(flow: WindowFlow) -> None:
    flow.deploy(CHAIN)
    flow.deploy(READERS)
    commit(flow, 0)
    hidden = refuse(flow, "chain", "src", 250, 749, replace(flow.actor, dags=("chain",)))
    assert "blocks" not in str((hidden.message, hidden.details))
    assert "readers" not in hidden.message
    assert hidden.details["units"] == ["0-499"]
    named = refuse(flow, "chain", "src", 250, 749, replace(flow.actor, dags=("chain", "readers")))
    assert named.details["job"] == "readers/blocks"


def test_units_of_a_splitter_are_compared_piece_by_piece(flow: WindowFlow) -> None:
    flow.deploy(SPLIT)
    flow.trigger("chain", "src", range={"start": 0, "end": 1234})
    while flow.tasks("large", "Queued") or flow.tasks("small", "Queued"):
        flow.harness.invoke()
    for task in flow.tasks("blocks", "Queued"):
        flow.finish(task["task_id"], "x")
    assert len(flow.rows("blocks")) == 3
    error = refuse(flow, "chain", "src", 0, 1999)
    assert "0-1999 in units of 500 overlaps 1000-1234" in error.message
    assert error.details["units"] == ["1000-1234"]
    for job in ("src", "large", "small"):
        assert refuse(flow, "chain", job, 250, 749).details["units"] == ["0-499", "500-999"]
    assert flow.trigger("chain", "src", range={"start": 0, "end": 1234}).event_id, "all of them as they are"
    assert flow.trigger("chain", "src", range={"start": 1235, "end": 2999}).tasks


def test_readers_that_choose_their_units_do_not_count(flow: WindowFlow) -> None:
    flow.deploy(DAG)
    flow.deploy(HOURS)
    for start in (0, 200, 400):
        flow.commit_source("d", "blocks", start, start + 199, "x")
    flow.run_windows("hour")
    assert (0, 3599) in flow.rows("hour")
    assert flow.trigger("d", "src", range={"start": 600, "end": 799}).tasks, "hours are no blocks"


def refused_units(flow: WindowFlow, job: str, start: int, end: int) -> list[str]:
    """The units that a refused trigger names, none of which is committed."""
    error = refuse(flow, "d", job, start, end)
    units: list[str] = error.details["units"]
    assert error.details["uncommitted_units"] == units
    assert f"overlaps {', '.join(f'{unit} (not committed yet)' for unit in units)}" in error.message
    return units


@pytest.mark.parametrize("job", ["src", "blocks"])
def test_a_range_that_cuts_across_units_of_open_tasks_is_refused_with_them(flow: WindowFlow, job: str) -> None:
    flow.deploy(DAG)
    for start in (0, 500, 1000):
        flow.trigger("d", "src", range={"start": start, "end": start + 499})
    tasks = {task["unit_key"]: task["task_id"] for task in flow.tasks("blocks", "Queued")}
    assert refused_units(flow, job, 250, 749) == ["0-499", "500-999"]
    assert refused_units(flow, job, 0, 1499) == ["0-499", "500-999", "1000-1499"]
    assert refused_units(flow, job, 600, 609) == ["500-999"], "within one"
    flow.finish(tasks["p:0-499"], "x")
    mixed = refuse(flow, "d", job, 250, 749)
    assert "250-749 overlaps 0-499, 500-999 (not committed yet): " in mixed.message
    assert (mixed.details["units"], mixed.details["uncommitted_units"]) == (["0-499", "500-999"], ["500-999"])


def test_tasks_are_open_until_nothing_more_comes_of_them(flow: WindowFlow) -> None:
    flow.deploy(DAG)
    flow.trigger("d", "src", range={"start": 0, "end": 499})
    (task,) = flow.tasks("blocks", "Queued")
    task_id = task["task_id"]
    flow.harness.sql("UPDATE tasks SET held = true, held_by = 'l', limit_keys = '{l}' WHERE task_id = $1", task_id)
    assert refused_units(flow, "src", 250, 749) == ["0-499"], "held"
    flow.harness.sql("UPDATE tasks SET held = false, held_by = NULL, limit_keys = NULL WHERE task_id = $1", task_id)
    lease = flow.claim(task_id)
    assert refused_units(flow, "src", 250, 749) == ["0-499"], "running"
    flow.complete(task_id, lease, status="Failed", error_message="no", retryable=True)
    assert flow.harness.row(str(task_id))["next_retry_at"] is not None
    assert refused_units(flow, "src", 250, 749) == ["0-499"], "waits for its retry"
    flow.person("cancel", task_id)
    assert flow.trigger("d", "src", range={"start": 250, "end": 749}).tasks, "canceled: the blocks are free"


def test_the_unit_of_an_open_task_is_triggered_again_as_before(flow: WindowFlow) -> None:
    flow.deploy(DAG)
    span = {"start": 0, "end": 499}
    first = flow.trigger("d", "src", range=span, idempotency_key="once")
    again = flow.trigger("d", "src", range=span, idempotency_key="once")
    assert (again.duplicate, again.event_id) == (True, first.event_id)
    assert flow.trigger("d", "src", range=span).tasks == [], "the unit has its task"
    (task,) = flow.tasks("blocks")
    flow.fail(task["task_id"])
    flow.person("retry", task["task_id"])
    own = flow.trigger("d", "blocks", range=span).task_id
    assert own is not None, "a run of its own for the same unit"
    flow.finish(task["task_id"], "x")
    flow.finish(own, "y")
    assert flow.rows("blocks") == {(0, 499): "y"}
    assert flow.trigger("d", "src", range={"start": 500, "end": 999}).tasks, "a unit beside it"


def test_open_pieces_of_a_splitter_are_compared_piece_by_piece(flow: WindowFlow) -> None:
    flow.deploy(SPLIT)
    flow.trigger("chain", "src", range={"start": 0, "end": 1234})
    while flow.tasks("large", "Queued") or flow.tasks("small", "Queued"):
        flow.harness.invoke()
    error = refuse(flow, "chain", "src", 0, 1999)
    assert error.details["uncommitted_units"] == ["1000-1234"]
    assert "0-1999 in units of 500 overlaps 1000-1234 (not committed yet)" in error.message
    assert flow.trigger("chain", "src", range={"start": 0, "end": 1234}).event_id, "all of them as they are"
    assert flow.trigger("chain", "src", range={"start": 1235, "end": 2999}).tasks
