"""Backpressure and sources on real Postgres, with random DAGs and random trouble; see `pressed.py`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.backpressure.pressed import STEP, PressedRun, Step
from tests.backpressure.shapes import Shape, Version, shapes
from tests.backpressure.world import PressedWorld
from tests.sources.webhook_support import running
from tests.support.postgres import TestCluster


@pytest.fixture(scope="module")
def world(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PressedWorld]:
    with running(cluster, Path(tmp_path_factory.mktemp("pressed")), dispatchers=2) as both:
        yield PressedWorld(both)


def check(world: PressedWorld, made: tuple[Shape, Version], steps: list[Step]) -> None:
    run = PressedRun(world, *made)
    for step in steps:
        run.step(step)
    run.everything_drains()


# What fails here is made small by the soak, which has the time.
QUICK = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)


@QUICK
@given(made=shapes(), steps=st.lists(STEP, min_size=25, max_size=40))
def test_pressure_keeps_its_promises(world: PressedWorld, made: tuple[Shape, Version], steps: list[Step]) -> None:
    check(world, made, steps)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(QUICK, max_examples=500, derandomize=False, phases=[Phase.generate, Phase.shrink])
@given(made=shapes(), steps=st.lists(STEP, min_size=25, max_size=80))
def test_pressure_with_volume(world: PressedWorld, made: tuple[Shape, Version], steps: list[Step]) -> None:
    check(world, made, steps)
