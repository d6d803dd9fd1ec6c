"""A Dispatcher for all tests of a module; each test has an org of its own."""

from tests.support.harnesses import harness_of_module as harness

__all__ = ["harness"]
