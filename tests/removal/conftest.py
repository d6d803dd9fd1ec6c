from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.removal.support import Removal
from tests.routing.support import Flow
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness


@pytest.fixture
def flow(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[Flow]:
    """With a Dispatcher of its own, whose clock can be moved."""
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path, dispatcher_config(removed_retention_days=7))
    harness.use_movable_clock()
    yield Flow(harness)
    harness.stop()


@pytest.fixture
def removal(flow: Flow) -> Removal:
    return Removal(flow)
