"""A changed writer builds its rows beside the old ones; the cutover swaps them, and a rollback swaps them back."""

from typing import Any

import pytest

from tests.sink.conftest import MakeFlow
from tests.sink.flow import DAG, BufferFlow
from tests.sink.test_loop import sink_of
from tests.support.dags import activate, run_builds
from tests.support.postgres import wait_until
from tests.why.support import Situation, commands, said

OLD = [(1, "old"), (2, "old"), (3, "old")]
NEW = [(2, "new"), (4, "new")]


def change_left(flow: BufferFlow, **options: str) -> Any:
    """Deploy the DAG with another definition of `left`."""
    document = DAG.format(on_conflict=flow.on_conflict, more="", limits=options.pop("limits", ""))
    changed = document.replace("operator: noop", "operator: sleep\n    config: { seconds: 0 }", 1)
    assert changed != document
    return flow.flow.deploy(changed)


def read_all(flow: BufferFlow) -> None:
    """Complete what waits for the reader."""
    while waiting := flow.flow.tasks("reader", "Queued"):
        flow.flow.complete(waiting[0]["task_id"], flow.flow.claim(waiting[0]["task_id"]))


def start(flow: BufferFlow) -> None:
    flow.write([{"key": 1, "value": "old"}, {"key": 2, "value": "old"}], block=1)
    flow.write([{"key": 3, "value": "old"}], block=2)
    flow.batches = 1
    flow.sink()
    assert flow.rows() == OLD
    read_all(flow)
    assert flow.reader_units() == ["c:1", "c:2"]


def drain_build(flow: BufferFlow) -> list[str]:
    """Let the build read its history; returns its tasks."""
    while flow.harness.run(flow.harness.dispatcher.drain.run_once()):
        pass
    return [str(task["task_id"]) for task in flow.flow.tasks("left", "Queued")]


def build(flow: BufferFlow, *rows: list[Any]) -> None:
    """Make the units of the build, each with these rows."""
    for task_id, batch in zip(drain_build(flow), rows, strict=True):
        lease = flow.flow.claim(task_id)
        flow.publish_by(task_id, lease, batch)
        flow.flow.complete(task_id, lease)


def new_rows() -> list[list[Any]]:
    return [[{"key": 2, "value": "new"}], [{"key": 4, "value": "new"}]]


def why(flow: BufferFlow) -> list[str]:
    reasons: list[Any] = Situation(flow.harness, flow.org).why_dataset("large")["reasons"]
    return [reason["text"] for reason in reasons if reason["code"] == "rebuilding"]


def announce(flow: BufferFlow, units: int) -> None:
    """Run a whole sink until the readers have heard of a change of writers."""
    with sink_of(flow):
        wait_until(lambda: len(flow.reader_units()) == units, "the tasks of the reader")
        wait_until(lambda: flow.data_sql("SELECT 1 FROM buffer_changes WHERE unannounced") == [], "the mark")


def test_rows_are_built_beside_and_swapped_by_the_cutover(flow: BufferFlow) -> None:
    start(flow)
    assert change_left(flow).state == "Building"
    build(flow, *new_rows())
    assert run_builds(flow.harness) == 0, "its batches are not in the table"
    text = (
        "Version 2 of transfers builds new rows for its table: 2 done, 0 open, 0 failed, 2 batches waiting for a sink."
    )
    assert text in why(flow)
    assert flow.sink() == 2
    assert flow.rows() == OLD, "what is built is not visible"
    assert flow.reader_units() == ["c:1", "c:2"], "there is nothing to read of it"
    assert run_builds(flow.harness) == 1
    assert flow.rows() == NEW
    announce(flow, units=5)
    assert flow.flow.units("reader")[-1][0] == "c:5", "the commit of the swap"
    again = sorted(unit for unit, revision in flow.flow.units("reader") if revision)
    assert again == ["c:1", "c:2"], "units whose rows went are read again"
    read_all(flow)
    activate(flow.harness, "transfers", org=flow.org)
    assert flow.rows() == OLD, "a rollback brings the rows back"
    announce(flow, units=7)
    assert sorted(unit for unit, _ in flow.flow.units("reader"))[-2:] == ["c:5", "c:6"]


