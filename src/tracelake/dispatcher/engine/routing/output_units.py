"""Units of files that a range would make, and that exist: committed, or of tasks that are queued, run or wait for a
retry. Units of a dataset do not overlap, so a task of a range that cuts across them could compute its rows, and never
commit them.

A range reaches more than the job that is triggered: readers take the units of their inputs, and so do theirs. They are
followed as far as their units are known from the range alone. A job that chooses its own units ends a path, and so
does an output whose events its operator decides. Nothing is locked, and the work is bounded: `_MAX_READERS` jobs, and
of each output the units at both ends of the range and the first `_SCANNED` in between, of those that are committed and
of those that are not. A task that is still to be created, because a task before it is open, has no unit yet.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tracelake.catalogue import RangeSplitterConfig, read_config
from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation
from tracelake.dispatcher.engine.routing.directory import Consumer, ConsumerInput, EdgeDirectory
from tracelake.dispatcher.engine.routing.upstream_graph import UpstreamGraph
from tracelake.dispatcher.records import columns
from tracelake.errors import TraceError
from tracelake.model.dag import ReadMode
from tracelake.model.job import Job, Storage
from tracelake.wire.base import MAX_CURSOR

_SHOWN = 5
_SCANNED = 100
_MAX_READERS = 200
_PASSES_UNITS = frozenset(("noop", "range_splitter"))
"""Operators that announce their unit, or the pieces of it, also where they store nothing."""

# Units of a generation do not overlap: the last one that begins before the range may reach into it, and all that begin
# within it do. Open tasks are found by where their units end. `first` is where the unit of the range begins that has
# the same block as the existing one.
_OVERLAPPING = """
    SELECT q.number, d.name, u.range_start, u.range_end, bool_or(u.is_committed) AS is_committed
    FROM unnest($3::int[], $4::uuid[], $5::uuid[], $6::bigint[], $7::bigint[])
         AS q(number, job_id, node_id, origin, size)
    JOIN job_outputs o USING (job_id)
    JOIN datasets d ON d.dataset_uuid = o.dataset_uuid AND d.storage = 's3'
    CROSS JOIN LATERAL (
        (SELECT range_start, range_end, true AS is_committed FROM dataset_units u
         WHERE u.dataset_uuid = o.dataset_uuid AND u.dataset_version = o.dataset_version AND u.range_start < $1
         ORDER BY u.range_start DESC LIMIT 1)
        UNION ALL
        (SELECT range_start, range_end, true FROM dataset_units u
         WHERE u.dataset_uuid = o.dataset_uuid AND u.dataset_version = o.dataset_version
           AND u.range_start BETWEEN $1 AND $2
         ORDER BY u.range_start LIMIT $8)
        UNION ALL
        (SELECT range_start, range_end, true FROM dataset_units u
         WHERE u.dataset_uuid = o.dataset_uuid AND u.dataset_version = o.dataset_version
           AND u.range_start BETWEEN $1 AND $2
         ORDER BY u.range_start DESC LIMIT 1)
        UNION ALL
        (SELECT unit_start, unit_end, false FROM tasks t
         WHERE t.node_id = q.node_id AND t.finished_at IS NULL AND t.unit_end BETWEEN $1 AND $2
         ORDER BY t.unit_end LIMIT $8)
        UNION ALL
        (SELECT unit_start, unit_end, false FROM tasks t
         WHERE t.node_id = q.node_id AND t.finished_at IS NULL AND t.unit_end BETWEEN $1 AND $2
         ORDER BY t.unit_end DESC LIMIT 1)
        UNION ALL
        (SELECT unit_start, unit_end, false FROM tasks t
         WHERE t.node_id = q.node_id AND t.finished_at IS NULL AND t.unit_end > $2
         ORDER BY t.unit_end LIMIT 1)) u
    CROSS JOIN LATERAL (SELECT q.origin + (u.range_start - q.origin) / q.size * q.size AS first) f
    WHERE u.range_start <= $2 AND u.range_end >= $1
      AND (u.range_start, u.range_end) <> (greatest($1, f.first), least($2 - f.first, q.size - 1) + f.first)
    GROUP BY q.number, d.name, u.range_start, u.range_end
    ORDER BY q.number, d.name, u.range_start LIMIT $9"""


@dataclass(frozen=True, slots=True)
class RangeCuts:
    """A range of blocks, cut into units at `origin` and every `size` blocks from there."""

    start: int
    end: int
    origin: int
    size: int

    @classmethod
    def whole(cls, start: int, end: int) -> "RangeCuts":
        return cls(start, end, start, min(end - start + 1, MAX_CURSOR))

    def split(self, size: int, *, align: bool) -> "RangeCuts | None":
        """The units that a splitter makes of these; None if they are not at equal distances."""
        if self == RangeCuts.whole(self.start, self.end):
            return RangeCuts(self.start, self.end, 0 if align else self.start, size)
        if align and self.origin == 0 and self.size % size == 0:
            return RangeCuts(self.start, self.end, 0, size)
        return None


@dataclass(frozen=True, slots=True)
class UnitPath:
    """How a range reaches a job: the units that the job would get of it."""

    job: Job
    cuts: RangeCuts


async def find_readers(
    connection: Connection, directory: EdgeDirectory, graph: UpstreamGraph, epoch: int, first: UnitPath
) -> list[UnitPath]:
    """Finds the jobs that take the units which the first one announces, nearest first; the first is not among them."""
    paths: list[UnitPath] = []
    reached = {(first.job.job_id, first.cuts)}
    announced = list(_announced(first))
    while announced and len(paths) < _MAX_READERS:
        generations = {generation for generation, _ in announced}
        readers = await directory.readers(connection, first.job.org_id, epoch, generations)
        following: list[tuple[Generation, RangeCuts]] = []
        for generation, cuts in announced:
            for consumer, item in readers[generation]:
                path = UnitPath(consumer.job, cuts)
                if (path.job.job_id, cuts) not in reached and _takes_units(consumer, item, graph):
                    reached.add((path.job.job_id, cuts))
                    paths.append(path)
                    following += _announced(path)
        announced = following
    return paths[:_MAX_READERS]


async def check_units(
    connection: Connection, paths: Sequence[UnitPath], *, dags: Collection[str] | None = None
) -> None:
    """Refuses a range that cuts across units of these jobs, and names them. The first job is triggered.

    `dags` are those that the caller may know of, if not all: datasets of others are not named.
    """
    blocks = paths[0].cuts
    jobs = [
        (number, path.job.job_id, path.job.node_id, path.cuts.origin, path.cuts.size)
        for number, path in enumerate(paths)
    ]
    rows = await connection.fetch(_OVERLAPPING, blocks.start, blocks.end, *columns(jobs), _SCANNED, _SHOWN + 1)
    if not rows:
        return
    path, name = paths[rows[0]["number"]], rows[0]["name"]
    units = {
        f"{row['range_start']}-{row['range_end']}": row["is_committed"]
        for row in rows
        if (row["number"], row["name"]) == (rows[0]["number"], name)
    }
    shown_units = [*units][:_SHOWN]
    uncommitted_units = [unit for unit in shown_units if not units[unit]]
    unit_list = ", ".join(unit if units[unit] else f"{unit} (not committed yet)" for unit in shown_units)
    unit_list += ", ..." if len(units) > _SHOWN else ""
    span = f"{blocks.start}-{blocks.end}"
    if path.cuts != blocks:
        span += f" in units of {path.cuts.size}"
    remedy = "trigger one of these, or a range beside them"
    details: dict[str, Any] = {"field": "range", "units": shown_units}
    if uncommitted_units:
        details |= {"uncommitted_units": uncommitted_units}
    if dags is not None and path.job.dag_name not in dags:
        text = f"A dataset of another DAG takes these units, which do not overlap, and {span} overlaps {unit_list}"
    else:
        details |= {"dataset": name}
        text = f"Units of {name} do not overlap, and {span} overlaps {unit_list}"
        if path.job is not paths[0].job:
            reader = f"{path.job.dag_name}/{path.job.name}"
            details |= {"job": reader}
            text = f"{reader} would compute the range, too. {text}"
            remedy = f"trigger {reader} for one of these, or a range beside them"
    raise TraceError("trigger_invalid", f"{text}: {remedy}.", **details)


def _announced(path: UnitPath) -> Iterator[tuple[Generation, RangeCuts]]:
    """The outputs of a job whose units are known from its own: events of files are of the committed unit."""
    job, cuts = path.job, path.cuts
    if job.operator == "range_splitter":
        config = read_config(job.operator, msgspec.json.decode(job.config))
        assert isinstance(config, RangeSplitterConfig)
        pieces = cuts.split(config.size, align=config.align)
    else:
        pieces = cuts
    for output in job.outputs:
        if pieces is not None and (output.dataset.storage is Storage.S3 or job.operator in _PASSES_UNITS):
            yield (output.dataset_uuid, output.dataset_version), pieces


def _takes_units(consumer: Consumer, item: ConsumerInput, graph: UpstreamGraph) -> bool:
    """Whether a unit of the input is a unit of the reader."""
    if not consumer.has_windows:
        return True
    is_own_unit = consumer.job.units is None and consumer.spec(item).read is ReadMode.UNIT
    return is_own_unit and not graph.counts_seconds(consumer.node_id)
