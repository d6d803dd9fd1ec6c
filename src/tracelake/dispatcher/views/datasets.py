"""Datasets: what counts of each, and its generations, pointers, consumers and invalidations."""

from collections import defaultdict
from collections.abc import Collection
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import awaits_sink, lacks_rows
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.views.checks import list_checks
from tracelake.dispatcher.views.dataset_content import load_columns, load_content, load_publication
from tracelake.dispatcher.views.files import read_boundary
from tracelake.dispatcher.views.given_up import IS_GIVEN_UP, load_given_up
from tracelake.dispatcher.views.paging import CAP
from tracelake.dispatcher.views.shared import EDGE_COLUMNS, from_json, to_edge
from tracelake.dispatcher.views.words import decode_grid, window_words
from tracelake.errors import TraceError
from tracelake.model.buffered import table_name, view_names
from tracelake.wire.datasets import (
    BufferedTableRow,
    ConsumerRow,
    DatasetDetail,
    DatasetRow,
    DatasetsReply,
    GenerationRow,
    InvalidationRow,
    PointerRow,
    RunRow,
    StaleRow,
)

NEWEST = 100
"""Generations, pointers, invalidations and ranges that a dataset shows, and events that are asked for their cursor."""

# Runs of different unit sizes may cover the same blocks; each block counts once. `numeric`, for the last block of all.
# Cursors grow, so the highest is among those of the newest events.
# A dataset whose writers are all gone from the active version stays as it is; who knows the last version that had one
# are the jobs of its node, and of several writers the pointer. A name that begins with _ is of the platform's own.
_DATASETS = f"""
    WITH written AS MATERIALIZED (
        SELECT o.dataset_uuid, array_agg(DISTINCT j.dag_name || '/' || j.name) AS writers
        FROM dags a JOIN dag_version_jobs v ON v.dag_version_id = a.active_version
        JOIN job_outputs o USING (job_id) JOIN jobs j USING (job_id) WHERE a.org_id = $1 GROUP BY o.dataset_uuid),
    stale AS MATERIALIZED (
        SELECT DISTINCT ON (o.dataset_uuid, o.dataset_version) o.dataset_uuid, o.dataset_version, i.name AS because,
               n.dag_name || '/' || n.job_name AS job, s.since, s.rebuild <> '{{}}' AS rebuilding
        FROM stale_outputs s JOIN nodes n USING (node_id) JOIN jobs j ON j.node_id = s.node_id
        JOIN job_outputs o USING (job_id) JOIN datasets i ON i.dataset_uuid = s.dataset_uuid
        WHERE s.org_id = $1 ORDER BY o.dataset_uuid, o.dataset_version, s.since)
    SELECT d.dataset_uuid, d.name, d.storage, d.published, d.dag_name AS dag, n.job_name AS job, d.current_version,
           d.staged_version, g.schema, g.units, r.first, r.last, e.max_cursor, e.updated_at,
           coalesce(w.writers, '{{}}') AS writers,
           s.because AS stale_because, s.job AS stale_job, s.since AS stale_since, s.rebuilding,
           CASE WHEN d.storage = 'buffered' THEN (SELECT count(*) FROM (
               SELECT FROM buffer_publishes p WHERE p.dataset_uuid = d.dataset_uuid
                 AND {awaits_sink("p")}
               LIMIT {CAP}) x) END AS waiting_batches,
           CASE WHEN d.storage = 'buffered' THEN (SELECT count(*) FROM (
               SELECT FROM buffer_publishes p WHERE p.dataset_uuid = d.dataset_uuid
                 AND {lacks_rows("p")} LIMIT {CAP}) x) END AS dead_letters,
           CASE WHEN d.dag_name IS NOT NULL AND w.dataset_uuid IS NULL THEN coalesce(
               (SELECT v.number FROM jobs j JOIN dag_version_jobs USING (job_id)
                JOIN activations a USING (dag_version_id) JOIN dag_versions v USING (dag_version_id)
                WHERE j.node_id = g.node_id AND a.cutover_at IS NOT NULL ORDER BY a.cutover_at DESC LIMIT 1),
               (SELECT v.number FROM dataset_pointers p JOIN activations a USING (activation_id)
                JOIN dag_versions v USING (dag_version_id)
                WHERE p.dataset_uuid = d.dataset_uuid ORDER BY p.since DESC LIMIT 1)) END AS retired_after,
           (SELECT count(*) FROM dataset_versions a
            WHERE a.dataset_uuid = d.dataset_uuid AND a.removed_at IS NULL) AS generations,
           r.blocks, r.gap_count, (SELECT count(*) FROM (
               SELECT FROM (SELECT DISTINCT j.node_id FROM job_outputs o JOIN jobs j USING (job_id)
                            WHERE o.dataset_uuid = d.dataset_uuid AND o.dataset_version = d.current_version) n
               JOIN tasks t USING (node_id) WHERE {IS_GIVEN_UP} LIMIT {CAP}) x) AS given_up_units
    FROM datasets d
    LEFT JOIN LATERAL (
        SELECT sum(upper(block) - lower(block)) AS blocks, greatest(count(*) - 1, 0) AS gap_count,
               min(lower(block)) AS first, max(upper(block)) - 1 AS last FROM (
            SELECT unnest(range_agg(numrange(r.range_start, r.range_end::numeric + 1))) AS block
            FROM dataset_runs r
            WHERE r.dataset_uuid = d.dataset_uuid AND r.dataset_version = d.current_version) runs) r ON true
    JOIN dataset_versions g ON g.dataset_uuid = d.dataset_uuid AND g.dataset_version = d.current_version
    LEFT JOIN nodes n ON n.node_id = g.node_id LEFT JOIN written w ON w.dataset_uuid = d.dataset_uuid
    LEFT JOIN stale s ON s.dataset_uuid = d.dataset_uuid AND s.dataset_version = d.current_version
    LEFT JOIN LATERAL (
        SELECT max(cursor) AS max_cursor, max(created_at) AS updated_at FROM (
            SELECT v.cursor, v.created_at FROM events v
            WHERE v.dataset_uuid = d.dataset_uuid AND v.dataset_version = d.current_version AND v.routed_seq IS NOT NULL
            ORDER BY v.routed_seq DESC LIMIT {NEWEST}) newest) e ON true
    WHERE d.org_id = $1 AND ($2::text IS NULL OR d.name = $2) AND left(d.name, 1) <> '_' AND d.removed_at IS NULL
    ORDER BY d.name"""  # noqa: S608 - constants only

