"""A Dispatcher of the test's own, on databases of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dispatcher import DispatcherHarness


@pytest.fixture
def harness(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[DispatcherHarness]:
    running = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    running.use_movable_clock()
    try:
        yield running
    finally:
        running.stop()
