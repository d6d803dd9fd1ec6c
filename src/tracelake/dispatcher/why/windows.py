"""Why units that have changed are not computed yet: rows of `pending_units`, by what they wait for."""

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation
from tracelake.dispatcher.engine.routing.upstream_graph import UpstreamGraph, UpstreamGraphs
from tracelake.dispatcher.engine.routing.window_inputs import (
    GAP,
    NO_TIMES,
    NOT_ANNOUNCED,
    NOT_PASSED,
    PREVIOUS_OPEN,
    UNIT_MISSING,
)
from tracelake.dispatcher.views.words import counted, since
from tracelake.dispatcher.why import facts
from tracelake.dispatcher.why.answer import Reason, Step, reason
from tracelake.dispatcher.why.facts import Subject
from tracelake.model.dag import ReadMode, UnitGrid
from tracelake.model.windows import Window, describe_window

_BY_TIME = (ReadMode.WINDOW, ReadMode.HISTORY, ReadMode.LATEST)

# The first unit of each kind of obstacle, and how many there are.
_PENDING = """
    SELECT p.reason, count(*) AS number, min(p.since) AS since, (min(ARRAY[p.unit_start, p.unit_end])) AS first,
           (array_agg(p.waits_for) FILTER (WHERE p.waits_for IS NOT NULL))[1] AS waits_for
    FROM pending_units p WHERE p.node_id = $1 GROUP BY p.reason ORDER BY p.reason"""

_NEWEST = """
    SELECT range_start, range_end, time_max FROM readable_units
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start IS NOT NULL ORDER BY range_start DESC LIMIT 1"""

_HAS_UNITS = "SELECT EXISTS (SELECT FROM readable_units WHERE dataset_uuid = $1 AND dataset_version = $2)"

_TEXTS = {
    GAP: "a unit of an input is missing",
    NO_TIMES: "units of an input have no times, so nobody knows which of their blocks are in it",
    NOT_ANNOUNCED: "an input has no data yet",
    UNIT_MISSING: "an input does not have the unit",
    PREVIOUS_OPEN: "the unit before it is not computed yet",
    "upstream_task": "a task upstream is still computing what it reads",
    "own_task": "a task of the unit runs, and the unit has changed since it began",
}


async def window_reasons(connection: Connection, subject: Subject) -> list[Reason]:
    grid = subject.document.units
    rows = [
        row
        for row in await connection.fetch(_PENDING, subject.node_id)
        # A window that is computed as its inputs grow waits for that only while they have nothing of it: it is not due.
        if row["reason"] != NOT_PASSED or grid is None or grid.when == "complete"
    ]
    reasons = [
        await _empty_input(connection, subject, row) if row["reason"] == NOT_ANNOUNCED else _reason(subject, row)
        for row in rows
    ]
    return reasons if any(row["reason"] == NO_TIMES for row in rows) else reasons + await _untimed(connection, subject)


async def _empty_input(connection: Connection, subject: Subject, row: asyncpg.Record) -> Reason:
    """Tells of windows that wait for an input to begin, and of which."""
    edges = await facts.read_edges(connection, subject.node_id)
    grid = _own_grid(subject, edges, await UpstreamGraphs().of(connection, subject.org_id, 0))
    for edge in edges:
        generation = (edge["dataset_uuid"], edge["dataset_version"])
        read, dataset = subject.document.inputs[edge["input_index"]].read, edge["dataset"]
        has_units = await connection.fetchval(_HAS_UNITS, *generation)
        if not has_units and read not in (ReadMode.UNIT, ReadMode.PREVIOUS):
            refers = [("dataset", dataset)]
            text = f"{_waiting(subject, row, grid)}: its input {dataset} has no data yet."
            return reason("unit_waits", text, ("see why", f"trace why {dataset}"), references=refers)
    return _reason(subject, row)


def _own_grid(subject: Subject, edges: list[asyncpg.Record], graph: UpstreamGraph) -> UnitGrid | None:
    """The grid of the units of a job. Without `units` it has that of an input."""
    if subject.document.units is not None:
        return subject.document.units
    for edge in edges:
        generation: Generation = (edge["dataset_uuid"], edge["dataset_version"])
        if subject.document.inputs[edge["input_index"]].read is ReadMode.UNIT and graph.is_in_seconds(generation):
            return graph.grid_of(generation)
    return None


async def _untimed(connection: Connection, subject: Subject) -> list[Reason]:
    """Tells of an input of windows of time whose newest unit has no times: no window hears of that unit."""
    grid = subject.document.units
    if grid is None or grid.by != "time":
        return []
    graph = await UpstreamGraphs().of(connection, subject.org_id, 0)
    reasons = []
    for edge in await facts.read_edges(connection, subject.node_id):
        generation = (edge["dataset_uuid"], edge["dataset_version"])
        by_time = subject.document.inputs[edge["input_index"]].read in _BY_TIME and not graph.is_in_seconds(generation)
        newest = await connection.fetchrow(_NEWEST, *generation) if by_time else None
        if newest is not None and newest["time_max"] is None and newest["range_end"] > 0:
            unit = f"{newest['range_start']}-{newest['range_end']}"
            text = (
                f"The unit {unit} of {edge['dataset']} has no times, so nobody knows which windows its blocks are in."
            )
            step = ("see the dataset", f"trace datasets {edge['dataset']}")
            reasons.append(reason("unit_without_times", text, step, references=[("dataset", edge["dataset"])]))
    return reasons


def _waiting(subject: Subject, row: asyncpg.Record, grid: UnitGrid | None) -> str:
    others = f", and {counted(row['number'] - 1, 'other')}" if row["number"] > 1 else ""
    have = "has" if row["number"] == 1 else "have"
    return f"The unit {_unit(row, grid)}{others} {have} waited {since(row['since'], subject.now)}"


def _unit(row: asyncpg.Record, grid: UnitGrid | None) -> str:
    first = Window(*row["first"])
    return f"{first.start}-{first.end}" if grid is None else describe_window(grid, first)


def _reason(subject: Subject, row: asyncpg.Record) -> Reason:
    grid = subject.document.units
    if row["reason"] == NOT_PASSED:
        return reason(
            "window_open",
            f"The window {_unit(row, grid)} is not over: its inputs have not passed its end. It is computed then.",
            ("see its inputs", f"trace jobs {subject.dag}"),
        )
    text = f"{_waiting(subject, row, grid)}: {_TEXTS.get(row['reason'], 'it is about to be looked at')}."
    steps: tuple[Step, ...] = (("see its inputs", f"trace jobs {subject.dag}"),)
    references: list[tuple[str, object]] = []
    if row["waits_for"] is not None:
        steps = (("see that task", f"trace tasks {row['waits_for']}"),)
        references = [("task", row["waits_for"])]
    code = "unit_waits" if row["waits_for"] is None else "unit_awaits_task"  # the end of the task brings it along
    if row["reason"] == NO_TIMES:
        code = "unit_without_times"
    return reason(code, text, *steps, references=references)
