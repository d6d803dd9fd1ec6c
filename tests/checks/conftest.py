"""A Dispatcher of the test's own, and a way to drive its DAGs."""

import pytest

from tests.support.dispatcher import DispatcherHarness
from tests.support.harnesses import harness_of_test as harness
from tests.windows.support import WindowFlow

__all__ = ["flow", "harness"]


@pytest.fixture
def flow(harness: DispatcherHarness) -> WindowFlow:
    return WindowFlow(harness)
