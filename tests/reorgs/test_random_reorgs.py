"""A table that a follower writes, with random appends and reorganisations, and dependants of every kind.

Whatever is appended, reorganised and computed in whatever order: in the end each unit is what a plain model computes
from the chain as it is. A change makes one task for each unit that it changes, and none for any other.
`TRACE_SEED=123` runs that schedule alone.
"""

import os
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from tests.reorgs.live_chain import FIRST_BLOCKS, Block, Dependant, LiveChain, digest, model, rows_text
from tests.reorgs.schedules import Step, count_coverage, make_schedule
from tests.reorgs.support import READERS, ReorgFlow
from tests.support.dispatcher import DispatcherHarness
from tracelake.model.dag import UnitGrid
from tracelake.model.windows import Window

FEW = 9
SEEDS = [int(os.environ["TRACE_SEED"])] if "TRACE_SEED" in os.environ else list(range(FEW))
LEAST = {
    "append": 20,
    "reorganisation": 60,
    "shallow": 30,
    "middle": 30,
    "deep": 6,
    "longer fork": 30,
    "nested, one call": 8,
    "nested, several calls": 5,
    "nested, ever deeper": 8,
    "nested, shallower later": 8,
    "repeated": 20,
    "repeated in another order": 12,
    "read before its event": 10,
    "counted": 12,
    "counted, nested": 6,
}
"""How often these must be among all schedules."""
LEAST_REORGANISATIONS = 3
"""In each of them."""
LAST_BLOCK = 10**6
FIRST = 1_003
"""The follower begins in the middle of a window."""
TENS, SEVENS = UnitGrid(by="blocks", size=10), UnitGrid(by="blocks", size=7)
HOURS = UnitGrid(by="time", grain="hour")
GROWING = UnitGrid(by="time", grain="hour", when="updated")
GROWING_TENS = UnitGrid(by="blocks", size=10, when="updated")
DEPENDANTS = (
    Dependant("tens", TENS),
    Dependant("hours", HOURS),
    Dependant("growing_hours", GROWING),
    Dependant("growing_tens", GROWING_TENS),
    Dependant("looking_back", SEVENS, ", read: window, lookback: 1"),
    Dependant("all_before", TENS, ", read: history"),
    Dependant("running_blocks", SEVENS, running=True),
    Dependant("running_hours", HOURS, running=True),
    Dependant("copied_hours", HOURS, ", by: timestamp", parent="copy"),
    Dependant("over_tens", UnitGrid(by="blocks", size=30), parent="tens"),
    Dependant("running_over_hours", HOURS, parent="hours", running=True),
)


def make_flow(harness: DispatcherHarness, name: str, chance: random.Random) -> ReorgFlow:
    return ReorgFlow(harness, name, LiveChain(chance, FIRST), DEPENDANTS)


def expected(flow: ReorgFlow) -> dict[str, dict[Window, str]]:
    results = model(flow.chain, DEPENDANTS)
    copies = {unit: rows_text(flow.chain.between(*unit)) for unit in flow.updates()}
    return results | {"copy": copies, "onward": {unit: digest([text]) for unit, text in copies.items()}}


def check(flow: ReorgFlow) -> dict[str, dict[Window, str]]:
    """That each unit is as if it had been computed from scratch, and the units of readers are all of the chain."""
    flow.settle()
    results = expected(flow)
    assert flow.results() == results
    updates = flow.updates()
    assert [updates[0].start, updates[-1].end] == [FIRST, flow.chain.tip]
    assert [unit.start for unit in updates[1:]] == [unit.end + 1 for unit in updates[:-1]]
    assert flow.count_unsettled() == 0
    return results


def run_one(flow: ReorgFlow, chance: random.Random) -> None:
    ready = flow.ready()
    if ready:
        flow.end(*flow.start(chance.choice(ready)[1]))


