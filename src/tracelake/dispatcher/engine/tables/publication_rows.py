"""The statements that commit units: manifests of their files, and the pointers of the units to them."""

from collections.abc import Sequence

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Publication
from tracelake.dispatcher.records import columns
from tracelake.wire.task_calls import DataFile

_PIN_CONFIG = """
    UPDATE dataset_versions v SET config_hash = u.config_hash
    FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS u(dataset_uuid, dataset_version, config_hash)
    WHERE v.dataset_uuid = u.dataset_uuid AND v.dataset_version = u.dataset_version AND v.config_hash IS NULL"""

_INSERT_MANIFESTS = """
    INSERT INTO manifests (manifest_id, dataset_uuid, dataset_version, unit, revision, task_id, attempt, prefix,
                           objects)
    SELECT manifest_id, dataset_uuid, dataset_version, unit, revision, task_id, attempt, prefix, objects::json
    FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::bigint[], $6::uuid[], $7::int[], $8::text[],
                $9::text[])
         AS u(manifest_id, dataset_uuid, dataset_version, unit, revision, task_id, attempt, prefix, objects)"""

_MOVE_POINTERS = """
    INSERT INTO dataset_units (dataset_uuid, dataset_version, unit, range_start, range_end, revision, manifest_id)
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::uuid[])
    ON CONFLICT (dataset_uuid, dataset_version, unit) DO UPDATE
        SET revision = excluded.revision, manifest_id = excluded.manifest_id"""


async def apply_publications(connection: Connection, publications: Sequence[Publication]) -> None:
    hashes = [(item.dataset_uuid, item.dataset_version, item.config_hash) for item in publications]
    await connection.execute(_PIN_CONFIG, *columns(hashes))
    manifests = [
        (item.manifest_id, item.dataset_uuid, item.dataset_version, item.unit, item.revision, item.task_id,
         item.attempt, item.prefix, _objects(item))
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
