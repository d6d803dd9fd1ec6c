"""One Dispatcher and one Postgres data for the tests of a module; every test has an org of its own."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.sink.flow import BufferFlow
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster

MakeFlow: TypeAlias = Callable[..., BufferFlow]
_orgs = count(1)


@pytest.fixture(scope="module")
def make_flow(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeFlow]:
    state_dsn, queue_dsn, data_dsn = (
        cluster.fresh("state"),
        cluster.fresh("queue", role="trace_queue"),
        cluster.fresh("data"),
    )
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path_factory.mktemp("dispatcher"))

    def make(**fields: Any) -> BufferFlow:
        return BufferFlow(harness, data_dsn, org=f"org{next(_orgs)}", **fields)

    yield make
    harness.stop()
    for dsn in (state_dsn, queue_dsn, data_dsn):
        asyncio.run(cluster.drop(dsn))


@pytest.fixture
def flow(make_flow: MakeFlow) -> BufferFlow:
    return make_flow()


@pytest.fixture
def lone_flow(cluster: TestCluster, state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[BufferFlow]:
    """With a Dispatcher of its own: its clock is moved, or its loops are counted."""
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    yield BufferFlow(harness, cluster.fresh("data"))
    harness.stop()
