"""Fixtures with a real Query Service, one for all tests of a module. A conftest imports them."""

from collections.abc import Iterator

import pytest

from tests.http.support import fresh
from tests.query.support import FILES, ServiceHarness, blocks_table, commit_blocks, parquet
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster


@pytest.fixture(scope="module")
def data_dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


@pytest.fixture(scope="module")
def service(
    harness: DispatcherHarness, data_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceHarness]:
    running = ServiceHarness.start(harness, tmp_path_factory.mktemp("query"), data_dsn)
    yield running
    running.stop()


@pytest.fixture
def flow(harness: DispatcherHarness) -> Flow:
    """An org with `blocks` of the blocks 0 to 9 and 10 to 19."""
    flow = Flow(harness, fresh("queried"))
    flow.deploy(FILES)
    for start in (0, 10):
        commit_blocks(flow, start, start + 9, parquet(blocks_table(start, start + 9)))
    return flow
