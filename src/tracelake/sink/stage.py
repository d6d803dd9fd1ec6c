"""Staging: the rows of a batch as they were parsed, in a table beside the dataset's own, before they are merged.

What this process has read goes to a temporary table of its connection; what Spark loads, to an unlogged table that
every connection sees.
"""

import secrets

from tracelake.model.buffered import quoted
from tracelake.model.dag import Schema
from tracelake.rows.values import kind_of
from tracelake.sink.outcomes import Run, StagingLostError
from tracelake.wire.buffers import BufferedDataset

_STAGING_HOURS = 24
_MARK = 0
"""The `_publish_seq` of a row that every shared staging table has from its beginning; no batch has this number."""


def shared_name(name: str) -> str:
    """The quoted name of a shared staging table."""
    return f"staging.{quoted(name)}"


def create_temporary(run: Run, dataset: BufferedDataset) -> str:
    """A staging table of this connection, for this very schema; empty again after each transaction."""
    name = temporary_name(dataset)
    run(f"DROP TABLE IF EXISTS pg_temp.{quoted(name)}")
    run(_create(name, dataset.schema, temporary=True))
    return name


def temporary_name(dataset: BufferedDataset) -> str:
    return f"stage_{dataset.dataset_uuid.hex}"


def create_shared(run: Run, dataset: BufferedDataset) -> str:
    """A staging table that every connection sees; what a killed sink left behind is dropped on the way."""
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
    """Raises StagingLostError unless the table is there with what was staged."""
    table = shared_name(name)
    ((exists,),) = run("SELECT to_regclass($1) IS NOT NULL", table)
    if not exists or not run(f"SELECT 1 FROM {table} WHERE _publish_seq = {_MARK} LIMIT 1"):  # noqa: S608 - quoted
        raise StagingLostError(name)


def drop_shared(run: Run, name: str) -> None:
    run(f"DROP TABLE IF EXISTS {shared_name(name)}")
    run("DELETE FROM buffer_staging WHERE name = $1", name)


def _create(name: str, schema: Schema, *, temporary: bool) -> str:
    """A table that takes what `BatchReader` reads."""
    columns = ["_publish_seq bigint", "_line integer"]
    columns += [f"{quoted(kind.column.name)} {kind.staged}" for kind in map(kind_of, schema.columns)]
    body = f"({', '.join(columns)})"
    if temporary:
        return f"CREATE TEMPORARY TABLE {quoted(name)} {body} ON COMMIT DELETE ROWS"
    return f"CREATE UNLOGGED TABLE staging.{quoted(name)} {body}"
