"""The statements for what hangs on a task: events, committed units with their manifests, buffered publishes."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.lifecycle.plan import Applied, BufferPublish, NewEvent, Publication, Release, RoutedEvent
from tracelake.dispatcher.slices import in_slices
from tracelake.model.job import BUFFER_QUEUES
from tracelake.ports import ObjectMeta
from tracelake.wire.task_calls import BufferPublishRequest, DataFile

# The columns of a RoutedEvent, in order.
_ROUTED = """e.routed_seq, e.event_id, e.org_id, e.dataset_uuid, e.dataset_version, e.cursor, e.partition_key,
              e.range_start, e.range_end, e.effective_revision, e.invalidates, e.producer, e.traceparent,
              e.revision_kind"""

_ROUTED_NAMES = [name.strip().removeprefix("e.") for name in _ROUTED.split(",")]

_INSERT_EVENTS = """
    INSERT INTO events (producer, dataset_uuid, dataset_version, unit, revision, org_id, attempt, cursor, partition_key,
                        range_start, range_end, invalidates, commit_revision, effective_revision, state, routed_seq,
                        traceparent, revision_kind)
    SELECT u.producer, u.dataset_uuid, u.dataset_version, u.unit, u.revision, u.org_id, u.attempt, u.cursor,
           u.partition_key, u.range_start, u.range_end, u.invalidates::json, u.commit_revision, u.effective_revision,
           s.state, CASE WHEN s.state = 'Routed' THEN nextval('events_routed_seq') END, u.traceparent,
           u.revision_kind
    FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::uuid[], $7::int[], $8::bigint[],
                $9::text[], $10::bigint[], $11::bigint[], $12::text[], $13::bigint[], $14::bool[], $15::text[],
                $16::text[], $17::text[], $18::bool[])
         AS u(producer, dataset_uuid, dataset_version, unit, revision, org_id, attempt, cursor, partition_key,
              range_start, range_end, invalidates, commit_revision, waits, effective_revision, traceparent,
              revision_kind, outdated)
    JOIN datasets d USING (dataset_uuid)
    CROSS JOIN LATERAL (SELECT CASE
        WHEN u.outdated THEN 'Outdated'
        WHEN u.waits AND u.commit_revision IS NULL THEN 'AwaitsCommit'
        WHEN u.dataset_version IN (d.current_version, d.staged_version) THEN 'Routed' ELSE 'NotCurrent' END) AS s(state)
    ON CONFLICT DO NOTHING
    RETURNING producer, dataset_uuid, dataset_version, unit, revision, state,
              routed_seq, event_id, org_id, cursor, partition_key, range_start, range_end, effective_revision,
              invalidates, traceparent, revision_kind"""

_FIND_EVENTS = """
    SELECT e.producer, e.dataset_uuid, e.dataset_version, e.unit, e.revision, e.state
    FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[], $5::text[])
         AS u(producer, dataset_uuid, dataset_version, unit, revision)
    JOIN events e USING (producer, dataset_uuid, dataset_version, unit, revision)"""

# An event that an earlier attempt said and that waits is now this attempt's: only the committing attempt's are routed.
_ADOPT_EVENTS = f"""
    UPDATE events e SET attempt = u.attempt, commit_revision = u.commit_revision,
        effective_revision = u.effective_revision, revision_kind = u.revision_kind, state = s.state,
        routed_seq = CASE WHEN s.state = 'Routed' THEN nextval('events_routed_seq') END
    FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::int[], $7::bigint[], $8::text[],
                $9::text[], $10::bool[])
         AS u(producer, dataset_uuid, dataset_version, unit, revision, attempt, commit_revision, effective_revision,
              revision_kind, outdated)
    JOIN datasets d USING (dataset_uuid)
    CROSS JOIN LATERAL (SELECT CASE
        WHEN u.outdated THEN 'Outdated'
        WHEN u.commit_revision IS NULL THEN 'AwaitsCommit'
        WHEN u.dataset_version IN (d.current_version, d.staged_version) THEN 'Routed' ELSE 'NotCurrent' END) AS s(state)
    WHERE e.state = 'AwaitsCommit' AND e.producer = u.producer AND e.dataset_uuid = u.dataset_uuid
      AND e.dataset_version = u.dataset_version AND e.unit = u.unit AND e.revision = u.revision
    RETURNING {_ROUTED}"""  # noqa: S608 - constants only

# Events said before the commit of their unit: they route now, unless newer inputs were committed before. A publication
# without a range commits all of them.
_RELEASE_EVENTS = f"""
    UPDATE events e SET commit_revision = u.commit_revision, effective_revision = coalesce(u.commit_revision::text, ''),
        revision_kind = u.revision_kind, state = s.state,
        routed_seq = CASE WHEN s.state = 'Routed' THEN nextval('events_routed_seq') END
    FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[], $5::bigint[], $6::int[], $7::text[], $8::text[])
         AS u(producer, dataset_uuid, dataset_version, unit, commit_revision, attempt, cursor_unit, revision_kind)
    JOIN datasets d USING (dataset_uuid)
    CROSS JOIN LATERAL (SELECT CASE
        WHEN u.commit_revision IS NULL THEN 'Outdated'
        WHEN u.dataset_version IN (d.current_version, d.staged_version) THEN 'Routed' ELSE 'NotCurrent' END) AS s(state)
    WHERE e.state = 'AwaitsCommit' AND e.producer = u.producer AND e.attempt = u.attempt
      AND e.dataset_uuid = u.dataset_uuid
      AND e.dataset_version = u.dataset_version AND (u.unit IN ('*', e.unit) OR e.unit = u.cursor_unit)
    RETURNING {_ROUTED}"""  # noqa: S608

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
_RELEASE_PUBLISHES = """
    UPDATE buffer_publishes p SET released_at = trace_now(), publish_seq = o.publish_seq
    FROM (SELECT b.publish_id, CASE WHEN b.renumber
                THEN nextval(pg_get_serial_sequence('buffer_publishes', 'publish_seq')) ELSE b.publish_seq END
          FROM (SELECT b.publish_id, b.publish_seq, u.renumber
                FROM unnest($1::uuid[], $2::int[], $3::bool[]) AS u(task_id, attempt, renumber)
                JOIN buffer_publishes b USING (task_id, attempt)
                WHERE b.released_at IS NULL ORDER BY b.publish_seq) b) AS o(publish_id, publish_seq)
    WHERE p.publish_id = o.publish_id
    RETURNING p.publish_id"""

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
        'record_count', p.record_count,
        'producer', json_build_object('task_id', p.task_id, 'attempt', p.attempt), 'again', %s)"""

