"""Rows of buffered datasets as frames: exact types, exactly the commits of the unit, all parts of one moment."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.sink.support import EVERY, PLAIN, Publisher, dataset
from tests.sink.test_store import ask
from tests.spark.kept_tables import HIGHEST, LEAST, MOST, Kept, explained, rows_of, run
from tests.spark.support import DirectoryTransfer
from tests.support.postgres import TestCluster
from tracelake.catalogue.context import NonRetryableError
from tracelake.errors import StoreUnavailableError
from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.sink.store import TableStore
from tracelake.spark.child.messages import AskFiles, TableAnswer
from tracelake.spark.child.transfer import ExportedTables, check
from tracelake.spark.reader import Reader, TableReader
from tracelake.spark.session import SharedSession
from tracelake.spark.work import SparkWork
from tracelake.storage.file_cache import FileCache
from tracelake.storage.snapshots import Snapshot
from tracelake.wire.units import CursorRange, Unit
from tracelake.worker.org_process.broker import AttemptBroker
from tracelake.worker.spark import SparkOperators


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


@pytest.fixture
def keep(dsn: str) -> Iterator[Callable[[Schema], Kept]]:
    store = TableStore(dsn)

    def make(schema: Schema) -> Kept:
        made = dataset(schema, name=f"rows_{uuid4().hex}")
        store.follow(made)
        return Kept(dsn, made, store, Publisher(made))

    yield make
    store.close()


@pytest.fixture
def engine(shared: SharedSession, dsn: str, tmp_path: Path) -> SparkOperators:
    return SparkOperators(shared, DirectoryTransfer(tmp_path / "objects"), tmp_path / "scratch", lambda: dsn)


def test_every_type_comes_as_it_is(keep: Callable[[Schema], Kept], engine: SparkOperators) -> None:
    kept = keep(EVERY)
    kept.commit([LEAST, MOST, {"key": "c", "number": 0}])
    found = rows_of(engine, kept, kept.item(0, 1))
    kinds = {field.name: str(field.type) for field in found.schema}
    assert kinds == {
        "key": "string",
        "number": "int32",
        "flag": "bool",
        "small": "int16",
        "large": "int64",
        "signed": "string",
        "unsigned": "string",
        "ratio": "double",
        "amount": "decimal128(20, 6)",
        "class": "string",
        "data": "binary",
        "at": "timestamp[us, tz=UTC]",
        "day": "date32[day]",
        "more": "string",
    }
    least, most, none = found.to_pylist()
    assert least == LEAST | {
        "signed": str(-(2**255)),
        "unsigned": "0",
        "amount": Decimal("-99999999999999.999999"),
        "data": b"",
        "at": datetime(1, 1, 1, tzinfo=UTC),
        "day": date(1, 1, 1),
        "more": "{}",
    }
    assert most == MOST | {
        "signed": str(2**255 - 1),
        "unsigned": str(HIGHEST),
        "amount": Decimal("99999999999999.999999"),
        "data": b"\xff" * 32,
        "at": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        "day": date(9999, 12, 31),
        "more": '{"n": 12345678901234567890123, "t": "\u2028\'\\"\\\\"}',
    }
    assert none == dict.fromkeys(kinds) | {"key": "c", "number": 0}


def test_exactly_the_commits_of_the_unit(keep: Callable[[Schema], Kept], spark: SparkSession, dsn: str) -> None:
    """However they are cut into parts. A row that was written again is one of the later commit alone."""
    kept = keep(PLAIN)
    kept.commit([{"key": 1}, {"key": 2}], [{"key": 3}], [], [{"key": 4}, {"key": 5}])
    kept.commit([{"key": 6}])
    kept.commit([{"key": 2}, {"key": 7}], [{"key": 8}])
    written = {1: {1, 3, 4, 5}, 2: {6}, 3: {2, 7, 8}}
    with closing(Snapshot(dsn)) as snapshot:
        table = snapshot.table(kept.dataset.dataset_uuid, kept.declared.columns[:1])
        for after, to in ((-1, 3), (0, 1), (1, 3), (2, 2), (2, 3), (3, 9)):
            wanted = sorted(key for commit, keys in written.items() if after < commit <= to for key in keys)
            for size in (1, 2, 3, 100):
                parts, count = snapshot.split(table, CursorRange(after=after, to=to), size)
                found = [batch for part in parts for batch in snapshot.rows(table, part.condition)]
                keys = [row["key"] for batch in found for row in batch.to_pylist()]
                assert sorted(keys) == wanted, (after, to, size)
                assert count == len(wanted)
                batches = sum(after < commit <= to for commit in (1, 1, 1, 2, 3, 3))
                assert len(parts) == (max(batches, 1) if size == 1 else 1 if size == 100 else len(parts))
        (part,), _ = snapshot.split(table, CursorRange(after=1, to=2), 100)
    with closing(TableReader(spark, lambda: dsn, 2)) as reader:
        frame, _ = reader.read(kept.item(0, 3), kept.declared)
        assert frame.rdd.getNumPartitions() > 2
        assert sorted(row["key"] for row in frame.collect()) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert "Index Cond: ((_commit_seq >= 2) AND (_commit_seq <= 2))" in explained(dsn, table.select(part.condition))


def test_all_parts_are_of_one_moment(keep: Callable[[Schema], Kept], spark: SparkSession, dsn: str) -> None:
    kept = keep(PLAIN)
    kept.commit(*([{"key": key, "value": "old"}] for key in range(4)))
    with closing(TableReader(spark, lambda: dsn, 1)) as reader:
        frame, _ = reader.read(kept.item(0, 1), kept.declared)
        coming = frame.toLocalIterator()
        found = [next(coming)]
        kept.commit([{"key": key, "value": "new"} for key in range(5)])
        found += coming
        old = [(key, "old") for key in range(4)]
        assert sorted((row["key"], row["value"]) for row in found) == old
        assert sorted((row["key"], row["value"]) for row in frame.collect()) == old, "and so has who tries again"
        other, _ = reader.read(kept.item(0, 9), kept.declared)
        assert other.filter("value = 'new'").count() == 0, "all that an attempt reads"
    with closing(TableReader(spark, lambda: dsn, 1)) as reader:
        assert reader.read(kept.item(0, 1), kept.declared)[0].count() == 0
        assert reader.read(kept.item(1, 2), kept.declared)[0].count() == 5


def test_for_a_cluster_they_are_files_of_one_moment(
    keep: Callable[[Schema], Kept], spark: SparkSession, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelake.worker.org_process.broker.ROWS_PER_PART", 1)
    kept = keep(EVERY)
    kept.commit([LEAST, MOST], [{"key": "c", "number": 0}])
    item = kept.item(0, 1)
    transfer = DirectoryTransfer(tmp_path / "objects")
    context = kept.context(item)
    scratch = "s3://trace-scratch/scratch/1/1/"
    broker = AttemptBroker(context, transfer, lambda: dsn, tmp_path / "transit", 0, scratch)
    with closing(broker):
        assert isinstance(check(broker.answer(AskFiles(item.input_index, item.unit), None)), TableAnswer)
        reader = Reader(spark, FileCache(tmp_path / "cache", transfer), tmp_path / "links", local=False)
        tables = ExportedTables(reader, lambda body: check(broker.answer(body, None)))
        frame, _ = tables.read(item, kept.declared)
        kept.commit([{"key": "a", "number": 7}])
        again, _ = tables.read(item, kept.declared)
        rows = frame.toArrow().sort_by("key").to_pylist()
        assert rows == again.toArrow().sort_by("key").to_pylist()
    assert [row["key"] for row in rows] == ["a", "b", "c"]
    assert (rows[0]["number"], rows[0]["signed"]) == (LEAST["number"], str(-(2**255)))
    assert (rows[1]["data"], rows[1]["amount"]) == (b"\xff" * 32, Decimal("99999999999999.999999"))
    assert len(list(transfer.path(scratch + "x").parent.iterdir())) == 2, "one file for each part, made once"


AMOUNTS = Schema(
    columns=(
        Column(name="key", type=ColumnType.INT64, nullable=False),
        Column(name="wei", type=ColumnType.UINT256),
        Column(name="price", type=ColumnType.DECIMAL, precision=38, scale=18),
        Column(name="token", type=ColumnType.BYTES),
        Column(name="at", type=ColumnType.TIMESTAMP),
        Column(name="block_number", type=ColumnType.INT64),
    ),
    unique=("key",),
)


def test_where(keep: Callable[[Schema], Kept], engine: SparkOperators) -> None:
    kept = keep(AMOUNTS)
    price = "12345678901234567890.000000000000000001"
    kept.commit(
        [
            {"key": 1, "wei": HIGHEST, "price": price, "token": "0xff00", "at": "2026-01-31T12:00:00Z"},
            {"key": 2, "wei": HIGHEST - 1, "price": price[:-1] + "2", "token": "0xff01"},
            {"key": 3, "wei": 7, "at": "2026-01-31T12:00:00.000001Z", "block_number": 5},
        ]
    )
    conditions: list[tuple[dict[str, Any], set[int]]] = [
        ({"wei": str(HIGHEST)}, {1}),
        ({"wei": [7, str(HIGHEST - 1)]}, {2, 3}),
        ({"price": price}, {1}),
        ({"token": "0xff01"}, {2}),
        ({"token": ["0xff01", None]}, {2, 3}),
        ({"at": "2026-01-31T12:00:00Z"}, {1}),
        ({"key": [1, 3], "wei": 7}, {3}),
        ({"wei": 8}, set()),
    ]

    def check(work: SparkWork) -> None:
        for where, wanted in conditions:
            found = work.read_input(kept.item(0, 1, where)).select("key").collect()
            assert {row["key"] for row in found} == wanted, where
        with pytest.raises(NonRetryableError, match="`where` names 'none', which rows does not have"):
            work.read_input(kept.item(0, 1, {"none": 1}))

    run(engine, kept.context(kept.item(0, 1)), check)


def test_what_sql_makes_of_a_table(keep: Callable[[Schema], Kept], engine: SparkOperators) -> None:
    kept = keep(AMOUNTS)
    kept.commit([{"key": key, "wei": HIGHEST - key, "block_number": 900} for key in range(3)])
    query = "SELECT max(wei) AS most, max(block_number) AS block, ${to} AS upto FROM rows"
    context = kept.context(kept.item(0, 1), {"query": query})
    result = engine.operators()["spark_sql"].run(context)
    assert [output.row_count for output in result.outputs] == [1]
    context = kept.context(kept.item(0, 1), {"query": "SELECT key, block_number FROM rows"})
    with pytest.raises(NonRetryableError, match="counts commits of a table, so files cannot have a column block_num"):
        engine.operators()["spark_sql"].run(context)
    by_blocks = msgspec.structs.replace(kept.item(0, 1), unit=Unit(partition_key="0-9", start=0, end=9))
    with pytest.raises(
        NonRetryableError, match="the input rows is a table, which is read by commits, but the unit 0-9"
    ):
        run(engine, kept.context(by_blocks), lambda work: work.read())


def test_a_store_that_goes_away(keep: Callable[[Schema], Kept], engine: SparkOperators, dsn: str) -> None:
    """Another attempt may find it again. Nothing is held once an attempt has ended, however it did."""
    kept = keep(PLAIN)
    kept.commit([{"key": 1}])
    context = kept.context(kept.item(0, 1))
    nowhere = dataclasses.replace(engine, data_dsn=lambda: "postgresql://nobody@/none?host=/nowhere")
    with pytest.raises(StoreUnavailableError, match="Postgres data does not answer"):
        run(nowhere, context, lambda work: work.read())

    def lose(work: SparkWork) -> None:
        frame = work.read()
        assert kept.holders() == 1
        holders = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        ask(dsn, f"{holders} AND state LIKE 'idle in transaction%' AND pid <> pg_backend_pid()")
        frame.collect()

    with pytest.raises(StoreUnavailableError, match=r"Postgres data does not answer \(SQLSTATE 42704\)"):
        run(engine, context, lose)

    def fail(work: SparkWork) -> None:
        assert work.read().count() == 1
        assert kept.holders() == 1
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        run(engine, context, fail)
    assert kept.holders() == 0
    nothing = msgspec.structs.replace(kept.item(0, 1), dataset_uuid=uuid4())
    with pytest.raises(StoreUnavailableError, match="The table does not exist yet"):
        run(engine, kept.context(nothing), lambda work: work.read())
    assert kept.holders() == 0
