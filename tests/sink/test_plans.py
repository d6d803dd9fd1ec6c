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
    return list(plan.changes)


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
        (
            {"type": DECIMAL, "precision": 5, "scale": 2},
            {"type": DECIMAL, "precision": 7, "scale": 3},
            "from decimal(5,2) to decimal(7,3)",
        ),
    ],
)
def test_types_become_wider(before: dict[str, Any], after: dict[str, Any], text: str) -> None:
    (change,) = texts(one(**before), one(**after))
    assert change == f"widen the column `c` {text}"
    assert plan_table(one(**after), one(**before)).refusals, "and never narrower"


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({"enum": ("a",)}, {"enum": ("b", "a", "c")}, ["allow `b`, `c` in the column `c`"]),
        ({"enum": ("a",)}, {"enum": tuple("abcdefgh")}, ["allow `b`, `c`, `d`, `e`, `f` and 2 more in the column `c`"]),
        ({"enum": ("a",)}, {}, ["allow any text in the column `c`"]),
        ({"enum": ("a", "b")}, {"enum": ("b", "a")}, []),
        ({"nullable": False}, {}, ["let the column `c` be null"]),
        (
            {"nullable": False, "max_length": 5, "enum": ("a",)},
            {"max_length": 9, "enum": ("a", "b")},
            [
                "widen the column `c` from text(5) to text(9)",
                "allow `b` in the column `c`",
                "let the column `c` be null",
            ],
        ),
    ],
)
def test_columns_take_more_values(before: dict[str, Any], after: dict[str, Any], changes: list[str]) -> None:
    assert texts(one(type=TEXT, **before), one(type=TEXT, **after)) == changes
    assert bool(plan_table(one(type=TEXT, **after), one(type=TEXT, **before)).refusals) == bool(changes)


ELSE = "or publish under another name."


@pytest.mark.parametrize(
    ("before", "after", "reason", "field"),
    [
        (
            {"type": ColumnType.INT64},
            {"type": TEXT},
            "is int64 and cannot become text. Publish under another name instead.",
            "type",
        ),
        (
            {"type": ColumnType.UINT256},
            {"type": ColumnType.INT256},
            "is uint256 and cannot become int256. Publish under another name instead.",
            "type",
        ),
        (
            {"type": ColumnType.INT16},
            {"type": ColumnType.INT32, "nullable": False},
            f"may be null, also in rows that are there. Leave it nullable, {ELSE}",
            "nullable",
        ),
        (
            {"type": TEXT, "max_length": 30},
            {"type": TEXT, "max_length": 20},
            f"may hold values of up to 30; it cannot become shorter. Keep the length, {ELSE}",
            "max_length",
        ),
        (
            {"type": TEXT},
            {"type": TEXT, "max_length": 20},
            f"may hold values of any length; it cannot be limited to 20. Leave the length out, {ELSE}",
            "max_length",
        ),
        (
            {"type": TEXT, "enum": ("a", "b")},
            {"type": TEXT, "enum": ("b",)},
            f"may hold `a`, which the new `enum` does not have. Keep it, {ELSE}",
            "enum",
        ),
        (
            {"type": TEXT},
            {"type": TEXT, "enum": ("b",)},
            f"may hold any text; it cannot be limited by an `enum`. Leave it out, {ELSE}",
            "enum",
        ),
        (
            {"type": DECIMAL, "precision": 5, "scale": 2},
            {"type": DECIMAL, "precision": 5, "scale": 3},
            "is decimal(5,2), which decimal(5,3) cannot hold: it may hold 3 digits before the point and 2 after it. "
            f"Keep that many, {ELSE}",
            "precision",
        ),
    ],
)
def test_what_a_column_may_hold_it_goes_on_holding(
    before: dict[str, Any], after: dict[str, Any], reason: str, field: str
) -> None:
    (refusal,) = plan_table(one(**before), one(**after)).refusals
    assert (refusal.text, refusal.where) == (f"The column `c` {reason}", f"columns[1].{field}")


def test_what_rows_may_hold_stays() -> None:
    (gone,) = plan_table(PLAIN, msgspec.structs.replace(PLAIN, columns=PLAIN.columns[:1])).refusals
    assert gone.text == f"The column `value` cannot be taken away: rows may hold it. Keep it, {ELSE}"
    assert gone.where == "columns"
    strict = Column(name="extra", type=TEXT, nullable=False)
    (new,) = plan_table(PLAIN, msgspec.structs.replace(PLAIN, columns=(*PLAIN.columns, strict))).refusals
    assert "must be nullable: rows without it may be there already. Leave out `nullable: false`." in new.text
    assert new.where == "columns[2].nullable"
    wider = msgspec.structs.replace(PLAIN, columns=(*PLAIN.columns, strict), unique=(*PLAIN.unique, "extra"))
    assert [refusal.where for refusal in plan_table(PLAIN, wider).refusals] == ["unique"], "and nothing that follows"
    (key,) = plan_table(EVERY, msgspec.structs.replace(EVERY, unique=("key",))).refusals
    assert "`unique` was (key, number) and cannot become (key)" in key.text
    assert key.where == "unique"
