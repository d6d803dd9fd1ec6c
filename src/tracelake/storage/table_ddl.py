"""Creates and migrates tables in Postgres data, and the views by which people read them.

The table is `dataset_{uuid}` with the declared columns and some internal ones; people read it by a view in the schema
of their org. Sinks keep the tables of buffered datasets so, and operators those that they write directly. One
transaction changes the columns, the view and the recorded definition; another builds the indexes, so that readers need
not wait for them. Both are idempotent.
"""

import hashlib
import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from tracelake.catalogue.tables import DIRECT_RESERVED, RESERVED, plan_table
from tracelake.model.buffered import hidden_name, quoted, shown_rows, table_name, view_names
from tracelake.model.dag import Schema
from tracelake.rows.values import kind_of
from tracelake.storage.data_connection import Run
from tracelake.storage.table_removal import is_removed
from tracelake.wire.buffers import BufferedDataset
from tracelake.wire.direct import DirectTable

logger = logging.getLogger(__name__)

StoredTable: TypeAlias = BufferedDataset | DirectTable

_BUFFERED_COLUMNS = (
    "org_id uuid NOT NULL",
    "_task_id uuid NOT NULL",
    "_publish_seq bigint NOT NULL",
    "_line integer NOT NULL",
    "_commit_seq bigint NOT NULL",
)
_DIRECT_COLUMNS = (
    "org_id uuid NOT NULL",
    "_task_id uuid NOT NULL",
    "_scope integer NOT NULL",
    "_commit_seq bigint NOT NULL",
)

_ALONE = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
_DEFINITION = "SELECT definition::text, has_hidden FROM buffer_tables WHERE dataset_uuid = $1::text::uuid FOR UPDATE"
_HAS_HIDDEN = "UPDATE buffer_tables SET has_hidden = true, indexed = NULL WHERE dataset_uuid = $1::text::uuid"
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
_CURRENT = """
    SELECT 1 FROM buffer_tables WHERE dataset_uuid = $1::text::uuid AND definition::text = $2 AND indexed = $2"""
# Only if the table has this very definition, not a newer one.
_UNINDEXED = """
    SELECT 1 FROM buffer_tables
    WHERE dataset_uuid = $1::text::uuid AND definition::text = $2 AND indexed IS DISTINCT FROM $2"""
_INDEXED = "UPDATE buffer_tables SET indexed = $2 WHERE dataset_uuid = $1::text::uuid"


def is_current(run: Run, dataset: StoredTable) -> bool:
    """Whether the table has exactly this schema and its indexes. Waits for nobody."""
    return bool(run(_CURRENT, str(dataset.dataset_uuid), definition(dataset)))


def apply_schema(run: Run, dataset: StoredTable, lock_seconds: float) -> bool:
    """Migrate columns and view; returns whether anything changed."""
    key, declared = str(dataset.dataset_uuid), definition(dataset)
    run(_ALONE, key)
    if is_removed(run, dataset.dataset_uuid):
        raise TableRefusedError(f"the dataset {dataset.name} was removed with its DAG")
    definitions = run(_DEFINITION, key)
    before = msgspec.json.decode(definitions[0][0], type=type(dataset)) if definitions else None
    hides = isinstance(dataset, BufferedDataset)
    # A sink with an older declaration leaves the table alone: the newer schema holds more.
    if before is not None and (definitions[0][0] == declared or before.revision > dataset.revision):
        if hides and not definitions[0][1]:
            _create_hidden(run, before)
        return False
    # Everybody queues behind a waiting ALTER TABLE, so it gives up soon and is retried.
    run(f"SET LOCAL lock_timeout = {int(lock_seconds * 1000)}")
    if hides and before is not None and not definitions[0][1]:
        _create_hidden(run, before)
    # Serialises the creation of the org's schema.
    run(_ALONE, view_schema(dataset))
    grants = _drop_view(run, before, dataset)
    for statement in migrate(before, dataset):
        run(statement)
    table = quoted(table_name(dataset.dataset_uuid))
    # In the table's order, new columns last: only so can a view be replaced by one with more columns.
    columns = [name for (name,) in run(_COLUMNS, table) if name not in own_columns(dataset)]
    for statement in view(dataset, columns):
        run(statement)
    for privilege, grantee in grants:
        run(f"GRANT {privilege} ON {view_name(dataset)} TO {grantee}")
    run(_DEFINE, key, declared)
    if hides and before is None:
        _create_hidden(run, dataset)
    return True


