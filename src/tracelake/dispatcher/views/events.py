"""Events: the newest of an org, those behind one, and given ones.

Whoever follows events asks for those `after` one, oldest first, and misses none: an answer holds only events up to a
number below which nothing can appear any more. Ids are shown as the org sees them (`public_ids`). An event that is a
commit of a buffered dataset has the batches that came with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg
from msgspec.structs import replace

from tracelake.db.transaction import Connection
from tracelake.dispatcher.public_ids import OrgIds
from tracelake.dispatcher.views import paging
from tracelake.dispatcher.views.commits import is_commit, read_commits
from tracelake.dispatcher.views.settled import last_event_id
from tracelake.dispatcher.views.shared import EVENT_COLUMNS, to_event
from tracelake.errors import TraceError
from tracelake.wire.base import MAX_CURSOR
from tracelake.wire.datasets import EventKey, EventRow, EventsPage

_DATASETS = """
    SELECT dataset_uuid, name FROM datasets
    WHERE org_id = $1 AND ($2::text IS NULL OR name = $2) AND ($3::text[] IS NULL OR dag_name = ANY($3))
      AND removed_at IS NULL"""

_NEWEST = """
    SELECT d.dataset_uuid, v.event_id, v.fits FROM unnest($1::uuid[]) AS d(dataset_uuid) CROSS JOIN LATERAL (
        SELECT event_id, $4::text IS NULL OR state = $4 AS fits FROM events
        WHERE dataset_uuid = d.dataset_uuid AND event_id < $2 ORDER BY event_id DESC LIMIT $3) v"""

_FOLLOWING = """
    SELECT d.dataset_uuid, v.event_id, v.fits FROM unnest($1::uuid[]) AS d(dataset_uuid) CROSS JOIN LATERAL (
        SELECT event_id, $4::text IS NULL OR state = $4 AS fits FROM events
        WHERE dataset_uuid = d.dataset_uuid AND event_id > $2 AND event_id <= $5 ORDER BY event_id LIMIT $3) v"""

_GIVEN = f"""
    SELECT d.dataset_uuid, d.name, {EVENT_COLUMNS}
    FROM unnest($2::text[], $3::bigint[]) AS k(name, event_id)
    JOIN datasets d ON d.org_id = $1 AND d.name = k.name AND d.removed_at IS NULL
    CROSS JOIN LATERAL (
        SELECT * FROM events e WHERE e.dataset_uuid = d.dataset_uuid AND e.event_id = k.event_id) v
    ORDER BY v.event_id"""  # noqa: S608 - constants only

_ROWS = f"""
    SELECT v.dataset_uuid, {EVENT_COLUMNS}
    FROM unnest($1::uuid[], $2::bigint[]) AS k(dataset_uuid, event_id) JOIN events v USING (dataset_uuid, event_id)
    ORDER BY v.event_id DESC"""  # noqa: S608 - constants only

_NEWEST_SETTLED = """
    SELECT max(v.event_id) FROM unnest($1::uuid[]) AS d(dataset_uuid) CROSS JOIN LATERAL (
        SELECT event_id FROM events
        WHERE dataset_uuid = d.dataset_uuid AND event_id <= $2 ORDER BY event_id DESC LIMIT 1) v"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    dataset: str | None = None
    state: str | None = None
    limit: int = 50
    cursor: int | None = None
    after: int | None = None
    dags: Sequence[str] | None = None
    """Only events of datasets of these; None: of all."""


async def list_events(connection: Connection, org_id: UUID, ids: OrgIds, filters: EventFilter) -> EventsPage:
    """Lists events, the newest first."""
    names = await _names(connection, org_id, filters)
    share = paging.per_source(filters.limit, len(names), filtered=filters.state is not None)
    below = MAX_CURSOR if filters.cursor is None else ids.events.open(filters.cursor)
    rows = await connection.fetch(_NEWEST, list(names), below, share, filters.state)
    page = paging.merge(((row["dataset_uuid"], row["event_id"], row["fits"]) for row in rows), filters.limit, share)
    of = {row["event_id"]: row["dataset_uuid"] for row in rows}
    rows_by_key = await connection.fetch(_ROWS, [of[key] for key in page.keys], page.keys)
    return EventsPage(
        events=await _events(connection, org_id, ids, rows_by_key, names),
        next=None if page.next is None else str(ids.events.seal(page.next)),
    )


