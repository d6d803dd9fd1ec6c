"""A Dispatcher of the module's own, with a clock that can be moved."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness


@pytest.fixture
def harness(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[DispatcherHarness]:
    running = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    running.use_movable_clock()
    yield running
    running.stop()


@pytest.fixture
def flow(harness: DispatcherHarness) -> Flow:
    return Flow(harness)
