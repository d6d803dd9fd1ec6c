"""Tables that change while they are read, or before: nothing is lost, and a reader gets what it declares."""

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import adbc_driver_postgresql.dbapi
import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.sink.support import Publisher, dataset
from tests.sink.test_store import ask
from tests.spark.kept_tables import Kept, declared, run
from tests.spark.support import DirectoryTransfer
from tests.support.postgres import TestCluster, wait_until
from tracelake.catalogue.context import NonRetryableError
from tracelake.errors import StoreUnavailableError
from tracelake.model.buffered import patient
from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.sink.store import TableStore
from tracelake.spark.reader import TableReader
from tracelake.spark.session import SharedSession
from tracelake.storage import table_ddl
from tracelake.storage.data_connection import StoreAwayError
from tracelake.storage.snapshots import Snapshot
from tracelake.wire.buffers import BufferedDataset
from tracelake.wire.task_calls import TableColumn
from tracelake.worker.spark import SparkOperators


def schema(*columns: tuple[str, ColumnType] | tuple[str, ColumnType, int, int]) -> Schema:
    made = [Column(name="key", type=ColumnType.INT64, nullable=False)]
    for name, kind, *rest in columns:
        precision, scale = rest or (None, None)
        made.append(Column(name=name, type=kind, precision=precision, scale=scale))
    return Schema(columns=tuple(made), unique=("key",))


NARROW = schema(
    ("small", ColumnType.INT16),
    ("number", ColumnType.INT32),
    ("large", ColumnType.INT64),
    ("price", ColumnType.DECIMAL, 5, 2),
)
WIDE = schema(
    ("small", ColumnType.INT64),
    ("number", ColumnType.INT64),
    ("large", ColumnType.INT256),
    ("price", ColumnType.DECIMAL, 9, 4),
    ("memo", ColumnType.TEXT),
)
FITS = {"small": -(2**15), "number": 2**31 - 1, "large": -(2**63), "price": "-999.99"}


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


@pytest.fixture
def keep(dsn: str) -> Iterator[Callable[[Schema], Kept]]:
    store = TableStore(dsn, lock_seconds=0.05)

    def make(schema: Schema) -> Kept:
        made = dataset(schema, name=f"rows_{uuid4().hex}")
        store.follow(made)
        return Kept(dsn, made, store, Publisher(made))

    yield make
    store.close()


def grown(of: BufferedDataset, schema: Schema) -> BufferedDataset:
    return msgspec.structs.replace(of, schema=schema, revision=of.revision + 1)


def grow(kept: Kept, schema: Schema) -> None:
    after = grown(kept.dataset, schema)
    kept.store.follow(after)
    kept.dataset = kept.publisher.dataset = after


def read(snapshot: Snapshot, kept: Kept, columns: tuple[TableColumn, ...]) -> list[dict[str, Any]]:
    table = snapshot.table(kept.dataset.dataset_uuid, columns)
    return [row for batch in snapshot.rows(table, "ORDER BY key") for row in batch.to_pylist()]


def test_a_table_is_not_rewritten_while_it_is_held(keep: Callable[[Schema], Kept], dsn: str) -> None:
    """From the moment on, whether something was read already or not."""
    kept = keep(NARROW)
    kept.commit([{"key": 1, "number": 7}])
    with closing(Snapshot(dsn, [kept.dataset.dataset_uuid])) as snapshot:
        with pytest.raises(StoreAwayError):
            grow(kept, WIDE)
        assert [row["number"] for row in read(snapshot, kept, kept.declared.columns)] == [7]
        kept.commit([{"key": 2}])
    grow(kept, WIDE)


def test_a_reader_that_comes_in_the_middle_of_a_rewrite(keep: Callable[[Schema], Kept], dsn: str) -> None:
    """It waits, and then sees the table as it is after it."""
    kept = keep(NARROW)
    kept.commit([{"key": 1, "number": 7}])
    uuid = kept.dataset.dataset_uuid

    def waits() -> bool:
        ((waiting,),) = ask(
            dsn,
            f"SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '\"dataset_{uuid}\"'::regclass",
        )
        return bool(waiting)

    def look() -> list[dict[str, Any]]:
        with closing(Snapshot(dsn, [uuid])) as snapshot:
            return read(snapshot, kept, kept.declared.columns)

    with ThreadPoolExecutor(1) as threads:
        with kept.store._transaction() as run:
            table_ddl.apply_schema(run, grown(kept.dataset, WIDE), 1.0)
            with pytest.raises(StoreUnavailableError, match="The table is being changed"):
                Snapshot(dsn, [uuid], lock_seconds=0.01)
            reader = threads.submit(look)
            wait_until(waits, "the reader to wait for the table")
        assert [(row["key"], row["number"]) for row in reader.result()] == [(1, 7)]


