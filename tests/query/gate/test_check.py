"""What the gate tells of a query: relations, columns, filters, parameters, fingerprint, and where it is wrong."""

from typing import Any

import pytest

from tests.query.gate.corpus import PARAMETERS, RELATIONS
from tracelake.errors import TraceError
from tracelake.query.gate.check import QueryGate
from tracelake.query.gate.filters import ColumnFilter
from tracelake.query.gate.parameters import QueryParameter, check_parameters


def filters_of(gate: QueryGate, sql: str) -> dict[str, set[tuple[str, str, Any]]]:
    filters = gate.check(sql, PARAMETERS, RELATIONS).filters
    return {name: {(item.column, item.operator, item.value) for item in items} for name, items in filters.items()}


def test_columns_are_those_that_the_plan_needs(gate: QueryGate) -> None:
    query = gate.check(
        """
        WITH recent AS (SELECT *, gas_used * 2 AS doubled FROM blocks WHERE mined_at > '2026-03-02')
        SELECT r.author, sum(t.amount), count(*) FILTER (WHERE t.meta.fee > 1)
        FROM recent r JOIN transfers t USING (block_number) GROUP BY r.author
        """,
        {},
        RELATIONS,
    )
    assert query.relations == {"blocks", "transfers"}
    assert query.columns == {
        "blocks": {"author", "block_number", "mined_at"},
        "transfers": {"amount", "block_number", "meta"},
    }


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1 FROM blocks WHERE block_number >= 5", {"blocks": {("block_number", ">=", 5)}}),
        ("SELECT 1 FROM blocks WHERE 5 > block_number", {"blocks": {("block_number", "<", 5)}}),
        (
            "SELECT 1 FROM blocks b WHERE b.block_number BETWEEN $first AND $last AND author = '0xa'",
            {"blocks": {("block_number", ">=", 2), ("block_number", "<=", 8), ("author", "=", "0xa")}},
        ),
        ("SELECT 1 FROM logs WHERE log_index IN (1, 2)", {"logs": {("log_index", "in", (1, 2))}}),
        (
            "SELECT 1 FROM blocks JOIN transfers USING (block_number) WHERE block_number = 3",
            {"blocks": {("block_number", "=", 3)}, "transfers": {("block_number", "=", 3)}},
        ),
        (
            "SELECT 1 FROM blocks b LEFT JOIN logs l ON l.block_number = b.block_number WHERE l.log_index = 1",
            {"logs": {("log_index", "=", 1)}},
        ),
        ("SELECT * FROM (SELECT * FROM blocks WHERE gas_used > 7)", {"blocks": {("gas_used", ">", 7)}}),
        ("SELECT 1 FROM prices WHERE day < DATE '2026-03-02'", {"prices": {("day", "<", "2026-03-02")}}),
        # Each of these would be wrong.
        ("SELECT 1 FROM blocks WHERE block_number = 1 OR gas_used = 2", {}),
        ("SELECT 1 FROM blocks WHERE NOT block_number = 1", {}),
        ("SELECT 1 FROM blocks a, blocks b WHERE a.block_number = 1", {}),
        ("SELECT * FROM blocks WHERE block_number = 1 UNION ALL SELECT * FROM blocks", {}),
        (
            "SELECT 1 FROM transfers t ASOF JOIN prices p ON t.moved_at >= p.quoted_at WHERE p.token = 'a'",
            {},
        ),
        ("SELECT 1 FROM blocks POSITIONAL JOIN logs WHERE gas_used = 1", {}),
        ("SELECT 1 FROM blocks TABLESAMPLE 10% WHERE block_number = 1", {}),
        ("SELECT 1 FROM blocks b(x, block_number) WHERE block_number = '0xa'", {}),
        ("SELECT gas_used AS n FROM blocks QUALIFY rank() OVER (ORDER BY block_number) = 1", {}),
        ("SELECT 1 FROM blocks HAVING max(block_number) = 1", {}),
        ("SELECT 1 FROM blocks WHERE block_number > 1.5", {}),
        ("SELECT 1 FROM blocks WHERE block_number = '7'", {}),
        ("SELECT 1 FROM blocks WHERE author > '0xa'", {}),
        ("SELECT 1 FROM blocks WHERE block_number IS DISTINCT FROM 1", {}),
        ("WITH blocks AS (SELECT * FROM blocks) SELECT 1 FROM blocks WHERE block_number = 1", {}),
        ("SELECT 1 FROM blocks, (SELECT 5 AS gas_used) WHERE base_fee = 7", {}),
    ],
)
def test_filters_are_only_those_that_hold_for_every_read(
    gate: QueryGate, sql: str, expected: dict[str, set[tuple[str, str, Any]]]
) -> None:
    assert filters_of(gate, sql) == expected


