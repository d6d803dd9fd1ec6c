"""Lineage: which task made each unit of a dataset's current generation, from what; and the jobs around the dataset.

Committed files have a pointer per unit, in order of blocks. Everything else has its events, newest first; one that a
newer revision of its unit replaced is left out. Those of a buffered dataset are commits: each has the batches that came
with it, and each batch its task. A page of events looks at a bounded number of them, so a filter may
leave it short, or empty, with a `next`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.public_ids import OrgIds
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.views.commits import CommitBatches, read_commits
from tracelake.dispatcher.views.paging import LOOKED_AT
from tracelake.dispatcher.views.reads import find_datasets_with_files, read_ranges
from tracelake.dispatcher.views.shared import TASK_GRID, read_inputs
from tracelake.dispatcher.views.words import decode_grid, window_words
from tracelake.errors import TraceError
from tracelake.model.windows import parse_range
from tracelake.wire.datasets import InputRead, LineageEdge, LineageReply, LineageUnit, ReadRange
from tracelake.wire.units import CursorRange, PayloadInput, Unit

MAX_DEPTH = 50
_MOST = 2**63 - 1
_SECONDS = re.compile(r"\d+-\d+")

_DATASET = """
    SELECT d.dataset_uuid, d.storage, d.current_version, v.units
    FROM datasets d
    LEFT JOIN dataset_versions v ON v.dataset_uuid = d.dataset_uuid AND v.dataset_version = d.current_version
    WHERE d.org_id = $1 AND d.name = $2 AND d.removed_at IS NULL"""

_UNITS = """
    SELECT u.unit, u.range_start, u.range_end, u.revision::text AS revision, m.created_at AS at,
           m.task_id::text AS producer, m.task_id, m.attempt, json_array_length(m.objects) AS files
    FROM dataset_units u JOIN manifests m USING (manifest_id)
    WHERE u.dataset_uuid = $1 AND u.dataset_version = $2"""

# Units never overlap, so the first that a range can touch is the last that starts at or before it.
_COMMITTED = f"""
    {_UNITS} AND u.range_start > $3
      AND u.range_start >= coalesce((
            SELECT max(f.range_start) FROM dataset_units f
            WHERE f.dataset_uuid = $1 AND f.dataset_version = $2 AND f.range_start <= $4), $4)
      AND u.range_start <= $5 AND u.range_end >= $4
    ORDER BY u.range_start LIMIT $6"""  # noqa: S608 - constants only

_COMMITTED_UNIT = f"{_UNITS} AND u.unit = ANY($3)"

_ANNOUNCED = f"""
    SELECT v.* FROM (
        SELECT v.unit, v.cursor, v.partition_key, v.range_start, v.range_end, v.effective_revision AS revision,
               v.created_at AS at, v.producer, v.attempt, v.routed_seq
        FROM events v
        WHERE v.dataset_uuid = $1 AND v.dataset_version = $2 AND v.routed_seq < $3
        ORDER BY v.routed_seq DESC LIMIT {LOOKED_AT}) v
    WHERE ($4::text[] IS NULL OR v.unit = ANY($4))
      AND coalesce(v.range_end, v.cursor, $5) >= $5 AND coalesce(v.range_start, v.cursor, $6) <= $6
      AND ($7 OR v.cursor IS NOT NULL OR v.range_start IS NOT NULL)
      AND NOT EXISTS (
            SELECT FROM unit_revisions r
            WHERE r.dataset_uuid = $1 AND r.dataset_version = $2 AND r.unit = v.unit
              AND r.revision <> v.revision)
    ORDER BY v.routed_seq DESC LIMIT $8"""  # noqa: S608 - constants only

_LAST_LOOKED_AT = f"""
    SELECT routed_seq FROM events
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND routed_seq < $3
    ORDER BY routed_seq DESC OFFSET {LOOKED_AT - 1} LIMIT 1"""  # noqa: S608 - constants only

# A producer is a task only if an attempt said it: a person may call a trigger by any name.
_TASKS = f"""
    SELECT t.task_id, t.attempt, j.dag_name, j.name, t.inputs, t.read_as_of, {TASK_GRID} AS units
    FROM tasks t JOIN jobs j USING (job_id)
    WHERE t.task_id = ANY($1) AND t.org_id = $2"""  # noqa: S608 - constants only

# Which dataset becomes which, by which job, in active versions.
_WIRING = f"""
    WITH RECURSIVE wiring AS MATERIALIZED (
        SELECT DISTINCT e.dataset_uuid AS source, j.dag_name, j.name AS job, o.dataset_uuid AS target
        FROM dags d JOIN dag_version_jobs v ON v.dag_version_id = d.active_version JOIN jobs j USING (job_id)
        LEFT JOIN edges e ON e.node_id = j.node_id LEFT JOIN job_outputs o ON o.job_id = j.job_id
        WHERE d.org_id = $1),
    up AS (
        SELECT $2::uuid AS dataset_uuid, 0 AS depth
        UNION SELECT w.source, up.depth + 1 FROM up JOIN wiring w ON w.target = up.dataset_uuid
        WHERE up.depth < {MAX_DEPTH} AND w.source IS NOT NULL),
    down AS (
        SELECT $2::uuid AS dataset_uuid, 0 AS depth
        UNION SELECT w.target, down.depth + 1 FROM down JOIN wiring w ON w.source = down.dataset_uuid
        WHERE down.depth < {MAX_DEPTH} AND w.target IS NOT NULL),
    found AS (
        SELECT true AS upstream, w.*, up.depth FROM up JOIN wiring w ON w.target = up.dataset_uuid
        UNION ALL
        SELECT false, w.*, down.depth FROM down JOIN wiring w ON w.source = down.dataset_uuid)
    SELECT f.upstream, s.name AS from_dataset, f.dag_name AS dag, f.job, t.name AS to_dataset
    FROM (SELECT upstream, source, dag_name, job, target, min(depth) AS depth FROM found
          WHERE depth < {MAX_DEPTH} GROUP BY upstream, source, dag_name, job, target) f
    LEFT JOIN datasets s ON s.dataset_uuid = f.source LEFT JOIN datasets t ON t.dataset_uuid = f.target
    ORDER BY f.depth, f.dag_name, f.job, s.name NULLS FIRST, t.name NULLS FIRST"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFilter:
    start: int | None = None
    end: int | None = None
    unit: str | None = None
    limit: int = 50
    cursor: int | None = None

    def __post_init__(self) -> None:
        if self.unit is not None and (self.start, self.end) != (None, None):
            raise TraceError("body_invalid", "Give a unit, or start and end, not both.", field="unit")
        if self.start is not None and self.end is not None and self.start > self.end:
            raise TraceError("body_invalid", "A range needs start <= end.", field="start")

    @property
    def blocks(self) -> tuple[int, int]:
        return self.start or 0, _MOST if self.end is None else self.end

    @property
    def everything(self) -> bool:
        """Whether units without blocks are shown too."""
        return self.start is None and self.end is None

    @property
    def spellings(self) -> list[str] | None:
        return None if self.unit is None else [f"c:{self.unit}", f"p:{self.unit}", self.unit]


