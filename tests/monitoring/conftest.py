"""A Dispatcher of the test's own, with a clock that can be moved."""

from tests.routing.conftest import harness

__all__ = ["harness"]
