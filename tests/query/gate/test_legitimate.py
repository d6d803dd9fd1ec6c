"""Legitimate queries pass and keep their meaning.

For each: the checked SQL gives the rows and names of the original, also if unused columns are null and rows that fail
the filters are missing; and the rows are those of SQLite or a known answer.
"""

import sqlite3
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from tests.query.gate.answers import ANSWERS
from tests.query.gate.computed_answers import COMPUTED
from tests.query.gate.corpus import PARAMETERS, RELATIONS, CorpusEntry, read_corpus
from tests.query.gate.names import names_in
from tests.query.gate.sample_data import comparable_rows, database, sqlite_database
from tracelake.errors import CATALOGUE, TraceError
from tracelake.query.gate.check import CheckedQuery, QueryGate
from tracelake.query.gate.duckdb_parser import quote_name

LEGITIMATE = read_corpus("legitimate")
KNOWN = ANSWERS | COMPUTED
ANSWERED = [entry for entry in LEGITIMATE if entry.code not in CATALOGUE]


def test_the_corpus_is_large_and_nearly_all_of_it_is_answered() -> None:
    assert len(LEGITIMATE) >= 150
    assert len({str(entry) for entry in LEGITIMATE}) == len(LEGITIMATE)
    assert len(ANSWERED) >= 0.98 * len(LEGITIMATE)
    assert {str(entry) for entry in LEGITIMATE if entry.code == "known"} == KNOWN.keys()
    assert {entry.code for entry in ANSWERED} == {"known", "sqlite"}, "no answer is only another one of DuckDB"


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
    connection = sqlite_database()
    yield connection
    connection.close()


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
        assert comparable_rows(sqlite.execute(entry.sql).fetchall()) == comparable_rows(expected[1])
    elif entry.code == "known":
        assert comparable_rows(expected[1]) == comparable_rows(KNOWN[str(entry)])
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