def test_a_table_that_was_rewritten_after_the_first_was_read(
    keep: Callable[[Schema], Kept], spark: SparkSession, dsn: str
) -> None:
    """For that moment it is empty. The attempt is tried again, rather than done with nothing."""
    first, second = keep(NARROW), keep(NARROW)
    for kept in (first, second):
        kept.commit([{"key": 1, "number": 7}])
    before = second.declared
    with closing(TableReader(spark, lambda: dsn)) as reader:
        reader.read(first.item(0, 1), first.declared)
        grow(second, WIDE)
        with pytest.raises(StoreUnavailableError, match="The table was changed after the task began to read"):
            reader.read(second.item(0, 1), before)
    with closing(TableReader(spark, lambda: dsn)) as reader:
        reader.read(first.item(0, 1), first.declared)
        second.commit([{"key": 2, "number": 8}])
        frame, _ = reader.read(second.item(0, 9), before)
        assert [row["number"] for row in frame.collect()] == [7], "rows may come: what came later is not seen"


def test_columns_are_what_the_reader_declares(keep: Callable[[Schema], Kept], dsn: str) -> None:
    """Whether the table has grown beyond them, or not yet to them."""
    kept = keep(NARROW)
    kept.commit([{"key": 1, **FITS}, {"key": 2}])
    narrow, wide = declared(NARROW).columns, declared(WIDE).columns
    fits = {"key": 1, **FITS, "price": Decimal("-999.99")}
    widened = {**fits, "large": str(-(2**63)), "memo": None}
    for _ in ("before", "after"):
        with closing(Snapshot(dsn, [kept.dataset.dataset_uuid])) as snapshot:
            assert snapshot.table(kept.dataset.dataset_uuid, narrow).schema.field("price").type.scale == 2
            assert read(snapshot, kept, narrow) == [fits, dict.fromkeys(fits) | {"key": 2}]
            assert read(snapshot, kept, wide) == [widened, dict.fromkeys(widened) | {"key": 2}]
            assert read(snapshot, kept, wide[-1:]) == [{"memo": None}, {"memo": None}]
        grow(kept, WIDE)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("small", 2**15, "int16, .* the table has int64"),
        ("number", -(2**31) - 1, "int32, .* the table has int64"),
        ("large", 2**63, "int64, .* the table has int256"),
        ("price", "0.001", r"decimal\(5,2\), .* the table has decimal\(9,4\)"),
        ("price", "1000", r"decimal\(5,2\), .* the table has decimal\(9,4\)"),
    ],
)
def test_a_value_that_does_not_fit_is_never_rounded(
    keep: Callable[[Schema], Kept], dsn: str, name: str, value: Any, words: str
) -> None:
    kept = keep(NARROW)
    grow(kept, WIDE)
    kept.commit([{"key": 1, name: value}])
    with closing(Snapshot(dsn, [kept.dataset.dataset_uuid])) as snapshot:
        with pytest.raises(NonRetryableError, match=f"a value of the column {name} no longer fits {words}"):
            read(snapshot, kept, declared(NARROW).columns)
        others = tuple(column for column in declared(NARROW).columns if column.name != name)
        assert read(snapshot, kept, others)[0]["key"] == 1


def test_a_task_fails_by_what_does_not_fit(
    keep: Callable[[Schema], Kept], shared: SharedSession, dsn: str, tmp_path: Path
) -> None:
    kept = keep(NARROW)
    before = kept.declared
    grow(kept, WIDE)
    kept.commit([{"key": 1, "number": 2**31}])
    context = dataclasses.replace(kept.context(kept.item(0, 1)), files=lambda _item: before)
    engine = SparkOperators(shared, DirectoryTransfer(tmp_path / "objects"), tmp_path / "scratch", lambda: dsn)
    with pytest.raises(NonRetryableError, match="the column number no longer fits int32"):
        run(engine, context, lambda work: work.read().collect())


def test_a_server_that_is_gone_is_noticed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every connection; what the setting says itself counts."""
    connect, used = adbc_driver_postgresql.dbapi.connect, []

    def watched(uri: str, **options: Any) -> Any:
        used.append(uri)
        return connect(uri, **options)

    monkeypatch.setattr(adbc_driver_postgresql.dbapi, "connect", watched)
    with closing(Snapshot(dsn)) as snapshot, closing(Snapshot(dsn, joined=snapshot.name)):
        assert used == [patient(dsn)] * 2
    assert patient("postgresql://u@h/d?connect_timeout=3").endswith("tcp_user_timeout=60000&connect_timeout=3")
    assert "keepalives_idle=30" in patient("postgresql://u@h/d")
    assert patient("host=h connect_timeout=3").startswith("connect_timeout=10 ")
