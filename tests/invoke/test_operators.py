"""range_splitter and range_aggregator: what they emit, by properties and by a model, and what they refuse."""

from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.invoke.support import blocks, events_of, own_task, source
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.engine.routing.coverage import merge
from tracelake.dispatcher.invoke.in_process import MAX_EVENTS
from tracelake.dispatcher.invoke.operators.range_aggregator import _revision, complete_windows
from tracelake.dispatcher.invoke.operators.range_splitter import count_units, split
from tracelake.wire.base import MAX_CURSOR

SIZES = st.integers(1, 40) | st.sampled_from([2**20, 2**62])
STARTS = st.integers(0, 200) | st.integers(MAX_CURSOR - 300, MAX_CURSOR - 200)


@given(start=STARTS, length=st.integers(1, 200), size=SIZES, align=st.booleans())
def test_units_are_disjoint_cover_the_range_and_are_aligned(start: int, length: int, size: int, align: bool) -> None:
    end = start + length - 1
    units = list(split(start, end, size, align=align))
    assert len(units) == count_units(start, end, size, align=align)
    assert [block for first, last in units for block in range(first, last + 1)] == list(range(start, end + 1))
    origin = 0 if align else start
    for first, last in units[1:]:
        assert (first - origin) % size == 0
        assert last - first + 1 == size or last == end
    assert len(units) == 1 or (units[0][1] + 1 - origin) % size == 0


RUNS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda run: (run[0], run[0] + run[1] - 1)), max_size=8
)


@given(runs=RUNS, size=st.integers(1, 12), unit=st.tuples(st.integers(0, 70), st.integers(1, 15)))
def test_a_window_is_complete_when_every_block_is_there(
    runs: list[tuple[int, int]], size: int, unit: tuple[int, int]
) -> None:
    present = {block for first, last in runs for block in range(first, last + 1)}
    first, last = unit[0] // size, (unit[0] + unit[1] - 1) // size
    expected = [
        (window * size, (window + 1) * size - 1)
        for window in range(first, last + 1)
        if all(block in present for block in range(window * size, (window + 1) * size))
    ]
    assert list(complete_windows(first, last, size, merge(sorted(runs)))) == expected


def test_revisions_fit() -> None:
    assert [_revision("0-9", revision) for revision in ("", "1")] == ["", ""]
    assert _revision("0-9", "2") == "0-9@2"
    long = [_revision("0-9", "r" * 199 + last) for last in "ab"]
    assert [len(text) for text in long] == [200, 200]
    assert long[0] != long[1]


def finished(harness: DispatcherHarness, task_id: str) -> tuple[str, bool, str | None]:
    """Status, whether it will be tried again, error."""
    row = harness.row(task_id)
    return row["status"], row["next_retry_at"] is not None, row["error"]


def test_a_range_is_split_on_every_output(harness: DispatcherHarness) -> None:
    config = {"size": 10}
    task_id = own_task(harness, "range_splitter", unit=blocks(5, 24), config=config, outputs=["none", "none"])
    harness.invoke()
    assert finished(harness, task_id) == ("Completed", False, None)
    assert events_of(harness, task_id) == [
        (f"own_{output}", None, f"{start}-{end}", start, end, "")
        for start, end in ((5, 9), (10, 19), (20, 24))
        for output in (0, 1)
    ]


def test_a_range_can_be_split_from_its_own_start(harness: DispatcherHarness) -> None:
    task_id = own_task(harness, "range_splitter", unit=blocks(5, 24), config={"size": 10, "align": False})
    harness.invoke()
    assert [(row[3], row[4]) for row in events_of(harness, task_id)] == [(5, 14), (15, 24)]


@pytest.mark.parametrize("units", [MAX_EVENTS, 2 * MAX_EVENTS + 1])
def test_many_units(harness: DispatcherHarness, units: int) -> None:
    task_id = own_task(harness, "range_splitter", unit=blocks(0, units - 1), config={"size": 1})
    harness.invoke()
    assert finished(harness, task_id) == ("Completed", False, None)
    found = harness.sql(
        "SELECT count(*), count(DISTINCT range_start), min(range_start), max(range_end), max(attempt) FROM events"
    )
    assert tuple(found[0]) == (units, units, 0, units - 1, 1)


