"""What a query may cost: the parser reads each word a bounded number of times, whatever the text."""

from contextlib import suppress

import pytest

from tracelake.catalogue.sql import gate as sql_gate
from tracelake.catalogue.sql.findings import SqlRefusedError
from tracelake.catalogue.sql.gate import MAX_HEIGHT, MAX_NESTING, gate

LEVELS = MAX_NESTING - 1
STEPS_PER_TOKEN = 20
NESTED = {
    "date": ("date(", ")"),
    "decimal with a second argument": ("decimal(a, ", ")"),
    "struct": ("struct(", ")"),
    "array": ("array(", ")"),
    "map": ("map(1, ", ")"),
    "subscript of a type's name": ("int[", "]"),
    "array literal": ("array[", "]"),
    "typed constructor": ("array<int>(", ")"),
    "typed literal with a size": ("decimal(1) '1' + decimal(", ")"),
    "cast operator": ("date(", ")::date"),
    "lambda": ("transform(a, (x, y) -> ", ")"),
    "function": ("abs(", ")"),
    "subquery": ("(SELECT ", " FROM t)"),
    "two kinds": ("date(struct(", "))"),
}


class _Steps(Exception):
    pass


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the words that the parser steps over; ends a parse that steps too often."""
    steps = [0]
    advance = sql_gate._GateParser._advance

    def counted(parser: sql_gate._GateParser, times: int = 1) -> None:
        steps[0] += max(times, 0)
        if steps[0] > STEPS_PER_TOKEN * len(parser._tokens) + 5_000:
            raise _Steps
        advance(parser, times)

    monkeypatch.setattr(sql_gate._GateParser, "_advance", counted)
    return steps


@pytest.mark.parametrize("name", NESTED)
def test_deep_nesting_is_read_in_linear_time(name: str, steps: list[int]) -> None:
    opening, closing = NESTED[name]
    levels = LEVELS // (opening.count("(") + opening.count("["))
    query = f"SELECT {opening * levels}a{closing * levels} AS x FROM t"
    with suppress(SqlRefusedError):  # what cannot run may be refused, as long as that takes no time either
        gate.__wrapped__(query)


@pytest.mark.parametrize("name", ["date", "struct", "function", "subscript of a type's name"])
def test_nesting_within_the_limit_is_accepted(name: str, steps: list[int]) -> None:
    opening, closing = NESTED[name]
    gate.__wrapped__(f"SELECT {opening * LEVELS}a{closing * LEVELS} AS x FROM t")


def test_nesting_beyond_the_limit_names_its_place() -> None:
    query = "SELECT 1 AS y,\n  " + "date(" * (MAX_NESTING + 1) + "a" + ")" * (MAX_NESTING + 1) + " AS x FROM t"
    with pytest.raises(SqlRefusedError) as refused:
        gate(query)
    finding = refused.value.finding
    assert (finding.code, finding.line, finding.column) == ("sql_limit", 2, 2 + 5 * (MAX_NESTING + 1))
    assert str(MAX_NESTING) in finding.message


def test_operations_beyond_the_limit_name_their_place() -> None:
    query = "SELECT\n" + " + ".join(["a"] * (MAX_HEIGHT + 10)) + " AS x FROM t"
    with pytest.raises(SqlRefusedError) as refused:
        gate(query)
    assert (refused.value.finding.code, refused.value.finding.line) == ("sql_limit", 2)


def test_backtracking_is_paid_from_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_gate, "REREADS_PER_TOKEN", 0)
    monkeypatch.setattr(sql_gate, "REREADS_FREE", 0)
    with pytest.raises(SqlRefusedError) as refused:
        gate.__wrapped__("SELECT 1 AS x,\n date '2024-01-01' || int AS y FROM t")
    assert (refused.value.finding.code, refused.value.finding.line) == ("sql_limit", 2)


def test_a_type_before_a_literal_is_still_a_type() -> None:
    assert "DATE" in gate("SELECT DATE '2024-01-01' AS x, date(a) AS y, CAST(a AS DECIMAL(10, 2)) AS z FROM t").text
