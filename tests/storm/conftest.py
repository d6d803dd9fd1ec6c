"""A real Dispatcher process that can be killed, and beside it one of the test's own on the same databases."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storm.support import Storm
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tracelake.settings.home import Home

NO_RATES = dispatcher_config(user_rate_per_second=10**6, user_rate_burst=10**6)


@pytest.fixture
def harness(cluster: TestCluster, tmp_path: Path) -> Iterator[DispatcherHarness]:
    dsns = cluster.fresh("state"), cluster.fresh("queue")  # a process migrates them, so it must own both
    home = tmp_path / "home"
    Home(home).make()
    running = DispatcherHarness.start(*dsns, home, NO_RATES)
    try:
        yield running
    finally:
        running.stop()
        for dsn in dsns:
            asyncio.run(cluster.drop(dsn))


@pytest.fixture
def storm(harness: DispatcherHarness) -> Iterator[Storm]:
    running = Storm(harness)
    running.start()
    try:
        yield running
    finally:
        running.stop()
