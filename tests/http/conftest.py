"""One Dispatcher per module: tests make an org or a job of their own and look at whole tables before and after."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster

UNLIMITED = dispatcher_config(user_rate_per_second=10**6, user_rate_burst=10**6)
"""A fuzzer asks faster than any person; the limits have tests of their own."""


@pytest.fixture(scope="module")
def harness(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatcherHarness]:
    state, queue = cluster.fresh("state"), cluster.fresh("queue", role="trace_queue")
    running = DispatcherHarness.start(state, queue, tmp_path_factory.mktemp("home"), UNLIMITED)
    running.use_movable_clock()
    try:
        yield running
    finally:
        running.stop()
        for dsn in (state, queue):
            asyncio.run(cluster.drop(dsn))
