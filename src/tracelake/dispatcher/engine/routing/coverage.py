"""Coverage: which units of a generation exist, and in which revision.

Ranges are kept as runs of adjoining units of one size on one grid, so what is stored grows with the gaps, not with the
units. Everything else is kept by its key. Cursors are kept only for generations that a join reads, since nothing else
asks for them.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation
from tracelake.dispatcher.records import columns
from tracelake.model.task import RevisionKind

Grid: TypeAlias = tuple[UUID, UUID, int, int]
"""dataset_uuid, dataset_version, unit_size, unit_offset."""
Span: TypeAlias = tuple[int, int]
_LAST_BLOCK = 2**63 - 1

LOCK_GENERATIONS = """
    SELECT FROM dataset_versions
    WHERE (dataset_uuid, dataset_version) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[]))
    ORDER BY dataset_uuid, dataset_version FOR NO KEY UPDATE"""

# The run that begins at or before the span, and those that begin within it or right behind it: no other touches it.
_NEIGHBOURS = """
    SELECT DISTINCT u.grid, r.range_start, r.range_end
    FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::numeric[], $5::numeric[], $6::bigint[], $7::bigint[])
         AS u(grid, dataset_uuid, dataset_version, unit_size, unit_offset, range_start, next_start)
    CROSS JOIN LATERAL (
        (SELECT d.range_start, d.range_end FROM dataset_runs d
         WHERE d.dataset_uuid = u.dataset_uuid AND d.dataset_version = u.dataset_version
           AND d.unit_size = u.unit_size AND d.unit_offset = u.unit_offset AND d.range_start <= u.range_start
         ORDER BY d.range_start DESC LIMIT 1)
        UNION ALL
        (SELECT d.range_start, d.range_end FROM dataset_runs d
         WHERE d.dataset_uuid = u.dataset_uuid AND d.dataset_version = u.dataset_version
           AND d.unit_size = u.unit_size AND d.unit_offset = u.unit_offset
           AND d.range_start > u.range_start AND d.range_start <= u.next_start)) r"""

_DELETE_RUNS = """
    DELETE FROM dataset_runs d
    USING unnest($1::uuid[], $2::uuid[], $3::numeric[], $4::numeric[], $5::bigint[])
          AS u(dataset_uuid, dataset_version, unit_size, unit_offset, range_start)
    WHERE d.dataset_uuid = u.dataset_uuid AND d.dataset_version = u.dataset_version AND d.unit_size = u.unit_size
      AND d.unit_offset = u.unit_offset AND d.range_start = u.range_start"""

_INSERT_RUNS = """
    INSERT INTO dataset_runs (dataset_uuid, dataset_version, unit_size, unit_offset, range_start, range_end)
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::numeric[], $4::numeric[], $5::bigint[], $6::bigint[])"""

_INSERT_KEYS = """
    INSERT INTO dataset_keys (dataset_uuid, dataset_version, unit)
    SELECT DISTINCT * FROM unnest($1::uuid[], $2::uuid[], $3::text[]) ON CONFLICT DO NOTHING"""

_SET_REVISIONS = """
    INSERT INTO unit_revisions AS r (dataset_uuid, dataset_version, unit, revision, routed_seq, revision_kind)
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::bigint[], $6::text[])
    ON CONFLICT (dataset_uuid, dataset_version, unit) DO UPDATE
    SET revision = excluded.revision, routed_seq = excluded.routed_seq, revision_kind = excluded.revision_kind
    WHERE r.routed_seq <= excluded.routed_seq"""

# One row per question: whether the unit is there, and its revision where it is not the usual one.
_ASK = """
    SELECT q.number, v.revision, v.revision_kind, v.routed_seq
    FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::text[], $5::numeric[], $6::numeric[], $7::bigint[])
         AS q(number, dataset_uuid, dataset_version, unit, unit_size, unit_offset, range_start)
    LEFT JOIN unit_revisions v USING (dataset_uuid, dataset_version, unit)
    WHERE CASE WHEN q.range_start IS NULL THEN EXISTS (
            SELECT FROM dataset_keys k WHERE k.dataset_uuid = q.dataset_uuid
              AND k.dataset_version = q.dataset_version AND k.unit = q.unit)
        ELSE q.range_start <= (
            SELECT d.range_end FROM dataset_runs d
            WHERE d.dataset_uuid = q.dataset_uuid AND d.dataset_version = q.dataset_version
              AND d.unit_size = q.unit_size AND d.unit_offset = q.unit_offset AND d.range_start <= q.range_start
            ORDER BY d.range_start DESC LIMIT 1) END"""

# The run that the last unit was in may go on behind it; the others follow in the order of the primary key.
_OVERLAPPING = """
    SELECT unit_size, unit_offset, range_start, range_end FROM (
        (SELECT unit_size, unit_offset, range_start, range_end FROM dataset_runs
         WHERE dataset_uuid = $1 AND dataset_version = $2 AND unit_size = $5 AND unit_offset = $6 AND range_start <= $7
         ORDER BY range_start DESC LIMIT 1)
        UNION ALL
        (SELECT unit_size, unit_offset, range_start, range_end FROM dataset_runs
         WHERE dataset_uuid = $1 AND dataset_version = $2 AND (unit_size, unit_offset, range_start) > ($5, $6, $7)
           AND range_start <= $4 AND range_end >= $3
         ORDER BY unit_size, unit_offset, range_start LIMIT $8)) r
    WHERE range_start <= $4 AND range_end >= $3
    ORDER BY unit_size, unit_offset, range_start"""


class GridRange(NamedTuple):
    """A range of a generation, ordered by its grid."""

    size: int = 0
    offset: int = 0
    start: int = -1

    @property
    def end(self) -> int:
        return self.start + self.size - 1


BEFORE_ALL = GridRange()


@dataclass(frozen=True, slots=True)
class Presence:
    """A unit of a generation that exists."""

    generation: Generation
    unit: str
    start: int | None
    end: int | None
    revision: str = ""
    usual: str = ""
    """The revision that need not be remembered: of a first time."""
    routed_seq: int = 0
    """Of the event that says so."""
    kind: RevisionKind = RevisionKind.EVENT


class NewestRevision(NamedTuple):
    """The newest revision of a unit, and the event that announced it; 0 for the usual one."""

    revision: str
    kind: RevisionKind = RevisionKind.EVENT
    routed_seq: int = 0


async def lock_generations(connection: Connection, generations: Collection[Generation]) -> None:
    if generations:
        await connection.execute(LOCK_GENERATIONS, *columns(generations))


async def record(connection: Connection, units: Sequence[Presence]) -> None:
    """Records that the units exist. The caller has locked their generations."""
    ranges: dict[Grid, set[Span]] = {}
    keys = []
    for unit in units:
        if unit.start is not None and unit.end is not None:
            size = unit.end - unit.start + 1
            ranges.setdefault((*unit.generation, size, unit.start % size), set()).add((unit.start, unit.end))
        else:
            keys.append((*unit.generation, unit.unit))
    if ranges:
        await _merge(connection, ranges)
    if keys:
        await connection.execute(_INSERT_KEYS, *columns(keys))
    # The last one said wins, as everywhere; also where events are shown again, or not in their order.
    revised: dict[tuple[Generation, str], Presence] = {}
    for unit in units:
        key = (unit.generation, unit.unit)
        if unit.revision != unit.usual and (key not in revised or revised[key].routed_seq <= unit.routed_seq):
            revised[key] = unit
    if revised:
        rows = [(*unit.generation, unit.unit, unit.revision, unit.routed_seq, unit.kind) for unit in revised.values()]
        await connection.execute(_SET_REVISIONS, *columns(rows))


async def _merge(connection: Connection, ranges: dict[Grid, set[Span]]) -> None:
    grids = list(ranges)
    # Only the edges of what is new can touch what is stored.
    fresh = {index: merge(ranges[grid]) for index, grid in enumerate(grids)}
    questions = [
        (index, *grids[index], start, min(end + 1, _LAST_BLOCK))
        for index, spans in fresh.items()
        for start, end in spans
    ]
    rows = await connection.fetch(_NEIGHBOURS, *columns(questions))
    stored: dict[int, set[Span]] = {}
    for row in rows:
        stored.setdefault(row["grid"], set()).add((row["range_start"], row["range_end"]))
    removed, added = [], []
    for index, spans in fresh.items():
        before = stored.get(index, set())
        after = set(merge([*before, *spans]))
        removed += [(*grids[index], start) for start, _ in before - after]
        added += [(*grids[index], start, end) for start, end in after - before]
    if removed:
        await connection.execute(_DELETE_RUNS, *columns(removed))
    if added:
        await connection.execute(_INSERT_RUNS, *columns(added))


def merge(spans: Iterable[Span]) -> list[Span]:
    """Merges overlapping and adjoining spans."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


