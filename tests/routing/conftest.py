"""A Dispatcher of the test's own, with a clock that can be moved, and a way to drive its DAGs."""

import pytest

from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness
from tests.support.harnesses import harness_of_test as harness

__all__ = ["flow", "harness"]


@pytest.fixture
def flow(harness: DispatcherHarness) -> Flow:
    return Flow(harness)
