"""Fixtures with a Dispatcher whose clock can be moved. A conftest imports one of them as `harness`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster

UNLIMITED = dispatcher_config(user_rate_per_second=10**6, user_rate_burst=10**6)
"""Tests call faster than any person; the limits have tests of their own."""


@pytest.fixture
def harness_of_test(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[DispatcherHarness]:
    """A Dispatcher of the test's own, on databases of its own."""
    running = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    running.use_movable_clock()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def harness_of_module(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatcherHarness]:
    """A Dispatcher for all tests of a module, without limits of calls; each test uses orgs of its own."""
    state, queue = cluster.fresh("state"), cluster.fresh("queue", role="trace_queue")
    running = DispatcherHarness.start(state, queue, tmp_path_factory.mktemp("home"), UNLIMITED)
    running.use_movable_clock()
    try:
        yield running
    finally:
        running.stop()
        for dsn in (state, queue):
            asyncio.run(cluster.drop(dsn))
