"""Random DAGs of windows, histories and running state over random commits, rewrites, failures and orders.

However the units come, fail, come again and overtake each other: in the end each dataset consists of exactly what a
plain model computes from the newest units. The model knows nothing of events, revisions or tasks.
"""

import hashlib
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.dispatcher import DispatcherHarness
from tests.windows.support import WindowFlow
from tracelake.model.dag import UnitGrid
from tracelake.model.windows import Window, window_at, windows_between

UNITS = 8
"""Of blocks, in each run."""
JOBS = 5
SEEDS = 4


class Chain:
    """Units of blocks side by side, with times that never decrease."""

    def __init__(self, chance: random.Random) -> None:
        self.units: list[tuple[int, int]] = []
        self.times: dict[int, tuple[int, int]] = {}
        self.texts: dict[int, str] = {}
        block = time = 0
        for _ in range(UNITS):
            size = chance.randint(1, 12)
            first = time + chance.choice([0, 10, 600, 5_000])
            last = first + (chance.choice([0, 300, 2_000, 4_000]) if size > 1 else 0)
            self.units.append((block, block + size - 1))
            self.times[block] = (first, last)
            block, time = block + size, last


@dataclass(frozen=True)
class JobShape:
    """A job of a random DAG. Without a grid it has the units of its first parent."""

    name: str
    kind: str
    parents: tuple[str, ...]
    grid: UnitGrid | None

    def yaml(self) -> str:
        read = {"history": ", read: history", "lookback": ", read: window, lookback: 2"}.get(self.kind, "")
        inputs = [f"{{from: {{job: {parent}}}{read}}}" for parent in self.parents]
        if self.kind == "running":
            inputs.append("{self: previous, columns: {total: bigint}}")
        units = "" if self.grid is None else f", units: {GRIDS[self.grid]}"
        return (
            f"  - {{name: {self.name}, activation: reactive, operator: spark_sql, config: {{query: SELECT 1 AS a}}"
            f"{units}, inputs: [{', '.join(inputs)}]}}\n"
        )


GRIDS = {
    UnitGrid(by="blocks", size=10): "{by: blocks, size: 10}",
    UnitGrid(by="blocks", size=3): "{by: blocks, size: 3}",
    UnitGrid(by="time", grain="hour"): "{by: time, grain: hour}",
    UnitGrid(by="time", grain="day", time_zone="Asia/Kolkata"): "{by: time, grain: day, time_zone: Asia/Kolkata}",
}
KINDS = ("plain", "lookback", "history", "running")
HEAD = """
name: {name}
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: src, activation: source, source: {{kind: manual}}}}
  - {{name: blocks, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
      inputs: [{{from: {{job: src}}}}]}}
"""


def draw_jobs(chance: random.Random) -> list[JobShape]:
    """Jobs on the blocks, jobs on these, and jobs that join both."""
    jobs: list[JobShape] = []
    axis = {"blocks": "blocks"}
    for number in range(JOBS):
        parent = "blocks" if number < 2 else chance.choice(list(axis))
        fitting = [grid for grid in GRIDS if parent == "blocks" or grid.by == axis[parent]]
        grid = chance.choice([*fitting, None])
        kind = chance.choice(KINDS) if grid is not None else chance.choice(("plain", "running"))
        parents = [parent]
        own_axis = axis[parent] if grid is None else grid.by
        others = [name for name in axis if name != parent and name != "blocks" and axis[name] == own_axis]
        if grid is not None and others and chance.random() < 0.5:
            parents.append(chance.choice(others))
        jobs.append(JobShape(f"j{number}", kind, tuple(parents), grid))
        axis[f"j{number}"] = own_axis
    return jobs