# Datasets of active versions whose sources, all of them, are webhooks with a unit for each delivery.
_OF_DELIVERIES = """
    WITH RECURSIVE wiring AS MATERIALIZED (
        SELECT DISTINCT e.dataset_uuid AS source, o.dataset_uuid AS target,
               coalesce(j.document #>> '{source,unit}' = 'delivery', false) AS delivers
        FROM dags a JOIN dag_version_jobs v ON v.dag_version_id = a.active_version
        JOIN jobs j USING (job_id) JOIN job_outputs o USING (job_id) LEFT JOIN edges e ON e.node_id = j.node_id
        WHERE a.org_id = $1),
    origins AS (
        SELECT target AS dataset_uuid, delivers FROM wiring WHERE source IS NULL
        UNION SELECT w.target, origins.delivers FROM origins JOIN wiring w ON w.source = origins.dataset_uuid)
    SELECT dataset_uuid FROM origins GROUP BY dataset_uuid HAVING bool_and(delivers)"""

_TABLE = """
    SELECT t.on_conflict, t.version_column, t.on_change, t.max_depth AS max_queue_depth,
           t.max_age_seconds AS max_queue_age_seconds, o.name AS org, c.commit_seq AS last_commit, c.committed_at
    FROM buffered_tables t JOIN orgs o USING (org_id)
    LEFT JOIN LATERAL (
        SELECT p.commit_seq, p.committed_at FROM buffer_publishes p
        WHERE p.dataset_uuid = t.dataset_uuid AND p.commit_seq IS NOT NULL
        ORDER BY p.commit_seq DESC LIMIT 1) c ON true
    WHERE t.dataset_uuid = $1"""

