"""What may become of a table when its schema changes."""

from typing import Any

import msgspec
import pytest

from tests.sink.support import EVERY, PLAIN
from tracelake.catalogue.tables import plan_table
from tracelake.model.dag import Column, ColumnType, Schema


def one(**fields: Any) -> Schema:
    key = Column(name="k", type=ColumnType.INT64, nullable=False)
    return Schema(columns=(key, Column(name="c", **fields)), unique=("k",))


def texts(before: Schema | None, after: Schema) -> list[str]:
    plan = plan_table(before, after)
    assert not plan.refusals
    return [change.text for change in plan.changes]


def test_a_new_table_and_an_unchanged_one() -> None:
    assert texts(None, EVERY) == ["create the table (14 columns)"]
    assert texts(EVERY, EVERY) == []


def test_columns_and_indexes_that_come() -> None:
    more = Schema(
        columns=(*PLAIN.columns, Column(name="extra", type=ColumnType.DECIMAL, precision=10, scale=2)),
        unique=PLAIN.unique,
        indexes=(("extra", "value"),),
    )
    assert texts(PLAIN, more) == ["add the column `extra` (decimal(10,2))", "add an index on (extra, value)"]
    assert texts(more, msgspec.structs.replace(more, indexes=())) == ["drop the index on (extra, value)"]


TEXT, DECIMAL = ColumnType.TEXT, ColumnType.DECIMAL


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({"type": ColumnType.INT16}, {"type": ColumnType.INT64}, "from int16 to int64"),
        ({"type": ColumnType.INT64}, {"type": ColumnType.INT256}, "from int64 to int256"),
        ({"type": TEXT, "max_length": 5}, {"type": TEXT, "max_length": 6}, "from text(5) to text(6)"),
        ({"type": TEXT, "max_length": 5}, {"type": TEXT}, "from text(5) to text"),
        ({"type": TEXT, "enum": ("a",)}, {"type": TEXT, "enum": ("b", "a")}, "of 1 values to text of 2 values"),
        ({"type": TEXT, "enum": ("a",)}, {"type": TEXT}, "from text of 1 values to text"),
        ({"type": TEXT, "nullable": False}, {"type": TEXT}, "from text, never null to text"),
        (
            {"type": DECIMAL, "precision": 5, "scale": 2},
            {"type": DECIMAL, "precision": 7, "scale": 3},
            "from decimal(5,2) to decimal(7,3)",
        ),
    ],
)
def test_types_become_wider(before: dict[str, Any], after: dict[str, Any], text: str) -> None:
    (change,) = texts(one(**before), one(**after))
    assert change.startswith("widen the column `c`")
    assert text in change
    assert plan_table(one(**after), one(**before)).refusals, "and never narrower"


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ({"type": ColumnType.INT64}, {"type": TEXT}, "is int64 and cannot become text"),
        ({"type": ColumnType.UINT256}, {"type": ColumnType.INT256}, "cannot become int256"),
        ({"type": TEXT, "enum": ("a",)}, {"type": TEXT, "enum": ("b",)}, "holds values that the new `enum`"),
        (
            {"type": DECIMAL, "precision": 5, "scale": 2},
            {"type": DECIMAL, "precision": 5, "scale": 3},
            "which decimal(5,3) cannot hold",
        ),
    ],
)
def test_other_types_are_refused(before: dict[str, Any], after: dict[str, Any], reason: str) -> None:
    (refusal,) = plan_table(one(**before), one(**after)).refusals
    assert reason in refusal


def test_what_rows_hold_stays() -> None:
    (gone,) = plan_table(PLAIN, msgspec.structs.replace(PLAIN, columns=PLAIN.columns[:1])).refusals
    assert gone.startswith("The column `value` cannot be taken away")
    strict = Column(name="extra", type=TEXT, nullable=False)
    (new,) = plan_table(PLAIN, msgspec.structs.replace(PLAIN, columns=(*PLAIN.columns, strict))).refusals
    assert "must be nullable" in new
    (key,) = plan_table(EVERY, msgspec.structs.replace(EVERY, unique=("key",))).refusals
    assert "`unique` was (key, number) and cannot become (key)" in key
