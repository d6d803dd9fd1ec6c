"""One Dispatcher per module: tests make an org or a job of their own and look at whole tables before and after."""

from tests.support.harnesses import harness_of_module as harness

__all__ = ["harness"]