# Files are committed by manifests. Each commit of a table is announced, with its number, and nothing else of it is.
_GENERATIONS = f"""
    SELECT g.dataset_version, g.config_hash, g.schema_hash, g.created_at, g.units,
           (SELECT max(cursor) FROM (SELECT v.cursor FROM events v WHERE v.dataset_uuid = g.dataset_uuid
                AND v.dataset_version = g.dataset_version AND v.routed_seq IS NOT NULL
                ORDER BY v.routed_seq DESC LIMIT {NEWEST}) x) AS max_cursor,
           (SELECT count(*) FROM (SELECT FROM dataset_runs r WHERE r.dataset_uuid = g.dataset_uuid
                AND r.dataset_version = g.dataset_version LIMIT {CAP}) x) AS range_count,
           (SELECT count(*) FILTER (WHERE unit LIKE 'p:%') FROM (SELECT unit FROM dataset_keys k
                WHERE k.dataset_uuid = g.dataset_uuid
                AND k.dataset_version = g.dataset_version LIMIT {CAP}) x) AS partition_keys,
           CASE WHEN $2 THEN (SELECT count(DISTINCT cursor) FROM (SELECT v.cursor FROM events v
                WHERE v.dataset_uuid = g.dataset_uuid AND v.dataset_version = g.dataset_version
                AND v.routed_seq IS NOT NULL LIMIT {CAP}) x)
           ELSE (SELECT count(*) FROM (SELECT FROM manifests m WHERE m.dataset_uuid = g.dataset_uuid
                AND m.dataset_version = g.dataset_version LIMIT {CAP}) x) END AS commits
    FROM dataset_versions g WHERE g.dataset_uuid = $1 AND g.removed_at IS NULL
    ORDER BY g.created_at DESC, g.dataset_version LIMIT {NEWEST}"""  # noqa: S608 - constants only

_RUNS = f"""
    SELECT q.dataset_version, r.* FROM unnest($2::uuid[]) AS q(dataset_version) CROSS JOIN LATERAL (
        SELECT range_start AS start, range_end AS "end", unit_size FROM dataset_runs
        WHERE dataset_uuid = $1 AND dataset_version = q.dataset_version
        ORDER BY range_start, unit_size LIMIT {NEWEST}) r"""  # noqa: S608 - constants only

_POINTERS = f"""
    SELECT p.dataset_version, p.since, v.number AS dag_version FROM dataset_pointers p
    LEFT JOIN activations a USING (activation_id) LEFT JOIN dag_versions v USING (dag_version_id)
    WHERE p.dataset_uuid = $1 ORDER BY p.since DESC LIMIT {NEWEST}"""  # noqa: S608 - constants only

_CONSUMERS = f"""
    SELECT n.dag_name, n.job_name, {EDGE_COLUMNS}
    FROM edges e JOIN nodes n USING (node_id) JOIN datasets d USING (dataset_uuid)
    WHERE e.dataset_uuid = $1 AND e.phase <> 'Parked' AND e.org_id = $2
    ORDER BY n.dag_name, n.job_name, e.input_index, e.phase"""  # noqa: S608 - constants only

_INVALIDATIONS = f"""
    SELECT invalidation_id, range_start AS start, range_end AS "end", reason, producer, created_at FROM invalidations
    WHERE dataset_uuid = $1 AND org_id = $2 ORDER BY created_at DESC LIMIT {NEWEST}"""  # noqa: S608 - constants only


async def list_datasets(connection: Connection, org_id: UUID) -> DatasetsReply:
    of_deliveries = await _find_of_deliveries(connection, org_id)
    rows = await connection.fetch(_DATASETS, org_id, None)
    return DatasetsReply(datasets=[_dataset(row, of_deliveries) for row in rows])