def test_the_reader_ends_with_the_rows_of_the_table(flow: BufferFlow) -> None:
    """What the table has of each unit that the reader has read again or for the first time is the whole table."""
    start(flow)
    change_left(flow)
    build(flow, *new_rows())
    flow.sink()
    run_builds(flow.harness)
    announce(flow, units=5)
    by_unit = {}
    for unit in dict.fromkeys(flow.reader_units()):
        number = int(unit.removeprefix("c:"))
        by_unit[unit] = flow.data_sql(f"SELECT key, value FROM {flow.table} WHERE _commit_seq = {number} ORDER BY key")
    assert by_unit == {"c:1": [], "c:2": [], "c:5": NEW}


@pytest.mark.parametrize("way", ["drop", "replay"])
def test_a_dead_letter_keeps_the_build_open(flow: BufferFlow, way: str) -> None:
    start(flow)
    change_left(flow)
    build(flow, [{"key": 2, "value": "new"}], [{"key": "four"}])
    flow.sink()
    assert len(flow.letters()) == 1
    assert run_builds(flow.harness) == 0
    reply = Situation(flow.harness, flow.org).why_dataset("large")
    text = "Version 2 of transfers cannot become active: 1 batch of its rows was rejected, 2 are done."
    assert said(reply, "build_failed")["text"] == text
    assert "trace dlq replay --dataset large" in commands(said(reply, "build_failed"))
    assert flow.rows() == OLD
    (flow.drop if way == "drop" else flow.replay)()
    if way == "replay":
        assert run_builds(flow.harness) == 0
        flow.sink()
        assert run_builds(flow.harness) == 0, "it is a dead letter again"
        flow.drop()
    flow.sink()
    assert run_builds(flow.harness) == 1
    assert flow.rows() == [(2, "new")]


def test_rows_of_another_writer_stay_and_win_again(flow: BufferFlow) -> None:
    flow.write([{"key": 1, "value": "right"}, {"key": 9, "value": "right"}], block=7, job="right")
    flow.write([{"key": 1, "value": "old"}, {"key": 2, "value": "old"}], block=1)
    flow.sink()
    assert flow.rows() == [(1, "old"), (2, "old"), (9, "right")]
    change_left(flow)
    tasks = {task["unit_key"]: str(task["task_id"]) for task in flow.flow.tasks("left", "Queued")}
    assert tasks.keys() == {"p:7-7"}, "the unit that the active version has not done"
    drain_build(flow)
    for task in flow.flow.tasks("left", "Queued"):
        lease = flow.flow.claim(task["task_id"])
        if task["unit_key"] == "p:1-1":
            flow.publish_by(str(task["task_id"]), lease, [{"key": 2, "value": "new"}])
        flow.flow.complete(task["task_id"], lease)
    flow.sink()
    assert run_builds(flow.harness) == 1
    assert flow.rows() == [(1, "right"), (2, "new"), (9, "right")]


def test_keep_leaves_old_rows_and_says_so(make_flow: MakeFlow) -> None:
    flow = make_flow()
    flow.deploy(limits="on_change: keep")
    start(flow)
    reply = change_left(flow, limits="on_change: keep")
    (change,) = [item for item in reply.plan.datasets if item.dataset == "large"]
    assert change.table == ["WARNING: old rows stay (`on_change: keep`): what `left` wrote so far is not removed"]
    build(flow, *new_rows())
    flow.sink()
    run_builds(flow.harness)
    assert flow.rows() == [(1, "old"), (2, "new"), (3, "old"), (4, "new")]


def test_a_sink_that_dies_after_the_swap_is_spoken_for_by_the_next(flow: BufferFlow) -> None:
    start(flow)
    change_left(flow)
    build(flow, *new_rows())
    flow.sink()
    run_builds(flow.harness)
    assert flow.rows() == NEW, "a sink has swapped the rows, and dies before it says so"
    assert flow.reader_units() == ["c:1", "c:2"]
    announce(flow, units=5)
    announce(flow, units=5)


def test_the_first_rows_of_a_version_do_not_wait_for_the_next_poll(flow: BufferFlow) -> None:
    """A sink that has not heard of the cutover asks when it gets a batch of an unknown writer."""
    before = flow.dataset
    start(flow)
    change_left(flow)
    build(flow, *new_rows())
    flow.sink()
    run_builds(flow.harness)
    flow.write([{"key": 5, "value": "newest"}], block=3)
    flow.relay()
    assert flow.harness.run(flow.rounds(known=before)) == 1
    table = f"SELECT key, value FROM {flow.table} ORDER BY key"
    assert flow.data_sql(table) == [*NEW, (5, "newest")]