class Model:
    """What each dataset must consist of, by the definition of `read`."""

    def __init__(self, chain: Chain, jobs: list[JobShape]) -> None:
        self.chain = chain
        self.units: dict[str, dict[Window, str]] = {
            "blocks": {Window(*unit): chain.texts[unit[0]] for unit in chain.units}
        }
        for job in jobs:
            self.units[job.name] = self.compute(job)

    def ranges(self, parent: str, job: JobShape) -> list[tuple[int, int, str]]:
        """The units of a parent in positions of the job's units."""
        if parent == "blocks" and job.grid is not None and job.grid.by == "time":
            return [(*self.chain.times[start], text) for (start, _), text in self.units[parent].items()]
        return [(*window, text) for window, text in self.units[parent].items()]

    def windows(self, job: JobShape) -> list[Window]:
        """The windows that all parents cover, and have passed if times of blocks are read."""
        if job.grid is None:
            return sorted(self.units[job.parents[0]])
        parents = {parent: self.ranges(parent, job) for parent in job.parents}
        if not all(parents.values()):
            return []
        first = min(item[0] for item in parents[job.parents[0]])
        ends = []
        for parent, items in parents.items():
            by_time = parent == "blocks" and job.grid.by == "time"
            ends.append(max(item[1] for item in items) - by_time)
        candidates = windows_between(job.grid, first, max(first, min(ends)))
        return [window for window in candidates if window.end <= min(ends)]

    def compute(self, job: JobShape) -> dict[Window, str]:
        rows: dict[Window, str] = {}
        before = ""
        for window in self.windows(job):
            span = window
            if job.kind == "history":
                span = Window(0, window.end)
            elif job.kind == "lookback":
                assert job.grid is not None
                for _ in range(2):
                    span = Window(window_at(job.grid, max(0, span.start - 1)).start, window.end)
            parts = []
            for parent in job.parents:
                found = [item for item in self.ranges(parent, job) if item[0] <= span.end and item[1] >= span.start]
                parts.append(",".join(text for _, _, text in sorted(found)))
            if job.kind == "running":
                parts.append(before)
            before = rows[window] = digest(parts)
        return rows


def digest(parts: list[str]) -> str:
    """Stands for what was read. Texts of running state and histories would grow without end."""
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


class Run:
    def __init__(self, flow: WindowFlow, seed: int) -> None:
        self.flow, self.chance = flow, random.Random(seed)
        self.chain = Chain(self.chance)
        self.name = f"r{seed}"
        flow.times = lambda start, _end: self.chain.times.get(start)
        flow.compute = digest
        self.jobs = draw_jobs(self.chance)
        self.names = [job.name for job in self.jobs]
        publish = "".join(
            f"  {self.name}_{name}: {{from: {{job: {name}}}, storage: s3}}\n" for name in ("blocks", *self.names)
        )
        flow.deploy(f"{HEAD.format(name=self.name)}{''.join(job.yaml() for job in self.jobs)}publish:\n{publish}")
        self.versions = 0

    def commit(self, unit: tuple[int, int]) -> None:
        self.versions += 1
        text = f"u{unit[0]}v{self.versions}"
        self.flow.commit_source(self.name, "blocks", *unit, text)
        self.chain.texts[unit[0]] = text

    def fail_or_run(self) -> None:
        """Anything may happen to a ready task: it runs, it fails and is retried, or it runs while its inputs change."""
        ready = [task for job in self.names for task in self.flow.tasks(job, "Queued") if not task["held"]]
        if not ready:
            return
        task = self.chance.choice(ready)["task_id"]
        fate = self.chance.random()
        if fate < 0.15:
            self.flow.fail(task)
            self.flow.person("retry", task)
        elif fate < 0.35 and self.chain.texts:
            lease = self.flow.claim(task)
            inputs = [",".join(self.flow.read(task, lease, item)) for item in lease["task"]["inputs"]]
            start = self.chance.choice(list(self.chain.texts))
            self.commit(next(unit for unit in self.chain.units if unit[0] == start))
            self.flow.finish(task, digest(inputs), lease)
        else:
            self.flow.run(task)

    def check(self) -> None:
        self.flow.run_windows(*self.names, pick=self.chance.choice)
        model = Model(self.chain, self.jobs)
        for job in self.jobs:
            assert self.flow.rows(f"{self.name}_{job.name}") == model.units[job.name], (job, self.jobs)

    def count_tasks(self) -> Counter[tuple[str, str]]:
        return Counter((job, task["unit_key"]) for job in self.names for task in self.flow.tasks(job))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_computed_is_what_the_model_computes(harness: DispatcherHarness, seed: int) -> None:
    compare_with_model(harness, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS, 200))
def test_many_random_dags(harness: DispatcherHarness, seed: int) -> None:
    compare_with_model(harness, seed)


def compare_with_model(harness: DispatcherHarness, seed: int) -> None:
    run = Run(WindowFlow(harness), seed)
    order: list[Any] = list(run.chain.units)
    run.chance.shuffle(order)
    for unit in order:
        run.commit(unit)
        for _ in range(run.chance.randint(0, 2)):
            run.fail_or_run()
    run.check()
    for _ in range(4):
        run.commit(run.chance.choice(run.chain.units))
        for _ in range(run.chance.randint(0, 2)):
            run.fail_or_run()
    run.check()
    before = run.count_tasks()
    run.commit(run.chance.choice(run.chain.units))
    run.check()
    again = run.count_tasks() - before
    assert max(again.values(), default=0) <= 1, "one change computes a unit at most once"