async def dataset_detail(connection: Connection, org_id: UUID, name: str) -> DatasetDetail:
    row = await connection.fetchrow(_DATASETS, org_id, name)
    if row is None:
        raise TraceError("dataset_not_found")
    uuid: UUID = row["dataset_uuid"]
    given_up = await load_given_up(connection, (uuid, row["current_version"]))
    publication = await load_publication(connection, org_id, row)
    columns, complete = await load_columns(connection, row, publication)
    return DatasetDetail(
        dataset=_dataset(row, await _find_of_deliveries(connection, org_id)),
        description="" if publication is None else publication.description,
        owner="" if publication is None else publication.contact,
        columns=columns,
        columns_complete=complete,
        checks=(await list_checks(connection, org_id, name)).checks,
        units=decode_grid(row["units"]),
        content=await load_content(connection, row),
        given_up=given_up.first,
        given_up_count=given_up.number,
        table=await _table(connection, uuid, name),
        schema=from_json(row["schema"]),
        generations=await _generations(connection, row),
        pointers=[to_struct(PointerRow, item) for item in await connection.fetch(_POINTERS, uuid)],
        consumers=[
            ConsumerRow(dag=item["dag_name"], job=item["job_name"], edge=to_edge(item))
            for item in await connection.fetch(_CONSUMERS, uuid, org_id)
        ],
        invalidations=[
            to_struct(InvalidationRow, item, window=window_words(row["units"], item["start"], item["end"]))
            for item in await connection.fetch(_INVALIDATIONS, uuid, org_id)
        ],
        boundary=await read_boundary(connection, (uuid, row["current_version"])),
    )


async def _table(connection: Connection, dataset_uuid: UUID, name: str) -> BufferedTableRow | None:
    row = await connection.fetchrow(_TABLE, dataset_uuid)
    if row is None:
        return None
    view = ".".join(view_names(row["org"], name))
    return to_struct(BufferedTableRow, row, table=table_name(dataset_uuid), view=view)


async def _generations(connection: Connection, dataset: asyncpg.Record) -> list[GenerationRow]:
    rows = await connection.fetch(_GENERATIONS, dataset["dataset_uuid"], dataset["storage"] == "buffered")
    ranges: dict[UUID, list[RunRow]] = defaultdict(list)
    versions = [row["dataset_version"] for row in rows]
    grids = {row["dataset_version"]: row["units"] for row in rows}
    for run in await connection.fetch(_RUNS, dataset["dataset_uuid"], versions):
        window = window_words(grids[run["dataset_version"]], run["start"], run["end"])
        run_row = to_struct(RunRow, run, unit_size=int(run["unit_size"]), window=window)
        ranges[run["dataset_version"]].append(run_row)
    states = {dataset["staged_version"]: "staged", dataset["current_version"]: "current"}
    return [
        to_struct(GenerationRow, row, state=states.get(version, "past"), ranges=ranges.get(version, []))
        for version, row in zip(versions, rows, strict=True)
    ]


async def _find_of_deliveries(connection: Connection, org_id: UUID) -> frozenset[UUID]:
    return frozenset(row["dataset_uuid"] for row in await connection.fetch(_OF_DELIVERIES, org_id))


def _dataset(row: asyncpg.Record, of_deliveries: Collection[UUID]) -> DatasetRow:
    blocks = None if row["blocks"] is None else int(row["blocks"])
    stale = None
    if row["stale_because"] is not None:
        stale = StaleRow(
            because=row["stale_because"], job=row["stale_job"], since=row["stale_since"], rebuilding=row["rebuilding"]
        )
    windows = None if row["first"] is None else window_words(row["units"], int(row["first"]), int(row["last"]))
    is_of_deliveries = row["dataset_uuid"] in of_deliveries
    return to_struct(DatasetRow, row, blocks=blocks, of_deliveries=is_of_deliveries, windows=windows, stale=stale)
