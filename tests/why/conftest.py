"""One Dispatcher per module, and an org for each test."""

import itertools

import pytest

from tests.support.dispatcher import DispatcherHarness
from tests.support.harnesses import harness_of_module as harness
from tests.why.support import Situation

__all__ = ["flow", "harness"]

_orgs = itertools.count()


@pytest.fixture
def flow(harness: DispatcherHarness) -> Situation:
    return Situation(harness, f"why_{next(_orgs)}")
