"""Ranges of blocks and conditions of Postgres: they never leave out a row that the query needs."""

from dataclasses import dataclass
from typing import Any

import pytest

from tracelake.errors import TraceError
from tracelake.model.dag import ColumnType
from tracelake.query.pruning import LAST_BLOCK, block_range, table_condition
from tracelake.wire.query import InputSelection
from tracelake.wire.task_calls import TableColumn
from tracelake.wire.units import CursorRange, Unit


@dataclass(frozen=True)
class Condition:
    column: str
    operator: str
    value: Any


def blocks(*conditions: tuple[str, Any], column: str = "block_number") -> tuple[int, int] | None:
    return block_range([Condition(column, operator, value) for operator, value in conditions])


def test_filters_narrow_the_range() -> None:
    assert blocks() is None
    assert blocks((">=", 10), ("<", 20)) == (10, 19)
    assert blocks((">", 10), ("<=", 20)) == (11, 20)
    assert blocks(("=", 7)) == (7, 7)
    assert blocks(("in", (9, 3, 5))) == (3, 9)
    assert blocks((">=", 10)) == (10, LAST_BLOCK)
    assert blocks((">", 20), ("<", 10)) == (21, 9), "nothing is in it"
    assert blocks((">=", 10), column="gas_used") is None
    assert blocks(("=", "7")) is None
    assert blocks(("in", (7, "8"))) is None


def unit(start: int, end: int) -> Unit:
    return Unit(partition_key=f"{start}-{end}", start=start, end=end)


def test_units_of_a_task_narrow_it_too() -> None:
    inputs = [InputSelection(unit=unit(10, 19)), InputSelection(unit=unit(30, 39))]
    assert block_range([], inputs) == (10, 39)
    assert block_range([Condition("block_number", "<", 35)], inputs) == (10, 34)
    day = InputSelection(unit=Unit(partition_key="2026-03-01"))
    assert block_range([], [*inputs, day]) is None, "a day names no blocks"
    cursor = InputSelection(unit=Unit(cursor=CursorRange(after=4, to=9)))
    assert block_range([], [cursor]) == (5, 9)


COLUMNS = {
    name: TableColumn(name=name, type=kind)
    for name, kind in {
        "number": ColumnType.INT64, "holder": ColumnType.TEXT, "amount": ColumnType.UINT256, "hash": ColumnType.BYTES,
        "price": ColumnType.FLOAT64, "ok": ColumnType.BOOL,
    }.items()
}  # fmt: skip


def test_simple_filters_go_to_postgres() -> None:
    conditions = [Condition("number", ">=", -5), Condition("holder", "in", ("o'neil", "\\' OR 1=1 --"))]
    assert table_condition(COLUMNS, conditions) == (
        "WHERE \"number\" >= (-5) AND \"holder\" IN ('o''neil', '\\'' OR 1=1 --')"
    )


@pytest.mark.parametrize(
    "condition",
    [
        Condition("holder", "<", "m"),
        Condition("amount", "=", 5),
        Condition("gone", "=", 5),
        Condition("number", "; DROP", 5),
        Condition("holder", "=", "a\0b"),
        Condition("number", "=", "5"),
    ],
)
def test_everything_else_is_left_to_the_engine(condition: Condition) -> None:
    assert table_condition(COLUMNS, [condition]) == ""


def test_a_task_reads_its_commits_and_its_where() -> None:
    first = InputSelection(
        unit=Unit(cursor=CursorRange(after=-1, to=9)),
        where={"holder": ["a'b", None], "hash": "0x00FF", "amount": "123", "ok": True, "gone": [None, 1]},
    )
    second = InputSelection(unit=Unit(cursor=CursorRange(after=20, to=29)), where={"gone": 1, "price": 0.5})
    assert table_condition(COLUMNS, [], [first, second]) == (
        "WHERE ((_commit_seq > -1 AND _commit_seq <= 9 AND (\"holder\" IN ('a''b') OR \"holder\" IS NULL)"
        ' AND "hash" IN (\'\\x00ff\'::bytea) AND "amount" IN (\'123\'::numeric) AND "ok" IN (true) AND true)'
        " OR (_commit_seq > 20 AND _commit_seq <= 29 AND false AND \"price\" IN ('0.5'::float8)))"
    )


@pytest.mark.parametrize(
    "where", [{"number": "1; DROP TABLE x"}, {"hash": "0xzz"}, {"ok": "true"}, {"holder": 5}, {"holder": "a\0"}]
)
def test_a_where_of_another_type_is_refused(where: dict[str, Any]) -> None:
    selection = InputSelection(unit=Unit(cursor=CursorRange(after=0, to=9)), where=where)
    with pytest.raises(TraceError, match="query_failed"):
        table_condition(COLUMNS, [], [selection])


def test_a_table_is_read_by_commits_alone() -> None:
    with pytest.raises(TraceError, match="query_failed"):
        table_condition(COLUMNS, [], [InputSelection(unit=unit(0, 9))])
