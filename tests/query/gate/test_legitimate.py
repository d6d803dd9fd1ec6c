"""Legitimate queries pass and keep their meaning.

For each: the checked SQL gives the rows and names of the original, also if unused columns are null and rows that fail
the filters are missing; and the rows are those of SQLite or a known answer.
"""

import json
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pytest

from tests.query.gate.answers import ANSWERS
from tests.query.gate.corpus import PARAMETERS, RELATIONS, CorpusEntry, read_corpus
from tests.query.gate.names import names_in
from tests.query.gate.sample_data import ROWS, database
from tracelake.errors import CATALOGUE, TraceError
from tracelake.query.gate.check import CheckedQuery, QueryGate
from tracelake.query.gate.duckdb_parser import quote_name

LEGITIMATE = read_corpus("legitimate")
ANSWERED = [entry for entry in LEGITIMATE if entry.code not in CATALOGUE]


def test_the_corpus_is_large_and_nearly_all_of_it_is_answered() -> None:
    assert len(LEGITIMATE) >= 150
    assert len({str(entry) for entry in LEGITIMATE}) == len(LEGITIMATE)
    assert len(ANSWERED) >= 0.98 * len(LEGITIMATE)
    assert {str(entry) for entry in LEGITIMATE if entry.code == "known"} == ANSWERS.keys()


@pytest.fixture(scope="module")
def original() -> Iterator[duckdb.DuckDBPyConnection]:
    with database() as connection:
        yield connection


@pytest.fixture(scope="module")
def pruned() -> Iterator[duckdb.DuckDBPyConnection]:
    with database() as connection:
        for name in RELATIONS:
            connection.execute(f"ALTER TABLE {name} RENAME TO all_{name}")
        yield connection


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    for name, columns in RELATIONS.items():
        connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
        for row in ROWS[name]():
            values = [
                value if isinstance(value, bool | float | bytes | None) else _plain(value) for value in row.values()
            ]
            connection.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(values))})", values)
    connection.execute("PRAGMA case_sensitive_like = on")
    yield connection
    connection.close()


def _plain(value: object) -> object:
    is_plain = isinstance(value, bool | float | bytes | None) or (isinstance(value, int) and value < 2**63)
    return value if is_plain else str(value)


@pytest.mark.parametrize("entry", ANSWERED, ids=str)
def test_a_legitimate_query(
    entry: CorpusEntry,
    gate: QueryGate,
    original: duckdb.DuckDBPyConnection,
    pruned: duckdb.DuckDBPyConnection,
    sqlite: sqlite3.Connection,
) -> None:
    query = gate.check(entry.sql, PARAMETERS, RELATIONS)
    assert query.relations >= names_in(entry.sql)[0]
    expected = _run(original, entry.sql, query)
    assert _run(original, query.sql, query) == expected
    for name in query.relations:
        pruned.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {_pruning(name, query)}")
    if "SAMPLE" not in entry.sql:
        assert _run(pruned, query.sql, query) == expected
    if entry.code == "sqlite":
        assert _comparable(sqlite.execute(entry.sql).fetchall()) == _comparable(expected[1])
    elif entry.code == "known":
        assert _comparable(expected[1]) == _comparable(ANSWERS[str(entry)])
    again = gate.check(query.sql, PARAMETERS, RELATIONS)
    assert (again.sql, again.fingerprint) == (query.sql, query.fingerprint)


@pytest.mark.parametrize("entry", [entry for entry in LEGITIMATE if entry.code in CATALOGUE], ids=str)
def test_a_legitimate_query_that_is_refused(entry: CorpusEntry, gate: QueryGate) -> None:
    with pytest.raises(TraceError) as refused:
        gate.check(entry.sql, PARAMETERS, RELATIONS)
    assert refused.value.code == entry.code


def _run(connection: duckdb.DuckDBPyConnection, sql: str, query: CheckedQuery) -> tuple[list[str], list[Any]]:
    result = connection.execute(sql, dict(query.parameters) or None)
    return [str(column[0]) for column in result.description], result.fetchall()


def _pruning(name: str, query: CheckedQuery) -> str:
    columns = ", ".join(
        quote_name(column) if column in query.columns[name] else f"CAST(NULL AS {kind}) AS {quote_name(column)}"
        for column, kind in RELATIONS[name].items()
    )
    conditions = [
        f"{quote_name(item.column)} {item.operator} {_literal(item.value)}" for item in query.filters.get(name, ())
    ]
    return f"SELECT {columns} FROM all_{name} WHERE {' AND '.join(conditions) or 'true'}"


def _literal(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_literal(item) for item in value)})"
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"


def _comparable(rows: list[Any]) -> list[list[Any]]:
    return [[_cell(value) for value in row] for row in rows]


def _cell(value: object) -> object:
    """Engines differ in the types of numbers, of booleans and of JSON."""
    if isinstance(value, str):
        try:
            number = json.loads(value)
        except ValueError:
            return value
        return _cell(number) if isinstance(number, int) else value
    if isinstance(value, Decimal):
        return _cell(int(value)) if value == int(value) else round(float(value), 9)
    if isinstance(value, int) and abs(value) >= 2**53:
        return str(value)
    return round(float(value), 9) if isinstance(value, int | float) else value
