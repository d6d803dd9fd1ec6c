"""One Dispatcher per module; every test makes orgs of its own."""

from tests.query.service_fixtures import data_dsn, flow, service
from tests.support.harnesses import harness_of_module as harness

__all__ = ["data_dsn", "flow", "harness", "service"]