async def read_revisions(connection: Connection, units: Sequence[Presence]) -> dict[int, NewestRevision]:
    """Reads the revision of each unit that exists, by its number in `units`; `usual` if no other was announced."""
    questions = []
    for number, unit in enumerate(units):
        size = 0 if unit.start is None or unit.end is None else unit.end - unit.start + 1
        offset = 0 if unit.start is None or not size else unit.start % size
        questions.append((number, *unit.generation, unit.unit, size, offset, unit.start))
    if not questions:
        return {}
    rows = await connection.fetch(_ASK, *columns(questions))
    return {
        row["number"]: NewestRevision(units[row["number"]].usual)
        if row["revision"] is None
        else NewestRevision(row["revision"], RevisionKind(row["revision_kind"]), row["routed_seq"])
        for row in rows
    }


async def overlapping(
    connection: Connection, generation: Generation, start: int, end: int, *, after: GridRange = BEFORE_ALL, limit: int
) -> list[GridRange]:
    """Reads the next units that share a block with the range; fewer than `limit` if there are no more."""
    ranges: list[GridRange] = []
    for row in await connection.fetch(_OVERLAPPING, *generation, start, end, *after, limit):
        size, offset, first = int(row["unit_size"]), int(row["unit_offset"]), row["range_start"]
        low = first + max(0, (start - first) // size) * size
        if (size, offset) == (after.size, after.offset):
            low = max(low, after.start + size)
        high = min(end, row["range_end"])
        units = range(low, high + 1, size)
        ranges += [GridRange(size, offset, unit) for unit in units[: limit - len(ranges)]]
        if len(ranges) == limit:
            break
    return ranges
