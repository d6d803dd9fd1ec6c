"""Every function of the pinned DuckDB is allowed with kinds of arguments, or refused with a reason."""

import duckdb
import pytest

from tracelake.query.gate.functions import SIGNATURES, TABLE_SIGNATURES, reason_against
from tracelake.query.gate.functions.kinds import KINDS

_TABLE_TYPES = ("table", "table_macro", "pragma")


@pytest.fixture(scope="module")
def registry() -> set[tuple[str, str]]:
    connection = duckdb.connect(":memory:")
    rows = connection.execute("SELECT DISTINCT function_name, function_type FROM duckdb_functions()").fetchall()
    return {(str(name), str(kind)) for name, kind in rows}


def test_each_function_has_one_entry(registry: set[tuple[str, str]]) -> None:
    for name, kind in registry:
        is_table = kind in _TABLE_TYPES
        allowed = name.lower() in (TABLE_SIGNATURES if is_table else SIGNATURES)
        refused = reason_against(name, table=is_table) is not None
        assert allowed != refused, (name, kind, allowed)


def test_no_entry_is_invented(registry: set[tuple[str, str]]) -> None:
    names = {name.lower() for name, _ in registry}
    assert SIGNATURES.keys() | TABLE_SIGNATURES.keys() <= names


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        ("size", 10_000, 10_001),
        ("count", 1, 0),
        ("share", [0.5, 0.9], 1.5),
        ("pattern", "^0x[0-9a-f]{40}$", "(a{1000}){1000}"),
        ("like", "%a%b%", "%a%a%a%a%a%a%a%a%"),
        ("template", "{:>10.2f}", "{:{}}"),
        ("part", "MONTH", "nothing"),
        ("zone", "Europe/Berlin", "../../etc"),
        ("structure", '{"a": ["BIGINT"], "b": {"c": "VARCHAR"}}', '{"a": "mood"}'),
        ("aggregate", "SUM", "read_text"),
    ],
)
def test_a_kind(kind: str, accepted: object, refused: object) -> None:
    assert KINDS[kind].accepts(accepted)
    assert not KINDS[kind].accepts(refused)
