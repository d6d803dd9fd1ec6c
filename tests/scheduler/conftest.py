"""A Dispatcher of the test's own, on databases of its own."""

from tests.support.harnesses import harness_of_test as harness

__all__ = ["harness"]
