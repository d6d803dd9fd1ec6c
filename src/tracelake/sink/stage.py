"""Staging tables, which hold the parsed rows of batches until they are merged into the dataset's table.

Rows that this process has parsed go to a temporary table of its connection; rows that Spark loads go to an unlogged
table that every connection sees.
"""

import secrets

from tracelake.model.buffered import quoted
from tracelake.model.dag import Schema
from tracelake.rows.values import kind_of
from tracelake.sink.outcomes import StagingLostError
from tracelake.storage.data_connection import Run
from tracelake.wire.buffers import BufferedDataset

_STAGING_HOURS = 24
_MARK = 0
"""The `_publish_seq` of the marker row of a shared staging table, which no batch has."""


def shared_name(name: str) -> str:
    """The quoted name of a shared staging table."""
    return f"staging.{quoted(name)}"


def create_temporary(run: Run, dataset: BufferedDataset) -> str:
    """Creates a staging table for this schema in this connection; every commit empties it."""
    name = temporary_name(dataset)
    run(f"DROP TABLE IF EXISTS pg_temp.{quoted(name)}")
    run(_create(name, dataset.schema, temporary=True))
    return name


def temporary_name(dataset: BufferedDataset) -> str:
    return f"stage_{dataset.dataset_uuid.hex}"


def create_shared(run: Run, dataset: BufferedDataset) -> str:
    """Creates a staging table that every connection sees; drops old ones that killed sinks left behind."""
    name = f"stage_{dataset.dataset_uuid.hex[:12]}_{secrets.token_hex(8)}"
    stale = run(
        "DELETE FROM buffer_staging WHERE created_at < trace_now() - make_interval(hours => $1::int) RETURNING name",
        _STAGING_HOURS,
    )
    for (stale_name,) in stale:
        run(f"DROP TABLE IF EXISTS {shared_name(stale_name)}")
    run("INSERT INTO buffer_staging (name) VALUES ($1)", name)
    run(_create(name, dataset.schema, temporary=False))
    run(f"INSERT INTO {shared_name(name)} (_publish_seq) VALUES ({_MARK})")  # noqa: S608 - quoted
    return name


def check_shared(run: Run, name: str) -> None:
    """Raises StagingLostError unless the table still holds the staged rows."""
    table = shared_name(name)
    ((exists,),) = run("SELECT to_regclass($1) IS NOT NULL", table)
    if not exists or not run(f"SELECT 1 FROM {table} WHERE _publish_seq = {_MARK} LIMIT 1"):  # noqa: S608 - quoted
        raise StagingLostError(name)


def drop_shared(run: Run, name: str) -> None:
    run(f"DROP TABLE IF EXISTS {shared_name(name)}")
    run("DELETE FROM buffer_staging WHERE name = $1", name)


def _create(name: str, schema: Schema, *, temporary: bool) -> str:
    """The statement that creates a table for the rows of `BatchReader`."""
    columns = ["_publish_seq bigint", "_line integer"]
    columns += [f"{quoted(kind.column.name)} {kind.staged}" for kind in map(kind_of, schema.columns)]
    body = f"({', '.join(columns)})"
    if temporary:
        return f"CREATE TEMPORARY TABLE {quoted(name)} {body} ON COMMIT DELETE ROWS"
    return f"CREATE UNLOGGED TABLE staging.{quoted(name)} {body}"
