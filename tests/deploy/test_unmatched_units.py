"""The plan warns of joins whose inputs have units of different sizes."""

from dataclasses import replace
from typing import Any

import pytest

from tests.deploy.support import Text
from tests.deploy.test_plan import OTHER, empty, read
from tracelake.dispatcher.deploy.plan import make_plan
from tracelake.dispatcher.deploy.rebuilds import UnitExtent

SPLITTER, AGGREGATOR = "range_splitter", "range_aggregator"


def cutting(text: Text, name: str, operator: str, size: int, *reads: str) -> Text:
    return text.job(name, *(reads or ("tick",)), runtime="dispatcher", operator=operator, config={"size": size})


def joined(first: tuple[str, int], second: tuple[str, int], **fields: Any) -> Text:
    """`one` and `two` cut the ranges of a source, and `join` reads both."""
    text = cutting(cutting(Text().source(), "one", *first), "two", *second)
    return text.job("join", "one", "two", execution_strategy="PerPartition", **fields)


def notes(text: Text, *sizes: int) -> list[str]:
    """`sizes` are those of the units that the dataset of another DAG has."""
    document = read(text)
    extents = {(OTHER.dataset_uuid, OTHER.current_version): UnitExtent(len(sizes), sizes=frozenset(sizes))}
    return make_plan(document, replace(empty(document), units=extents)).wire.notes


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((SPLITTER, 1000), (AGGREGATOR, 500)),
        ((SPLITTER, 500), (AGGREGATOR, 300)),
        ((SPLITTER, 1000), (SPLITTER, 500)),
    ],
)
def test_units_of_different_sizes_are_warned_of(first: tuple[str, int], second: tuple[str, int]) -> None:
    (note,) = notes(joined(first, second))
    assert note.startswith(
        "`join` computes a unit once all its inputs have the same one, and they have different sizes"
    )
    assert f"`one` units of {first[1]} blocks, `two` units of {second[1]} blocks" in note
    assert "At most the first and the last unit of a range can match; all others are never computed." in note
    assert note.endswith("Give them one size.")


def test_the_note_names_units_of_the_jobs_own_where_the_operator_can_have_them() -> None:
    (note,) = notes(joined((SPLITTER, 1000), (SPLITTER, 500), operator="decode_logs", config={}))
    assert note.endswith("or read files with units of the job's own: `units: {by: blocks, size: 1000}`.")


def test_units_that_can_be_the_same_are_not_warned_of() -> None:
    assert notes(joined((SPLITTER, 500), (AGGREGATOR, 500))) == []
    behind = cutting(cutting(Text().source(), "one", SPLITTER, 500), "two", SPLITTER, 1000, "one")
    assert notes(behind.job("join", "one", "two", execution_strategy="PerPartition")) == [], "pieces of 500 stay whole"
    ranges = cutting(Text().source(), "one", SPLITTER, 500)
    assert notes(ranges.job("join", "one", "tick", execution_strategy="PerPartition")) == [], "somebody triggers them"
    updates = cutting(cutting(Text().source(), "one", SPLITTER, 1000), "two", SPLITTER, 500)
    assert notes(updates.job("each", "one", "two", execution_strategy="PerUpdate")) == [], "a task for each unit"
    assert notes(updates.job("join", "each", "two", execution_strategy="PerPartition")) == [], "some are the same"


def test_sizes_are_followed_through_jobs_that_take_the_units_of_their_inputs() -> None:
    text = cutting(cutting(Text().source(), "one", SPLITTER, 1000), "two", SPLITTER, 300)
    text.job("far", "two").job("join", "one", "far", execution_strategy="PerPartition")
    (note,) = notes(text)
    assert "`one` units of 1000 blocks, `far` units of 300 blocks" in note
    text = cutting(cutting(Text().source(), "one", SPLITTER, 1000), "two", SPLITTER, 300, "one")
    assert notes(text.job("join", "one", "two", execution_strategy="PerPartition")) == [], "1000 is no multiple of 300"


def test_units_of_another_dag_are_compared_as_far_as_they_are_there() -> None:
    text = cutting(Text().source(), "one", SPLITTER, 1000)
    text.job("join", "one", "dataset.prices", execution_strategy="PerPartition")
    (note,) = notes(text, 35, 500)
    assert "`one` units of 1000 blocks, `prices` units of 35 and 500 blocks so far" in note
    (note,) = notes(text, 35, 45, 400, 500)
    assert "`prices` units of 35 to 500 blocks so far" in note
    assert notes(text, 500, 1000) == []
    assert notes(text) == [], "none yet"
    behind = cutting(Text().source(), "one", SPLITTER, 1000, "dataset.prices")
    behind.job("join", "one", "dataset.prices", execution_strategy="PerPartition")
    assert notes(behind, 500) == notes(behind) == [], "a splitter cuts no unit that is shorter"
