"""The S3 adapter on a real SeaweedFS."""

import asyncio
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.file_transfer_suite import FileTransferSuite, make_file
from tests.conformance.object_store_suite import TOP, ObjectStoreSuite
from tests.support.object_store import object_store
from tracelake.adapters.s3.access import ASKING
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.errors import StoreUnavailableError
from tracelake.stack import seaweedfs
from tracelake.stack.seaweedfs import EmbeddedObjectStore, StorePorts


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


class TestS3Transfer(FileTransferSuite):
    @pytest.fixture
    def transfer(self, seaweed: EmbeddedObjectStore) -> S3Transfer:
        return S3Transfer(seaweed.access(), ASKING)

    def test_a_large_file_goes_in_parts(
        self, transfer: S3Transfer, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tracelake.adapters.s3.transfer.CREATE_BYTES", 2**20)
        body = os.urandom(9 * 2**20)
        meta = transfer.upload(make_file(tmp_path, body), uri)
        assert self.fetch(transfer, meta, tmp_path) == body


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


def test_a_bucket_takes_few_volumes(seaweed: EmbeddedObjectStore) -> None:
    """The program makes as many volumes as the disk could fill: a bucket that took many would leave none to others."""
    store = S3ObjectStore(seaweed.access())
    asyncio.run(store.put("s3://bucket-one/volumes/x", b"x"))
    assert 1 <= len(list(seaweed.data_dir.glob("bucket-one_*.dat"))) <= 2


def test_which_sockets_it_has(seaweed: EmbeddedObjectStore) -> None:
    ports = dataclasses.astuple(seaweed.ports)
    numbers = {*ports, *(port + 10_000 for port in ports)}
    there = {path for number in numbers for path in Path("/tmp").glob(f"seaweedfs-*-{number}.sock")}
    began = seaweed.ports_file.stat().st_mtime  # a run before that had such a port may have left others
    assert {path for path in there if path.stat().st_mtime >= began} == set(seaweed.ports.sockets)


def test_what_it_leaves_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seaweedfs, "_SOCKETS", tmp_path)
    first, second = StorePorts.choose(), StorePorts.choose()
    store = EmbeddedObjectStore(tmp_path / "a", tmp_path / "b", tmp_path / "c", tmp_path / "log", first)

    def leave(ports: StorePorts) -> list[Path]:
        for path in ports.sockets:
            path.touch()
        return ports.sockets

    store.prepare()
    left, others = leave(first), leave(StorePorts(1, 2, 3, 4))
    store.clean_up()
    assert not any(path.exists() for path in left)
    # Nobody cleaned up after a run that was killed, and the next one has other ports.
    left += leave(first) + leave(second)
    dataclasses.replace(store, ports=second).prepare()
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)


def test_secrets_are_not_shown(seaweed: EmbeddedObjectStore) -> None:
    access = seaweed.access()
    assert access.secret_key is not None
    assert access.secret_key not in repr(access)