def test_a_parameter_is_cast_and_never_a_part_of_the_text(gate: QueryGate) -> None:
    hostile = QueryParameter("text", "'; DROP TABLE blocks; --")
    query = gate.check("SELECT $x AS x, count(*) FROM blocks WHERE author = $x", {"x": hostile}, RELATIONS)
    assert "DROP" not in query.sql
    assert query.sql.count("CAST($x AS VARCHAR)") == 2
    assert query.parameters == {"x": "'; DROP TABLE blocks; --"}
    assert query.filters["blocks"] == (ColumnFilter("author", "=", "'; DROP TABLE blocks; --"),)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int64", 2**63),
        ("int64", True),
        ("int64", "0x10"),
        ("uint256", -1),
        ("uint256", str(2**256)),
        ("float64", "1"),
        ("decimal", "1e5"),
        ("decimal", "1" * 39),
        ("text", 5),
        ("text", "\0"),
        ("text", "x" * 10_001),
        ("bytes", "ff"),
        ("date", "2026-13-01"),
        ("timestamp", "2026-03-01T00:00:00"),
        ("blob", "x"),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(TraceError) as refused:
        check_parameters({"x": QueryParameter(kind, value)})
    assert refused.value.code == "query_parameter"


def test_the_fingerprint_ignores_values_alone(gate: QueryGate) -> None:
    def print_of(sql: str) -> str:
        return gate.check(sql, {}, RELATIONS).fingerprint

    first = print_of("SELECT author FROM blocks WHERE block_number = 1 AND author IN ('a')")
    assert first == print_of("select author  from blocks where block_number = 22 and author in ('b', 'c') -- x")
    assert first != print_of("SELECT author FROM blocks WHERE block_number > 1 AND author IN ('a')")
    assert first != print_of("SELECT author FROM blocks WHERE gas_used = 1 AND author IN ('a')")


def test_a_relation_like_no_other_is_answered_with_the_commands_that_list_them(gate: QueryGate) -> None:
    with pytest.raises(TraceError, match=r"`trace datasets` lists what you may read, and so does `\\d`"):
        gate.check("SELECT * FROM zzzzzzzz", PARAMETERS, RELATIONS)


@pytest.mark.parametrize(
    ("sql", "code", "line", "column", "name", "suggestions"),
    [
        ("SELECT *\nFROM transfer", "query_unknown_relation", 2, 6, "transfer", ["transfers"]),
        ("SELECT\n  autor FROM blocks", "query_unknown_column", 2, 3, "autor", ["author"]),
        ("SELECT 'ü', uppper(author) FROM blocks", "query_unknown_function", 1, 13, "uppper", ["upper"]),
        ("SELECT $tokn", "query_parameter", 1, 8, "tokn", ["token"]),
        ("SELECT 'ü' FROM\n blocks WHERE (", "query_syntax", 2, 15, None, None),
        ("SELECT\n\n read_text('x')", "query_not_allowed", 3, 2, "read_text", None),
    ],
)
def test_a_refusal_names_the_place(
    gate: QueryGate, sql: str, code: str, line: int, column: int, name: str | None, suggestions: list[str] | None
) -> None:
    with pytest.raises(TraceError) as refused:
        gate.check(sql, PARAMETERS, RELATIONS)
    error = refused.value
    assert (error.code, error.details["line"], error.details["column"]) == (code, line, column)
    assert error.details.get("name") == name
    if suggestions is not None:
        assert error.details["suggestions"][:1] == suggestions