def change(flow: ReorgFlow, step: Step, chance: random.Random) -> None:
    events = []
    if step.appended:
        flow.append(step.appended)
    for depth, more in step.reorganisations:
        events.append(flow.reorganise(depth, more))
        for _ in range(step.early_tasks):  # a task reads what its event has not announced yet
            run_one(flow, chance)
    flow.repeat(*sample(flow, step, chance))
    for call in [events] if step.together else [[event] for event in events]:
        if call:
            flow.announce(*call)
    flow.repeat(*sample(flow, step, chance))
    flow.drain()


def sample(flow: ReorgFlow, step: Step, chance: random.Random) -> list[dict[str, Any]]:
    """Events that were announced before, in any order."""
    return chance.sample(flow.announced, min(step.repeated, len(flow.announced)))


@dataclass(frozen=True)
class Settled:
    """A flow of which nothing is left to do."""

    results: dict[str, dict[Window, str]]
    tasks: Counter[tuple[str, str]]
    updates: list[Window]
    blocks: list[Block]

    @classmethod
    def of(cls, flow: ReorgFlow) -> "Settled":
        results = check(flow)
        return cls(results, flow.counts(), flow.updates(), list(flow.chain.blocks))


def check_tasks(flow: ReorgFlow, before: Settled, depth: int, *, nested: bool) -> Settled:
    """That the last change has computed what it changed, once, and nothing else. `depth`: of all blocks of `before`
    that it replaced. Nested reorganisations may touch a unit and leave it as it was."""
    after = Settled.of(flow)
    again = after.tasks - before.tasks
    assert not [unit for unit, count in again.items() if count > 1]
    parent, first = before.blocks[-depth - 1 :][:2]
    overlapping = {unit for unit in before.updates if unit.end >= first.number}
    for job in DEPENDANTS:
        units = after.results[job.name]
        differing = {unit for unit, text in units.items() if before.results[job.name].get(unit) != text}
        recomputed = {key for name, key in again if name == job.name}
        keys = {f"p:{unit.start}-{unit.end}" for unit in differing}
        assert recomputed >= keys, job.name
        is_copied = job.parent == "copy"  # whose units are as long as the updates were
        if not nested and not is_copied:
            # Events tell the times of replaced blocks as a range: hours without blocks within it are touched as well.
            last = before.blocks[-1].time if job.grid.by == "time" else 0
            between = {unit for unit in units if unit.start > parent.time and unit.end < last}
            empty = {f"p:{unit.start}-{unit.end}" for unit in between}
            assert recomputed <= keys | empty, job.name
        lowest = flow.chain.between(min(overlapping).start, LAST_BLOCK)[0] if is_copied else parent
        end = lowest.time if job.grid.by == "time" else first.number
        assert not {f"p:{unit.start}-{unit.end}" for unit in units if unit.end < end} & recomputed, job.name
    new_units = set(after.updates) - set(before.updates)
    for name in READERS:
        assert {key for job, key in again if job == name} == {f"c:{unit.end}" for unit in overlapping | new_units}
    return after


def change_and_count(flow: ReorgFlow, step: Step, chance: random.Random) -> None:
    before = Settled.of(flow)
    change(flow, step, chance)
    flow.pass_all()  # else the new chain may not have reached all windows of the old one
    replaced = [one for one, other in zip(before.blocks, flow.chain.blocks, strict=False) if one != other]
    check_tasks(flow, before, len(replaced), nested=len(step.reorganisations) > 1)


def compare_with_model(harness: DispatcherHarness, seed: int) -> None:
    chance = random.Random(seed)
    flow = make_flow(harness, f"reorgs{seed}", chance)
    flow.append(FIRST_BLOCKS)
    running: list[tuple[UUID, object, str]] = []
    for step in make_schedule(seed):
        if step.is_counted:
            while running:
                flow.end(*running.pop())
            flow.settle()
            flow.pass_all()
            change_and_count(flow, step, chance)
            continue
        change(flow, step, chance)
        for _ in range(step.tasks):
            run_one(flow, chance)
        while running and chance.random() < 0.6:  # what it has read may be of another fork by now
            flow.end(*running.pop())
        ready = flow.ready()
        if ready and chance.random() < 0.5:
            running.append(flow.start(chance.choice(ready)[1]))
    for started in running:
        flow.end(*started)
    flow.settle()
    flow.pass_all()
    check(flow)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_dependants_are_what_the_chain_says(harness: DispatcherHarness, seed: int) -> None:
    compare_with_model(harness, seed)


