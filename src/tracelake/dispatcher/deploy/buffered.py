"""Tables of Postgres data in a plan, buffered ones and those that tasks write directly: how they follow the
document, or why they cannot.

A table changes when the activation of a version begins: with its build, whose tasks write to the same table, or with
its cutover. Registering a version changes nothing. A table only ever grows, so the version before can still write it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from tracelake.catalogue.tables import TableRefusal, grow_table, plan_table
from tracelake.db.transaction import Connection
from tracelake.dispatcher.deploy.hashes import is_direct_table, schema_hash, storage_of
from tracelake.dispatcher.deploy.outputs import StoredDataset
from tracelake.dispatcher.records import columns
from tracelake.model.dag import Dag, OnChange, OnConflict, Problem, Publish, Schema, unlocated
from tracelake.wire.dags import DatasetChange


@dataclass(frozen=True, slots=True)
class BufferedTable:
    schema: Schema
    on_conflict: OnConflict
    version_column: str | None = None
    on_change: OnChange = "rebuild"

    @property
    def conflict_rule(self) -> str:
        """As a document declares it."""
        return conflict_rule(self.on_conflict, self.version_column)


def conflict_rule(on_conflict: OnConflict, version_column: str | None) -> str:
    return on_conflict if version_column is None else f"{{{on_conflict}: {version_column}}}"


_RULES: Mapping[OnChange, str] = {
    "rebuild": "show only rows of the active version from the cutover on (`on_change: rebuild`)",
    "keep": "keep rows of earlier versions from the cutover on (`on_change: keep`)",
}

_TABLES = """
    SELECT d.name, t.schema, t.on_conflict, t.version_column FROM buffered_tables t JOIN datasets d USING (dataset_uuid)
    WHERE d.org_id = $1 AND d.dag_name = $2 ORDER BY t.dataset_uuid FOR UPDATE OF t"""

_DIRECT_TABLES = """
    SELECT d.name, t.schema, 'update' AS on_conflict, NULL AS version_column
    FROM direct_tables t JOIN datasets d USING (dataset_uuid)
    WHERE d.org_id = $1 AND d.dag_name = $2 ORDER BY t.dataset_uuid FOR UPDATE OF t"""

_GROW = """
    WITH given AS (
        SELECT d.dataset_uuid, d.current_version, d.org_id, u.schema::json AS schema, u.schema_hash, u.on_conflict,
               u.version_column
        FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
             AS u(name, schema, schema_hash, on_conflict, version_column)
        JOIN datasets d ON d.org_id = $1 AND d.dag_name = $2 AND d.name = u.name),
    shown AS (
        UPDATE dataset_versions v SET schema = g.schema, schema_hash = g.schema_hash
        FROM given g WHERE v.dataset_uuid = g.dataset_uuid AND v.dataset_version = g.current_version)
    INSERT INTO buffered_tables AS t (dataset_uuid, schema, on_conflict, version_column, org_id)
    SELECT dataset_uuid, schema, on_conflict, version_column, org_id FROM given
    ON CONFLICT (dataset_uuid) DO UPDATE
        SET schema = excluded.schema, changed_at = greatest(trace_now(), t.changed_at + interval '1 microsecond')"""

# One table serves all generations. What a job of an earlier version reads is in its own document.
_GROW_DIRECT = """
    WITH given AS (
        SELECT d.dataset_uuid, d.org_id, u.schema::json AS schema, u.schema_hash
        FROM unnest($3::text[], $4::text[], $5::text[]) AS u(name, schema, schema_hash)
        JOIN datasets d ON d.org_id = $1 AND d.dag_name = $2 AND d.name = u.name),
    shown AS (
        UPDATE dataset_versions v SET schema = g.schema, schema_hash = g.schema_hash
        FROM given g WHERE v.dataset_uuid = g.dataset_uuid)
    INSERT INTO direct_tables AS t (dataset_uuid, org_id, schema)
    SELECT dataset_uuid, org_id, schema FROM given
    ON CONFLICT (dataset_uuid) DO UPDATE
        SET schema = excluded.schema, changed_at = greatest(trace_now(), t.changed_at + interval '1 microsecond')"""


@dataclass(frozen=True, slots=True)
class TableChanges:
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    """Name, schema, its hash and conflicts of each buffered table that is new or changes."""
    direct_rows: list[tuple[Any, ...]] = field(default_factory=list)
    """Name, schema and its hash of each table that tasks write directly and that is new or changes."""
    texts: dict[str, list[str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def shown(self, change: DatasetChange, row_changes: Mapping[str, list[str]]) -> DatasetChange:
        """Returns the change with what becomes of its table, and of rows of writers that change."""
        texts = [*self.texts.get(change.dataset, ()), *row_changes.get(change.dataset, ())]
        return change if not texts else msgspec.structs.replace(change, table=texts)


def plan_tables(
    dag: Dag, datasets: Mapping[str, StoredDataset], tables: Mapping[UUID, BufferedTable], *, new_version: bool
) -> TableChanges:
    """Plans the tables of a document. A new version declares all columns; an earlier one may lack what came since."""
    by_name = {name: tables[row.dataset_uuid] for name, row in datasets.items() if row.dataset_uuid in tables}
    return _plan_tables(dag, by_name, strict=new_version)


async def grow_tables(connection: Connection, org_id: UUID, dag: Dag) -> list[Problem]:
    """Give the tables what the version declares, or answer why they cannot have it.

    The caller holds the org's exclusive routing lock. Doing it again changes nothing.
    """
    rows = await connection.fetch(_TABLES, org_id, dag.name)
    rows += await connection.fetch(_DIRECT_TABLES, org_id, dag.name)
    tables = {
        row["name"]: BufferedTable(
            msgspec.json.decode(row["schema"], type=Schema), row["on_conflict"], row["version_column"]
        )
        for row in rows
    }
    changes = _plan_tables(dag, tables, strict=False)
    if changes.rows and not changes.problems:
        await connection.execute(_GROW, org_id, dag.name, *columns(changes.rows))
    if changes.direct_rows and not changes.problems:
        await connection.execute(_GROW_DIRECT, org_id, dag.name, *columns(changes.direct_rows))
    return changes.problems


def _plan_tables(dag: Dag, tables: Mapping[str, BufferedTable], *, strict: bool) -> TableChanges:
    changes = TableChanges()
    for publish in dag.publish:
        if publish.owner is not None or publish.schema is None:
            continue
        storage = storage_of(dag, publish)
        if storage == "buffered" or (storage != "none" and is_direct_table(publish)):
            _plan(publish, publish.schema, tables.get(publish.name), changes, strict=strict)
    return changes


def _plan(
    publish: Publish, schema: Schema, before: BufferedTable | None, changes: TableChanges, *, strict: bool
) -> None:
    plan = (plan_table if strict else grow_table)(None if before is None else before.schema, schema)
    refusals = [TableRefusal(item.text, f"schema.{item.where}") for item in plan.refusals]
    rule = conflict_rule(publish.on_conflict, publish.version_column)
    if before is not None and before.conflict_rule != rule:
        text = (
            f"`on_conflict` is {before.conflict_rule} and cannot become {rule}: "
            "rows that lost are gone. Publish under another name instead."
        )
        refusals.append(TableRefusal(text, "on_conflict"))
    changes.problems.extend(
        unlocated("table_change", item.text, f"publish.{publish.name}.{item.where}") for item in refusals
    )
    if before is not None and before.on_change != publish.on_change:
        changes.texts[publish.name] = [_RULES[publish.on_change]]
    if plan.changes and not refusals:
        encoded = msgspec.json.encode(plan.schema, order="deterministic").decode()
        row = (publish.name, encoded, schema_hash(plan.schema))
        if publish.write_mode == "buffered":
            changes.rows.append((*row, publish.on_conflict, publish.version_column))
        else:
            changes.direct_rows.append(row)
        changes.texts.setdefault(publish.name, []).extend(plan.changes)
