"""Both corpora through the gate, the sandboxed engine and the encoding of results.

Legitimate queries have the rows of SQLite or a known answer, in JSON. Hostile ones that the gate lets through end with
a code of the catalogue or a bounded answer, and the engine answers the next query.
"""

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.query.gate.answers import ANSWERS
from tests.query.gate.computed_answers import COMPUTED
from tests.query.gate.corpus import CONTAINED, PARAMETERS, RELATIONS, CorpusEntry, read_corpus
from tests.query.gate.sample_data import ROWS, comparable_rows, sqlite_database
from tests.sandbox.conftest import descendants
from tests.sandbox.test_endings import until
from tracelake.errors import TraceError
from tracelake.query.engine.requests import FAILURES, MIB
from tracelake.query.engine.server import EngineServer
from tracelake.query.execution import EngineResources, ExecutedQuery, QueryExecution
from tracelake.query.gate.check import QueryGate
from tracelake.query.relations import LocalRelation
from tracelake.query.results import encode_rows

AT_ONCE = 4
INLINE_ROWS, INLINE_BYTES = 10_000, 10 * MIB
_ARROW = {
    "BIGINT": pa.int64(), "INTEGER": pa.int32(), "VARCHAR": pa.string(), "TIMESTAMP": pa.timestamp("us"),
    "DATE": pa.date32(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(), "BLOB": pa.binary(), "JSON": pa.json_(),
    "DECIMAL(38,0)": pa.decimal128(38, 0), "VARCHAR[]": pa.list_(pa.string()), "BIGNUM": pa.string(),
    "STRUCT(fee DOUBLE, route VARCHAR[])": pa.struct([("fee", pa.float64()), ("route", pa.list_(pa.string()))]),
}  # fmt: skip
TABLE = "transfers"
"""As the broker gives a table of Postgres to the engine; the others are Parquet files."""


def local_relation(name: str, directory: Path) -> LocalRelation:
    columns = RELATIONS[name]
    rows = ROWS[name]()
    arrays = {
        column: pa.array([str(row[column]) if kind == "BIGNUM" else row[column] for row in rows], _ARROW[kind])
        for column, kind in columns.items()
    }
    table, path = pa.table(arrays), directory / name
    if name == TABLE:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    else:
        pq.write_table(table, path)
    path.chmod(0o444)
    return LocalRelation(files=(path,), is_table=name == TABLE, columns=columns)


class CorpusRunner:
    def __init__(self, directory: Path, server: EngineServer, gate: QueryGate) -> None:
        self._directory = directory
        self._server = server
        self._gate = gate
        self._relations = {name: local_relation(name, directory) for name in RELATIONS}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self, entry: CorpusEntry, resources: EngineResources, seconds: float) -> ExecutedQuery | TraceError:
        query = self._gate.check(entry.sql, PARAMETERS, RELATIONS)
        async with self._slots:
            try:
                return await QueryExecution(self._server, resources).run(
                    query.sql,
                    query.parameters,
                    {name: self._relations[name] for name in query.relations},
                    limit=None,
                    export=self._directory / f"{entry}.parquet",
                    seconds=seconds,
                    inline_rows=INLINE_ROWS,
                    inline_bytes=INLINE_BYTES,
                )
            except TraceError as error:
                return error


def run_all(
    directory: Path, entries: list[CorpusEntry], resources: EngineResources, seconds: float
) -> dict[str, ExecutedQuery | TraceError]:
    async def main() -> dict[str, ExecutedQuery | TraceError]:
        server = EngineServer(spares=AT_ONCE)
        await server.start()
        try:
            runner = CorpusRunner(directory, server, QueryGate())
            results = await asyncio.gather(*(runner.run(entry, resources, seconds) for entry in entries))
            probe = CorpusEntry("", "probe", "", "SELECT count(*) FROM blocks")
            answer = await runner.run(probe, resources, 60)
            assert isinstance(answer, ExecutedQuery)
            assert encode_rows(answer.read(), 1000) == [[10]]
            pid = server.pid or 0
            # What is left are spares: a monitor and a first process each.
            await until(lambda: len(descendants(pid)) == 2 * AT_ONCE)
        finally:
            await server.close()
        return {str(entry): result for entry, result in zip(entries, results, strict=True)}

    return asyncio.run(main())


HOSTILE = [entry for entry in read_corpus("hostile") if entry.code == CONTAINED]


def test_hostile_queries_that_pass_the_gate_are_contained(tmp_path: Path) -> None:
    resources = EngineResources(memory_bytes=96 * MIB, threads=1, export_bytes=4 * MIB)
    results = run_all(tmp_path, HOSTILE, resources, seconds=2.0)
    for name, result in results.items():
        if isinstance(result, TraceError):
            assert result.code in FAILURES | {"query_timeout"}, name
            assert (result.message, result.details) == (result.kind.message, {}), name
            continue
        table = result.read()
        assert table.num_rows <= INLINE_ROWS, name
        assert len(result.stream) <= INLINE_BYTES + MIB, name
        assert not re.search(rb"/in/|\.parquet|_source_|duckdb", msgspec.json.encode(encode_rows(table, MIB))), name
        assert (tmp_path / f"{name}.parquet").stat().st_size <= resources.export_bytes
    exported = {path.stem for path in tmp_path.glob("*.parquet")} - {"-probe"}
    assert exported == {name for name, result in results.items() if isinstance(result, ExecutedQuery)}


LEGITIMATE = [entry for entry in read_corpus("legitimate") if entry.code in ("known", "sqlite")]
KNOWN = ANSWERS | COMPUTED
TOO_WIDE = {"big_integers-hugeint_arithmetic"}
"""Its HUGEINT has 39 digits: the error says so, and a cast to BIGNUM gives it."""


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    connection = sqlite_database()
    yield connection
    connection.close()


QUICK = [
    entry
    for number, entry in enumerate(LEGITIMATE)
    if number % 6 == 0 or entry.group in ("big_integers", "ctes", "joins")
]


@pytest.mark.parametrize("entries", [QUICK, pytest.param(LEGITIMATE, marks=pytest.mark.system)], ids=["some", "all"])
def test_legitimate_queries_are_answered_through_the_engine(
    entries: list[CorpusEntry], tmp_path: Path, sqlite: sqlite3.Connection
) -> None:
    resources = EngineResources(memory_bytes=256 * MIB, threads=1, export_bytes=4 * MIB)
    results = run_all(tmp_path, entries, resources, seconds=120)
    differences: dict[str, tuple[Any, Any]] = {}
    for entry in entries:
        result = results[str(entry)]
        if isinstance(result, TraceError):
            if str(entry) not in TOO_WIDE or result.code != "query_value_invalid":
                differences[str(entry)] = (result, None)
            continue
        rows = [list(map(to_plain, row, result.columns)) for row in encode_rows(result.read(), MIB)]
        expected = sqlite.execute(entry.sql).fetchall() if entry.code == "sqlite" else KNOWN[str(entry)]
        if comparable_rows(rows) != comparable_rows([[to_json(value) for value in row] for row in expected]):
            differences[str(entry)] = (rows, expected)
    assert differences == {}


def to_plain(value: Any, column: tuple[str, str]) -> Any:
    """A map, which JSON has as pairs, and a struct without names, as the answers have them."""
    if isinstance(value, list) and value and isinstance(value[0], dict) and "element1" in value[0]:
        return [list(item.values()) for item in value]
    return dict(value) if column[1].startswith("MAP(") and value is not None else value


def to_json(value: Any) -> Any:
    """A value of an answer as the API writes it."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, timedelta):
        return str(value).removesuffix(", 0:00:00")
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value
