"""Routing on real Postgres against a small model of it; see `machine.py`."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.routing.machine import RoutingMachine
from tests.routing.world import World
from tests.statemachine.test_lifecycle_machine import budget
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster


@contextmanager
def machine(cluster: TestCluster, home: Path) -> Iterator[type[RoutingMachine]]:
    dsns = cluster.fresh("state"), cluster.fresh("queue")
    harness = DispatcherHarness.start(*dsns, home)
    try:
        harness.use_movable_clock()
        yield type("Machine", (RoutingMachine,), {"world": World(harness)})
    finally:
        harness.stop()
        for dsn in dsns:
            asyncio.run(cluster.drop(dsn))


def test_routing_is_what_the_model_says(cluster: TestCluster, tmp_path: Path) -> None:
    with machine(cluster, tmp_path) as made:
        # What fails here is made small by the soak, which has the time.
        quick = settings(budget(12, 25, derandomize=True), phases=[Phase.generate], report_multiple_bugs=False)
        run_state_machine_as_test(made, settings=quick)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_routing_with_volume(cluster: TestCluster, tmp_path: Path) -> None:
    with machine(cluster, tmp_path) as made:
        run_state_machine_as_test(made, settings=budget(400, 50, derandomize=False))