def own_columns(dataset: StoredTable) -> frozenset[str]:
    """The internal columns of its table."""
    return RESERVED if isinstance(dataset, BufferedDataset) else DIRECT_RESERVED


def _create_hidden(run: Run, dataset: StoredTable) -> None:
    """Create the table of rows that are not visible, with the columns of the table as it is."""
    table, hidden = quoted(table_name(dataset.dataset_uuid)), quoted(hidden_name(dataset.dataset_uuid))
    run(f"CREATE TABLE {hidden} (LIKE {table})")
    run(f"ALTER TABLE {hidden} ALTER _commit_seq SET DEFAULT 0, ADD _counts boolean NOT NULL")
    run(f"ALTER TABLE {hidden} ADD PRIMARY KEY (_publish_seq, _line)")
    run(f"CREATE INDEX ON {hidden} (org_id, {names(dataset.schema.unique)}) WHERE _counts")
    run(_HAS_HIDDEN, str(dataset.dataset_uuid))


def _drop_view(run: Run, before: StoredTable | None, after: StoredTable) -> list[tuple[Any, ...]]:
    """Drop the view only if it blocks the migration, since others may depend on it; returns its grants."""
    if before is not None and view_name(before) == view_name(after) and not retypes(before, after):
        return []
    # The name may also belong to a dataset of a lost state.
    names = dict.fromkeys(view_name(each) for each in (before or after, after))
    grants = run(_GRANTS, view_name(before)) if before is not None else []
    for name in names:
        run(f"DROP VIEW IF EXISTS {name}")
    return grants


def build_indexes(run: Run, dataset: StoredTable, lock_seconds: float) -> None:
    """Build the declared indexes. An index that existing values are too long for is skipped for good."""
    key, declared = str(dataset.dataset_uuid), definition(dataset)
    if run(_UNINDEXED, key, declared) == []:
        return
    run(f"SET LOCAL lock_timeout = {int(lock_seconds * 1000)}")
    run(_ALONE, key)
    if run(_UNINDEXED, key, declared) == []:
        return
    if isinstance(dataset, BufferedDataset):
        # By it the rows of a batch are found when its unit is computed again.
        table = quoted(table_name(dataset.dataset_uuid))
        run(f"CREATE INDEX IF NOT EXISTS {_index(dataset, ('_publish_seq',))} ON {table} (_publish_seq)")
    for name, statement in indexes(dataset):
        run(statement)
        if run(_MISSING, name) == [(True,)]:
            context = {"dataset": dataset.name, "index": name, "reason": "there are values too long for it"}
            logger.error("an index cannot be made", extra=context)
    run(_INDEXED, key, declared)


# --- the statements, made from a schema


def view_name(dataset: StoredTable) -> str:
    """The name of the view for people: schema of the org, then the dataset."""
    return ".".join(map(quoted, view_names(dataset.org, dataset.name)))


def view_schema(dataset: StoredTable) -> str:
    return view_names(dataset.org, dataset.name)[0]


def definition(dataset: StoredTable) -> str:
    """The declaration as text, to tell whether a table has changed."""
    declared = dataset
    if isinstance(dataset, BufferedDataset):  # what changes no column
        declared = msgspec.structs.replace(dataset, backlog=None, on_change="keep", writers=[], retired=[])
    return msgspec.json.encode(declared, order="deterministic").decode()


class TableRefusedError(ValueError):
    """The table cannot be migrated. A deploy checks that, so the Dispatcher's state does not match this table."""


