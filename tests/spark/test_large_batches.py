"""Batches loaded by Spark: the same rows and the same refusals as without it, on a real object store and Postgres."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given, settings

from tests.sink.random_batches import RandomBatch, random_batches
from tests.sink.support import EVERY, Publisher, dataset
from tests.sink.test_store import ask
from tests.support.object_store import object_store
from tests.support.postgres import TestCluster
from tracelake.adapters.s3.access import S3Access
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.model.backoff import Backoff
from tracelake.model.buffered import quoted, table_name
from tracelake.model.dag import OnConflict
from tracelake.sink.batch_commit import BufferCommitter, LargeBatches
from tracelake.sink.outcomes import CommitResult
from tracelake.sink.retrying import Retrying
from tracelake.sink.spark_load import SparkLoader
from tracelake.sink.store_pool import StorePool
from tracelake.wire.buffers import BufferBatch, BufferedDataset

CASES = 100
ROW = b'{"key": "a", "number": 1}\n'
SURE = [
    RandomBatch(ROW, 2, "kept"),
    RandomBatch(ROW + b"{", None, "kept"),
    RandomBatch(ROW, 1, "changed"),
    RandomBatch(ROW, 1, "gone"),
    RandomBatch(ROW + ROW, 2, "kept"),
]
"""Something of everything, whatever chance adds to it."""


@pytest.fixture
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


@pytest.fixture(scope="module")
def access() -> Iterator[S3Access]:
    with object_store() as running:
        yield running.access()


def made_up() -> list[RandomBatch]:
    """Many of them for one pass: a Spark job for each would take a second for each."""
    found: list[RandomBatch] = []

    @settings(max_examples=CASES, deadline=None, database=None)
    @given(random_batches())
    def collect(batch: RandomBatch) -> None:
        found.append(batch)

    collect()
    return [*SURE, *found]


async def publish(objects: S3ObjectStore, made: Sequence[RandomBatch]) -> list[BufferBatch]:
    publisher, batches = Publisher(dataset(EVERY), org_id=UUID(int=7)), []
    for item in made:
        uri = f"s3://trace-scratch/batches/{uuid4()}"
        meta = await objects.put(uri, item.data)
        batch = publisher.batch(item.data, uri=uri, etag=meta.etag)
        batches.append(msgspec.structs.replace(batch, record_count=item.record_count))
        if item.becomes == "changed":
            await objects.put(uri, item.data[::-1] + b" ")
        elif item.becomes == "truncated":
            await objects.put(uri, item.data[: len(item.data) // 2] or b"x")
        elif item.becomes == "gone":
            await objects.delete(uri)
    return batches


async def commit(
    of: BufferedDataset,
    batches: Sequence[BufferBatch],
    objects: S3ObjectStore,
    dsn: str,
    *,
    large: LargeBatches | None = None,
    at_once: int = 1000,
) -> CommitResult:
    stores, signals = StorePool(lambda: dsn), list[str]()
    committer = BufferCommitter(
        of,
        objects=objects,
        stores=stores,
        retrying=Retrying(of.name, Backoff(0.01, 0.1), asyncio.Event(), signals.append),
        large=large,
        large_bytes=0,
        on_signal=signals.append,
    )
    result = CommitResult([], [])
    try:
        for start in range(0, len(batches), at_once):
            result += await committer.commit(batches[start : start + at_once])
    finally:
        stores.close()
    assert "waiting" not in signals
    assert ("fetched" in signals) == (large is None), "Spark did it all, or had no part in it"
    return result


def told(settled: CommitResult) -> dict[int, tuple[Any, ...]]:
    """What is said of each batch that was refused."""
    return {
        item.batch.publish_seq: (item.error.code, item.error.line, item.error.reason, item.error.excerpt)
        for item in settled.refusals
    }


def rows_of(dsn: str, of: BufferedDataset) -> list[tuple[Any, ...]]:
    names = ", ".join(f"{quoted(column.name)}::text" for column in of.schema.columns)
    table = quoted(table_name(of.dataset_uuid))
    hidden = "org_id, _task_id, _publish_seq, _line"
    return ask(dsn, f"SELECT {hidden}, {names} FROM {table} ORDER BY key, number")


def test_both_ways_end_in_the_same_table(spark: Any, access: S3Access, dsn: str) -> None:
    objects, loader = S3ObjectStore(access), SparkLoader(lambda: nullcontext(spark), S3Transfer(access), lambda: dsn)
    made = made_up()
    published = asyncio.run(publish(objects, made))
    modes: tuple[OnConflict, ...] = ("update", "nothing")
    for mode in modes:
        ways = {}
        for name, large, at_once in (("direct", None, 40), ("spark", loader, 1000)):
            of = dataset(EVERY, mode, name=f"{name}_{mode}")
            mine = [msgspec.structs.replace(batch, publish_id=uuid4()) for batch in published]
            order = mine[::-1] if large is None else mine
            settled = asyncio.run(commit(of, order, objects, dsn, large=large, at_once=at_once))
            taken = {publish_id for commit in settled.commits for publish_id in commit.publish_ids}
            refused = {refusal.batch.publish_id for refusal in settled.refusals}
            assert taken | refused == {batch.publish_id for batch in mine}
            assert not taken & refused
            ways[name] = (told(settled), rows_of(dsn, of))
        refusals, rows = ways["direct"]
        assert ways["spark"] == (refusals, rows)
        codes = {code for code, *_ in refusals.values()}
        assert codes == {"row_invalid", "record_count_wrong", "artifact_changed"}
        assert rows
