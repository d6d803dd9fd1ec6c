"""The real endpoints on real Postgres against a small model; its invariants are the product's promises.

A state machine of everything that callers, clocks, queues and crashes can do to tasks; see `machine.py`.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.statemachine.machine import LifecycleMachine
from tests.statemachine.model import RETRY
from tests.statemachine.world import World
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tracelake.model.backoff import Backoff


@contextmanager
def machine(cluster: TestCluster, home: Path, group_commit_max: int) -> Iterator[type[LifecycleMachine]]:
    """The machine on databases of its own; one example at a time, so that its clock may move."""
    config = dispatcher_config(retry=Backoff(RETRY, RETRY), group_commit_max=group_commit_max)
    dsns = cluster.fresh("state"), cluster.fresh("queue")
    harness = DispatcherHarness.start(*dsns, home, config)
    try:
        world = World(harness)
        yield type("Machine", (LifecycleMachine,), {"world": world})
        world.close()
    finally:
        harness.stop()
        for dsn in dsns:
            asyncio.run(cluster.drop(dsn))


def budget(examples: int, steps: int, *, derandomize: bool) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=derandomize,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


@pytest.mark.parametrize(("group_commit_max", "examples"), [(128, 30), (1, 8)])
def test_lifecycle(cluster: TestCluster, tmp_path: Path, group_commit_max: int, examples: int) -> None:
    with machine(cluster, tmp_path, group_commit_max) as made:
        run_state_machine_as_test(made, settings=budget(examples, 30, derandomize=True))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("group_commit_max", [128, 1, 3])
def test_lifecycle_with_volume(cluster: TestCluster, tmp_path: Path, group_commit_max: int) -> None:
    with machine(cluster, tmp_path, group_commit_max) as made:
        run_state_machine_as_test(made, settings=budget(500, 60, derandomize=False))
