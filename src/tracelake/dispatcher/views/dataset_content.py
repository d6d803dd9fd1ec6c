"""What a dataset holds and what its columns are: for people who want to read it."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tracelake.catalogue.tables import type_text
from tracelake.db.transaction import Connection
from tracelake.dispatcher.views.freshness import read_ages
from tracelake.dispatcher.views.given_up import range_text, read_grid
from tracelake.dispatcher.views.paging import CAP
from tracelake.dispatcher.views.shared import REPORTED_ROWS
from tracelake.model.columns import DatasetColumns
from tracelake.model.dag import Publish, Schema
from tracelake.wire.datasets import DatasetColumnRow, DatasetContent, GapRow

_GAPS_SHOWN = 5

_FILES = f"""
    SELECT count(*) AS units, coalesce(sum(manifest_bytes(m.objects)), 0)::bigint AS bytes,
           max(m.created_at) AS committed_at,
           CASE WHEN count(*) = count(r.rows) THEN coalesce(sum(r.rows), 0)::bigint END AS rows,
           CASE WHEN count(*) = count(r.rows) THEN count(*) FILTER (WHERE r.rows = 0) END AS empty_units
    FROM (SELECT manifest_id FROM dataset_units WHERE dataset_uuid = $1 AND dataset_version = $2 LIMIT {CAP + 1}) u
    JOIN manifests m USING (manifest_id) JOIN tasks t USING (task_id)
    LEFT JOIN LATERAL {REPORTED_ROWS} r ON true"""  # noqa: S608 - constants only

_EVENTS = f"""
    SELECT count(*) AS units, NULL::bigint AS bytes, NULL::bigint AS rows, NULL::bigint AS empty_units,
           max(created_at) AS committed_at FROM (
        SELECT created_at FROM events WHERE dataset_uuid = $1 AND dataset_version = $2 AND routed_seq IS NOT NULL
        LIMIT {CAP + 1}) x"""  # noqa: S608 - constants only

_TABLE = f"""
    SELECT (SELECT count(*) FROM (SELECT FROM buffer_publishes p WHERE p.dataset_uuid = $1
                AND p.commit_seq IS NOT NULL AND $2::uuid IS NOT NULL LIMIT {CAP + 1}) x) AS units,
           t.table_bytes AS bytes, t.table_rows AS rows, NULL::bigint AS empty_units,
           (SELECT p.committed_at FROM buffer_publishes p
                WHERE p.dataset_uuid = $1 AND p.commit_seq IS NOT NULL ORDER BY p.commit_seq DESC LIMIT 1)
           AS committed_at
    FROM buffered_tables t WHERE t.dataset_uuid = $1"""  # noqa: S608 - constants only

_DIRECT_TABLE = "SELECT table_rows AS rows, table_bytes AS bytes FROM direct_tables WHERE dataset_uuid = $1"

# Adjoining runs are one range of blocks; what lies between two ranges is a gap.
_BLOCKS = f"""
    WITH ranges AS (
        SELECT lower(block) AS first, upper(block) - 1 AS last FROM (
            SELECT unnest(range_agg(numrange(range_start, range_end::numeric + 1))) AS block FROM (
                SELECT range_start, range_end FROM dataset_runs
                WHERE dataset_uuid = $1 AND dataset_version = $2 LIMIT {CAP}) runs) blocks),
    gaps AS (SELECT last + 1 AS start, lead(first) OVER (ORDER BY first) - 1 AS "end" FROM ranges)
    SELECT (SELECT min(first) FROM ranges) AS first_block, (SELECT max(last) FROM ranges) AS last_block,
           (SELECT count(*) FROM gaps WHERE "end" IS NOT NULL) AS gap_count, ARRAY(
               SELECT ARRAY[start, "end"] FROM gaps WHERE "end" IS NOT NULL ORDER BY start LIMIT {_GAPS_SHOWN}) AS gaps
    """  # noqa: S608 - constants only

_PUBLISHED = """
    SELECT p.entry FROM dags a JOIN dag_versions v ON v.dag_version_id = a.active_version,
        LATERAL json_array_elements(v.document -> 'publish') AS p(entry)
    WHERE a.org_id = $1 AND a.dag_name = $2 AND p.entry ->> 'name' = $3"""

_UNITS = "SELECT units FROM dataset_versions WHERE dataset_uuid = $1 AND dataset_version = $2"

_COLUMNS = "SELECT columns, schema FROM dataset_versions WHERE dataset_uuid = $1 AND dataset_version = $2"


async def load_content(connection: Connection, dataset: asyncpg.Record) -> DatasetContent | None:
    """What the current generation holds; None if nobody wrote it yet."""
    generation = dataset["dataset_uuid"], dataset["current_version"]
    statement = {"buffered": _TABLE, "s3": _FILES}.get(dataset["storage"], _EVENTS)
    row = await connection.fetchrow(statement, *generation)
    if row is None or not row["units"]:
        return None
    rows, size, is_table = row["rows"], row["bytes"], dataset["storage"] in ("buffered", "postgres", "live")
    if dataset["storage"] in ("postgres", "live"):
        parts = [await connection.fetchrow(_DIRECT_TABLE, dataset["dataset_uuid"])]
        if dataset["storage"] == "live":
            parts.append(await connection.fetchrow(_FILES, *generation))
        rows = _add(None if part is None else part["rows"] for part in parts)
        size = _add(None if part is None else part["bytes"] for part in parts)
    blocks = await connection.fetchrow(_BLOCKS, *generation)
    assert blocks is not None
    grid = read_grid(await connection.fetchval(_UNITS, *generation))
    first, last = _whole(blocks["first_block"]), _whole(blocks["last_block"])
    in_seconds = grid is not None and grid.by == "time"
    age = (await read_ages(connection, [generation])).get(generation)
    return DatasetContent(
        units=min(row["units"], CAP),
        empty_units=row["empty_units"],
        more=row["units"] > CAP,
        rows=rows,
        bytes=size,
        estimated=is_table and (rows is not None or size is not None),
        first_block=first,
        last_block=last,
        windows=range_text(first, last, grid) if in_seconds and first is not None and last is not None else "",
        gap_count=blocks["gap_count"],
        gaps=[
            GapRow(start=int(start), end=int(end), text=range_text(int(start), int(end), grid))
            for start, end in blocks["gaps"]
        ],
        committed_at=row["committed_at"],
        data_at=None if age is None else age.data_at,
    )


def _add(numbers: Iterable[int | None]) -> int | None:
    """The sum; None if one of them is not known."""
    addends = list(numbers)
    return None if None in addends else sum(number or 0 for number in addends)


def _whole(number: Any) -> int | None:
    return None if number is None else int(number)


async def load_publication(connection: Connection, org_id: UUID, dataset: asyncpg.Record) -> Publish | None:
    """How the active version of its DAG publishes the dataset; None if it does not."""
    entry = await connection.fetchval(_PUBLISHED, org_id, dataset["dag"], dataset["name"])
    return None if entry is None else msgspec.json.decode(entry, type=Publish)


async def load_columns(
    connection: Connection, dataset: asyncpg.Record, publication: Publish | None
) -> tuple[list[DatasetColumnRow], bool]:
    """The columns of the current generation with their descriptions, and whether there are no others."""
    row = await connection.fetchrow(_COLUMNS, dataset["dataset_uuid"], dataset["current_version"])
    assert row is not None
    descriptions = {} if publication is None else publication.column_descriptions
    if row["columns"] is None or dataset["storage"] in ("buffered", "postgres"):
        if row["schema"] is None:
            return [], False
        schema = msgspec.json.decode(row["schema"], type=Schema)
        return [
            DatasetColumnRow(
                name=column.name,
                type=type_text(column),
                nullable=column.nullable,
                description=descriptions.get(column.name, ""),
            )
            for column in schema.columns
        ], True
    recorded = msgspec.json.decode(row["columns"], type=DatasetColumns)
    return [
        DatasetColumnRow(
            name=column.name,
            type=column.type,
            nullable=column.nullable,
            description=descriptions.get(column.name, column.description),
        )
        for column in recorded.columns
    ], recorded.complete
