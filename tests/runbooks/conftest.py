"""One stack for all pages but the restore: starting one is what costs most."""

from collections.abc import Iterator

import pytest

from tests.runbooks.stack import RealStack


@pytest.fixture(scope="session")
def shared_stack() -> Iterator[RealStack]:
    running = RealStack(workers=1)
    try:
        running.up()
        yield running
    finally:
        running.close()