async def dataset_lineage(
    connection: Connection, org_id: UUID, ids: OrgIds, name: str, filters: UnitFilter
) -> LineageReply:
    dataset = await connection.fetchrow(_DATASET, org_id, name)
    if dataset is None:
        raise TraceError("dataset_not_found")
    uuid, version, units = dataset["dataset_uuid"], dataset["current_version"], dataset["units"]
    filters = _with_dates(filters, units)
    if dataset["storage"] == "s3":
        rows, following = await _committed(connection, uuid, version, filters)
    else:
        rows, following = await _announced(connection, uuid, version, ids, filters)
    makers = await _makers(connection, org_id, rows)
    numbers = [row["cursor"] for row in rows if row["cursor"] is not None] if dataset["storage"] == "buffered" else []
    commits = await read_commits(connection, org_id, [(uuid, number) for number in numbers])
    wiring = await connection.fetch(_WIRING, org_id, uuid)
    return LineageReply(
        dataset=name,
        dataset_version=version,
        upstream=[to_struct(LineageEdge, row) for row in wiring if row["upstream"]],
        downstream=[to_struct(LineageEdge, row) for row in wiring if not row["upstream"]],
        units=[_unit(row, version, units, makers, commits.get((uuid, row.get("cursor")))) for row in rows],
        next=None if following is None else str(following),
    )


def _with_dates(filters: UnitFilter, units: str | None) -> UnitFilter:
    """The filter with the seconds of the windows of time that it names."""
    grid = decode_grid(units)
    if filters.unit is None or grid is None or grid.by != "time":
        return filters
    try:
        window = parse_range(grid, filters.unit)
    except ValueError as error:
        if _SECONDS.fullmatch(filters.unit):
            return filters
        raise TraceError("body_invalid", f"The unit: {error}.", field="unit") from None
    return replace(filters, unit=None, start=window.start, end=window.end)


