"""The S3 adapter on a real SeaweedFS."""

import asyncio
import dataclasses
from collections.abc import Iterator

import pytest

from tests.conformance.object_store_suite import TOP, ObjectStoreSuite
from tests.support.object_store import object_store
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.errors import StoreUnavailableError
from tracelake.processes.seaweedfs import EmbeddedObjectStore


@pytest.fixture(scope="module")
def seaweed() -> Iterator[EmbeddedObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def store(seaweed: EmbeddedObjectStore) -> S3ObjectStore:
    store = S3ObjectStore(seaweed.access())

    async def empty() -> None:
        for bucket in ("bucket-one", "bucket-two"):
            for meta in await store.list(f"s3://{bucket}/datasets/"):
                await store.delete(meta.uri)

    asyncio.run(empty())
    return store


class TestS3Store(ObjectStoreSuite):
    pass


@pytest.mark.parametrize(
    "change",
    [{"secret_key": "x" * 40}, {"access_key": "NOBODY"}, {"endpoint": "http://127.0.0.1:9"}],
    ids=["wrong secret", "unknown key", "nobody there"],
)
def test_whoever_cannot_be_asked_is_away(seaweed: EmbeddedObjectStore, change: dict[str, str]) -> None:
    store = S3ObjectStore(dataclasses.replace(seaweed.access(), **change))
    for call in (store.head(TOP + "x"), store.get(TOP + "x"), store.put(TOP + "x", b""), store.list(TOP)):
        with pytest.raises(StoreUnavailableError):
            asyncio.run(call)


def test_secrets_are_not_shown(seaweed: EmbeddedObjectStore) -> None:
    access = seaweed.access()
    assert access.secret_key is not None
    assert access.secret_key not in repr(access)
