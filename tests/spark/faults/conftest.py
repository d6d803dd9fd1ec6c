"""One real object store for all of these tests; each finds it running."""

from collections.abc import Iterator

import pytest

from tests.spark.faults.support import Store, running_store


@pytest.fixture(scope="session")
def shared_store() -> Iterator[Store]:
    with running_store() as store:
        yield store


@pytest.fixture
def store(shared_store: Store) -> Iterator[Store]:
    yield shared_store
    shared_store.back()
