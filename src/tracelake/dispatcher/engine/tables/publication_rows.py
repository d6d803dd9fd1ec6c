"""The statements that commit units: manifests of their files, and the pointers of the units to them."""

from collections.abc import Collection, Sequence

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation, Publication
from tracelake.dispatcher.engine.tables import table_units
from tracelake.dispatcher.read_pins import LivePin
from tracelake.dispatcher.records import columns
from tracelake.wire.task_calls import DataFile

_PIN_CONFIG = """
    UPDATE dataset_versions v SET config_hash = u.config_hash
    FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS u(dataset_uuid, dataset_version, config_hash)
    WHERE v.dataset_uuid = u.dataset_uuid AND v.dataset_version = u.dataset_version AND v.config_hash IS NULL"""

# Without times of its own, a unit of blocks has those of the units that its task reads: they are of the same blocks.
# Those that begin before it or end behind it also have times of other blocks, so with one of them the times are not
# known, unless the very positions have times, as those of a table that tasks write directly.
_INSERT_MANIFESTS = """
    INSERT INTO manifests (manifest_id, dataset_uuid, dataset_version, unit, revision, task_id, attempt, prefix,
                           objects, time_min, time_max)
    SELECT manifest_id, u.dataset_uuid, u.dataset_version, u.unit, u.revision, u.task_id, attempt, prefix,
           objects::json, coalesce(u.time_min, i.time_min), coalesce(u.time_max, i.time_max)
    FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::bigint[], $6::uuid[], $7::int[], $8::text[],
                $9::text[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[])
         AS u(manifest_id, dataset_uuid, dataset_version, unit, revision, task_id, attempt, prefix, objects, time_min,
              time_max, range_start, range_end)
    LEFT JOIN LATERAL (
        SELECT min(CASE WHEN p.first <= u.range_start THEN p.time_min ELSE least(f.time_min, p.time_min) END)
               AS time_min,
               max(CASE WHEN p.last >= u.range_end THEN p.time_max ELSE greatest(f.time_max, p.time_max) END)
               AS time_max
        FROM tasks t
        CROSS JOIN LATERAL json_to_recordset(t.inputs) AS g(dataset_uuid uuid, dataset_version uuid, scope json)
        CROSS JOIN LATERAL (
            SELECT min(d.range_start) AS first, max(d.range_end) AS last, min(d.time_min) AS time_min,
                   max(d.time_max) AS time_max, bool_and(d.time_min IS NOT NULL OR d.range_end = 0) AS timed
            FROM dataset_units d
            WHERE d.dataset_uuid = g.dataset_uuid AND d.dataset_version = g.dataset_version
              AND d.range_start <= u.range_end AND d.range_end >= u.range_start
              AND d.range_start >= coalesce((
                  SELECT max(b.range_start) FROM dataset_units b
                  WHERE b.dataset_uuid = g.dataset_uuid AND b.dataset_version = g.dataset_version
                    AND b.range_start <= u.range_start), 0)) f
        CROSS JOIN LATERAL (
            SELECT min(x.position) AS first, max(x.position) AS last, min(x.time) AS time_min, max(x.time) AS time_max
            FROM table_units d
            CROSS JOIN LATERAL (
                SELECT greatest(d.range_start, u.range_start) + y.place - 1 AS position, y.time
                FROM unnest(d.times[greatest(1, u.range_start - d.range_start + 1)
                                    : least(u.range_end, d.range_end) - d.range_start + 1])
                     WITH ORDINALITY AS y(time, place)) x
            WHERE d.dataset_uuid = g.dataset_uuid AND d.dataset_version = g.dataset_version
              AND d.range_start <= u.range_end AND d.range_end >= u.range_start
              AND d.range_start >= coalesce((
                  SELECT max(b.range_start) FROM table_units b
                  WHERE b.dataset_uuid = g.dataset_uuid AND b.dataset_version = g.dataset_version
                    AND b.range_start <= u.range_start), 0)) p
        WHERE t.task_id = u.task_id AND u.time_min IS NULL
          AND coalesce(g.scope->>'mode', 'unit') IN ('unit', 'window', 'history')
          AND NOT coalesce((g.scope->>'unit_in_seconds')::boolean, false)
          AND (f.timed IS NOT FALSE OR p.first <= u.range_start AND p.last >= u.range_end)
          AND (f.first IS NULL OR f.first >= u.range_start OR p.first <= u.range_start)
          AND (f.last IS NULL OR f.last <= u.range_end OR p.last >= u.range_end)
    ) i ON u.time_min IS NULL"""

