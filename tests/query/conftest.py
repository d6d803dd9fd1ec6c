"""One Dispatcher per module; every test makes orgs of its own."""

from tests.support.harnesses import harness_of_module as harness

__all__ = ["harness"]
