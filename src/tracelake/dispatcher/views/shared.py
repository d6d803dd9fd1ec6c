"""Pieces that several views show: JSON columns, inputs with names, edges."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
from msgspec.structs import replace

from tracelake.db.transaction import Connection
from tracelake.dispatcher.payload import name_input
from tracelake.dispatcher.public_ids import OrgIds
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.views.paging import CAP
from tracelake.dispatcher.views.words import window_words
from tracelake.wire.datasets import EventRow
from tracelake.wire.jobs import EdgeRow
from tracelake.wire.units import PayloadInput, TaskInput, Unit

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

REPORTED_ROWS = """(
        SELECT (o ->> 'row_count')::bigint AS rows
        FROM json_array_elements(CASE json_typeof(t.result) WHEN 'array' THEN t.result ELSE '[]' END) o
        WHERE o ->> 'dataset_uuid' = $1::text LIMIT 1)"""
"""How many rows a task `t` has reported of its output with the dataset `$1`."""

# A worker is heard of at least three times in a lease. Where the lease is the whole of the attempt's time nobody has
# to say anything, so nothing can be told. Of `tasks t` and its `jobs j`.
SILENT = """(t.status = 'Running' AND j.lease_seconds IS DISTINCT FROM j.timeout_seconds
    AND t.lease_expires_at < trace_now() + make_interval(secs => j.lease_seconds / 2.0))"""

HEARD_AT = "t.lease_expires_at - make_interval(secs => j.lease_seconds)"

EVENT_COLUMNS = """
    v.event_id, v.dataset_version, v.cursor, v.partition_key,
    coalesce(nullif(v.effective_revision, ''), v.revision) AS revision, v.state, v.producer, v.attempt, v.invalidates,
    v.created_at, v.range_start, v.range_end,
    (SELECT g.units FROM dataset_versions g
     WHERE g.dataset_uuid = v.dataset_uuid AND g.dataset_version = v.dataset_version) AS units"""

# The grid of the unit of a task, as `dataset_versions.units` has it. Of `tasks t`.
TASK_GRID = """(
    SELECT g.units FROM job_outputs o JOIN dataset_versions g USING (dataset_uuid, dataset_version)
    WHERE o.job_id = t.job_id ORDER BY o.output_index LIMIT 1)"""


def from_json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def to_unit(text: str | None) -> Unit | None:
    return None if text is None else _UNIT.decode(text)


def to_window(row: asyncpg.Record) -> str | None:
    """The date of the unit of a task, from `unit_start`, `unit_end` and the grid as `units`."""
    return window_words(row["units"], row["unit_start"], row["unit_end"])


def to_edge(row: asyncpg.Record) -> EdgeRow:
    if row["phase"] == "Parked":
        state = "parked"
    elif row["failed_units"]:
        state = "held"
    else:
        state = "live" if row["position"] is None else "draining"
    routed = None if row["routed"] < 0 else row["routed"]
    return to_struct(EdgeRow, row, where=from_json(row["filter"]), state=state, routed_cursor=routed)


def to_event(row: asyncpg.Record, dataset: str, ids: OrgIds) -> EventRow:
    event_id, invalidates = ids.events.seal(row["event_id"]), from_json(row["invalidates"])
    window = window_words(row["units"], row["range_start"], row["range_end"])
    return to_struct(EventRow, row, event_id=event_id, dataset=dataset, invalidates=invalidates, window=window)


async def read_inputs(
    connection: Connection, org_id: UUID, tasks: Sequence[asyncpg.Record]
) -> dict[UUID, list[PayloadInput]]:
    """The inputs of tasks, each with the registered name of its dataset.

    `tasks` have `task_id`, `inputs`, and as `units` their grid."""
    grids = {row["task_id"]: row["units"] for row in tasks}
    inputs = {row["task_id"]: _INPUTS.decode(row["inputs"]) for row in tasks}
    dataset_uuids = {item.dataset_uuid for items in inputs.values() for item in items}
    rows = await connection.fetch(_NAMES, org_id, list(dataset_uuids))
    names = {row["dataset_uuid"]: row["name"] for row in rows}
    return {
        task_id: [
            replace(
                name_input(item, names.get(item.dataset_uuid, "")),
                window=window_words(grids[task_id], item.unit.start, item.unit.end),
            )
            for item in items
        ]
        for task_id, items in inputs.items()
    }