async def _committed(
    connection: Connection, uuid: UUID, version: UUID, filters: UnitFilter
) -> tuple[list[asyncpg.Record], int | None]:
    if filters.spellings is not None:
        return await connection.fetch(_COMMITTED_UNIT, uuid, version, filters.spellings), None
    after = -1 if filters.cursor is None else filters.cursor
    rows = await connection.fetch(_COMMITTED, uuid, version, after, *filters.blocks, filters.limit + 1)
    if not rows and filters.everything and filters.cursor is None:
        # A generation that was published as a whole has that one unit and no other.
        return await connection.fetch(_COMMITTED_UNIT, uuid, version, ["*"]), None
    more = len(rows) > filters.limit
    return rows[: filters.limit], rows[filters.limit - 1]["range_start"] if more else None


async def _announced(
    connection: Connection, uuid: UUID, version: UUID, ids: OrgIds, filters: UnitFilter
) -> tuple[list[asyncpg.Record], int | None]:
    below = _MOST if filters.cursor is None else ids.routing.open(filters.cursor)
    bounds = (filters.spellings, *filters.blocks, filters.everything, filters.limit + 1)
    rows = await connection.fetch(_ANNOUNCED, uuid, version, below, *bounds)
    more = len(rows) > filters.limit
    following = rows[filters.limit - 1]["routed_seq"] if more else None
    if not more:
        following = await connection.fetchval(_LAST_LOOKED_AT, uuid, version, below)
    # The same revision, announced by several producers, is one unit.
    distinct = {row["unit"]: row for row in reversed(rows[: filters.limit])}
    return sorted(distinct.values(), key=lambda row: -row["routed_seq"]), following and ids.routing.seal(following)


class Maker(NamedTuple):
    """The task that made a unit."""

    dag: str
    job: str
    attempt: int
    """The attempt that `read` is of: the newest."""
    inputs: list[PayloadInput]
    read: list[ReadRange]
    input_reads: list[InputRead]


async def _makers(connection: Connection, org_id: UUID, rows: Iterable[asyncpg.Record]) -> dict[UUID, Maker]:
    """Reads DAG, job and inputs of each task that the rows name."""
    ids = [task_id for task_id in map(_task_of, rows) if task_id is not None]
    task_rows = await connection.fetch(_TASKS, ids, org_id)
    inputs = await read_inputs(connection, org_id, task_rows)
    with_files = await find_datasets_with_files(connection, [item for items in inputs.values() for item in items])
    makers = {}
    for row in task_rows:
        of_task = inputs[row["task_id"]]
        read, input_reads = await read_ranges(connection, of_task, row["read_as_of"], with_files)
        makers[row["task_id"]] = Maker(row["dag_name"], row["name"], row["attempt"], of_task, read, input_reads)
    return makers


def _task_of(row: asyncpg.Record) -> UUID | None:
    if row["attempt"] is None:
        return None
    try:
        return UUID(row["producer"])
    except ValueError:
        return None


def _unit(
    row: asyncpg.Record,
    version: UUID,
    units: str | None,
    makers: dict[UUID, Maker],
    commit: CommitBatches | None,
) -> LineageUnit:
    task_id = _task_of(row)
    maker = None if task_id is None else makers.get(task_id)
    dag, job, attempt, inputs, read, input_reads = maker or (None, None, None, [], [], [])
    if maker is not None and attempt != row["attempt"]:
        # The record of what an earlier attempt has read was replaced when the next one was claimed.
        read = []
        input_reads = [InputRead(input_index=i.input_index, dataset=i.dataset, read_known=False) for i in input_reads]
    return to_struct(
        LineageUnit,
        row,
        unit=_unit_of(row),
        window=window_words(units, row["range_start"], row["range_end"]),
        dataset_version=version,
        task_id=task_id if maker else None,
        dag=dag,
        job=job,
        inputs=inputs,
        read=read,
        input_reads=input_reads,
        batches=[] if commit is None else commit.first,
        batch_count=None if commit is None else commit.count,
    )


def _unit_of(row: asyncpg.Record) -> Unit:
    cursor = row.get("cursor")
    if cursor is not None:
        return Unit(cursor=CursorRange(after=cursor - 1, to=cursor))
    return Unit(partition_key=row["unit"].removeprefix("p:"), start=row["range_start"], end=row["range_end"])