def migrate(before: StoredTable | None, after: StoredTable) -> list[str]:
    """The statements that create or alter the table, without the view and new indexes."""
    table, new = quoted(table_name(after.dataset_uuid)), after.schema
    old = None if before is None else before.schema
    plan = plan_table(old, new)
    if plan.refusals:
        raise TableRefusedError(f"the table of {after.name} cannot be changed: {plan.refusals[0].text}")
    if old is None:
        return _create(table, after)
    dropped = [index for index in old.indexes if index not in new.indexes]
    hidden = quoted(hidden_name(after.dataset_uuid))
    names = (table, hidden) if isinstance(after, BufferedDataset) else (table,)
    altered = [statement for name in names for statement in _alter(name, old, new)]
    return altered + [f"DROP INDEX IF EXISTS {_index(after, index)}" for index in dropped]


def retypes(before: StoredTable, after: StoredTable) -> bool:
    """Whether a column changes its type, for which its view must be dropped."""
    types_before = {column.name: kind_of(column).kept for column in before.schema.columns}
    return any(types_before.get(column.name) not in (None, kind_of(column).kept) for column in after.schema.columns)


def view(dataset: StoredTable, columns: Sequence[str]) -> list[str]:
    """The statements that create the view; an existing one can be replaced only by appending columns."""
    rows = shown_rows(quoted(table_name(dataset.dataset_uuid)), dataset.schema)
    return [
        f"CREATE SCHEMA IF NOT EXISTS {quoted(view_schema(dataset))}",
        f"CREATE OR REPLACE VIEW {view_name(dataset)} AS SELECT {names(columns)} FROM {rows}",  # noqa: S608 - quoted
    ]


def indexes(dataset: StoredTable) -> list[tuple[str, str]]:
    """Names and statements of the indexes. A statement does nothing if rows hold values too long for an index."""
    table = quoted(table_name(dataset.dataset_uuid))
    return [
        (
            _index(dataset, index),
            f"DO $trace$ BEGIN CREATE INDEX IF NOT EXISTS {_index(dataset, index)} ON {table} ({names(index)}); "
            "EXCEPTION WHEN program_limit_exceeded THEN NULL; END $trace$",
        )
        for index in dataset.schema.indexes
    ]


def _create(table: str, dataset: StoredTable) -> list[str]:
    kinds = [kind_of(column) for column in dataset.schema.columns]
    columns = [f"{quoted(kind.column.name)} {kind.kept}{'' if kind.column.nullable else ' NOT NULL'}" for kind in kinds]
    if isinstance(dataset, DirectTable):
        # The position comes first: ranges of it are read and replaced.
        key = f"PRIMARY KEY ({names(dataset.schema.unique)}, org_id)"
        return [f"CREATE TABLE {table} ({', '.join([*_DIRECT_COLUMNS, *columns])}, {key})"]
    key = f"PRIMARY KEY (org_id, {names(dataset.schema.unique)})"
    # Readers that follow the table select by the number of the commit.
    return [
        f"CREATE TABLE {table} ({', '.join([*_BUFFERED_COLUMNS, *columns])}, {key})",
        f"CREATE INDEX ON {table} (_commit_seq)",
    ]


def _alter(table: str, old: Schema, new: Schema) -> list[str]:
    statements = []
    for column in new.columns:
        before, kind, name = old.column(column.name), kind_of(column), quoted(column.name)
        if before is None:
            statements.append(f"ALTER TABLE {table} ADD COLUMN {name} {kind.kept}")
            continue
        if kind_of(before).kept != kind.kept:
            statements.append(f"ALTER TABLE {table} ALTER COLUMN {name} TYPE {kind.kept}")
        if column.nullable and not before.nullable:
            statements.append(f"ALTER TABLE {table} ALTER COLUMN {name} DROP NOT NULL")
    return statements


def _index(dataset: StoredTable, columns: tuple[str, ...]) -> str:
    digest = hashlib.sha256(",".join(columns).encode()).hexdigest()[:12]
    return quoted(f"{table_name(dataset.dataset_uuid)}_{digest}")


def names(columns: Sequence[str]) -> str:
    return ", ".join(map(quoted, columns))
