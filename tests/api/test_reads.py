"""Lineage: the ranges and revisions that a task has read of each input, and what is not known of them."""

import json
from typing import Any
from uuid import UUID

import pytest

from tests.api.support import Generation, World
from tests.support.dispatcher import DispatcherHarness


@pytest.fixture
def world(harness: DispatcherHarness) -> World:
    return World(harness)


def reader(world: World, of: Generation, blocks: tuple[int, int], **fields: Any) -> UUID:
    """A task that announced the unit 0-9 of `alerts` after it read these blocks."""
    unit = {"partition_key": f"{blocks[0]}-{blocks[1]}", "start": blocks[0], "end": blocks[1]}
    read = {"input_index": 0, "unit": unit, "dataset_uuid": str(of[0]), "dataset_version": str(of[1])}
    task = world.task(world.alert, "Completed", inputs=[read | fields])
    world.event(world.alerts, blocks=(0, 9), producer=str(task), attempt=1)
    return task


def pin(world: World, task: UUID, of: Generation, boundary: int | None = None, *, live: bool = False) -> None:
    """Pins the attempt to what is committed now, as a claim does."""
    newest = world.sql("SELECT max(created_at) AS at FROM manifests WHERE dataset_version = $1", of[1])[0]["at"]
    moment = newest and newest.isoformat()
    pins = {str(of[1]): {"as_of": moment, "boundary": boundary} if live else moment}
    world.sql("UPDATE tasks SET read_as_of = $2 WHERE task_id = $1", task, json.dumps(pins))


def commit_units(world: World, first: int, last: int) -> None:
    """Commits the units of ten blocks from the first to the last, by one statement."""
    task = world.task(world.fetch, "Completed")
    world.sql(
        """WITH u AS (SELECT gen_random_uuid() AS id, 10 * n AS start FROM generate_series($4::bigint, $5::bigint) n),
           m AS (INSERT INTO manifests (manifest_id, dataset_uuid, dataset_version, unit, revision, task_id, attempt,
                                        prefix, objects)
                 SELECT id, $1, $2, 'p:' || start || '-' || start + 9, 1, $3, 1, 's3://b/x/', '[]' FROM u RETURNING 1)
           INSERT INTO dataset_units (dataset_uuid, dataset_version, unit, range_start, range_end, revision,
                                      manifest_id)
           SELECT $1, $2, 'p:' || start || '-' || start + 9, start, start + 9, 1, id FROM u
           WHERE (SELECT count(*) FROM m) > 0""",
        *world.blocks, task, first, last,
    )  # fmt: skip


def reads(world: World) -> tuple[list[tuple[Any, ...]], Any]:
    """The ranges of the only input of the only task, and what is known of it."""
    (unit,) = world.user().get("/v1/datasets/alerts/lineage")["units"]
    (read,) = unit["input_reads"]
    ranges = [
        (part.get("start"), part.get("end"), part["revision"], part.get("units", 1)) for part in unit.get("read", [])
    ]
    return ranges, read


def test_a_long_history_is_one_range_to_its_end(world: World) -> None:
    commit_units(world, 0, 4_999)
    pin(world, reader(world, world.blocks, (0, 60_000)), world.blocks)
    ranges, read = reads(world)
    assert ranges == [(0, 49_999, 1, 5_000)]
    assert (read["read_known"], read["ranges"]) == (True, 1)
    assert "looked_to" not in read


def test_ranges_beyond_the_first_twenty_are_counted(world: World) -> None:
    for number in range(25):
        commit_units(world, 3 * number, 3 * number + 1)
    pin(world, reader(world, world.blocks, (0, 999)), world.blocks)
    ranges, read = reads(world)
    assert ranges[0] == (0, 19, 1, 2)
    assert (len(ranges), read["ranges"]) == (20, 25)


def test_units_that_are_too_many_are_said_to_be_left_out(world: World) -> None:
    commit_units(world, 0, 20_004)
    pin(world, reader(world, world.blocks, (0, 300_000)), world.blocks)
    ranges, read = reads(world)
    assert ranges == [(0, 199_999, 1, 20_000)]
    assert read["looked_to"] == 199_999


def test_a_task_that_read_no_file(world: World) -> None:
    world.commit(world.blocks, (0, 9), world.task(world.fetch, "Completed"))
    pin(world, reader(world, world.blocks, (100, 199)), world.blocks)
    ranges, read = reads(world)
    assert (ranges, read["read_known"], read.get("ranges", 0)) == ([], True, 0)


