"""One Dispatcher per module; every test makes orgs of its own."""

from tests.api.conftest import harness

__all__ = ["harness"]
