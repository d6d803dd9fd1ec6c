"""The boundary of a live dataset: who moves it, and what readers are shown."""

import pytest

from tests.live.support import DAG, LiveFlow


def test_readers_see_files_up_to_the_boundary_of_their_claim(live: LiveFlow) -> None:
    live.begin()
    live.backfill(0, 9, "a")
    live.backfill(10, 19, "b")
    live.append(20, 44)
    assert live.boundary() == 19, "rows above are in the table"
    task_id = live.task_of("copy", 20, 44)
    early = live.claim(task_id)
    assert live.grant(early)["storage"] == ["s3", "postgres"]
    assert live.grant(early)["boundary"] == 19
    live.compact(live.seal(20, 29), "c")
    assert live.boundary() == 29
    assert live.look(task_id, early, 0, 44) == (["a", "b"], 19), "an attempt keeps its boundary"
    late_id = live.task_of("tens", 20, 29)
    late = live.claim(late_id)
    assert live.grant(late)["boundary"] == 29
    assert live.look(late_id, late, 0, 44) == (["a", "b", "c"], 29)
    assert live.look(late_id, late, 30, 44) == ([], 29)
    assert live.look(late_id, late, 15, 25) == (["b", "c"], 29)


def test_jobs_that_write_files_are_told_that_there_is_a_table(live: LiveFlow) -> None:
    live.begin()
    live.append(20, 44)
    outputs = {
        "compact": live.claim(live.seal(20, 29))["task"]["outputs"],
        "copy": live.claim(live.task_of("copy", 20, 44))["task"]["outputs"],
        "head": live.lease["task"]["outputs"],
    }
    assert {job: output["storage"].get("live") for job, (output, *_) in outputs.items()} == {
        "compact": True,
        "copy": None,
        "head": None,
    }


def test_files_that_are_committed_out_of_order_wait_for_those_before_them(live: LiveFlow) -> None:
    live.begin()
    live.append(20, 60)
    first, second, third = live.seal(20, 29), live.seal(30, 39), live.seal(40, 49)
    live.compact(third, "e")
    live.compact(second, "d")
    assert live.boundary() == 19
    task_id = live.task_of("copy", 20, 60)
    lease = live.claim(task_id)
    assert live.look(task_id, lease, 20, 60) == ([], 19), "these rows are read from the table"
    live.compact(first, "c")
    assert live.boundary() == 49
    other_id = live.task_of("tens", 20, 29)
    assert live.look(other_id, live.claim(other_id), 20, 60) == (["c", "d", "e"], 49)


def test_a_compaction_runs_no_reader_again(live: LiveFlow) -> None:
    live.begin()
    live.append(20, 44)
    live.run_windows("copy", "tens")
    before = live.units("copy") + live.units("tens")
    live.compact(live.seal(20, 29), "c")
    live.drain()
    assert live.units("copy") + live.units("tens") == before
    live.append(45, 45)
    live.run_windows("copy", "tens")
    assert [unit for unit in live.units("tens") if unit not in before] == [
        (key, revision) for key, revision in live.units("tens") if key == "p:40-49" and (key, revision) not in before
    ]


def test_the_writer_of_files_is_told_of_the_table_and_the_boundary(live: LiveFlow) -> None:
    live.begin()
    live.append(20, 44)
    first, second = live.seal(20, 29), live.seal(30, 39)
    told = live.compact(first, "c")
    assert told["table"]["name"] == "blocks"
    assert told["boundary"] == 19
    assert live.compact(second, "d")["boundary"] == 29, "rows up to here may leave the table"


def test_a_reorganisation_runs_the_units_again_that_it_touches_and_makes_no_other(live: LiveFlow) -> None:
    live.begin()
    live.append(20, 30)
    live.append(31, 31)
    live.append(32, 32)
    live.run_windows("copy", "tens")
    before = {job: live.units(job) for job in ("copy", "tens")}
    live.reorganise(31, 32, "0xfork.1.1")
    live.append(33, 33)
    live.run_windows("copy", "tens")
    again = {job: [unit for unit in live.units(job) if unit not in before[job]] for job in ("copy", "tens")}
    assert sorted(key for key, _ in again["copy"]) == ["p:31-31", "p:32-32", "p:33-33"]
    assert {key for key, _ in again["tens"]} == {"p:30-39"}


@pytest.mark.parametrize("order", ["history_first", "table_first"])
def test_windows_over_files_and_table_are_complete_when_both_are_there(live: LiveFlow, order: str) -> None:
    live.begin()
    if order == "history_first":
        live.backfill(0, 19, "a")
        live.append(20, 25)
    else:
        live.append(20, 25)
        live.backfill(0, 19, "a")
    live.run_windows("copy", "tens")
    assert sorted({key for key, _ in live.units("tens")}) == ["p:0-9", "p:10-19", "p:20-29"]


def test_rows_of_the_table_never_replace_files_that_were_read_since(live: LiveFlow) -> None:
    live.begin()
    live.append(20, 44)
    late = live.seal(20, 29)
    live.backfill(20, 29, "repaired")
    live.compact(late, "former")
    assert live.boundary() == 29
    task_id = live.task_of("tens", 20, 29)
    assert live.look(task_id, live.claim(task_id), 20, 29) == (["repaired"], 29)


def test_how_a_chain_is_read_is_no_part_of_its_files(live: LiveFlow) -> None:
    live.begin()
    live.backfill(0, 9, "a")
    before = {job: live.units(job) for job in ("history", "copy")}
    changed = DAG.replace("chain_id: 1, start: 0", "chain_id: 1, start: 0, rpc: other, batch_size: 3")
    live.deploy(changed.replace("config: {chain_id: 1, tables", "config: {chain_id: 1, rpc: other, tables"))
    live.drain()
    assert {job: live.units(job) for job in before} == before, "nothing is read again"