async def look_up(connection: Connection, org_id: UUID, ids: OrgIds, keys: Sequence[EventKey]) -> EventsPage:
    """Reads these events as they are now, oldest first; leaves out those that do not exist."""
    numbers = [ids.events.open(key.event_id) for key in keys]
    rows = await connection.fetch(_GIVEN, org_id, [key.dataset for key in keys], numbers)
    names = {row["dataset_uuid"]: row["name"] for row in rows}
    return EventsPage(events=await _events(connection, org_id, ids, rows, names))


async def list_following(
    connection: Connection, org_id: UUID, ids: OrgIds, filters: EventFilter, horizon: int, serving_since: datetime
) -> EventsPage:
    """Lists the events behind `after`, oldest first. `horizon` was reached before anything is read here.

    It moves with the events of all orgs, so it is not told: where to go on from is the newest of these very events.
    """
    assert filters.after is not None
    if filters.cursor is not None:
        raise TraceError(
            "body_invalid", "Expected either after or cursor, received both: pass `next` as after.", field="cursor"
        )
    names = await _names(connection, org_id, filters)
    position = ids.events.open(filters.after)
    if horizon < position < MAX_CURSOR and position > await last_event_id(connection):
        raise TraceError(
            "body_invalid",
            "Expected the id of an event of this org: pass `next` or `settled` of the previous page, or 0 to start "
            "with the first event.",
            field="after",
        )
    share = paging.per_source(filters.limit, len(names), filtered=filters.state is not None)
    rows = await connection.fetch(_FOLLOWING, list(names), position, share, filters.state, horizon)
    # Oldest first is newest first with the signs turned.
    page = paging.merge(((row["dataset_uuid"], -row["event_id"], row["fits"]) for row in rows), filters.limit, share)
    of = {row["event_id"]: row["dataset_uuid"] for row in rows}
    rows_by_key = await connection.fetch(_ROWS, [of[-key] for key in page.keys], [-key for key in page.keys])
    newest: int = await connection.fetchval(_NEWEST_SETTLED, list(names), horizon) or 0
    return EventsPage(
        events=await _events(connection, org_id, ids, list(reversed(rows_by_key)), names),
        next=None if page.next is None else str(ids.events.seal(-page.next)),
        settled=ids.events.seal(newest if position == MAX_CURSOR else max(position, newest)),
        serving_since=serving_since,
    )


async def _events(
    connection: Connection, org_id: UUID, ids: OrgIds, rows: Sequence[asyncpg.Record], names: Mapping[UUID, str]
) -> list[EventRow]:
    events = [to_event(row, names[row["dataset_uuid"]], ids) for row in rows]
    keys = [(row["dataset_uuid"], row["cursor"]) for row in rows]
    commit_keys = [key for key, row in zip(keys, rows, strict=True) if is_commit(row["producer"], row["cursor"])]
    commits = await read_commits(connection, org_id, commit_keys)
    pairs = [(event, commits.get(key)) for key, event in zip(keys, events, strict=True)]
    return [
        event if commit is None else replace(event, batches=commit.first, batch_count=commit.count)
        for event, commit in pairs
    ]


async def _names(connection: Connection, org_id: UUID, filters: EventFilter) -> dict[UUID, str]:
    rows = await connection.fetch(_DATASETS, org_id, filters.dataset, filters.dags)
    names = {row["dataset_uuid"]: row["name"] for row in rows}
    if filters.dataset is not None and not names:
        raise TraceError("dataset_not_found")
    return names
