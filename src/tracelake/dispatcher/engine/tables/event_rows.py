"""The statements that store events, and route those whose unit is committed."""

from collections.abc import Sequence

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import EventReceipt, NewEvent, Publication, RoutedEvent, WriteResult
from tracelake.dispatcher.predicates import is_current
from tracelake.dispatcher.records import columns
from tracelake.dispatcher.slices import in_slices

# The columns of a RoutedEvent, in order.
_ROUTED = """e.routed_seq, e.event_id, e.org_id, e.dataset_uuid, e.dataset_version, e.cursor, e.partition_key,
              e.range_start, e.range_end, e.effective_revision, e.invalidates, e.producer, e.traceparent,
              e.revision_kind, e.invalidation_id, e.first_position"""

_ROUTED_NAMES = [name.strip().removeprefix("e.") for name in _ROUTED.split(",")]

_INSERT_EVENTS = f"""
    INSERT INTO events (producer, dataset_uuid, dataset_version, unit, revision, org_id, attempt, cursor, partition_key,
                        range_start, range_end, invalidates, commit_revision, effective_revision, state, routed_seq,
                        traceparent, revision_kind, invalidation_id, first_position)
    SELECT u.producer, u.dataset_uuid, u.dataset_version, u.unit, u.revision, u.org_id, u.attempt, u.cursor,
           u.partition_key, u.range_start, u.range_end, u.invalidates::json, u.commit_revision, u.effective_revision,
           s.state, CASE WHEN s.state = 'Routed' THEN nextval('events_routed_seq') END, u.traceparent,
           u.revision_kind, CASE WHEN u.invalidates IS NOT NULL THEN gen_random_uuid()::text END, u.first_position
    FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::uuid[], $7::int[], $8::bigint[],
                $9::text[], $10::bigint[], $11::bigint[], $12::text[], $13::bigint[], $14::bool[], $15::text[],
                $16::text[], $17::text[], $18::bool[], $19::bigint[])
         AS u(producer, dataset_uuid, dataset_version, unit, revision, org_id, attempt, cursor, partition_key,
              range_start, range_end, invalidates, commit_revision, waits, effective_revision, traceparent,
              revision_kind, outdated, first_position)
    JOIN datasets d USING (dataset_uuid)
    CROSS JOIN LATERAL (SELECT CASE
        WHEN u.outdated THEN 'Outdated'
        WHEN u.waits AND u.commit_revision IS NULL THEN 'AwaitsCommit'
        WHEN {is_current("u", "d")} THEN 'Routed' ELSE 'NotCurrent' END) AS s(state)
    ON CONFLICT DO NOTHING
    RETURNING producer, dataset_uuid, dataset_version, unit, revision, state,
              routed_seq, event_id, org_id, cursor, partition_key, range_start, range_end, effective_revision,
              invalidates, traceparent, revision_kind, invalidation_id, first_position"""  # noqa: S608

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
        WHEN {is_current("u", "d")} THEN 'Routed' ELSE 'NotCurrent' END) AS s(state)
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
        WHEN {is_current("u", "d")} THEN 'Routed' ELSE 'NotCurrent' END) AS s(state)
    WHERE e.state = 'AwaitsCommit' AND e.producer = u.producer AND e.attempt = u.attempt
      AND e.dataset_uuid = u.dataset_uuid
      AND e.dataset_version = u.dataset_version AND (u.unit IN ('*', e.unit) OR e.unit = u.cursor_unit)
    RETURNING {_ROUTED}"""  # noqa: S608


async def apply_events(connection: Connection, events: Sequence[NewEvent], applied: WriteResult) -> None:
    async for part in in_slices(events):
        await _insert_events(connection, part, applied)
    repeated = [event for event in events if event.key not in applied.events]
    if repeated:
        rows = [
            (*item.key, item.attempt, item.commit_revision, item.effective_revision, item.effective_kind, item.outdated)
            for item in repeated
        ]
        adopted = await connection.fetch(_ADOPT_EVENTS, *columns(rows))
        applied.routed += [RoutedEvent(*row) for row in adopted if row["routed_seq"] is not None]
        existing_rows = await connection.fetch(_FIND_EVENTS, *columns(item.key for item in repeated))
        for row in existing_rows:
            applied.events[tuple(row)[:5]] = EventReceipt(duplicate=True, routed=row["state"] == "Routed")


async def _insert_events(connection: Connection, events: Sequence[NewEvent], applied: WriteResult) -> None:
    new = [
        (*item.key, item.org_id, item.attempt, item.event.cursor, item.event.partition_key, item.event.start,
         item.event.end, _json_or_none(item.event.invalidates), item.commit_revision, item.waits,
         item.effective_revision, item.traceparent, item.effective_kind, item.outdated, item.event.first)
        for item in events
    ]  # fmt: skip
    for row in await connection.fetch(_INSERT_EVENTS, *columns(new)):
        key = tuple(row)[:5]
        applied.events[key] = EventReceipt(duplicate=False, routed=row["state"] == "Routed")
        if row["traceparent"] is not None:
            applied.traced[row["traceparent"]] = (row["event_id"], row["state"])
        if row["state"] == "Routed":
            applied.routed.append(RoutedEvent(*(row[name] for name in _ROUTED_NAMES)))


def _json_or_none(value: msgspec.Struct | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


async def release_events(connection: Connection, publications: Sequence[Publication], applied: WriteResult) -> None:
    """Routes the events that waited for the commit of these units."""
    units = [
        (str(item.task_id), item.dataset_uuid, item.dataset_version, item.unit, item.revision, item.attempt,
         item.cursor_unit, item.revision_kind)
        for item in publications
    ]  # fmt: skip
    rows = await connection.fetch(_RELEASE_EVENTS, *columns(units))
    applied.routed += [RoutedEvent(*row) for row in rows if row["routed_seq"] is not None]
