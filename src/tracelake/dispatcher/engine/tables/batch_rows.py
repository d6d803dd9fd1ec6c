"""The statements that store published batches of buffered datasets, and send them to the sinks."""

from collections.abc import Sequence
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import BatchRelease, BufferPublish, PublishReceipt, WriteResult
from tracelake.dispatcher.predicates import awaits_sink, has_unit
from tracelake.dispatcher.records import columns
from tracelake.model.job import BUFFER_QUEUES
from tracelake.ports import ObjectMeta
from tracelake.wire.task_calls import BufferPublishRequest

_INSERT_PUBLISHES = """
    INSERT INTO buffer_publishes (publish_id, org_id, task_id, attempt, dataset_uuid, dataset_version, batch_uri,
                                  size_bytes, etag, sha256, record_count, content_type, released_at)
    SELECT u.publish_id, u.org_id, u.task_id, u.attempt, u.dataset_uuid, u.dataset_version, u.batch_uri,
           u.size_bytes, u.etag, u.sha256, u.record_count, u.content_type, CASE WHEN u.released THEN trace_now() END
    FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::uuid[], $6::uuid[], $7::text[],
                $8::bigint[], $9::text[], $10::text[], $11::bigint[], $12::text[], $13::bool[])
         AS u(publish_id, org_id, task_id, attempt, dataset_uuid, dataset_version, batch_uri, size_bytes, etag,
              sha256, record_count, content_type, released)
    ON CONFLICT (task_id, attempt, dataset_uuid, batch_uri) DO NOTHING
    RETURNING publish_id, publish_seq, task_id, attempt, dataset_uuid, batch_uri"""

# Under the lock of their tasks: nobody else releases them, and sinks do not know them yet.
_RELEASE_PUBLISHES = f"""
    UPDATE buffer_publishes p SET released_at = trace_now(), publish_seq = o.publish_seq, unit_batches = o.batches
    FROM (SELECT b.publish_id, b.batches, CASE WHEN b.rerun
                THEN nextval(pg_get_serial_sequence('buffer_publishes', 'publish_seq')) ELSE b.publish_seq END
          FROM (SELECT b.publish_id, b.publish_seq, u.rerun, CASE WHEN {has_unit("t")}
                       THEN count(*) OVER (PARTITION BY b.task_id, b.dataset_uuid) END AS batches
                FROM unnest($1::uuid[], $2::int[], $3::bool[]) AS u(task_id, attempt, rerun)
                JOIN buffer_publishes b USING (task_id, attempt) JOIN tasks t USING (task_id)
                WHERE b.released_at IS NULL ORDER BY b.publish_seq) b) AS o(publish_id, batches, publish_seq)
    WHERE p.publish_id = o.publish_id
    RETURNING p.publish_id"""  # noqa: S608 - constants only

# A unit that had rows in a table and has none now: an empty batch tells the sinks. It has no artifact.
_RELEASE_EMPTY = f"""
    INSERT INTO buffer_publishes (publish_id, org_id, task_id, attempt, dataset_uuid, dataset_version, batch_uri,
                                  size_bytes, etag, record_count, content_type, released_at, collected_at, unit_batches)
    SELECT gen_random_uuid(), t.org_id, t.task_id, u.attempt, o.dataset_uuid, o.dataset_version, '', 0, '', 0,
           'application/jsonl', trace_now(), trace_now(), 1
    FROM unnest($1::uuid[], $2::int[]) AS u(task_id, attempt) JOIN tasks t USING (task_id)
    JOIN (SELECT DISTINCT o.job_id, o.dataset_uuid, o.dataset_version FROM job_outputs o
          JOIN datasets d ON d.dataset_uuid = o.dataset_uuid AND d.storage = 'buffered') o USING (job_id)
    WHERE {has_unit("t")}
      AND NOT EXISTS (SELECT FROM buffer_publishes b WHERE b.task_id = t.task_id AND b.attempt = u.attempt
                        AND b.dataset_uuid = o.dataset_uuid)
      AND EXISTS (SELECT FROM tasks s JOIN buffer_publishes b ON b.task_id = s.task_id
                  WHERE s.node_id = t.node_id AND s.edge = t.edge AND s.unit_end IS NOT DISTINCT FROM t.unit_end
                    AND s.unit_key = t.unit_key AND s.task_id <> t.task_id
                    AND b.dataset_uuid = o.dataset_uuid AND b.released_at IS NOT NULL)
    RETURNING publish_id"""  # noqa: S608 - constants only

