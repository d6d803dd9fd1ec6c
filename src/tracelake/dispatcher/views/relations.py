"""What queries may read: the published datasets of an org, or the inputs of a task, each in one generation."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.views.files import list_columns
from tracelake.model.columns import DatasetColumns
from tracelake.model.dag import Schema
from tracelake.model.job import Storage
from tracelake.wire.query import InputRelation, InputSelection, ReadableRelation, RelationsReply, ResultColumn
from tracelake.wire.task_calls import TableColumn
from tracelake.wire.units import TaskInput

# One statement, so one moment: a query joins generations that were current together.
_PUBLISHED = """
    SELECT d.name, d.dataset_uuid, d.current_version, d.storage, g.schema,
           CASE WHEN d.storage = 's3' AND NOT EXISTS (
               SELECT FROM dataset_units u
               WHERE u.dataset_uuid = d.dataset_uuid AND u.dataset_version = d.current_version)
           THEN g.columns END AS expected
    FROM datasets d JOIN orgs o USING (org_id)
    JOIN dataset_versions g ON g.dataset_uuid = d.dataset_uuid AND g.dataset_version = d.current_version
    WHERE o.name = $1 AND d.published AND d.removed_at IS NULL AND ($2::text[] IS NULL OR d.dag_name = ANY($2)) AND (
        d.storage IN ('s3', 'buffered', 'live')
        OR EXISTS (SELECT FROM direct_tables t WHERE t.dataset_uuid = d.dataset_uuid)) ORDER BY d.name"""

_QUERY_TYPES = {"string": "VARCHAR", "binary": "BLOB"}
"""Types of Spark that DuckDB calls otherwise."""

_STORED = "SELECT dataset_uuid, name, storage FROM datasets WHERE dataset_uuid = ANY($1)"


async def list_published(connection: Connection, org: str, dags: Sequence[str] | None = None) -> RelationsReply:
    """Of these DAGs; None: of all."""
    rows = await connection.fetch(_PUBLISHED, org, dags)
    return RelationsReply(
        relations=[
            ReadableRelation(
                name=row["name"],
                dataset_uuid=row["dataset_uuid"],
                dataset_version=row["current_version"],
                storage=row["storage"],
                columns=_declared(row["schema"]) if row["storage"] != Storage.S3 else None,
                expected_columns=_expected(row["expected"]),
            )
            for row in rows
        ]
    )


async def list_inputs(connection: Connection, job_id: UUID, inputs: Sequence[TaskInput]) -> list[InputRelation]:
    """Inputs that differ in their units alone are one relation with all their rows. Of several relations of a dataset,
    with another generation or another `where`, the later ones have their input index in the name. Needs a connection
    that sees one moment (REPEATABLE READ)."""
    groups: dict[tuple[UUID, UUID, bytes], list[TaskInput]] = {}
    for item in inputs:
        where = msgspec.json.encode(item.where, order="deterministic")
        groups.setdefault((item.dataset_uuid, item.dataset_version, where), []).append(item)
    rows = await connection.fetch(_STORED, [item.dataset_uuid for item in inputs])
    stored = {row["dataset_uuid"]: row for row in rows}
    relations: dict[str, InputRelation] = {}
    for (dataset_uuid, dataset_version, _), items in groups.items():
        generation = (dataset_uuid, dataset_version)
        dataset = stored.get(dataset_uuid)
        if dataset is None or dataset["storage"] == Storage.NONE:
            continue  # it has no rows that can be read
        is_table = dataset["storage"] != Storage.S3
        columns = await list_columns(connection, generation, job_id) if is_table else None
        if dataset["storage"] == Storage.POSTGRES and not columns:
            continue  # nobody writes a table
        name: str = dataset["name"]
        while name in relations:  # again: another dataset may have the longer name
            name = f"{name}_{items[0].input_index}"
        relations[name] = InputRelation(
            name=name,
            dataset_uuid=generation[0],
            dataset_version=generation[1],
            storage=dataset["storage"],
            columns=columns,
            selections=[InputSelection(unit=item.unit, where=item.where) for item in items],
        )
    return list(relations.values())


def _declared(schema: str | None) -> list[TableColumn]:
    columns = () if schema is None else msgspec.json.decode(schema, type=Schema).columns
    return msgspec.convert(columns, list[TableColumn], from_attributes=True)


def _expected(recorded: str | None) -> list[ResultColumn]:
    columns = () if recorded is None else msgspec.json.decode(recorded, type=DatasetColumns).columns
    return [
        ResultColumn(name=column.name, type=_QUERY_TYPES.get(column.type, column.type.upper())) for column in columns
    ]
