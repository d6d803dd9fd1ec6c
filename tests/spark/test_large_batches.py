"""Batches loaded by Spark: the same rows and the same refusals as without it, on a real object store and Postgres."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from tests.sink.support import EVERY, Publisher, dataset, lines
from tests.sink.test_store import rows_of
from tests.support.object_store import object_store
from tests.support.postgres import TestCluster
from tracelake.adapters.s3.access import S3Access
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.sink.batches import BatchReader
from tracelake.sink.large import SparkLoader
from tracelake.sink.settling import Refusal, read_batch
from tracelake.sink.store import Loaded, TableStore
from tracelake.wire.buffers import BufferBatch


@pytest.fixture
def store(cluster: TestCluster) -> Iterator[TableStore]:
    opened = TableStore(cluster.fresh("data"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def access() -> Iterator[S3Access]:
    with object_store() as running:
        yield running.access()


def random_rows(chance: random.Random) -> list[dict[str, Any]]:
    rows = []
    for _ in range(chance.randrange(40)):
        row: dict[str, Any] = {"key": chance.choice("abc"), "number": chance.randrange(4)}
        if chance.random() < 0.5:
            row |= {
                "signed": chance.randrange(-(2**255), 2**255),
                "unsigned": chance.randrange(2**256),
                "ratio": chance.random(),
                "amount": f"{chance.randrange(10**14)}.{chance.randrange(10**6):06}",
                "data": "0x" + chance.randbytes(8).hex(),
                "at": f"2026-01-{chance.randrange(1, 29):02}T00:00:00.{chance.randrange(10**6):06}Z",
                "more": {"a": chance.random(), "b": [None, "x"]},
            }
        rows.append(row)
    return rows


def test_both_ways_end_in_the_same_table(spark: Any, access: S3Access, store: TableStore) -> None:
    chance = random.Random(7)
    objects = S3ObjectStore(access)
    direct, large = dataset(EVERY, name="direct"), dataset(EVERY, name="large")
    for of in (direct, large):
        store.follow(of)
    publisher = Publisher(direct)
    batches: list[tuple[BufferBatch, bytes]] = []

    async def put() -> None:
        for index in range(12):
            data = lines(random_rows(chance))
            if index == 5:
                data += b'{"key": "a", "number": "x"}\n'
            meta = await objects.put(f"s3://trace-scratch/batches/{uuid4()}", data)
            batches.append((publisher.batch(data, uri=meta.uri, etag=meta.etag), data))
        await objects.put(batches[7][0].batch_uri, b"something else")

    asyncio.run(put())
    reader = BatchReader(EVERY)
    good = [batch for index, (batch, _) in enumerate(batches) if index not in (5, 7)]
    parts = [(Loaded(batch, 0), read_batch(reader, batch, data)) for batch, data in batches if batch in good]
    store.commit_direct(direct, [loaded for loaded, _ in parts], [rows for _, rows in parts])

    loader = SparkLoader(lambda: spark, S3Transfer(access), lambda: store._dsn)
    staging = store.open_staging(large)
    again = [msgspec.structs.replace(batch, publish_id=uuid4()) for batch, _ in batches]
    found = loader.load(large, staging, again)
    store.commit_staged(large, staging, [item for item in found if isinstance(item, Loaded)])
    store.drop_staging(staging)

    assert [item.batch for item in found] == again
    refusals = {index: item.error for index, item in enumerate(found) if isinstance(item, Refusal)}
    assert {index: (error.code, error.line is not None) for index, error in refusals.items()} == {
        5: ("row_invalid", True),
        7: ("artifact_changed", False),
    }
    assert refusals[5].reason == "number: Expected `int`, got `str`"
    assert [item.rows for item in found if isinstance(item, Loaded)] == [rows.num_rows for _, rows in parts]
    assert rows_of(store._dsn, direct) == rows_of(store._dsn, large) != []
