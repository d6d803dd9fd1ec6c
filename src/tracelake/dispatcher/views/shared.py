"""Pieces that several views show: JSON columns, inputs with names, edges."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.public_ids import OrgIds
from tracelake.dispatcher.views.paging import CAP
from tracelake.wire.datasets import EventRow
from tracelake.wire.jobs import EdgeRow
from tracelake.wire.units import PayloadInput, TaskInput, Unit

T = TypeVar("T", bound=msgspec.Struct)

_INPUTS = msgspec.json.Decoder(list[TaskInput])
_UNIT = msgspec.json.Decoder(Unit)

_NAMES = "SELECT dataset_uuid, name FROM datasets WHERE org_id = $1 AND dataset_uuid = ANY($2)"

# An edge that is behind has a position; what comes after it on its generation waits. Counted no further than the cap.
EDGE_COLUMNS = f"""
    e.input_index, d.name AS dataset, e.dataset_version, e.filter, e.phase, e.routed, e.position, e.failed_units,
    CASE WHEN e.position IS NULL THEN 0 ELSE (
        SELECT count(*) FROM (
            SELECT FROM events v
            WHERE v.dataset_uuid = e.dataset_uuid AND v.dataset_version = e.dataset_version
              AND v.routed_seq > e.position
            LIMIT {CAP}) waiting) END AS backlog"""  # noqa: S608 - constants only

# A worker is heard of at least three times in a lease. Where the lease is the whole of the attempt's time nobody has
# to say anything, so nothing can be told. Of `tasks t` and its `jobs j`.
SILENT = """(t.status = 'Running' AND j.lease_seconds IS DISTINCT FROM j.timeout_seconds
    AND t.lease_expires_at < trace_now() + make_interval(secs => j.lease_seconds / 2.0))"""

HEARD_AT = "t.lease_expires_at - make_interval(secs => j.lease_seconds)"

EVENT_COLUMNS = """
    v.event_id, v.dataset_version, v.cursor, v.partition_key,
    coalesce(nullif(v.effective_revision, ''), v.revision) AS revision, v.state, v.producer, v.attempt, v.invalidates,
    v.created_at"""


def to_struct(kind: type[T], row: asyncpg.Record, **computed: object) -> T:
    """A struct from the columns that have the names of its fields; `computed` holds what is no column as it is."""
    return msgspec.convert({**row, **computed}, kind)


def from_json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def to_unit(text: str | None) -> Unit | None:
    return None if text is None else _UNIT.decode(text)


def to_edge(row: asyncpg.Record) -> EdgeRow:
    return EdgeRow(
        input_index=row["input_index"],
        dataset=row["dataset"],
        dataset_version=row["dataset_version"],
        where=from_json(row["filter"]),
        phase=row["phase"],
        state=(
            "parked"
            if row["phase"] == "Parked"
            else "held"
            if row["failed_units"]
            else "live"
            if row["position"] is None
            else "draining"
        ),
        routed_cursor=None if row["routed"] < 0 else row["routed"],
        backlog=row["backlog"],
        failed_units=row["failed_units"],
    )


def to_event(row: asyncpg.Record, dataset: str, ids: OrgIds) -> EventRow:
    return EventRow(
        event_id=ids.events.seal(row["event_id"]),
        dataset=dataset,
        dataset_version=row["dataset_version"],
        cursor=row["cursor"],
        partition_key=row["partition_key"],
        revision=row["revision"],
        state=row["state"],
        producer=row["producer"],
        attempt=row["attempt"],
        invalidates=from_json(row["invalidates"]),
        created_at=row["created_at"],
    )


async def read_inputs(
    connection: Connection, org_id: UUID, texts: Mapping[UUID, str]
) -> dict[UUID, list[PayloadInput]]:
    """The inputs of tasks, each with the registered name of its dataset."""
    inputs = {task_id: _INPUTS.decode(text) for task_id, text in texts.items()}
    dataset_uuids = {item.dataset_uuid for items in inputs.values() for item in items}
    names = await dataset_names(connection, org_id, dataset_uuids)
    return {
        task_id: [
            PayloadInput(
                input_index=item.input_index,
                dataset_uuid=item.dataset_uuid,
                dataset_version=item.dataset_version,
                name=names.get(item.dataset_uuid, ""),
                unit=item.unit,
                revision=item.revision,
                where=item.where,
            )
            for item in items
        ]
        for task_id, items in inputs.items()
    }


async def dataset_names(connection: Connection, org_id: UUID, dataset_uuids: Iterable[UUID]) -> dict[UUID, str]:
    rows = await connection.fetch(_NAMES, org_id, list(dataset_uuids))
    return {row["dataset_uuid"]: row["name"] for row in rows}
