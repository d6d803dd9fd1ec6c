"""Units that people gave up, by `trace skip` or `trace cancel`: the gaps of a dataset that nothing will fill.

A unit that another task has completed, or still may complete, is not given up.
"""

from typing import NamedTuple
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import is_run
from tracelake.dispatcher.views.paging import CAP
from tracelake.dispatcher.views.words import unit_words
from tracelake.model.dag import UnitGrid
from tracelake.model.windows import Window, describe_window, window_at
from tracelake.wire.datasets import GivenUpUnit

MOST_SHOWN = 20

IS_GIVEN_UP = f"""
    t.unit_key IS NOT NULL AND NOT ({is_run("t")})
    AND (t.skipped_at IS NOT NULL OR t.status = 'Canceled')
    AND (t.status = 'Canceled' OR (t.status = 'Failed' AND t.next_retry_at IS NULL))
    AND NOT EXISTS (
        SELECT FROM tasks c
        WHERE c.node_id = t.node_id AND c.edge = t.edge AND c.unit_end IS NOT DISTINCT FROM t.unit_end
          AND c.unit_key = t.unit_key AND (c.status IN ('Completed', 'Queued', 'Running')
              OR (c.status = 'Failed' AND (c.next_retry_at IS NOT NULL OR c.skipped_at IS NULL))))"""  # noqa: S608 - constants only
"""Of a task `t`: its unit was given up, and no other task of the unit was or will be completed. The run of a source is
no unit; a version that changes the source cancels it."""

MOST_LOOKED_AT = 1_000


def count_given_up(node_id: str) -> str:
    """A subquery that counts the given-up units of a node, for lists: it looks at no more than 1,000 tasks that were
    skipped or canceled, the first by position. `node_id` is the column that names the node."""
    return f"""(
        SELECT count(*) FROM (
            SELECT t.node_id, t.edge, t.unit_end, t.unit_key, t.skipped_at, t.status, t.next_retry_at FROM tasks t
            WHERE t.node_id = {node_id} AND t.unit_key IS NOT NULL
              AND (t.skipped_at IS NOT NULL OR t.status = 'Canceled')
            ORDER BY t.unit_start LIMIT {MOST_LOOKED_AT}) t
        WHERE {IS_GIVEN_UP})"""  # noqa: S608 - constants only


# Inputs whose units become units of the output are followed upstream; others are looked things up in.
_GIVEN_UP = f"""
    WITH RECURSIVE made_by AS (
        SELECT j.node_id FROM job_outputs o JOIN jobs j USING (job_id)
        WHERE o.dataset_uuid = $1 AND o.dataset_version = $2 AND j.node_id IS NOT NULL
        UNION
        SELECT j.node_id FROM made_by m JOIN edges e ON e.node_id = m.node_id AND e.phase <> 'Parked'
        JOIN jobs r ON r.job_id = e.job_id
        JOIN job_outputs o ON o.dataset_uuid = e.dataset_uuid AND o.dataset_version = e.dataset_version
        JOIN jobs j ON j.job_id = o.job_id
        WHERE j.node_id IS NOT NULL
          AND coalesce(r.document->'inputs'->e.input_index->>'read', 'unit') IN ('unit', 'window', 'history')),
    units AS (
        SELECT n.dag_name || '/' || n.job_name AS job, t.task_id, t.unit_key, t.unit_start, t.unit_end, t.status,
               coalesce(t.skipped_at, t.finished_at) AS at, g.units
        FROM made_by m JOIN nodes n USING (node_id) JOIN tasks t USING (node_id)
        LEFT JOIN LATERAL (
            SELECT v.units FROM job_outputs o JOIN dataset_versions v USING (dataset_uuid, dataset_version)
            WHERE o.job_id = t.job_id ORDER BY o.output_index LIMIT 1) g ON true
        WHERE {IS_GIVEN_UP} LIMIT {CAP})
    SELECT *, count(*) OVER () AS number FROM units ORDER BY unit_start, job LIMIT $3"""  # noqa: S608 - constants only

_GRID = msgspec.json.Decoder(UnitGrid | None)


class GivenUpUnits(NamedTuple):
    first: list[GivenUpUnit]
    number: int
    """Of all, counted up to 10,000."""


async def load_given_up(connection: Connection, generation: tuple[UUID, UUID]) -> GivenUpUnits:
    """Units of the generation, or of what it is made from, that were given up."""
    rows = await connection.fetch(_GIVEN_UP, *generation, MOST_SHOWN)
    units = [
        GivenUpUnit(
            job=row["job"],
            unit=unit_text(row["unit_key"], row["unit_start"], row["unit_end"], read_grid(row["units"])),
            start=row["unit_start"],
            end=row["unit_end"],
            task_id=row["task_id"],
            state="canceled" if row["status"] == "Canceled" else "skipped",
            at=row["at"],
        )
        for row in rows
    ]
    return GivenUpUnits(units, rows[0]["number"] if rows else 0)


def read_grid(text: str | None) -> UnitGrid | None:
    """The grid that the units of a generation are on; None if no job chose one."""
    grid: UnitGrid | None = _GRID.decode(text or "null")
    return grid


def unit_text(key: str, start: int | None, end: int | None, grid: UnitGrid | None) -> str:
    """The unit as people write it."""
    if start is None or end is None or grid is None or grid.by == "blocks":
        return unit_words(key)
    return describe_window(grid, Window(start, end))


def range_text(start: int, end: int, grid: UnitGrid | None) -> str:
    """A range of whole units: `700-2099`, or for windows of time `2026-03-03` or `2026-03-03 to 2026-03-05`."""
    if grid is None or grid.by == "blocks":
        return f"{start}-{end}"
    first, last = (describe_window(grid, window_at(grid, position)) for position in (start, end))
    return first if first == last else f"{first} to {last}"
