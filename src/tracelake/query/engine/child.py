"""Runs one query inside of its sandbox. The fork server has imported this module, and with it DuckDB and pyarrow.

Descriptors: the Arrow stream, the outcome, and the exported file if there is one. Nothing else leaves the sandbox.
"""

import os
import sys
from collections.abc import Sequence

import duckdb
import msgspec
import pyarrow as pa

from tracelake.query.engine.database import bind, connect, make_database, open_relations
from tracelake.query.engine.failures import classify, classify_setup
from tracelake.query.engine.requests import ChildOutcome, EngineQuery
from tracelake.query.engine.results import write_result

pa.set_cpu_count(1)
pa.set_io_thread_count(1)
sys.setrecursionlimit(1000)


_databases: list[duckdb.DuckDBPyConnection] = []
"""The empty one of the fork server. Making it takes longer than a small query: every process has a copy of it."""
_connections: list[duckdb.DuckDBPyConnection] = []
"""The one of this process, once it is prepared."""


def preload() -> None:
    _databases.append(make_database())


def prepare() -> None:
    _connections.append(connect(_databases[0]))


def run(payload: bytes, descriptors: Sequence[int]) -> int:
    output, outcome, *export = descriptors
    query = msgspec.json.decode(payload, type=EngineQuery)
    result = _answer(_connections.pop(), query, output, export[0] if export else None)
    os.write(outcome, msgspec.json.encode(result))
    os.close(outcome)  # the service goes on: it takes a while until memory and namespaces of this process are gone
    return 0


def _answer(connection: duckdb.DuckDBPyConnection, query: EngineQuery, output: int, export: int | None) -> ChildOutcome:
    try:
        open_relations(connection, query.limits, query.relations)
    except Exception as error:
        return ChildOutcome(classify_setup(error))
    try:
        result = connection.sql(_limited(query), params=bind(query.parameters) or None)
        return write_result(result, query.limits, output, export)
    except Exception as error:
        return ChildOutcome(classify(error))


def _limited(query: EngineQuery) -> str:
    if query.limit is None:
        return query.sql
    # S608: the text is one SELECT, which the gate has written.
    return f"SELECT * FROM (\n{query.sql.strip().rstrip(';')}\n) AS result LIMIT {query.limit:d}"  # noqa: S608
