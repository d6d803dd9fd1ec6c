"""A table is made and changed as its schema says, with the view by which people read it.

Columns and view come first, in one transaction, with the definition that says what the table is; indexes follow in
another, so that those who read need not wait for them. Whoever repeats any of it finds it done.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from tracelake.catalogue.tables import RESERVED
from tracelake.sink import tables
from tracelake.wire.buffers import BufferedDataset

logger = logging.getLogger(__name__)

Run: TypeAlias = Callable[..., list[tuple[Any, ...]]]
"""Runs a statement with its parameters in the transaction that is open."""

_ALONE = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
_DEFINITION = "SELECT definition::text FROM buffer_tables WHERE dataset_uuid = $1::text::uuid FOR UPDATE"
_DEFINE = """
    INSERT INTO buffer_tables (dataset_uuid, definition) VALUES ($1::text::uuid, $2::text::json)
    ON CONFLICT (dataset_uuid) DO UPDATE SET definition = excluded.definition, changed_at = trace_now()"""
_COLUMNS = """
    SELECT attname::text FROM pg_attribute
    WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
_GRANTS = """
    SELECT a.privilege_type, CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname::text) END
    FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
    WHERE c.oid = to_regclass($1) AND a.grantee <> c.relowner"""
_MISSING = "SELECT to_regclass($1) IS NULL"
# Of the table as it is declared at hand, not by a newer schema.
_UNINDEXED = """
    SELECT 1 FROM buffer_tables
    WHERE dataset_uuid = $1::text::uuid AND definition::text = $2 AND indexed IS DISTINCT FROM $2"""
_INDEXED = "UPDATE buffer_tables SET indexed = $2 WHERE dataset_uuid = $1::text::uuid"


def keep(run: Run, dataset: BufferedDataset, lock_seconds: float) -> bool:
    """Columns and view; whether something was changed."""
    key, wanted = str(dataset.dataset_uuid), tables.definition(dataset)
    run(_ALONE, key)
    found = run(_DEFINITION, key)
    before = msgspec.json.decode(found[0][0], type=BufferedDataset) if found else None
    # Who has not heard of the newest deploy leaves the table to those that have: it holds more, not less.
    if before is not None and (found[0][0] == wanted or before.revision > dataset.revision):
        return False
    # Behind one that waits for a table everybody waits: it gives way soon, and comes again.
    run(f"SET LOCAL lock_timeout = {int(lock_seconds * 1000)}")
    # Two that make the first table of an org at once would stand in each other's way.
    run(_ALONE, tables.view_schema(dataset))
    grants = _drop_view(run, before, dataset)
    for statement in tables.migrate(before, dataset):
        run(statement)
    table = tables.quoted(tables.table_name(dataset.dataset_uuid))
    # In the order of the table, where new ones are the last: then a view can be replaced by one that has more.
    columns = [name for (name,) in run(_COLUMNS, table) if name not in RESERVED]
    for statement in tables.view(dataset, columns):
        run(statement)
    for privilege, grantee in grants:
        run(f"GRANT {privilege} ON {tables.view_name(dataset)} TO {grantee}")
    run(_DEFINE, key, wanted)
    return True


def _drop_view(run: Run, before: BufferedDataset | None, after: BufferedDataset) -> list[tuple[Any, ...]]:
    """Only where it is in the way: what depends on it, and who may read it, is other people's. Answers the latter."""
    if before is not None and tables.view_name(before) == tables.view_name(after) and not tables.retypes(before, after):
        return []
    # Also of a dataset that had the name before, in a state that is lost.
    names = dict.fromkeys(tables.view_name(each) for each in (before or after, after))
    grants = run(_GRANTS, tables.view_name(before)) if before is not None else []
    for name in names:
        run(f"DROP VIEW IF EXISTS {name}")
    return grants


def index(run: Run, dataset: BufferedDataset, lock_seconds: float) -> None:
    """What is declared. Rows that are there may hold values that no index takes: it is left out then, for good."""
    key, wanted = str(dataset.dataset_uuid), tables.definition(dataset)
    if run(_UNINDEXED, key, wanted) == []:
        return
    run(f"SET LOCAL lock_timeout = {int(lock_seconds * 1000)}")
    run(_ALONE, key)
    if run(_UNINDEXED, key, wanted) == []:
        return
    for name, statement in tables.indexes(dataset):
        run(statement)
        if run(_MISSING, name) == [(True,)]:
            told = {"dataset": dataset.name, "index": name, "reason": "there are values too long for it"}
            logger.error("an index cannot be made", extra=told)
    run(_INDEXED, key, wanted)