@pytest.mark.parametrize(
    ("operator", "unit", "config", "error"),
    [
        ("range_splitter", {"cursor": {"after": 1, "to": 2}}, {"size": 1}, "needs units with a block range"),
        ("range_splitter", {"partition_key": "2024-01"}, {"size": 1}, "needs units with a block range"),
        ("range_splitter", None, {"size": 1}, "needs an input"),
        ("range_splitter", blocks(0, 10**6), {"size": 1}, "1000001 units of 1 blocks, more than 1000000"),
        ("range_splitter", blocks(0, MAX_CURSOR), {"size": 1}, "split it in two steps"),
        ("range_aggregator", {"cursor": {"after": 1, "to": 2}}, {"size": 1}, "needs units with a block range"),
        ("range_aggregator", None, {"size": 1}, "needs an input"),
        ("range_aggregator", blocks(0, MAX_CURSOR), {"size": 1}, "use larger windows"),
    ],
)
def test_units_that_nothing_can_be_made_of(
    harness: DispatcherHarness, operator: str, unit: dict[str, Any] | None, config: dict[str, Any], error: str
) -> None:
    task_id = own_task(harness, operator, unit=unit, config=config)
    harness.invoke()
    status, again, text = finished(harness, task_id)
    assert (status, again) == ("Failed", False)
    assert text is not None
    assert error in text
    assert events_of(harness, task_id) == []


@pytest.mark.parametrize("operator", ["range_splitter", "range_aggregator"])
@pytest.mark.parametrize("size", [1, 3, 2**62])
def test_the_last_blocks_there_can_be(harness: DispatcherHarness, operator: str, size: int) -> None:
    dataset = source(harness)
    start = MAX_CURSOR - 4
    record_run(harness, dataset, 1, start, MAX_CURSOR)
    task_id = own_task(harness, operator, unit=blocks(start, MAX_CURSOR), dataset=dataset, config={"size": size})
    harness.invoke()
    assert finished(harness, task_id) == ("Completed", False, None)
    found = [(row[3], row[4]) for row in events_of(harness, task_id)]
    if operator == "range_splitter":
        assert found == list(split(start, MAX_CURSOR, size, align=True))
    else:
        whole = [window for window in range(start // size, MAX_CURSOR // size + 1) if window * size >= start]
        assert found == [(w * size, w * size + size - 1) for w in whole if w * size + size - 1 <= MAX_CURSOR]


def record_run(harness: DispatcherHarness, dataset: dict[str, Any], size: int, start: int, end: int) -> None:
    """Units of `size` blocks, side by side, that the generation has."""
    harness.sql(
        """INSERT INTO dataset_runs (dataset_uuid, dataset_version, unit_size, unit_offset, range_start, range_end)
           VALUES ($1, $2, $3, $4, $5, $6)""",
        dataset["dataset_uuid"],
        dataset["dataset_version"],
        size,
        start % size,
        start,
        end,
    )


def test_a_window_is_emitted_once_it_is_covered(harness: DispatcherHarness) -> None:
    dataset = source(harness)
    make: dict[str, Any] = {"dataset": dataset, "config": {"size": 100}}
    record_run(harness, dataset, 10, 100, 189)  # nine units of ten
    record_run(harness, dataset, 3, 195, 197)
    early = own_task(harness, "range_aggregator", unit=blocks(180, 189), **make)
    harness.invoke()
    assert finished(harness, early) == ("Completed", False, None)
    assert events_of(harness, early) == []
    record_run(harness, dataset, 7, 189, 195)  # of another size, and over what is there
    record_run(harness, dataset, 2, 198, 201)
    last = own_task(harness, "range_aggregator", unit=blocks(198, 199), **make)
    beyond = own_task(harness, "range_aggregator", unit=blocks(200, 201), **make)
    across = own_task(harness, "range_aggregator", unit=blocks(189, 201), **make)
    harness.invoke()
    assert events_of(harness, last) == [("own_0", None, "100-199", 100, 199, "")]
    assert events_of(harness, beyond) == []
    assert events_of(harness, across) == [("own_0", None, "100-199", 100, 199, "")]


def test_other_generations_do_not_count(harness: DispatcherHarness) -> None:
    dataset, other = source(harness), source(harness, "other")
    younger = dataset | {"dataset_version": str(uuid4())}
    harness.sql("INSERT INTO dataset_versions (dataset_uuid, dataset_version) VALUES ($1, $2)", *younger.values())
    record_run(harness, dataset, 5, 0, 4)
    record_run(harness, younger, 5, 5, 9)
    record_run(harness, other, 5, 5, 9)
    task_id = own_task(harness, "range_aggregator", unit=blocks(0, 4), dataset=dataset, config={"size": 10})
    harness.invoke()
    assert events_of(harness, task_id) == []


def test_a_unit_that_was_made_anew_makes_its_window_anew(harness: DispatcherHarness) -> None:
    dataset = source(harness)
    record_run(harness, dataset, 10, 0, 9)
    for revision, expected in (("1", ""), ("2", "0-9@2"), ("reorg-" + "x" * 190, None)):
        task_id = own_task(harness, "range_aggregator", unit=blocks(0, 9), dataset=dataset, config={"size": 10})
        # A revision comes from routing; tasks that a service makes have none.
        harness.sql("UPDATE tasks SET revision = $2 WHERE task_id = $1", task_id, revision)
        harness.invoke()
        found = events_of(harness, task_id)[0][5]
        assert len(found) <= 200
        assert expected is None or found == expected
