"""Random DAGs over random commits, rewrites, failures and orders.

However the units come, fail, come again and overtake each other: in the end each dataset consists of exactly what a
plain model computes from the newest units. `TRACE_SEED=123` runs that seed alone; `make soak` runs as many as
`TRACE_RUNS` says, from `TRACE_SEED` on.
"""

import os
from collections import Counter

import pytest

from tests.support.dispatcher import DispatcherHarness
from tests.windows.random_runs import Run

GROUPS, RUNS = 2, 8
FEATURES = frozenset(
    """
    read: unit, read: window, lookback, read: history, read: all, read: latest, self: previous, when: updated,
    join by unit, unit and more, windows of blocks, an hour, a day, a week, a month, a day of 23 hours,
    a day of 25 hours, rewrite, rewrite with other times, gap, skip, cancel, unit found after all,
    several attempts at once, completion out of order, lease expiry, late report, failure that is tried again,
    failure that is tried again later, repeated report, event before its commit, deploy, deploy while attempts run,
    cutover
    """.strip()
    .replace("\n    ", " ")
    .split(", ")
)
STEPS = {
    "announce": 10,
    "claim": 12,
    "finish": 10,
    "rewrite": 2,
    "say": 2,
    "repeat": 1,
    "fail": 1,
    "stumble": 1,
    "try_again": 1,
    "wait": 0.7,
    "report_late": 1,
    "give_up": 0.7,
    "deploy": 1,
    "build": 1,
}


def take_steps(run: Run, count: int, **weights: float) -> None:
    chances = STEPS | weights
    for _ in range(count):
        getattr(run, run.chance.choices(list(chances), list(chances.values()))[0])()


def compare_with_model(harness: DispatcherHarness, seed: int) -> Counter[str]:
    run = Run(harness, seed)
    try:
        take_steps(run, 60)
        run.check()
        take_steps(run, 25, rewrite=6, find=3, give_up=3)
        run.check()
        before = run.count_tasks()
        run.rewrite()
        run.check()
        again = run.count_tasks() - before
        repeated = {unit for unit, count in again.items() if count > 1 and not run.dag.reads_far(unit[0])}
        assert not repeated, ("one change computes a unit at most once", repeated, run.dag.yaml(run.name))
    except BaseException as error:
        error.add_note(f"TRACE_SEED={seed}")
        raise
    return run.features


@pytest.mark.parametrize("group", range(GROUPS))
def test_what_was_computed_is_what_the_model_computes(harness: DispatcherHarness, group: int) -> None:
    if "TRACE_SEED" in os.environ:
        compare_with_model(harness, int(os.environ["TRACE_SEED"]))
        return
    features: Counter[str] = Counter()
    for seed in range(group * RUNS, group * RUNS + RUNS):
        features += compare_with_model(harness, seed)
    assert features.keys() >= FEATURES, FEATURES - features.keys()


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_random_dags(harness: DispatcherHarness) -> None:
    first = int(os.environ.get("TRACE_SEED", 1_000))
    for seed in range(first, first + int(os.environ.get("TRACE_RUNS", 200))):
        compare_with_model(harness, seed)
