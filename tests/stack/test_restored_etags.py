"""A store that computes other ETags for the same bytes: the restored state has those of the store."""

import json
from typing import Any

import asyncpg

from tests.support.postgres import TestCluster, run
from tracelake.stack.dumps import database_of
from tracelake.stack.full_restore import adjust_etags

FILES = [
    {"uri": "s3://datasets/a", "size": 1, "etag": "old-a", "sha256": "1" * 64},
    {"uri": "s3://datasets/b", "size": 2, "etag": "old-b", "sha256": "2" * 64},
]
ROWS = f"""
    SET session_replication_role = replica;  -- rows without those that they refer to
    INSERT INTO manifests (manifest_id, dataset_uuid, dataset_version, unit, revision, task_id, attempt, prefix, objects)
    SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'u', 1, gen_random_uuid(), 1, 'p', objects::json
    FROM (VALUES ('{json.dumps(FILES)}'), ('{json.dumps(FILES[1:])}')) AS m (objects);
    INSERT INTO buffer_publishes (publish_id, org_id, task_id, attempt, dataset_uuid, dataset_version, batch_uri,
        size_bytes, etag, content_type)
    SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1, gen_random_uuid(), gen_random_uuid(), uri, 1, 'old', 'x'
    FROM unnest(ARRAY['s3://scratch/c', 's3://scratch/d']) AS uri;
    INSERT INTO outbox (kind, queue, key, body) VALUES
        ('buffer_batch', 'q', gen_random_uuid(), '{{"batch_uri": "s3://scratch/c", "etag": "old", "size_bytes": 1}}'),
        ('task_wakeup', 'q', gen_random_uuid(), NULL);
"""  # noqa: E501 - a script


def test_what_was_pinned_follows_the_store(cluster: TestCluster) -> None:
    async def adjust(dsn: str) -> tuple[list[Any], list[Any], list[Any]]:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(ROWS)
            await adjust_etags(connection, {})
            await adjust_etags(connection, {"s3://datasets/a": "new-a", "s3://scratch/c": "new-c", "s3://x/y": "z"})
            manifests = await connection.fetch("SELECT objects FROM manifests")
            publishes = await connection.fetch("SELECT batch_uri, etag FROM buffer_publishes ORDER BY 1")
            pointers = await connection.fetch("SELECT body FROM outbox WHERE body IS NOT NULL")
        finally:
            await connection.close()
        return (
            [json.loads(row["objects"]) for row in manifests],
            [tuple(row) for row in publishes],
            [json.loads(row["body"]) for row in pointers],
        )

    state = cluster.fresh("state")
    superuser = cluster.cluster.superuser_dsn(database_of(state))
    manifests, publishes, pointers = run(adjust(superuser))
    whole = [{**FILES[0], "etag": "new-a"}, FILES[1]]
    assert sorted(manifests, key=len) == [FILES[1:], whole]
    assert publishes == [("s3://scratch/c", "new-c"), ("s3://scratch/d", "old")]
    assert pointers == [{"batch_uri": "s3://scratch/c", "etag": "new-c", "size_bytes": 1}]