# Whether a batch has a row is asked one by one: an anti-join may read the whole outbox, however few batches there are.
_ENQUEUE_PUBLISHES = f"""
    INSERT INTO outbox (kind, queue, key, org_id, body)
    SELECT 'buffer_batch', '{BUFFER_QUEUES}' || p.dataset_uuid, p.publish_id, p.org_id, {_BUFFER_MESSAGE}
    FROM (SELECT * FROM buffer_publishes
          WHERE publish_id = ANY($1) AND released_at IS NOT NULL AND committed_at IS NULL AND dead_at IS NULL
          ORDER BY publish_id FOR UPDATE SKIP LOCKED) p
    WHERE (SELECT o.outbox_id FROM outbox o WHERE o.key = p.publish_id LIMIT 1) IS NULL"""  # noqa: S608 - constants only
ENQUEUE_PUBLISHES = _ENQUEUE_PUBLISHES % "false"
ENQUEUE_PUBLISHES_AGAIN = _ENQUEUE_PUBLISHES % "true"


async def _insert_events(connection: Connection, events: Sequence[NewEvent], applied: Applied) -> None:
    keys = [event.key for event in events]
    columns = [list(column) for column in zip(*keys, strict=True)]
    rows = await connection.fetch(
        _INSERT_EVENTS,
        *columns,
        [event.org_id for event in events],
        [event.attempt for event in events],
        [event.event.cursor for event in events],
        [event.event.partition_key for event in events],
        [event.event.start for event in events],
        [event.event.end for event in events],
        [_json_or_none(event.event.invalidates) for event in events],
        [event.commit_revision for event in events],
        [event.waits for event in events],
        [event.effective_revision for event in events],
        [event.traceparent for event in events],
        [event.effective_kind for event in events],
        [event.outdated for event in events],
    )
    for row in rows:
        key = tuple(row)[:5]
        applied.events[key] = (False, row["state"] == "Routed")
        if row["traceparent"] is not None:
            applied.traced[row["traceparent"]] = (row["event_id"], row["state"])
        if row["state"] == "Routed":
            applied.routed.append(RoutedEvent(*(row[name] for name in _ROUTED_NAMES)))