_MOVE_POINTERS = """
    INSERT INTO dataset_units (dataset_uuid, dataset_version, unit, range_start, range_end, revision, manifest_id,
                               time_min, time_max)
    SELECT u.dataset_uuid, u.dataset_version, u.unit, u.range_start, u.range_end, u.revision, u.manifest_id,
           m.time_min, m.time_max
    FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::uuid[])
         AS u(dataset_uuid, dataset_version, unit, range_start, range_end, revision, manifest_id)
    JOIN manifests m USING (manifest_id)
    ON CONFLICT (dataset_uuid, dataset_version, unit) DO UPDATE
        SET revision = excluded.revision, manifest_id = excluded.manifest_id, time_min = excluded.time_min,
            time_max = excluded.time_max"""


# Commits to one generation come one after another, so their times are in the order in which they became visible.
_NEWEST = """
    SELECT g.dataset_uuid, g.dataset_version, (
        SELECT max(m.created_at) FROM manifests m
        WHERE m.dataset_uuid = g.dataset_uuid AND m.dataset_version = g.dataset_version) AS newest, (
        SELECT b.boundary FROM live_boundaries b
        WHERE b.dataset_uuid = g.dataset_uuid AND b.dataset_version = g.dataset_version) AS boundary
    FROM unnest($1::uuid[], $2::uuid[]) AS g(dataset_uuid, dataset_version)"""

# From the first position of the table over units side by side, as far as there are any. It goes on from where it is,
# so a commit costs as many steps as it moves the boundary.
_MOVE_BOUNDARIES = """
    WITH RECURSIVE begun AS (
        INSERT INTO live_boundaries AS b (dataset_uuid, dataset_version, table_start, boundary)
        SELECT DISTINCT ON (u.dataset_uuid, u.dataset_version)
               u.dataset_uuid, u.dataset_version, u.table_start, u.table_start - 1
        FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS u(dataset_uuid, dataset_version, table_start)
        ON CONFLICT (dataset_uuid, dataset_version) DO UPDATE SET moved_at = trace_now()
        RETURNING b.dataset_uuid, b.dataset_version, b.boundary),
    steps AS (
        SELECT dataset_uuid, dataset_version, boundary FROM begun
        UNION ALL
        SELECT s.dataset_uuid, s.dataset_version, d.range_end FROM steps s
        JOIN dataset_units d ON d.dataset_uuid = s.dataset_uuid AND d.dataset_version = s.dataset_version
             AND d.range_start = s.boundary + 1)
    SELECT dataset_uuid, dataset_version, max(boundary) AS boundary FROM steps GROUP BY 1, 2"""

_SET_BOUNDARIES = """
    UPDATE live_boundaries b SET boundary = u.boundary
    FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS u(dataset_uuid, dataset_version, boundary)
    WHERE b.dataset_uuid = u.dataset_uuid AND b.dataset_version = u.dataset_version AND b.boundary < u.boundary"""


async def read_newest(connection: Connection, generations: Collection[Generation]) -> dict[Generation, LivePin]:
    """The time of the newest commit of each generation, and its boundary; of one moment, since by one statement."""
    rows = await connection.fetch(_NEWEST, *columns(generations))
    return {(row["dataset_uuid"], row["dataset_version"]): LivePin(row["newest"], row["boundary"]) for row in rows}


async def apply_publications(connection: Connection, publications: Sequence[Publication]) -> None:
    hashes = [(item.dataset_uuid, item.dataset_version, item.config_hash) for item in publications]
    await connection.execute(_PIN_CONFIG, *columns(hashes))
    manifests = [
        (item.manifest_id, item.dataset_uuid, item.dataset_version, item.unit, item.revision, item.task_id,
         item.attempt, item.prefix, _objects(item), *(item.times or (None, None)), item.range_start, item.range_end)
        for item in publications
    ]  # fmt: skip
    await connection.execute(_INSERT_MANIFESTS, *columns(manifests))
    moves = [
        (item.dataset_uuid, item.dataset_version, item.unit, item.range_start, item.range_end, item.revision,
         item.manifest_id)
        for item in publications
        if item.revision is not None
    ]  # fmt: skip
    if moves:
        await connection.execute(_MOVE_POINTERS, *columns(moves))
    for item in publications:
        if item.is_live and item.revision is not None and item.range_start is not None and item.range_end is not None:
            change_times = table_units.forget_times if item.table_start is None else table_units.keep_times
            generation = (item.dataset_uuid, item.dataset_version)
            await change_times(connection, generation, item.range_start, item.range_end)
    table_starts = [
        (item.dataset_uuid, item.dataset_version, item.table_start)
        for item in publications
        if item.table_start is not None
    ]
    if table_starts:
        boundaries = await connection.fetch(_MOVE_BOUNDARIES, *columns(table_starts))
        await connection.execute(_SET_BOUNDARIES, *columns(tuple(row) for row in boundaries))


def _objects(item: Publication) -> str:
    files = [DataFile(uri=meta.uri, size=meta.size, etag=meta.etag, sha256=meta.sha256) for meta in item.objects]
    return msgspec.json.encode(files).decode()
