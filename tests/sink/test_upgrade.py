"""A table of an older release, from before units and writers, is followed by a sink of this one and keeps its rows."""

import shutil
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from tests.sink.support import Publisher, dataset, lines
from tests.sink.test_store import ask, direct, rows_of
from tests.sink.test_units import declare
from tests.support.postgres import TestCluster, run
from tracelake.db import migrate, migrations
from tracelake.model.buffered import hidden_name, quoted, table_name
from tracelake.sink.store import TableStore
from tracelake.storage import table_ddl
from tracelake.wire.buffers import BatchUnit, BufferedDataset

BEFORE_UNITS = 3
"""The last migration of a release without units."""


async def make_old_table(dsn: str, of: BufferedDataset, directory: Path, rows: dict[int, str]) -> None:
    """A table with rows, as a sink of that release left it."""
    for path in sorted(Path(str(migrations("data"))).glob("*.sql"))[:BEFORE_UNITS]:
        shutil.copy(path, directory)
    connection = await asyncpg.connect(dsn)
    try:
        await migrate(connection, directory)
        table, org_id = quoted(table_name(of.dataset_uuid)), uuid4()
        for statement in table_ddl.migrate(None, of):
            await connection.execute(statement)
        definition = table_ddl.definition(of)
        await connection.execute(
            """INSERT INTO buffer_tables (dataset_uuid, definition, next_commit, indexed)
               VALUES ($1, $2::text::json, 3, $2::text)""",
            of.dataset_uuid,
            definition,
        )
        for number, (key, value) in enumerate(rows.items(), 1):
            row = (org_id, uuid4(), number, key, value)
            await connection.execute(f"INSERT INTO {table} VALUES ($1, $2, $3, 1, 1, $4, $5)", *row)
        await migrate(connection, migrations("data"))
    finally:
        await connection.close()


@pytest.mark.parametrize("keep", [True, False])
def test_a_table_of_an_older_release(cluster: TestCluster, tmp_path: Path, keep: bool) -> None:
    dsn, node_id = cluster.empty(), uuid4()
    of = dataset()
    run(make_old_table(dsn, of, tmp_path, {1: "old", 2: "old"}))
    store = TableStore(dsn)
    try:
        of = declare(of, [node_id], keep=keep)
        store.follow(of)
        assert [row[3:] for row in rows_of(dsn, of)] == [(1, "old"), (2, "old")], "rows without a unit stay"
        assert ask(dsn, f"SELECT count(*) FROM {quoted(hidden_name(of.dataset_uuid))}") == [(0,)]
        publisher = Publisher(of, last=10)
        publisher.org_id = ask(dsn, f"SELECT DISTINCT org_id::text FROM {quoted(table_name(of.dataset_uuid))}")[0][0]
        unit = BatchUnit(node_id=node_id, unit="0:p:1-1", batches=1)
        for rows, after in (
            ([{"key": 2, "value": "new"}, {"key": 3, "value": "new"}], [(1, "old"), (2, "new"), (3, "new")]),
            ([{"key": 3, "value": "again"}], [(1, "old"), (2, "old"), (3, "again")]),
        ):
            data = lines(rows)
            direct(store, of, [publisher.read(publisher.batch(data, unit=unit), data)])
            assert [row[3:] for row in rows_of(dsn, of)] == after
    finally:
        store.close()
