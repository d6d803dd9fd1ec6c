"""Parameters: every value of every type, alone and in lists, arrives as it was sent, and none is a part of the text."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracelake.client.query import to_parameters
from tracelake.errors import TraceError
from tracelake.query.engine.database import bind, connect, make_database
from tracelake.query.engine.results import _exact
from tracelake.query.execution import to_parameter
from tracelake.query.gate.batch import check_batch_query
from tracelake.query.gate.check import QueryGate
from tracelake.query.gate.parameters import QueryParameter
from tracelake.query.results import encode_rows

_QUICK = settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def _integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


def _exact_json(value: int) -> int | str:
    return value if abs(value) < 2**53 else str(value)


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["'; DROP TABLE x; --", "$p", "\\x41", "[1, 2]", "NULL", "{'a': 1}", '"', "infinity", "%s"]
)
DECIMALS = st.decimals(-(10**20), 10**20, places=6, allow_nan=False, allow_infinity=False)
MOMENTS = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=st.timezones() | st.just(UTC))
Case = tuple[st.SearchStrategy[Any], Callable[[Any], Any], Callable[[Any], Any]]
CASES: dict[str, Case] = {
    "bool": (st.booleans(), bool, bool),
    "int16": (_integers(16), int, int),
    "int32": (_integers(32), int, int),
    "int64": (_integers(64), int, _exact_json),
    "int256": (_integers(256), str, str),
    "uint256": (_integers(256, signed=False), str, str),
    "float64": (st.floats(allow_nan=False, allow_infinity=False), float, lambda value: value + 0.0),
    "decimal": (DECIMALS, lambda value: format(value, "f"), lambda value: format(value, "f")),
    "text": (TEXTS, str, str),
    "bytes": (st.binary(max_size=20), lambda value: "0x" + value.hex(), lambda value: "0x" + value.hex()),
    "date": (st.dates(), str, str),
    "timestamp": (
        MOMENTS,
        lambda value: value.isoformat(),
        lambda value: value.astimezone(UTC).isoformat().replace("+00:00", "Z"),
    ),
}
"""Values of each type, how they are sent, and how a result shows them."""


@pytest.fixture(scope="module")
def gate() -> QueryGate:
    return QueryGate()


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    database = make_database()
    yield connect(database)
    database.close()


def ask(gate: QueryGate, engine: duckdb.DuckDBPyConnection, parameters: dict[str, QueryParameter]) -> list[Any]:
    """Each parameter as a column of the result, through the gate's text and the engine's binding."""
    sql = "SELECT " + ", ".join(f"${name}" for name in parameters)
    query = gate.check(sql, parameters, {})
    shown = {str(parameter.value) for parameter in parameters.values() if isinstance(parameter.value, str)}
    assert not any(len(text) > 12 and text in query.sql for text in shown)
    bound = bind({name: to_parameter(value) for name, value in query.parameters.items()})
    (row,) = encode_rows(_exact(engine.sql(query.sql, params=bound)).to_arrow_table(), 10**7)
    return row


def plain(value: Any) -> Any:
    """A negative zero is a zero, and a decimal is a number."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    try:
        return Decimal(value) if isinstance(value, str) else value
    except ArithmeticError:
        return value


@pytest.mark.parametrize("kind", CASES)
def test_values_arrive_as_they_were_sent(kind: str, gate: QueryGate, engine: duckdb.DuckDBPyConnection) -> None:
    values, send, show = CASES[kind]

    @_QUICK
    @given(values, st.lists(st.none() | values, max_size=5))
    def check(value: Any, items: list[Any]) -> None:
        parameters = {
            "one": QueryParameter(kind, send(value)),
            "many": QueryParameter(f"{kind}[]", [None if item is None else send(item) for item in items]),
            "none": QueryParameter(kind, None),
            "nothing": QueryParameter(f"{kind}[]", None),
        }
        expected = [show(value), [None if item is None else show(item) for item in items], None, None]
        row = ask(gate, engine, parameters)
        if kind == "decimal":
            row, expected = plain(row), plain(expected)
        assert row == expected

    check()


def test_lists_are_used_as_lists(gate: QueryGate, engine: duckdb.DuckDBPyConnection) -> None:
    parameters = {"ids": QueryParameter("int64[]", [2, 4, 99])}
    for condition in ("i IN $ids", "i = ANY($ids)", "list_contains($ids, i)", "i IN (SELECT unnest($ids))"):
        query = gate.check(f"SELECT i FROM range(10) t(i) WHERE {condition} ORDER BY i", parameters, {})
        bound = bind({name: to_parameter(value) for name, value in query.parameters.items()})
        assert engine.sql(query.sql, params=bound).fetchall() == [(2,), (4,)], condition


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int64[]", 1),
        ("int64", [1]),
        ("int64[]", ["x"]),
        ("int64[]", [1.5]),
        ("int64[]", [2**63]),
        ("int64[][]", [[1]]),
        ("text[]", [1]),
        ("text[]", ["\0"]),
        ("text[]", ["x"] * 10_001),
        ("bytes[]", ["zz"]),
        ("timestamp[]", ["2026-01-01T00:00:00"]),
        ("[]", []),
    ],
)
def test_lists_of_other_values_are_refused(kind: str, value: Any, gate: QueryGate) -> None:
    with pytest.raises(TraceError) as refused:
        gate.check("SELECT $p", {"p": QueryParameter(kind, value)}, {})
    assert refused.value.code == "query_parameter"


def test_batch_queries_take_no_lists() -> None:
    for parameter in (QueryParameter("int64[]", [1]), QueryParameter("int64[]", None)):
        with pytest.raises(TraceError, match="which batch queries do not take"):
            check_batch_query("SELECT $p AS p FROM blocks", {"p": parameter}, ["blocks"])


def test_the_client_types_its_lists() -> None:
    typed = to_parameters({"a": [1, None], "b": [2**255, 1], "c": (b"\x01",), "d": [], "e": [-(2**70), 1]})
    assert {name: (item.type, item.value) for name, item in typed.items()} == {
        "a": ("int64[]", [1, None]),
        "b": ("uint256[]", [str(2**255), 1]),
        "c": ("bytes[]", ["0x01"]),
        "d": ("text[]", []),
        "e": ("int256[]", [str(-(2**70)), 1]),
    }
    with pytest.raises(ValueError, match="one type; received int64, text"):
        to_parameters({"a": [1, "x"]})
