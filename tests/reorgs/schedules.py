"""Random schedules of a chain: what it appends, what it reorganises, and how its events arrive.

A schedule is data, made from a seed alone. So what the schedules cover is known without running them.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.reorgs.live_chain import FIRST_BLOCKS

DEPTHS = (1, 1, 2, 5, 9, 20, 64)
STEPS = 8
KINDS = ("append", "reorganise", "nest")


@dataclass(frozen=True)
class Step:
    """One change of the chain. The events of several reorganisations wait until the last of them is written."""

    appended: int = 0
    reorganisations: tuple[tuple[int, int], ...] = ()
    """Depth of each, and the blocks that its fork is longer."""
    together: bool = False
    """Their events come in one call."""
    repeated: int = 0
    """Earlier events that come once more, in any order, before and behind the new ones."""
    early_tasks: int = 0
    """Tasks that run after each write, before its event is announced."""
    tasks: int = 0
    """Tasks that run after the change."""
    is_counted: bool = False
    """It begins and ends with nothing left to do, and the tasks that it makes are counted."""


def make_schedule(seed: int) -> list[Step]:
    """Each kind of step occurs, so that no schedule lacks one."""
    chance = random.Random(seed)
    blocks = FIRST_BLOCKS
    steps = []
    kinds = [*KINDS, *chance.choices(KINDS, k=STEPS - len(KINDS))]
    chance.shuffle(kinds)
    for kind in kinds:
        is_counted = chance.random() < 0.3 if kind != "append" else False
        appended = chance.choice([1, 1, 1, 2, 9]) if kind == "append" else 0
        reorganisations = []
        for _ in range({"append": 0, "reorganise": 1, "nest": chance.choice([2, 2, 3])}[kind]):
            depth = min(blocks - 1, chance.choice(DEPTHS))  # the chain begins where it began
            more = chance.choice([0, 0, 1, 3])
            reorganisations.append((depth, more))
            blocks += more
        blocks += appended + is_counted
        steps.append(
            Step(
                appended=appended,
                reorganisations=tuple(reorganisations),
                together=chance.random() < 0.5,
                repeated=chance.choice([0, 0, 1, 4]),
                early_tasks=0 if is_counted else chance.choice([0, 0, 1, 2]),
                tasks=chance.randint(0, 4),
                is_counted=is_counted,
            )
        )
    return steps


def count_coverage(schedules: Iterable[list[Step]]) -> Counter[str]:
    """How often the schedules have what the tests are about."""
    return Counter(word for steps in schedules for step in steps for word in _words(step))


def _words(step: Step) -> Iterator[str]:
    if step.appended:
        yield "append"
    for depth, more in step.reorganisations:
        yield "reorganisation"
        yield "shallow" if depth <= 2 else "deep" if depth > 30 else "middle"
        if more:
            yield "longer fork"
    if len(step.reorganisations) > 1:
        yield "nested, one call" if step.together else "nested, several calls"
        depths = [depth for depth, _ in step.reorganisations]
        yield "nested, ever deeper" if depths == sorted(depths) else "nested, shallower later"
    if step.repeated and step.reorganisations:
        yield "repeated"
    if step.repeated > 1 and step.reorganisations:
        yield "repeated in another order"
    if step.early_tasks and step.reorganisations:
        yield "read before its event"
    if step.is_counted:
        yield "counted"
        if len(step.reorganisations) > 1:
            yield "counted, nested"
