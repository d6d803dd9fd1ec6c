"""How many units a deploy computes, estimated from what is committed now.

Counting is bounded. What a job makes of its units depends on its operator, so the numbers are those of its own outputs
if the active version has the job, and otherwise those of its inputs. Of a job that chooses its own units, they are the
windows between the first and the last position or time of its inputs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.deploy.hashes import Address, storage_of
from tracelake.dispatcher.deploy.outputs import Generation
from tracelake.dispatcher.records import columns
from tracelake.model.dag import Dag, Input, JobDocument, ReadMode, UnitGrid
from tracelake.model.windows import LAST_SECOND, Window, count_windows
from tracelake.wire.dags import JobRebuild

MOST = 10_000
"""Units of a generation that are counted."""
MOST_SIZES = 20
"""Different sizes of units that are told apart."""

# Ranges are kept as runs of equal units; other units as keys, or only as events. Times never decrease from block to
# block, so the unit that ends first has the first of them.
_COUNTS = f"""
    SELECT g.dataset_uuid, g.dataset_version, v.units AS grid, r.units AS ranges, r.first, r.last, r.sizes,
           (SELECT count(*) FROM (SELECT FROM events e WHERE e.dataset_uuid = g.dataset_uuid
               AND e.dataset_version = g.dataset_version AND e.routed_seq IS NOT NULL LIMIT {MOST + 1}) x) AS events,
           (SELECT time_min FROM readable_units u WHERE u.dataset_uuid = g.dataset_uuid
               AND u.dataset_version = g.dataset_version AND u.time_max IS NOT NULL ORDER BY u.time_max LIMIT 1)
           AS time_min,
           (SELECT time_max FROM readable_units u WHERE u.dataset_uuid = g.dataset_uuid
               AND u.dataset_version = g.dataset_version AND u.time_max IS NOT NULL ORDER BY u.time_max DESC LIMIT 1)
           AS time_max
    FROM unnest($1::uuid[], $2::uuid[]) AS g(dataset_uuid, dataset_version)
    LEFT JOIN dataset_versions v ON v.dataset_uuid = g.dataset_uuid AND v.dataset_version = g.dataset_version
    CROSS JOIN LATERAL (
        SELECT coalesce(sum((s.range_end::numeric - s.range_start + 1) / s.unit_size), 0)::numeric AS units,
               min(s.range_start) AS first, max(s.range_end) AS last,
               array_agg(DISTINCT s.unit_size) AS sizes
        FROM (SELECT range_start, range_end, unit_size FROM dataset_runs
              WHERE dataset_uuid = g.dataset_uuid AND dataset_version = g.dataset_version LIMIT {MOST}) s) r"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class UnitExtent:
    """The units of a generation: how many, and what they are about."""

    units: int | None
    """Above MOST: there are more. None: not known."""
    blocks: Window | None = None
    times: Window | None = None
    """The first and the last second."""
    grid: UnitGrid | None = None
    about: bool = False
    """The number is an estimate."""
    sizes: frozenset[int] = frozenset()
    """Blocks of its units; empty if they are not known, or of more than MOST_SIZES sizes."""


async def count_units(connection: Connection, generations: Collection[Generation]) -> dict[Generation, UnitExtent]:
    rows = await connection.fetch(_COUNTS, *columns(generations, 2)) if generations else []
    extents: dict[Generation, UnitExtent] = {}
    for row in rows:
        grid = None if row["grid"] is None else msgspec.json.decode(row["grid"], type=UnitGrid)
        ranges = None if row["first"] is None else Window(row["first"], row["last"])
        times = None if row["time_min"] is None else Window(row["time_min"], row["time_max"])
        in_seconds = grid is not None and grid.by == "time"
        extents[row["dataset_uuid"], row["dataset_version"]] = UnitExtent(
            min(int(row["ranges"]) or row["events"], MOST + 1),
            None if in_seconds else ranges,
            (ranges or times) if in_seconds else times,
            grid,
            sizes=frozenset() if in_seconds else _unit_sizes(row["sizes"]),
        )
    return extents


def _unit_sizes(sizes: Collection[Decimal] | None) -> frozenset[int]:
    return frozenset(map(int, sizes)) if sizes and len(sizes) <= MOST_SIZES else frozenset()


