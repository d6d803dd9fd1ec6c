"""Random DAGs over two chains of units, and how the clocks of their windows go.

A seed decides on everything: the units and which of them are never committed, the times, the jobs with their grids and
inputs. Seeds side by side have each pace, and each beginning. Each chain has a slot of time for each of its units. A
unit may get other times within its slot when it is computed again, so times never decrease from block to block.
"""

import random
from dataclasses import dataclass
from typing import NamedTuple

from tracelake.model.dag import UnitGrid

JOBS = 5
HOUR, DAY = 3600, 86_400


class Pace(NamedTuple):
    """How fast the blocks of a chain come, and which windows then have a size that tests something: `grids` are in the
    order of BEGINNINGS, one for each."""

    gaps: tuple[int, ...]
    lengths: tuple[int, ...]
    grids: tuple[UnitGrid, ...]


def of_time(grain: str, zone: str = "UTC") -> UnitGrid:
    return UnitGrid(by="time", grain=grain, time_zone=zone)  # type: ignore[arg-type]


BLOCK_GRIDS = (UnitGrid(by="blocks", size=10), UnitGrid(by="blocks", size=3))
PACES = (
    Pace(
        (0, 10, 600, 5_000),
        (0, 300, 2_000, 9_000),
        (of_time("hour"), of_time("hour"), of_time("day", "Asia/Kolkata"), of_time("day", "Europe/Berlin")),
    ),
    Pace(
        (0, HOUR, 40_000, 130_000),
        (0, 20_000, 90_000),
        (
            of_time("week", "Europe/Berlin"),
            *(of_time("day", "Europe/Berlin"),) * 2,
            *(of_time("day", "America/Sao_Paulo"),) * 2,
            of_time("month"),
        ),
    ),
    Pace(
        (DAY, 6 * DAY, 14 * DAY),
        (0, DAY, 8 * DAY),
        (of_time("month", "Europe/Berlin"), of_time("month"), of_time("week", "America/New_York")),
    ),
)
BEGINNINGS = {
    "1970": 0,
    "spring in Berlin": 1_774_648_800,  # 2026-03-27 22:00 UTC: on 2026-03-29 the clock goes forward
    "autumn in Berlin": 1_792_792_800,  # 2026-10-23 22:00 UTC: on 2026-10-25 it goes back
    "a midnight that Sao Paulo skips": 1_541_210_400,  # 2018-11-03 02:00 UTC: 2018-11-04 begins at one o'clock
    "a midnight that Sao Paulo repeats": 1_550_282_400,  # 2019-02-16 02:00 UTC: this day ends twice
}


class Chain:
    """Units of blocks side by side. `texts` and `times` are those of committed units, by their first blocks."""

    def __init__(self, chance: random.Random, name: str, pace: Pace, begin: int, blocks: tuple[int, int]) -> None:
        self.name = name
        self.texts: dict[int, str] = {}
        self.times: dict[int, tuple[int, int]] = {}
        self.units: list[tuple[int, int]] = []
        self._slots: dict[int, tuple[int, int]] = {}
        block, limit = blocks
        time = begin
        while block < limit:
            size = chance.randint(1, 12)
            first = time + (chance.choice(pace.gaps) if self.units else 0)
            last = first + (chance.choice(pace.lengths) if size > 1 else 0)
            self.units.append((block, block + size - 1))
            self._slots[block] = (first, last)
            block, time = block + size, last
        starts = [start for start, _ in self.units]
        self.lost = {start: chance.choice(("unannounced", "given up")) for start in starts if chance.random() < 0.1}
        while len(self.lost) > len(starts) - 2:
            self.lost.popitem()
        # Rows that are there stay when the blocks around them do not reach as far as before; in the end, the model
        # would not have them. So units beside a hole and at both ends keep their times.
        edges = {0, len(starts) - 1}
        edges |= {n for n, _ in enumerate(starts) if {*starts[max(0, n - 1) : n + 2]} & self.lost.keys()}
        self.fixed = {starts[n] for n in edges}

    @property
    def announced(self) -> list[tuple[int, int]]:
        """The units that anybody ever asks for."""
        return [unit for unit in self.units if self.lost.get(unit[0]) != "unannounced"]

    @property
    def begin(self) -> int:
        return self.announced[0][0]

    def draw_times(self, chance: random.Random, start: int) -> tuple[int, int]:
        """Times for the next revision of a unit."""
        first, last = self._slots[start]
        if start in self.fixed or start not in self.texts:
            return first, last
        low, high = sorted(chance.randint(first, last) for _ in range(2))
        return low, high


