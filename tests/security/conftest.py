"""The Dispatcher of the HTTP tests: one per module, with a clock that can be moved."""

from tests.http.conftest import harness as harness