def test_the_schedules_cover_what_can_happen() -> None:
    """A generator that goes weak fails here, instead of passing everywhere."""
    coverage = count_coverage(make_schedule(seed) for seed in range(FEW))
    for word, least in LEAST.items():
        assert coverage[word] >= least, (word, coverage)
    assert all(
        sum(len(step.reorganisations) for step in make_schedule(seed)) >= LEAST_REORGANISATIONS for seed in range(FEW)
    )


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(FEW, 150))
def test_many_random_chains(harness: DispatcherHarness, seed: int) -> None:
    compare_with_model(harness, seed)


@pytest.mark.parametrize("depth", [1, 7, 64])
def test_a_reorganisation_computes_what_it_changes_once_and_nothing_else(
    harness: DispatcherHarness, depth: int
) -> None:
    chance = random.Random(depth)
    flow = make_flow(harness, f"once{depth}", chance)
    flow.append(80)
    for _ in range(6):
        flow.append(1)
    flow.pass_all()
    before = Settled.of(flow)
    flow.announce(flow.reorganise(depth, 1))
    flow.pass_all()  # else the new chain may not have reached all windows of the old one
    check_tasks(flow, before, depth, nested=False)


def test_queued_tasks_are_brought_up_to_date_by_nested_reorganisations(harness: DispatcherHarness) -> None:
    chance = random.Random(5)
    flow = make_flow(harness, "nested", chance)
    flow.append(30)
    for _ in range(5):
        flow.append(1)
    check(flow)
    tasks = flow.counts()
    events = [flow.reorganise(depth, more) for depth, more in ((3, 1), (1, 0), (8, 0))]
    flow.announce(events[0])
    flow.announce(*events[1:])  # also those of one call
    again = flow.counts() - tasks
    assert set(again.values()) == {1}
    flow.pass_all()
    check(flow)
    assert max((flow.counts() - tasks).values()) == 1, "three reorganisations, and one computation"
    tasks = flow.counts()
    flow.harness.run(flow.harness.dispatcher.routing_reconciler.run_once())
    flow.drain()
    assert flow.counts() == tasks, "the reconciler misses no task of an older reorganisation"


LATE = """
name: late
defaults: {runtime: ecs_platform}
jobs:
  - {name: late_hours, activation: reactive, operator: spark_sql, config: {query: SELECT 1 AS a},
     units: {by: time, grain: hour}, inputs: [{from: {dataset: live}}]}
  - {name: late_tens, activation: reactive, operator: spark_sql, config: {query: SELECT 1 AS a},
     units: {by: blocks, size: 10}, inputs: [{from: {dataset: live}, read: history}]}
publish:
  late_hours: {from: {job: late_hours}, storage: s3}
  late_tens: {from: {job: late_tens}, storage: s3}
"""


def test_dependants_that_come_later_compute_the_chain_as_it_is(harness: DispatcherHarness) -> None:
    flow = make_flow(harness, "late", random.Random(11))
    flow.append(30)
    flow.announce(flow.reorganise(12, 2))
    flow.pass_all()
    check(flow)
    flow.deploy(LATE)
    dependants = (Dependant("late_hours", HOURS), Dependant("late_tens", TENS, ", read: history"))
    for _ in range(2):
        flow.settle()
        results = model(flow.chain, dependants)
        assert {name: flow.rows(name) for name in results} == results
        flow.announce(flow.reorganise(5, 0))
        flow.pass_all()


def test_a_new_version_of_the_follower_goes_on_with_the_same_table(harness: DispatcherHarness) -> None:
    flow = make_flow(harness, "versions", random.Random(12))
    flow.append(25)
    check(flow)
    flow.follow_anew()
    event = flow.reorganise(4, 3)
    flow.announce(event)
    flow.pass_all()
    flow.settle()
    results = model(flow.chain, DEPENDANTS)
    assert {job.name: flow.rows(job.name) for job in DEPENDANTS} == results