@dataclass(frozen=True)
class InputShape:
    parent: str
    read: str
    lookback: int = 0

    def yaml(self) -> str:
        more = "" if self.read in ("window", "unit") else f", read: {self.read}"
        more += f", lookback: {self.lookback}" if self.lookback else ""
        return f"{{from: {{job: {self.parent}}}{more}}}"


@dataclass(frozen=True)
class JobShape:
    """A job of a random DAG. Without a grid it has the units of its inputs by unit."""

    name: str
    inputs: tuple[InputShape, ...]
    grid: UnitGrid | None
    in_seconds: bool
    running: bool = False
    joins: bool = False

    @property
    def complete(self) -> bool:
        return self.grid is None or self.grid.when == "complete"

    def yaml(self, revision: int = 1) -> str:
        inputs = [item.yaml() for item in self.inputs]
        if self.running:
            inputs.append("{self: previous, columns: {total: bigint}}")
        more = ", execution_strategy: PerPartition" if self.joins else ""
        if self.grid is not None:
            size = f"size: {self.grid.size}" if self.grid.by == "blocks" else f"grain: {self.grid.grain}"
            zone = "" if self.grid.time_zone == "UTC" else f", time_zone: {self.grid.time_zone}"
            more += f", units: {{by: {self.grid.by}, {size}{zone}, when: {self.grid.when}}}"
        return (
            f"  - {{name: {self.name}, activation: reactive, operator: spark_sql, "
            f"config: {{query: SELECT {revision}L AS total}}{more}, inputs: [{', '.join(inputs)}]}}\n"
        )


