"""The statements that commit units: manifests of their files, and the pointers of the units to them."""

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation, Publication
from tracelake.dispatcher.records import columns
from tracelake.wire.task_calls import DataFile

_PIN_CONFIG = """
    UPDATE dataset_versions v SET config_hash = u.config_hash
    FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS u(dataset_uuid, dataset_version, config_hash)
    WHERE v.dataset_uuid = u.dataset_uuid AND v.dataset_version = u.dataset_version AND v.config_hash IS NULL"""

# Without times of its own, a unit has those of the units that its task reads: they are of the same blocks.
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
        SELECT min(d.time_min) AS time_min, max(d.time_max) AS time_max
        FROM tasks t CROSS JOIN LATERAL json_to_recordset(t.inputs) AS g(dataset_uuid uuid, dataset_version uuid)
        JOIN dataset_units d USING (dataset_uuid, dataset_version)
        WHERE t.task_id = u.task_id AND u.time_min IS NULL AND d.range_start BETWEEN u.range_start AND u.range_end
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
        WHERE m.dataset_uuid = g.dataset_uuid AND m.dataset_version = g.dataset_version) AS newest
    FROM unnest($1::uuid[], $2::uuid[]) AS g(dataset_uuid, dataset_version)"""


async def read_newest(connection: Connection, generations: Collection[Generation]) -> dict[Generation, datetime]:
    """The time of the newest commit of each generation that has one."""
    rows = await connection.fetch(_NEWEST, *columns(generations))
    return {(row["dataset_uuid"], row["dataset_version"]): row["newest"] for row in rows if row["newest"] is not None}


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


def _objects(item: Publication) -> str:
    files = [DataFile(uri=meta.uri, size=meta.size, etag=meta.etag, sha256=meta.sha256) for meta in item.objects]
    return msgspec.json.encode(files).decode()
