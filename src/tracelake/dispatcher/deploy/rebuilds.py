"""How many units a deploy makes anew, estimated from what is committed now.

Counting is bounded. What a job makes of its units depends on its operator, so the numbers are those of its own outputs
if the active version has the job, and otherwise those of its inputs.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.deploy.hashes import Address
from tracelake.dispatcher.deploy.outputs import Generation
from tracelake.dispatcher.records import columns
from tracelake.model.dag import Dag, JobDocument, ReadMode
from tracelake.wire.dags import JobRebuild

MOST = 10_000
"""Units of a generation that are counted."""

# Ranges are kept as runs of equal units; other units as keys, or only as events.
_COUNTS = f"""
    SELECT g.dataset_uuid, g.dataset_version,
           coalesce((SELECT sum((r.range_end::numeric - r.range_start + 1) / r.unit_size) FROM (
               SELECT range_start, range_end, unit_size FROM dataset_runs
               WHERE dataset_uuid = g.dataset_uuid AND dataset_version = g.dataset_version LIMIT {MOST}) r), 0)::numeric
           AS ranges,
           (SELECT count(*) FROM (SELECT FROM events e WHERE e.dataset_uuid = g.dataset_uuid
               AND e.dataset_version = g.dataset_version AND e.routed_seq IS NOT NULL LIMIT {MOST + 1}) x) AS events
    FROM unnest($1::uuid[], $2::uuid[]) AS g(dataset_uuid, dataset_version)"""  # noqa: S608 - constants only


async def count_units(connection: Connection, generations: Collection[Generation]) -> dict[Generation, int]:
    """The number of units of each generation; a number above MOST means that there are more."""
    rows = await connection.fetch(_COUNTS, *columns(generations, 2)) if generations else []
    return {
        (row["dataset_uuid"], row["dataset_version"]): min(int(row["ranges"]) or row["events"], MOST + 1)
        for row in rows
    }


@dataclass(frozen=True, slots=True)
class UnitEstimate:
    """What the estimate depends on."""

    document: Dag
    fresh: frozenset[str]
    """Jobs that make their data anew."""
    generations: Mapping[Address, Generation]
    """Of outputs of the active version, or that other jobs of the document keep."""
    datasets: Mapping[str, tuple[UUID, UUID]]
    """Generations of datasets of other DAGs, by name."""
    counts: Mapping[Generation, int]

    def rebuilds(self) -> list[JobRebuild]:
        unit_counts: dict[str, int] = {}
        for job in self.document.jobs:  # upstream first
            if job.name in self.fresh and not job.only_emits:
                unit_counts[job.name] = self._units(job, unit_counts)
        return [
            JobRebuild(job=name, units=min(units, MOST), more=units > MOST)
            for name, units in unit_counts.items()
            if units
        ]

    def _units(self, job: JobDocument, unit_counts: Mapping[str, int]) -> int:
        own = self.generations.get((job.name, 0))
        if own is not None and (units := self.counts.get(own, 0)):
            return units
        inputs = []
        for item in job.inputs:
            if item.read is ReadMode.PREVIOUS:
                continue
            if item.output is not None and item.output.job in unit_counts:
                inputs.append(unit_counts[item.output.job])
                continue
            if item.output is not None:
                generation = self.generations.get((item.output.job, item.output.output_index))
            else:
                generation = self.datasets.get(item.dataset or "")
            inputs.append(0 if generation is None else self.counts.get(generation, 0))
        if not inputs:
            return 0
        # How many windows there will be is not known before their inputs are mapped to them: not more than units.
        return min(inputs) if job.execution_strategy.is_of_all_inputs else sum(inputs)
