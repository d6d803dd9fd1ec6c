"""Random DAGs with sources of every kind, joins, thresholds and priorities; and who must be stopped, by the contract.

Two DAGs: jobs of the second read what jobs of the first publish. Every event of a source is a unit of its own, and a
job announces the unit it worked on, so that which tasks there must be follows from the shape alone. Cursors go through
jobs of partitions only: there each is a unit, in whatever order it comes.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from hypothesis import strategies as st

from tracelake.dispatcher.engine.pressure.levels import Level

KINDS = ("manual", "webhook", "always_on", "cron")
EVERY_INPUT = -1


@dataclass(frozen=True)
class Limits:
    """What a version may change without making other data."""

    bulk: bool = False
    depth: int | None = None
    age: int | None = None


@dataclass(frozen=True)
class Source:
    name: str
    kind: str


@dataclass(frozen=True)
class Job:
    name: str
    dag: int
    per_partition: bool
    inputs: tuple[str, ...]
    concurrency: int | None

    @property
    def joins(self) -> bool:
        return self.per_partition and len(self.inputs) > 1

    def edge(self, index: int) -> int:
        return EVERY_INPUT if self.per_partition else index


@dataclass(frozen=True)
class Shape:
    """What stays the same through all versions of an example."""

    sources: tuple[Source, ...]
    jobs: tuple[Job, ...]

    @property
    def names(self) -> list[str]:
        return [*(source.name for source in self.sources), *(job.name for job in self.jobs)]

    @property
    def leaves(self) -> list[str]:
        """Jobs that nobody reads: a version may leave them out."""
        read = {name for job in self.jobs for name in job.inputs}
        return [job.name for job in self.jobs if job.name not in read]

    def job(self, name: str) -> Job:
        return next(job for job in self.jobs if job.name == name)

    def readers(self, producer: str, version: "Version") -> list[tuple[Job, int]]:
        return [
            (job, job.inputs.index(producer))
            for job in self.jobs
            if producer in job.inputs and job.name not in version.without
        ]


@dataclass(frozen=True)
class Version:
    """What changes from one deploy to the next."""

    limits: Mapping[str, Limits] = field(default_factory=dict)
    without: frozenset[str] = frozenset()

    def of(self, name: str) -> Limits:
        return self.limits.get(name, Limits())

    def changed(self, name: str, limits: Limits) -> "Version":
        return replace(self, limits={**self.limits, name: limits})


LIMITS = st.builds(
    Limits,
    bulk=st.booleans(),
    depth=st.sampled_from([None, None, 2, 4, 5, 10]),
    age=st.sampled_from([None, None, None, 60]),
)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Shape, Version]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=4))
    sources = tuple(Source(f"src{number}", kind) for number, kind in enumerate(kinds))
    homes = {source.name: 0 for source in sources}
    cursors = {source.name for source in sources if source.kind == "cron"}
    jobs: list[Job] = []
    for number in range(draw(st.integers(3, 8))):
        dag = draw(st.integers(0, 1)) if any(job.dag == 0 for job in jobs) else 0
        # The second DAG reads what the first publishes: its jobs, not its sources.
        readable = [name for name, home in homes.items() if home == dag or (home == 0 and name.startswith("job"))]
        inputs = draw(st.lists(st.sampled_from(readable), min_size=1, max_size=3, unique=True))
        carries = not cursors.isdisjoint(inputs)
        per_partition = carries or draw(st.booleans())
        job = Job(f"job{number}", dag, per_partition, tuple(inputs), draw(st.sampled_from([None, None, None, 1, 3])))
        jobs.append(job)
        homes[job.name] = dag
        if carries:
            cursors.add(job.name)
    shape = Shape(sources, tuple(jobs))
    limits = {name: draw(LIMITS) for name in shape.names}
    # Something must be able to fill up.
    limits[jobs[-1].name] = replace(limits[jobs[-1].name], depth=draw(st.sampled_from([2, 4, 5])))
    return shape, Version(_fitting(shape, limits))


def _fitting(shape: Shape, limits: Mapping[str, Limits]) -> dict[str, Limits]:
    """A source has a priority, but no queue."""
    sources = {source.name for source in shape.sources}
    return {name: replace(item, depth=None, age=None) if name in sources else item for name, item in limits.items()}


def text(shape: Shape, version: Version, dag: int, org: str) -> str:
    homes = {job.name: job.dag for job in shape.jobs}

    def read(name: str) -> dict[str, Any]:
        return {"job": name} if homes.get(name, 0) == dag else {"dataset": f"{name}_data"}

    document: dict[str, Any] = {"name": f"dag{dag}", "defaults": {"runtime": "ecs_platform"}, "jobs": []}
    if dag == 0:
        document["jobs"] += [_source(source, version.of(source.name), org) for source in shape.sources]
        mine = [job.name for job in shape.jobs if job.dag == 0 and job.name not in version.without]
        document["publish"] = {f"{name}_data": {"from": {"job": name}, "storage": "postgres"} for name in mine}
    for job in shape.jobs:
        if job.dag != dag or job.name in version.without:
            continue
        written: dict[str, Any] = {
            "name": job.name,
            "activation": "reactive",
            "operator": "noop",
            "execution_strategy": "PerPartition" if job.per_partition else "PerUpdate",
            "inputs": [{"from": read(name)} for name in job.inputs],
        }
        limits = version.of(job.name)
        if limits.bulk:
            written["priority"] = "bulk"
        if limits.depth is not None:
            written["max_queue_depth"] = limits.depth
        if limits.age is not None:
            written["max_queue_age"] = f"{limits.age}s"
        if job.concurrency is not None:
            written["scaling"] = {"max_concurrency": job.concurrency}
        document["jobs"].append(written)
    return yaml.safe_dump(document, sort_keys=False)


def _source(source: Source, limits: Limits, org: str) -> dict[str, Any]:
    how: dict[str, Any] = {"kind": source.kind}
    if source.kind == "cron":
        how |= {"schedule": "* * * * *", "catch_up": "none"}
    if source.kind == "webhook":
        how |= {"webhook_path": f"{org}/{source.name}".replace("_", "-")}
    written: dict[str, Any] = {"name": source.name, "activation": "source", "source": how}
    if source.kind == "always_on":
        written |= {"operator": "ticker", "config": {"seconds": 10}}
    return written | ({"priority": "bulk"} if limits.bulk else {})


@dataclass(frozen=True)
class Oracle:
    """Who is stopped at one moment, by the words of the contract and without any map."""

    shape: Shape
    version: Version
    levels: Mapping[str, Level]
    paused: Collection[str]

    def stopped(self, name: str) -> bool:
        """By a queue."""
        bulk = self.version.of(name).bulk
        consumers = [job.name for job, _ in self.shape.readers(name, self.version)]
        return any(
            self._presses(consumer, Level.ALL) or (bulk and self._presses(consumer, Level.BULK))
            for consumer in consumers
        )

    def _presses(self, consumer: str, level: Level) -> bool:
        """Its own queue does, or one that it feeds."""
        if self.levels.get(consumer, Level.NONE) >= level:
            return True
        return any(self._presses(job.name, level) for job, _ in self.shape.readers(consumer, self.version))

    def quiet(self, name: str) -> bool:
        """It should say nothing: pressure stops it, or a person."""
        return name in self.paused or self.stopped(name)

    def blocked(self, job: Job, index: int) -> bool:
        return self.stopped(job.name) or self.quiet(job.inputs[index])


def wanted(shape: Shape, said: Mapping[str, Collection[str]]) -> dict[str, Counter[tuple[int, str]]]:
    """Edge and unit of every task that there must be in the end."""
    units: dict[str, set[str]] = {source.name: set(said.get(source.name, ())) for source in shape.sources}
    tasks: dict[str, Counter[tuple[int, str]]] = {}
    for job in shape.jobs:
        read = [units[name] for name in job.inputs]
        if job.per_partition:
            units[job.name] = set.intersection(*read)
            tasks[job.name] = Counter((EVERY_INPUT, key) for key in units[job.name])
        else:
            units[job.name] = set.union(*read)
            tasks[job.name] = Counter((index, key) for index, keys in enumerate(read) for key in keys)
    return tasks