@dataclass(frozen=True, slots=True)
class UnitEstimate:
    """What the estimate depends on."""

    document: Dag
    fresh: frozenset[str]
    """Jobs that make their data anew."""
    added: frozenset[str]
    """Jobs that the active version does not have."""
    generations: Mapping[Address, Generation]
    """Of outputs of the active version, or that other jobs of the document keep."""
    datasets: Mapping[str, tuple[UUID, UUID]]
    """Generations of datasets of other DAGs, by name."""
    extents: Mapping[Generation, UnitExtent]

    def rebuilds(self) -> list[JobRebuild]:
        estimates: dict[str, UnitExtent] = {}
        for job in self.document.jobs:  # upstream first
            if job.name in self.fresh and not job.only_emits:
                estimates[job.name] = self._estimate(job, estimates)
        return [
            JobRebuild(
                job=name,
                units=min(extent.units or 0, MOST),
                more=(extent.units or 0) > MOST,
                about=extent.about and extent.units is not None,
                unknown=extent.units is None,
                added=name in self.added,
            )
            for name, extent in estimates.items()
            if extent.units != 0
        ]

    def _estimate(self, job: JobDocument, estimates: Mapping[str, UnitExtent]) -> UnitExtent:
        generation = None if self._is_buffered(job) else self.generations.get((job.name, 0))
        own = None if generation is None else self.extents.get(generation)
        if own is not None and own.units and (job.units is None or _same_windows(own.grid, job.units)):
            return own
        inputs: list[UnitExtent] = []
        positioned: list[UnitExtent] = []
        for item in job.inputs:
            if item.read is ReadMode.PREVIOUS:
                continue
            inputs.append(self._extent(item, estimates))
            if item.read not in (ReadMode.ALL, ReadMode.LATEST):
                positioned.append(inputs[-1])
        if not inputs:
            return UnitExtent(0)
        blocks = _common_range([extent.blocks for extent in positioned])
        times = _common_range([extent.times for extent in positioned])
        if job.units is not None:
            has_units = all(extent.units != 0 for extent in inputs)
            return _count_windows(job.units, blocks, times) if has_units else UnitExtent(0)
        unit_counts = [extent.units for extent in inputs if extent.units is not None]
        is_complete = len(unit_counts) == len(inputs)
        units = (min if job.execution_strategy.is_of_all_inputs else sum)(unit_counts) if is_complete else None
        return UnitExtent(units, blocks, times, inputs[0].grid, any(extent.about for extent in inputs))

    def _is_buffered(self, job: JobDocument) -> bool:
        """Whether its generation counts commits of a table, of all writers, and not units of the job."""
        return any(
            (job.name, 0) == (source.job, source.output_index) and storage_of(self.document, publish) == "buffered"
            for publish in self.document.publish
            for source in publish.sources
        )

    def _extent(self, item: Input, estimates: Mapping[str, UnitExtent]) -> UnitExtent:
        if item.output is None:
            generation = self.datasets.get(item.dataset or "")
        elif item.output.job in estimates:
            return estimates[item.output.job]
        else:
            generation = self.generations.get((item.output.job, item.output.output_index))
        return UnitExtent(0) if generation is None else self.extents.get(generation, UnitExtent(0))


def _same_windows(one: UnitGrid | None, other: UnitGrid) -> bool:
    return one is not None and msgspec.structs.replace(one, when=other.when) == other


def _common_range(ranges: Sequence[Window | None]) -> Window | None:
    """What all of them have passed, from the first start on; None if one of them is not known."""
    known_ranges = [item for item in ranges if item is not None]
    if not known_ranges or len(known_ranges) < len(ranges):
        return None
    start, end = min(item.start for item in known_ranges), min(item.end for item in known_ranges)
    return Window(start, max(start, end))


def _count_windows(grid: UnitGrid, blocks: Window | None, times: Window | None) -> UnitExtent:
    """The windows from the first to the last position. Some may have no rows, and the last may not be over."""
    positions = blocks if grid.by == "blocks" else times
    if positions is None or (grid.by == "time" and not 0 <= positions.start <= positions.end <= LAST_SECOND):
        return UnitExtent(None, blocks, times, grid)
    return UnitExtent(
        min(count_windows(grid, positions.start, positions.end), MOST + 1), blocks, times, grid, about=True
    )
