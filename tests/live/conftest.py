"""A Dispatcher of the test's own, with a live dataset."""

import pytest

from tests.live.support import LiveFlow
from tests.support.dispatcher import DispatcherHarness
from tests.support.harnesses import harness_of_test as harness

__all__ = ["harness", "live"]


@pytest.fixture
def live(harness: DispatcherHarness) -> LiveFlow:
    return LiveFlow(harness)
