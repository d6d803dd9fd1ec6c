"""Events: the newest of an org."""

from dataclasses import dataclass
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.views import paging
from tracelake.dispatcher.views.shared import EVENT_COLUMNS, to_event
from tracelake.errors import TraceError
from tracelake.wire.user import EventsPage

_DATASETS = "SELECT dataset_uuid, name FROM datasets WHERE org_id = $1 AND ($2::text IS NULL OR name = $2)"

_NEWEST = """
    SELECT d.dataset_uuid, v.event_id, v.fits FROM unnest($1::uuid[]) AS d(dataset_uuid) CROSS JOIN LATERAL (
        SELECT event_id, $4::text IS NULL OR state = $4 AS fits FROM events
        WHERE dataset_uuid = d.dataset_uuid AND event_id < $2 ORDER BY event_id DESC LIMIT $3) v"""

_ROWS = f"""
    SELECT v.dataset_uuid, {EVENT_COLUMNS}
    FROM unnest($1::uuid[], $2::bigint[]) AS k(dataset_uuid, event_id) JOIN events v USING (dataset_uuid, event_id)
    ORDER BY v.event_id DESC"""  # noqa: S608 - constants only

_MOST = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    dataset: str | None = None
    state: str | None = None
    limit: int = 50
    cursor: int | None = None


async def list_events(connection: Connection, org_id: UUID, wanted: EventFilter) -> EventsPage:
    names = {row["dataset_uuid"]: row["name"] for row in await connection.fetch(_DATASETS, org_id, wanted.dataset)}
    if wanted.dataset is not None and not names:
        raise TraceError("dataset_not_found")
    taken = paging.per_source(wanted.limit, len(names), filtered=wanted.state is not None)
    below = _MOST if wanted.cursor is None else wanted.cursor
    rows = await connection.fetch(_NEWEST, list(names), below, taken, wanted.state)
    page = paging.merge(((row["dataset_uuid"], row["event_id"], row["fits"]) for row in rows), wanted.limit, taken)
    of = {row["event_id"]: row["dataset_uuid"] for row in rows}
    found = await connection.fetch(_ROWS, [of[key] for key in page.keys], page.keys)
    return EventsPage(
        events=[to_event(row, names[row["dataset_uuid"]]) for row in found],
        next=None if page.next is None else str(page.next),
    )