class RandomDag:
    """The chains and jobs of a seed."""

    def __init__(self, chance: random.Random, seed: int) -> None:
        pace = PACES[seed % len(PACES)]
        number = seed // len(PACES) % len(BEGINNINGS)
        begin = list(BEGINNINGS.values())[number]
        self.chains = {
            "blocks": Chain(chance, "blocks", pace, begin, (0, 45)),
            "extra": Chain(chance, "extra", pace, begin + chance.choice(pace.gaps), (chance.choice((0, 7, 20)), 40)),
        }
        self.jobs: list[JobShape] = []
        self._chance, self._pace = chance, pace
        self._in_seconds = {"blocks": False, "extra": False}
        self._timed = {"blocks", "extra"}
        """Datasets of blocks whose units have times, but for those that cut the units of their input."""
        self._add(self._draw_job("j0", "blocks", pace.grids[number % len(pace.grids)]))
        if seed % 2:  # a dataset that another can be joined with
            self._add(JobShape("j1", (InputShape("blocks", "unit"),), None, in_seconds=False))
        while len(self.jobs) < JOBS - 1:
            self._add(self._draw_job(f"j{len(self.jobs)}", "blocks" if len(self.jobs) < 2 else None))
        name = f"j{len(self.jobs)}"
        kind = (None, "join", None, "more")[seed % 4]
        self._add(self._draw_job_without_grid(name, "blocks", kind) if kind else self._draw_job(name, None))

    def _add(self, job: JobShape) -> None:
        self.jobs.append(job)
        self._in_seconds[job.name] = job.in_seconds
        extents = [item for item in job.inputs if item.read in ("unit", "window", "history")]
        if job.in_seconds or job.running or not job.complete or len(extents) > 1:
            return
        if extents[0].parent in self._timed and (job.grid is not None or len(job.inputs) == 1):
            self._timed.add(job.name)

    def yaml(self, name: str, changed: frozenset[str] = frozenset()) -> str:
        """The document. `changed`: jobs with another query than before."""
        lines = [f"name: {name}", "defaults: {runtime: ecs_platform}", "jobs:"]
        for chain in self.chains:
            lines.append(f"  - {{name: {chain}_source, activation: source, source: {{kind: manual}}}}")
            lines.append(
                f"  - {{name: {chain}, activation: reactive, operator: decode_logs, "
                f"execution_strategy: PerPartition, inputs: [{{from: {{job: {chain}_source}}}}]}}"
            )
        jobs = "".join(job.yaml(2 if job.name in changed else 1) for job in self.jobs)
        names = (*self.chains, *(job.name for job in self.jobs))
        publish = "".join(f"  {name}_{item}: {{from: {{job: {item}}}, storage: s3}}\n" for item in names)
        return "\n".join(lines) + f"\n{jobs}publish:\n{publish}"

    def reads_far(self, name: str) -> bool:
        """Whether a unit that changes may recompute windows far from it: by `all` or `latest`, itself or upstream."""
        job = next((job for job in self.jobs if job.name == name), None)
        far = ("all", "latest")
        return job is not None and any(item.read in far or self.reads_far(item.parent) for item in job.inputs)

    def _draw_job(self, name: str, parent: str | None, grid: UnitGrid | None = None) -> JobShape:
        chance = self._chance
        parent = parent or chance.choice(list(self._in_seconds))
        grids: list[UnitGrid | None] = [None]
        if not self._in_seconds[parent]:
            grids += BLOCK_GRIDS
        if self._in_seconds[parent] or parent in self._timed:
            grids += (*self._pace.grids, *self._pace.grids)
        grid = grid or chance.choice(grids)
        if grid is None:
            return self._draw_job_without_grid(name, parent)
        in_seconds = grid.by == "time"
        inputs = [self._draw_input(parent, ("window", "window", "lookback", "history"))]
        for _ in range(chance.choice((0, 0, 1, 1, 2))):
            item = self._draw_other(in_seconds, ("window", "lookback", "history", "all", "latest", "latest"))
            if (item.parent, item.read) not in {(other.parent, other.read) for other in inputs}:
                inputs.append(item)
        if chance.random() < 0.3:
            grid = UnitGrid(by=grid.by, size=grid.size, grain=grid.grain, time_zone=grid.time_zone, when="updated")
        return JobShape(name, tuple(inputs), grid, in_seconds, running=chance.random() < 0.25)

    def _draw_job_without_grid(self, name: str, parent: str, kind: str | None = None) -> JobShape:
        """With the units of a parent: alone, beside the unit before, joined with another of the same units, or with
        more of other datasets."""
        chance, in_seconds = self._chance, self._in_seconds[parent]
        inputs = [InputShape(parent, "unit")]
        twins = [
            job.name
            for job in self.jobs
            if job.grid is None and job.inputs[0].parent == parent and not in_seconds and not job.running
        ]
        kind = kind or chance.choice(("plain", "running", "more", "join", "join"))
        if kind == "join" and twins:
            inputs.append(InputShape(chance.choice(twins), "unit"))
            return JobShape(name, tuple(inputs), None, in_seconds, joins=True)
        if kind == "more":
            inputs.append(self._draw_other(in_seconds, ("history", "all", "latest")))
        return JobShape(name, tuple(inputs), None, in_seconds, running=kind == "running")

    def _draw_other(self, in_seconds: bool, reads: tuple[str, ...]) -> InputShape:
        readable = [
            name
            for name, seconds in self._in_seconds.items()
            if seconds == in_seconds or (in_seconds and name in self._timed)
        ]
        return self._draw_input(self._chance.choice(readable), reads)

    def _draw_input(self, parent: str, reads: tuple[str, ...]) -> InputShape:
        read = self._chance.choice(reads)
        if read == "lookback":
            return InputShape(parent, "window", self._chance.randint(1, 3))
        return InputShape(parent, read)
