"""Random DAGs of windows, histories and running state over random commits, rewrites, failures and orders.

However the units come, fail, come again and overtake each other: in the end each dataset consists of exactly what a
plain model computes from the newest units. The model knows nothing of events, revisions or tasks.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.dispatcher import DispatcherHarness
from tests.windows.support import WindowFlow
from tracelake.model.dag import UnitGrid
from tracelake.model.windows import Window, window_at, windows_between

UNITS = 8
"""Of blocks, in each run."""


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

    def overlapping(self, span: Window, *, by_time: bool) -> list[str]:
        found = []
        for start, end in self.units:
            low, high = self.times[start] if by_time else (start, end)
            if low <= span.end and high >= span.start:
                found.append(self.texts[start])
        return found


class Model:
    """What each job's windows must consist of, by the definition of `read`."""

    def __init__(self, chain: Chain, grid: UnitGrid) -> None:
        self.chain, self.grid = chain, grid
        self.by_time = grid.by == "time"

    def windows(self) -> list[Window]:
        """The windows that are complete: covered, and passed if they are windows of time."""
        start, end = self.chain.units[0][0], self.chain.units[-1][1]
        if self.by_time:
            start, end = self.chain.times[start][0], self.chain.times[self.chain.units[-1][0]][1]
        return [
            window
            for window in windows_between(self.grid, start, end)
            if (window.end < end if self.by_time else window.end <= end)
        ]

    def plain(self, lookback: int) -> dict[Window, str]:
        rows = {}
        for window in self.windows():
            first = window
            for _ in range(lookback):
                first = window_at(self.grid, max(0, first.start - 1))
            rows[window] = ",".join(self.chain.overlapping(Window(first.start, window.end), by_time=self.by_time))
        return {window: f"({text})" for window, text in rows.items()}

    def history(self) -> dict[Window, str]:
        return {
            window: f"({','.join(self.chain.overlapping(Window(0, window.end), by_time=self.by_time))})"
            for window in self.windows()
        }

    def running(self) -> dict[Window, str]:
        rows: dict[Window, str] = {}
        before = ""
        for window in self.windows():
            own = ",".join(self.chain.overlapping(window, by_time=self.by_time))
            before = rows[window] = f"({own}|{before})"
        return rows


GRIDS = (
    ("{by: blocks, size: 10}", UnitGrid(by="blocks", size=10)),
    ("{by: blocks, size: 3}", UnitGrid(by="blocks", size=3)),
    ("{by: time, grain: hour}", UnitGrid(by="time", grain="hour")),
)
KINDS: dict[str, tuple[str, Callable[[Model], dict[Window, str]]]] = {
    "plain": ("{from: {job: blocks}}", lambda model: model.plain(0)),
    "lookback": ("{from: {job: blocks}, read: window, lookback: 2}", lambda model: model.plain(2)),
    "history": ("{from: {job: blocks}, read: history}", lambda model: model.history()),
    "running": (
        "{from: {job: blocks}}, {self: previous, columns: {total: bigint}}",
        lambda model: model.running(),
    ),
}
HEAD = """
name: {name}
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: src, activation: source, source: {{kind: manual}}}}
  - {{name: blocks, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
      inputs: [{{from: {{job: src}}}}]}}
"""
JOB = """
  - {{name: {job}, activation: reactive, operator: spark_sql, config: {{query: SELECT 1 AS a}},
      units: {units}, inputs: [{inputs}]}}
"""


def document(name: str, jobs: dict[str, tuple[str, str]]) -> str:
    publish = "".join(f"  {name}_{job}: {{from: {{job: {job}}}, storage: s3}}\n" for job in jobs)
    bodies = "".join(JOB.format(job=job, units=units, inputs=inputs) for job, (units, inputs) in jobs.items())
    return (
        f"{HEAD.format(name=name)}{bodies}publish:\n{publish}  {name}_blocks: {{from: {{job: blocks}}, storage: s3}}\n"
    )


class Run:
    def __init__(self, flow: WindowFlow, seed: int) -> None:
        self.flow, self.chance = flow, random.Random(seed)
        self.chain = Chain(self.chance)
        self.name = f"r{seed}"
        flow.times = lambda start, _end: self.chain.times[start]
        picked = [(kind, self.chance.choice(GRIDS)) for kind in KINDS]
        self.jobs = {f"{kind}": (units, KINDS[kind][0]) for kind, (units, _) in picked}
        self.models = {kind: (KINDS[kind][1], grid) for kind, (_, grid) in picked}
        flow.deploy(document(self.name, self.jobs))
        self.versions = 0

    def commit(self, unit: tuple[int, int]) -> None:
        self.versions += 1
        text = f"u{unit[0]}v{self.versions}"
        self.flow.commit_source(self.name, "blocks", *unit, text)
        self.chain.texts[unit[0]] = text

    def fail_or_run(self) -> None:
        """Anything may happen to a ready task: it runs, it fails and is retried, or it runs while its inputs change."""
        ready = [task for job in self.jobs for task in self.flow.tasks(job, "Queued") if not task["held"]]
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
            self.flow.finish(task, f"({'|'.join(inputs)})", lease)
        else:
            self.flow.run(task)

    def check(self) -> None:
        self.flow.run_windows(*self.jobs, pick=self.chance.choice)
        for job, (compute, grid) in self.models.items():
            expected = {tuple(window): text for window, text in compute(Model(self.chain, grid)).items()}
            assert self.flow.rows(f"{self.name}_{job}") == expected, job


@pytest.mark.parametrize("seed", range(6))
def test_what_was_computed_is_what_the_model_computes(harness: DispatcherHarness, seed: int) -> None:
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