def test_a_unit_that_was_committed_later_was_not_read(world: World) -> None:
    maker = world.task(world.fetch, "Completed")
    world.commit(world.blocks, (0, 9), maker)
    pin(world, reader(world, world.blocks, (0, 99)), world.blocks)
    world.commit(world.blocks, (10, 19), maker)
    world.commit(world.blocks, (0, 9), world.task(world.fetch, "Completed"), revision=2)
    ranges, read = reads(world)
    assert (ranges, read["read_known"]) == ([(0, 9, 1, 1)], True)


def test_an_attempt_without_a_record_is_not_known(world: World) -> None:
    world.commit(world.blocks, (0, 9), world.task(world.fetch, "Completed"))
    reader(world, world.blocks, (0, 499))
    ranges, read = reads(world)
    assert (ranges, read["read_known"]) == ([], False)


def test_the_record_of_an_earlier_attempt_was_replaced(world: World) -> None:
    world.commit(world.blocks, (0, 9), world.task(world.fetch, "Completed"))
    task = reader(world, world.blocks, (0, 499))
    pin(world, task, world.blocks)
    assert reads(world)[1]["read_known"] is True
    world.sql("UPDATE tasks SET attempt = 2 WHERE task_id = $1", task)
    ranges, read = reads(world)
    assert (ranges, read["read_known"]) == ([], False)


def test_an_input_that_is_not_kept_in_files_has_its_unit(world: World) -> None:
    reader(world, world.ticks, (0, 9))
    (unit,) = world.user().get("/v1/datasets/alerts/lineage")["units"]
    assert "input_reads" not in unit


def test_a_generation_that_was_published_as_a_whole_was_read_as_one(world: World) -> None:
    world.commit(world.blocks, None, world.task(world.fetch, "Completed"))
    pin(world, reader(world, world.blocks, (0, 9)), world.blocks)
    ranges, read = reads(world)
    assert (ranges, read["read_known"], read["ranges"]) == ([(None, None, 1, 1)], True, 1)


@pytest.mark.parametrize(
    ("boundary", "files", "above"),
    [(9, [(0, 9, 1, 1)], 9), (19, [(0, 19, 1, 2)], 19), (None, [(0, 29, 1, 3)], None)],
)
def test_a_live_dataset_is_files_and_a_table(
    world: World, boundary: int | None, files: list[Any], above: int | None
) -> None:
    world.sql("UPDATE datasets SET storage = 'live' WHERE dataset_uuid = $1", world.blocks[0])
    commit_units(world, 0, 2)
    pin(world, reader(world, world.blocks, (0, 99)), world.blocks, boundary, live=True)
    ranges, read = reads(world)
    assert (ranges, read["read_known"]) == (files, True)
    assert (read["reads_table"], read.get("table_above")) == (True, above)


def test_a_range_below_the_boundary_is_read_from_files_alone(world: World) -> None:
    world.sql("UPDATE datasets SET storage = 'live' WHERE dataset_uuid = $1", world.blocks[0])
    commit_units(world, 0, 2)
    pin(world, reader(world, world.blocks, (0, 19)), world.blocks, 29, live=True)
    ranges, read = reads(world)
    assert (ranges, read.get("reads_table", False)) == ([(0, 19, 1, 2)], False)


def test_deleted_commits_are_told_and_not_guessed(world: World) -> None:
    first, second, third = (world.task(world.fetch, "Completed") for _ in range(3))
    for start in (0, 10, 20):
        world.commit(world.blocks, (start, start + 9), first)
    world.commit(world.blocks, (10, 19), second, revision=2)
    pin(world, reader(world, world.blocks, (0, 29)), world.blocks)
    world.commit(world.blocks, (10, 19), third, revision=3)
    assert reads(world)[0] == [(0, 9, 1, 1), (10, 19, 2, 1), (20, 29, 1, 1)]
    world.sql("DELETE FROM manifests WHERE task_id = $1", second)
    ranges, read = reads(world)
    assert ranges == [(0, 9, 1, 1), (20, 29, 1, 1)], "not revision 1 of 10-19"
    assert (read["read_known"], read["deleted_units"]) == (False, 1)


def test_a_generation_that_was_deleted_is_not_known(world: World) -> None:
    world.commit(world.blocks, (0, 9), world.task(world.fetch, "Completed"))
    pin(world, reader(world, world.blocks, (0, 9)), world.blocks)
    world.sql("DELETE FROM dataset_units WHERE dataset_version = $1", world.blocks[1])
    world.sql("DELETE FROM manifests WHERE dataset_version = $1", world.blocks[1])
    ranges, read = reads(world)
    assert (ranges, read["read_known"]) == ([], False)
