"""SQL of a buffered dataset's table: how it is made and changed, how batches are staged, how they are merged.

The table is `dataset_{uuid}` with the declared columns and five of ours; people read it by a view in a schema of their
org. All of it is text made from a schema: whoever runs it is `sink.store`.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from tracelake.catalogue.tables import plan_table
from tracelake.model.buffered import quoted as quoted
from tracelake.model.buffered import table_name as table_name
from tracelake.model.buffered import view_names
from tracelake.model.dag import Schema
from tracelake.rows.values import kind_of
from tracelake.wire.buffers import BufferedDataset


def view_name(dataset: BufferedDataset) -> str:
    """By which people find it: the org, then the dataset."""
    return ".".join(map(quoted, view_names(dataset.org, dataset.name)))


def view_schema(dataset: BufferedDataset) -> str:
    return view_names(dataset.org, dataset.name)[0]


def definition(dataset: BufferedDataset) -> str:
    """What the table is made from; another text is another table, or a changed one."""
    shown = msgspec.structs.replace(dataset, backlog=None)
    return msgspec.json.encode(shown, order="deterministic").decode()


class TableRefusedError(ValueError):
    """The table cannot become what is declared. A deploy looks at that; so its state knows another table than this."""


def migrate(before: BufferedDataset | None, after: BufferedDataset) -> list[str]:
    """Statements of one transaction, without the view and new indexes."""
    table, new = quoted(table_name(after.dataset_uuid)), after.schema
    old = None if before is None else before.schema
    plan = plan_table(old, new)
    if plan.refusals:
        raise TableRefusedError(f"the table of {after.name} cannot be changed: {plan.refusals[0].text}")
    if old is None:
        return _create(table, after)
    dropped = [index for index in old.indexes if index not in new.indexes]
    return _alter(table, old, new) + [f"DROP INDEX IF EXISTS {_index(after, index)}" for index in dropped]


def retypes(before: BufferedDataset, after: BufferedDataset) -> bool:
    """Whether a column gets another type: a view on it has to go for that."""
    kept = {column.name: kind_of(column).kept for column in before.schema.columns}
    return any(kept.get(column.name) not in (None, kind_of(column).kept) for column in after.schema.columns)


def view(dataset: BufferedDataset, columns: Sequence[str]) -> list[str]:
    """One that is there may be replaced if it gets columns at its end, or none."""
    table = quoted(table_name(dataset.dataset_uuid))
    return [
        f"CREATE SCHEMA IF NOT EXISTS {quoted(view_schema(dataset))}",
        f"CREATE OR REPLACE VIEW {view_name(dataset)} AS SELECT {_names(columns)} FROM {table}",  # noqa: S608 - quoted
    ]


def indexes(dataset: BufferedDataset) -> list[tuple[str, str]]:
    """Names and statements. Where rows hold values that no index takes, there is none after its statement, and nothing
    else has happened."""
    table = quoted(table_name(dataset.dataset_uuid))
    return [
        (
            _index(dataset, index),
            f"DO $trace$ BEGIN CREATE INDEX IF NOT EXISTS {_index(dataset, index)} ON {table} ({_names(index)}); "
            "EXCEPTION WHEN program_limit_exceeded THEN NULL; END $trace$",
        )
        for index in dataset.schema.indexes
    ]


def _create(table: str, dataset: BufferedDataset) -> list[str]:
    kinds = [kind_of(column) for column in dataset.schema.columns]
    columns = [f"{quoted(kind.column.name)} {kind.kept}{'' if kind.column.nullable else ' NOT NULL'}" for kind in kinds]
    ours = (
        "org_id uuid NOT NULL",
        "_task_id uuid NOT NULL",
        "_publish_seq bigint NOT NULL",
        "_line integer NOT NULL",
        "_commit_seq bigint NOT NULL",
    )
    key = f"PRIMARY KEY (org_id, {_names(dataset.schema.unique)})"
    # By the number of the commit is how those read who follow the table.
    return [
        f"CREATE TABLE {table} ({', '.join([*ours, *columns])}, {key})",
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


def stage(name: str, schema: Schema, *, temporary: bool) -> str:
    """A table that takes what `BatchReader` reads. A temporary one is empty again after each transaction."""
    columns = ["_publish_seq bigint", "_line integer"]
    columns += [f"{quoted(kind.column.name)} {kind.staged}" for kind in map(kind_of, schema.columns)]
    body = f"({', '.join(columns)})"
    if temporary:
        return f"CREATE TEMPORARY TABLE {quoted(name)} {body} ON COMMIT DELETE ROWS"
    return f"CREATE UNLOGGED TABLE staging.{quoted(name)} {body}"


def merge(dataset: BufferedDataset, staged: str) -> str:
    """One statement from staging into the table.

    $1 is the commit, $2 to $4 are sequence, org and task of each batch that counts. Of rows with one key the one of
    the highest `(publish_seq, line)` stays (the lowest under `nothing`), whether the others come with it, came before
    it or come later.
    """
    schema = dataset.schema
    table, key = quoted(table_name(dataset.dataset_uuid)), _names(schema.unique)
    kinds = [kind_of(column) for column in schema.columns]
    declared = [quoted(kind.column.name) for kind in kinds]
    order, wins = ("DESC", ">") if dataset.on_conflict == "update" else ("ASC", "<")
    values = ", ".join(f"s.{name}{kind.cast}" for name, kind in zip(declared, kinds, strict=True))
    keys = ", ".join(f"s.{quoted(name)}" for name in schema.unique)
    replaced = [name for name in declared if name not in {quoted(part) for part in schema.unique}]
    hidden = ["_task_id", "_publish_seq", "_line", "_commit_seq"]
    changes = ", ".join(f"{name} = excluded.{name}" for name in [*replaced, *hidden])
    return f"""
        INSERT INTO {table} AS t (org_id, {", ".join(hidden)}, {", ".join(declared)})
        SELECT DISTINCT ON (p.org_id, {keys})
               p.org_id, p.task_id, s._publish_seq, s._line, $1::bigint, {values}
        FROM {staged} s
        JOIN unnest($2::bigint[], $3::text[]::uuid[], $4::text[]::uuid[]) AS p(publish_seq, org_id, task_id)
          ON p.publish_seq = s._publish_seq
        ORDER BY p.org_id, {keys}, s._publish_seq {order}, s._line {order}
        ON CONFLICT (org_id, {key}) DO UPDATE SET {changes}
        WHERE (excluded._publish_seq, excluded._line) {wins} (t._publish_seq, t._line)"""  # noqa: S608 - quoted


def _index(dataset: BufferedDataset, columns: tuple[str, ...]) -> str:
    digest = hashlib.sha256(",".join(columns).encode()).hexdigest()[:12]
    return quoted(f"{table_name(dataset.dataset_uuid)}_{digest}")


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(quoted, columns))
