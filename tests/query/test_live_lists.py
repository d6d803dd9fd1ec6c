"""Columns of lists of a live dataset: queries and `trace read` get one type of both sides, and the values of the files
that `evm_ingest` writes."""

import asyncio
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.query.engine.conftest import Engine, engine
from tests.spark.live_chain import NESTED, LiveChain, cut_rows, nested_rows, nested_tables
from tests.spark.support import DirectoryTransfer
from tests.support.postgres import TestCluster
from tracelake.catalogue.evm_columns import EvmTable
from tracelake.client.live_reading import LiveFiles, read_live
from tracelake.query.broker import TableBroker, TableRead
from tracelake.query.engine.requests import Relation
from tracelake.query.relations import sql_type, to_columns
from tracelake.stack.dataset_rows import read_table
from tracelake.wire.content import LiveRows
from tracelake.wire.task_calls import TableColumn

__all__ = ["engine"]
TABLES: tuple[EvmTable, ...] = ("blocks", "transactions")
KEYS = {"blocks": ["block_number"], "transactions": ["block_number", "transaction_index"]}


@pytest.fixture(scope="module")
def live(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> LiveChain:
    """Blocks 20 to 79 in the table."""
    directory = tmp_path_factory.mktemp("live")
    transfer = DirectoryTransfer(directory / "objects")
    chain = LiveChain(cluster.fresh("data"), transfer, directory, nested_tables(), nested_rows())
    chain.write(20, 79, seal=59)
    return chain


def lists_of(table: EvmTable, rows: pa.Table) -> list[dict[str, Any]]:
    names = [*KEYS[table], *NESTED[table]]
    return rows.select(names).sort_by([(key, "ascending") for key in KEYS[table]]).to_pylist()  # type: ignore[no-any-return]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("boundary", [39, None, 79], ids=["both", "table", "files"])
def test_queries_see_one_type(
    engine: Engine, live: LiveChain, threads: ThreadPoolExecutor, tmp_path: Path, name: EvmTable, boundary: int | None
) -> None:
    """As the Query Service reads it: the rows of the table by a snapshot, and files of two schemas."""
    columns = live.columns(name)
    first = 10 if boundary else 20
    files = [live.objects.path(live.add_file(name, first, boundary).uri)] if boundary else []
    table = TableRead(
        dataset_uuid=live.tables[name].dataset_uuid,
        columns=columns,
        needed=frozenset(column.name for column in columns),
        is_live=True,
        boundary=boundary,
    )
    broker = TableBroker(lambda: live.dsn, threads)
    rows = asyncio.run(broker.read({name: table}, tmp_path / "rows", max_bytes=2**30, seconds=60))
    for path in files:
        path.chmod(0o444)
    relation = Relation(
        files=tuple(map(str, files)),
        rows=(str(rows[name].path),),
        columns=to_columns({column.name: sql_type(column) for column in columns}),
        live=True,
    )
    result, _ = engine.ask(f"SELECT * FROM {name}", relations={name: relation})
    expected = cut_rows(name, first, 79, nested_rows())
    assert lists_of(name, result) == lists_of(name, expected)
    for column in NESTED[name]:
        assert result.schema.field(column).type == expected.schema.field(column).type
        items = engine.value(f"SELECT sum(len({column})) FROM {name}", relations={name: relation})
        assert items == sum(len(value or []) for value in expected[column].to_pylist()) > 0
    if name == "blocks":
        total = engine.value(
            "SELECT sum(w.amount) FROM (SELECT unnest(withdrawals) AS w FROM blocks)", relations={name: relation}
        )
        assert total == 7 * sum(len(value or []) for value in expected["withdrawals"].to_pylist())


class StoredFiles:
    """One file of blocks 10 to 39, and the table above it."""

    def __init__(self, live: LiveChain, name: EvmTable) -> None:
        self._live, self._name = live, name

    def list_files(self) -> LiveFiles[Path]:
        return LiveFiles([self._live.objects.path(self._live.add_file(self._name, 10, 39).uri)], 39)

    def read_files(self, files: Sequence[Path], names: list[str]) -> Generator[pa.Table, None, None]:
        for file in files:
            yield pq.read_table(file, columns=names)

    def store_rows(self, columns: Sequence[TableColumn], rows: LiveRows, head: int | None, file: IO[bytes]) -> None:
        pieces = read_table(self._live.dsn, self._live.tables[self._name].dataset_uuid, columns, head, live=rows)
        first = next(pieces)
        with pa.ipc.new_stream(file, first.schema) as writer:
            for piece in pieces:
                writer.write_table(piece)


@pytest.mark.parametrize("name", TABLES)
def test_readers_of_all_rows_get_one_type(live: LiveChain, name: EvmTable) -> None:
    pieces = list(read_live(StoredFiles(live, name), live.columns(name), (None, None), None))
    assert len({piece.schema for piece in pieces}) == 1
    rows = pa.concat_tables(pieces)
    expected = cut_rows(name, 10, 79, nested_rows())
    assert lists_of(name, rows) == lists_of(name, expected)
    for column in NESTED[name]:
        assert rows.schema.field(column).type == expected.schema.field(column).type