async def apply_events(connection: Connection, events: Sequence[NewEvent], applied: Applied) -> None:
    async for part in in_slices(events):
        await _insert_events(connection, part, applied)
    repeated = [event for event in events if event.key not in applied.events]
    if repeated:
        columns = [list(column) for column in zip(*(event.key for event in repeated), strict=True)]
        attempts, revisions = [event.attempt for event in repeated], [event.commit_revision for event in repeated]
        effective = [event.effective_revision for event in repeated]
        kinds, outdated = [event.effective_kind for event in repeated], [event.outdated for event in repeated]
        adopted = await connection.fetch(_ADOPT_EVENTS, *columns, attempts, revisions, effective, kinds, outdated)
        applied.routed += [RoutedEvent(*row) for row in adopted if row["routed_seq"] is not None]
        found = await connection.fetch(_FIND_EVENTS, *columns)
        for row in found:
            applied.events[tuple(row)[:5]] = (True, row["state"] == "Routed")


async def apply_publications(connection: Connection, publications: Sequence[Publication], applied: Applied) -> None:
    datasets = [item.dataset_uuid for item in publications]
    versions = [item.dataset_version for item in publications]
    units = [item.unit for item in publications]
    revisions = [item.revision for item in publications]
    manifests = [item.manifest_id for item in publications]
    tasks = [item.task_id for item in publications]
    await connection.execute(_PIN_CONFIG, datasets, versions, [item.config_hash for item in publications])
    await connection.execute(
        _INSERT_MANIFESTS,
        manifests,
        datasets,
        versions,
        units,
        revisions,
        tasks,
        [item.attempt for item in publications],
        [item.prefix for item in publications],
        [_objects(item) for item in publications],
    )
    moves = [item for item in publications if item.revision is not None]
    await connection.execute(
        _MOVE_POINTERS,
        [item.dataset_uuid for item in moves],
        [item.dataset_version for item in moves],
        [item.unit for item in moves],
        [item.range_start for item in moves],
        [item.range_end for item in moves],
        [item.revision for item in moves],
        [item.manifest_id for item in moves],
    )
    attempts = [item.attempt for item in publications]
    producers = [str(task) for task in tasks]
    cursors, kinds = [item.cursor_unit for item in publications], [item.revision_kind for item in publications]
    place = (producers, datasets, versions, units)
    released = await connection.fetch(_RELEASE_EVENTS, *place, revisions, attempts, cursors, kinds)
    applied.routed += [RoutedEvent(*row) for row in released if row["routed_seq"] is not None]


async def apply_buffer_publishes(connection: Connection, publishes: Sequence[BufferPublish], applied: Applied) -> None:
    rows = await connection.fetch(
        _INSERT_PUBLISHES,
        [item.publish_id for item in publishes],
        [item.org_id for item in publishes],
        [item.task_id for item in publishes],
        [item.attempt for item in publishes],
        [item.dataset_uuid for item in publishes],
        [item.dataset_version for item in publishes],
        [item.batch_uri for item in publishes],
        [item.size_bytes for item in publishes],
        [item.etag for item in publishes],
        [item.sha256 for item in publishes],
        [item.record_count for item in publishes],
        [item.content_type for item in publishes],
        [item.released for item in publishes],
    )
    for row in rows:
        applied.publishes[tuple(row)[2:]] = (row["publish_id"], row["publish_seq"], False)
    fresh = [item.publish_id for item in publishes if item.released and item.key in applied.publishes]
    if fresh:
        await _send_batches(connection, fresh, applied)
    repeated = [item.key for item in publishes if item.key not in applied.publishes]
    if repeated:
        found = await connection.fetch(_FIND_PUBLISHES, *(list(column) for column in zip(*repeated, strict=True)))
        for row in found:
            applied.publishes[tuple(row)[2:]] = (row["publish_id"], row["publish_seq"], True)


async def release_publishes(connection: Connection, releases: Sequence[Release], applied: Applied) -> None:
    """Routes the batches of completed attempts to the sinks."""
    rows = await connection.fetch(_RELEASE_PUBLISHES, *(list(column) for column in zip(*releases, strict=True)))
    if rows:
        await _send_batches(connection, [row["publish_id"] for row in rows], applied)


async def _send_batches(connection: Connection, publish_ids: Sequence[UUID], applied: Applied) -> None:
    await connection.execute(ENQUEUE_PUBLISHES, publish_ids)
    applied.batches_sent += len(publish_ids)


async def find_pinned(connection: Connection, body: BufferPublishRequest) -> ObjectMeta | None:
    """The artifact that an earlier publish by the same attempt pinned."""
    row = await connection.fetchrow(
        _FIND_PINNED, body.task_id, body.attempt, body.batch_uri, body.dataset_uuid, body.dedupe_scope
    )
    return None if row is None else ObjectMeta(*row)


def _objects(item: Publication) -> str:
    files = [DataFile(uri=meta.uri, size=meta.size, etag=meta.etag, sha256=meta.sha256) for meta in item.objects]
    return msgspec.json.encode(files).decode()


def _json_or_none(value: msgspec.Struct | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
