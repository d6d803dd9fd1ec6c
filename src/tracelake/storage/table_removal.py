"""Drops the table of a dataset whose DAG was purged, with everything that Postgres data records of it.

The first transaction notes that the table is gone for good, and drops it with its views. From then on nobody creates it
again, however old a declaration they have, and no fence of it is raised. What is recorded of its batches and writes
follows, a limited number of rows in each transaction. Every step may be repeated.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias
from uuid import UUID

from tracelake.model.buffered import hidden_name, quoted, table_name
from tracelake.storage.data_connection import Run

Transaction: TypeAlias = Callable[[], AbstractContextManager[Run]]

ROWS_AT_ONCE = 10_000
NOTED_DAYS = 60
"""For so long nobody creates the table again: longer than any attempt or sink runs on without hearing of it."""

_ALONE = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
_NOTE = """
    INSERT INTO removed_tables (dataset_uuid) VALUES ($1::text::uuid)
    ON CONFLICT (dataset_uuid) DO UPDATE SET removed_at = trace_now()"""
# Commits and direct writes hold this row until their end.
_LOCK = "SELECT 1 FROM buffer_tables WHERE dataset_uuid = $1::text::uuid FOR UPDATE"
_IS_REMOVED = "SELECT 1 FROM removed_tables WHERE dataset_uuid = $1::text::uuid"
_RECORDS = ("buffer_commits", "buffer_parts", "buffer_changes", "direct_events")
_DELETE_SOME = """
    WITH gone AS (DELETE FROM {table} WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {table} WHERE dataset_uuid = $1::text::uuid LIMIT $2::int)) RETURNING 1)
    SELECT count(*) FROM gone"""
_DELETE_REST = tuple(
    f"DELETE FROM {table} WHERE dataset_uuid = $1::text::uuid"  # noqa: S608 - constants only
    for table in ("direct_fences", "table_marks", "table_extents", "buffer_tables")
)
_FORGET = """
    DELETE FROM removed_tables WHERE removed_at < trace_now() - make_interval(days => $1::int)"""


def is_removed(run: Run, dataset_uuid: UUID) -> bool:
    """Whether the table was dropped for good."""
    return bool(run(_IS_REMOVED, str(dataset_uuid)))


def drop_table(transaction: Transaction, dataset_uuid: UUID, lock_seconds: float) -> None:
    key = str(dataset_uuid)
    with transaction() as run:
        # Everybody queues behind a waiting DROP TABLE, so it gives up soon and is retried.
        run(f"SET LOCAL lock_timeout = {int(lock_seconds * 1000)}")
        run(_ALONE, key)
        run(_NOTE, key)
        run(_LOCK, key)
        for name in (hidden_name(dataset_uuid), table_name(dataset_uuid)):
            run(f"DROP TABLE IF EXISTS {quoted(name)} CASCADE")
    for table in _RECORDS:
        removed = ROWS_AT_ONCE
        while removed == ROWS_AT_ONCE:
            with transaction() as run:
                ((removed,),) = run(_DELETE_SOME.format(table=table), key, ROWS_AT_ONCE)
    with transaction() as run:
        for statement in _DELETE_REST:
            run(statement, key)


def forget_removed(run: Run) -> None:
    run(_FORGET, NOTED_DAYS)
