"""A Dispatcher of the test's own, on databases of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.dispatcher import DispatcherHarness

StartHarness = Callable[..., DispatcherHarness]


@pytest.fixture
def start(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[StartHarness]:
    """Starts Dispatchers on the same databases, each with a home of its own."""
    running: list[DispatcherHarness] = []

    def make(**options: Any) -> DispatcherHarness:
        home = tmp_path / f"home{len(running)}"
        home.mkdir()
        harness = DispatcherHarness.start(state_dsn, queue_dsn, home, **options)
        running.append(harness)
        if len(running) == 1:
            harness.use_movable_clock()
        return harness

    yield make
    for harness in running:
        harness.stop()


@pytest.fixture
def harness(start: StartHarness) -> DispatcherHarness:
    return start()
