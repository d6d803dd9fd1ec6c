"""A Dispatcher of the test's own, and a way to drive its DAGs."""

from tests.routing.conftest import flow, harness

__all__ = ["flow", "harness"]