_FIND_PUBLISHES = """
    SELECT p.publish_id, p.publish_seq, p.task_id, p.attempt, p.dataset_uuid, p.batch_uri
    FROM unnest($1::uuid[], $2::int[], $3::uuid[], $4::text[]) AS u(task_id, attempt, dataset_uuid, batch_uri)
    JOIN buffer_publishes p USING (task_id, attempt, dataset_uuid, batch_uri)"""

_FIND_PINNED = """
    SELECT p.batch_uri, p.size_bytes, p.etag, p.sha256 FROM buffer_publishes p JOIN datasets d USING (dataset_uuid)
    WHERE p.task_id = $1 AND p.attempt = $2 AND p.batch_uri = $3
      AND ($4::uuid IS NULL OR p.dataset_uuid = $4) AND ($5::text IS NULL OR d.name = $5)"""

# The pointer a sink receives: with everything it must check or compare, and never the records themselves.
_BUFFER_MESSAGE = """json_build_object(
        'kind', 'buffer_batch', 'publish_id', p.publish_id, 'publish_seq', p.publish_seq, 'org_id', p.org_id,
        'dataset_uuid', p.dataset_uuid, 'dataset_version', p.dataset_version, 'batch_uri', p.batch_uri,
        'size_bytes', p.size_bytes, 'etag', p.etag, 'sha256', p.sha256, 'content_type', p.content_type,
        'record_count', p.record_count, 'dropped', p.dropped_at IS NOT NULL,
        'unit', CASE WHEN p.unit_batches IS NOT NULL THEN json_build_object(
            'node_id', t.node_id, 'unit', t.edge || ':' || t.unit_key, 'batches', p.unit_batches) END,
        'producer', json_build_object('task_id', p.task_id, 'attempt', p.attempt), 'again', %s)"""

# Whether a batch has a row is asked one by one: an anti-join may read the whole outbox, however few batches there are.
_ENQUEUE_PUBLISHES = f"""
    INSERT INTO outbox (kind, queue, key, org_id, body)
    SELECT 'buffer_batch', '{BUFFER_QUEUES}' || p.dataset_uuid, p.publish_id, p.org_id, {_BUFFER_MESSAGE}
    FROM (SELECT * FROM buffer_publishes
          WHERE publish_id = ANY($1) AND {awaits_sink()}
          ORDER BY publish_id FOR UPDATE SKIP LOCKED) p JOIN tasks t USING (task_id)
    WHERE (SELECT o.outbox_id FROM outbox o WHERE o.key = p.publish_id LIMIT 1) IS NULL"""  # noqa: S608 - constants only

ENQUEUE_PUBLISHES = _ENQUEUE_PUBLISHES % "false"

ENQUEUE_PUBLISHES_AGAIN = _ENQUEUE_PUBLISHES % "true"


async def apply_buffer_publishes(
    connection: Connection, publishes: Sequence[BufferPublish], applied: WriteResult
) -> None:
    rows = await connection.fetch(_INSERT_PUBLISHES, *columns(publishes))
    for row in rows:
        applied.publishes[tuple(row)[2:]] = PublishReceipt(row["publish_id"], row["publish_seq"], duplicate=False)
    fresh = [item.publish_id for item in publishes if item.released and item.key in applied.publishes]
    if fresh:
        await _send_batches(connection, fresh, applied)
    repeated = [item.key for item in publishes if item.key not in applied.publishes]
    if repeated:
        for row in await connection.fetch(_FIND_PUBLISHES, *columns(repeated)):
            applied.publishes[tuple(row)[2:]] = PublishReceipt(row["publish_id"], row["publish_seq"], duplicate=True)


async def release_publishes(connection: Connection, releases: Sequence[BatchRelease], applied: WriteResult) -> None:
    """Routes the batches of completed attempts to the sinks."""
    rows = await connection.fetch(_RELEASE_PUBLISHES, *columns(releases))
    if reruns := [(item.task_id, item.attempt) for item in releases if item.rerun]:
        rows += await connection.fetch(_RELEASE_EMPTY, *columns(reruns))
    if rows:
        await _send_batches(connection, [row["publish_id"] for row in rows], applied)


async def _send_batches(connection: Connection, publish_ids: Sequence[UUID], applied: WriteResult) -> None:
    await connection.execute(ENQUEUE_PUBLISHES, publish_ids)
    applied.batches_sent += len(publish_ids)


async def find_pinned(connection: Connection, body: BufferPublishRequest) -> ObjectMeta | None:
    """The artifact that an earlier publish by the same attempt pinned."""
    row = await connection.fetchrow(
        _FIND_PINNED, body.task_id, body.attempt, body.batch_uri, body.dataset_uuid, body.dedupe_scope
    )
    return None if row is None else ObjectMeta(*row)