@pytest.mark.parametrize(
    ("sql", "column", "word"),
    [
        ("SELECT max(at) FROM labels", 12, "at"),
        ("SELECT 'ü', At, author FROM blocks", 13, "At"),
        ("SELECT count(*) FROM blocks WHERE at > 3", 35, "at"),
        ("SELECT author FROM blocks ORDER BY at", 36, "at"),
        ("SELECT to, author FROM blocks", 8, "to"),
        ("SELECT to, max(at) FROM blocks", 8, "to"),  # the second one is found next
        ("SELECT author FROM order", 20, "order"),
    ],
)
def test_a_reserved_word_that_stands_for_a_name_is_named(gate: QueryGate, sql: str, column: int, word: str) -> None:
    with pytest.raises(TraceError, match=f'`{word}` is a reserved word. For a name, write "{word}"') as refused:
        gate.check(sql, {}, RELATIONS)
    details = refused.value.details
    assert (refused.value.code, details["column"], details["name"]) == ("query_syntax", column, word)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT author FROM blocks WHERE",
        "SELECT (author FROM blocks",
        "SELECT author == AND 1 FROM blocks",
        "SELECT author FORM blocks",
        "SELECT 'at' 'at' FROM blocks",
        "SELECT author WHERE 1 FROM blocks",
    ],
)
def test_a_keyword_at_its_own_place_is_no_name(gate: QueryGate, sql: str) -> None:
    with pytest.raises(TraceError, match="cannot be parsed from here on"):
        gate.check(sql, {}, RELATIONS)


def test_a_column_named_like_a_session_word_can_be_read(gate: QueryGate) -> None:
    relations = {"people": {"user": "VARCHAR", "rowid": "BIGINT"}}
    assert gate.check("SELECT p.user, rowid FROM people p", {}, relations).columns == {"people": {"user", "rowid"}}
    with pytest.raises(TraceError):
        gate.check("SELECT user FROM people", {}, relations)


@pytest.mark.parametrize(
    "kind",
    [
        "INTEGER); CREATE TABLE evil (i INTEGER); --",
        "INTEGER), (a INTEGER",
        "INTEGER DEFAULT 1",
        "INTEGER CHECK (true)",
        "INTEGER) FROM evil --",
        "INTEGER); COMMIT; SELECT CAST(NULL AS INTEGER",
        "",
        "1",
    ],
)
def test_a_type_of_a_column_is_no_sql(gate: QueryGate, kind: str) -> None:
    """It comes from the engine, and stands in a statement of a process that other orgs use too."""
    with pytest.raises(TraceError) as refused:
        gate.check("SELECT * FROM r", {}, {"r": {"a": kind}})
    assert refused.value.code == "query_type_unsupported"
    assert gate.check("SELECT * FROM evil", {}, {"evil": {"a": "INTEGER"}}).relations == {"evil"}


def test_types_of_files_are_types(gate: QueryGate) -> None:
    kinds = (
        "BIGINT", "DECIMAL(38,2)", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_NS", "VARCHAR[]", "INTEGER[3]", '"NULL"',
        "MAP(VARCHAR, INTEGER[])", 'STRUCT("a ""b""); --" BIGINT, c STRUCT(d DATE)[])', "BIGNUM", "ENUM('a', 'b')",
        "TIME WITH TIME ZONE", "HUGEINT", "BIT", "BLOB", "INTERVAL", "TIME", "UUID", "JSON",
    )  # fmt: skip
    columns = {f"c{number}": kind for number, kind in enumerate(kinds)}
    assert gate.check("SELECT * FROM r", {}, {"r": columns}).relations == {"r"}
