"""Live datasets as frames: files up to the boundary and the table above it are one relation, wherever a row is."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.kept_tables import run
from tests.spark.live_chain import NESTED, LiveChain, cut_rows, nested_rows, nested_tables
from tests.spark.support import BUCKET, DirectoryTransfer
from tests.support.postgres import TestCluster
from tracelake.catalogue.context import LiveInput, NonRetryableError
from tracelake.catalogue.evm_columns import EVM_OPTIONAL_COLUMNS, EvmTable
from tracelake.errors import BoundaryMovedError
from tracelake.model.dag import ReadMode
from tracelake.ports import ObjectMeta
from tracelake.spark.child.messages import AskFiles, LiveAnswer
from tracelake.spark.child.transfer import ExportedTables, check
from tracelake.spark.live_columns import LiveColumns
from tracelake.spark.operators.integrity_check import run as run_check
from tracelake.spark.operators.spark_sql import run as run_sql
from tracelake.spark.reader import Reader, Selection, TableReader
from tracelake.spark.session import SharedSession
from tracelake.spark.testing import make_context
from tracelake.spark.work import SparkWork
from tracelake.storage.file_cache import FileCache
from tracelake.wire.units import PayloadInput, ReadScope
from tracelake.worker.org_process.broker import AttemptBroker
from tracelake.worker.spark import SparkOperators

TABLES = ("blocks", "transactions", "logs")


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


@pytest.fixture
def transfer(tmp_path: Path) -> DirectoryTransfer:
    return DirectoryTransfer(tmp_path / "objects")


@pytest.fixture
def live(dsn: str, transfer: DirectoryTransfer, tmp_path: Path) -> LiveChain:
    """History up to 19, units up to 59 in files, the table from 20 on, sealed up to 79."""
    chain = LiveChain(dsn, transfer, tmp_path)
    chain.write(20, 119, seal=79)
    return chain


@pytest.fixture
def engine(shared: SharedSession, dsn: str, transfer: DirectoryTransfer, tmp_path: Path) -> SparkOperators:
    return SparkOperators(shared, transfer, tmp_path / "scratch", lambda: dsn)


def read(
    engine: SparkOperators,
    item: PayloadInput,
    source: LiveInput,
    ask: Callable[[SparkWork], Any] = lambda work: work.read().toArrow(),
) -> Any:
    context = make_context("noop", {}, item.unit, [(item.name, [], None)], {"out": f"{BUCKET}out/1/"})
    (answer,) = run(engine, replace(context, inputs=[item], files=lambda _item: source), ask)
    return answer


def committed(live: LiveChain, name: str, boundary: int | None) -> list[ObjectMeta]:
    """History, and what was compacted."""
    ends = [19, *(end for end in (39, 59) if boundary is not None and end <= boundary)]
    return [live.add_file(name, start, end) for start, end in zip([0, 20, 40], ends, strict=False)]


def plain(table: pa.Table) -> list[dict[str, Any]]:
    keys = [name for name in ("block_number", "transaction_index", "log_index") if name in table.schema.names]
    return table.sort_by([(key, "ascending") for key in keys]).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", TABLES)
def test_a_unit_is_the_same_wherever_its_rows_are(engine: SparkOperators, live: LiveChain, name: str) -> None:
    """All in files, all in the table, or in both: the same columns, types and rows."""
    schemas = set()
    for (first, last), boundary in (
        ((0, 19), None),
        ((10, 50), None),
        ((30, 50), None),
        ((10, 50), 39),
        ((30, 39), 39),
        ((40, 50), 39),
        ((30, 70), 59),
        ((60, 119), 59),
    ):
        files = committed(live, name, boundary)
        touched = [file for file in files if overlaps(file, first, last)]
        table = read(engine, live.item(name, first, last), live.source(name, touched, boundary))
        assert plain(table) == plain(cut_rows(name, first, last)), (first, last, boundary)
        schemas.add(str(table.schema))
    assert len(schemas) == 1


@pytest.mark.parametrize("name", ["blocks", "transactions"])
def test_lists_are_the_same_in_files_and_in_the_table(
    engine: SparkOperators, dsn: str, transfer: DirectoryTransfer, tmp_path: Path, name: EvmTable
) -> None:
    """Frames of files, of the table and of both have one type, which is the one that the operators declare."""
    live = LiveChain(dsn, transfer, tmp_path, nested_tables(), nested_rows())
    live.write(20, 119, seal=79)
    files = committed(live, name, 39)
    declared = {column.name: column.type for column in EVM_OPTIONAL_COLUMNS[name] if column.name in NESTED[name]}

    def look(work: SparkWork) -> tuple[dict[str, str], pa.Table]:
        frame = work.read()
        return dict(frame.dtypes), frame.toArrow()

    schemas = set()
    for (first, last), boundary in (((10, 39), 39), ((10, 70), 39), ((40, 70), 39), ((20, 30), None)):
        touched = [file for file in files if overlaps(file, first, last)] if boundary else []
        types, table = read(engine, live.item(name, first, last), live.source(name, touched, boundary), look)
        assert {column: types[column] for column in declared} == declared
        assert plain(table) == plain(cut_rows(name, first, last, nested_rows())), (first, last)
        schemas.add(str(table.schema))
    assert len(schemas) == 1


def overlaps(file: ObjectMeta, first: int, last: int) -> bool:
    start, end = (int(part) for part in file.uri.removesuffix(".parquet").split("_")[-2:])
    return start <= last and end >= first


def test_only_what_is_read_is_opened(engine: SparkOperators, live: LiveChain, monkeypatch: pytest.MonkeyPatch) -> None:
    source = live.source("blocks", committed(live, "blocks", 59), 59)

    def count(work: SparkWork) -> int:
        work.settle([0])
        return work.read().count()

    assert read(engine, live.item("blocks", 30, 59), source, count) == 30
    assert read(engine, live.item("blocks", 60, 70), replace(source, files=[]), count) == 11

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a snapshot is opened")

    monkeypatch.setattr("tracelake.spark.reader.Snapshot", refuse)
    assert read(engine, live.item("blocks", 30, 59), source).num_rows == 30
    with pytest.raises(AssertionError, match="snapshot"):
        read(engine, live.item("blocks", 30, 60), source)


def test_all_of_a_dataset_and_windows_of_it(engine: SparkOperators, live: LiveChain) -> None:
    source = live.source("logs", committed(live, "logs", 39), 39)
    everything = live.item("logs", 30, 50, ReadScope(mode=ReadMode.ALL))
    assert plain(read(engine, everything, source)) == plain(cut_rows("logs", 0, 119))
    history = live.item("logs", 30, 50, ReadScope(mode=ReadMode.HISTORY, start=0, end=50))
    assert plain(read(engine, history, source)) == plain(cut_rows("logs", 0, 50))


def test_where_filters_both_sides(engine: SparkOperators, live: LiveChain) -> None:
    address = cut_rows("logs", 30, 50)["address"][0].as_py()
    item = live.item("logs", 20, 50)
    filtered = msgspec.structs.replace(item, where={"address": f"0x{address.hex()}"})
    rows = read(engine, filtered, live.source("logs", committed(live, "logs", 39), 39))
    expected = [row for row in plain(cut_rows("logs", 20, 50)) if row["address"] == address]
    assert expected
    assert plain(rows) == expected


def test_rows_that_left_the_table_fail_the_attempt(engine: SparkOperators, live: LiveChain) -> None:
    live.store.remove_rows([live.tables["blocks"].dataset_uuid], 59)
    old = live.source("blocks", committed(live, "blocks", 39), 39)
    with pytest.raises(BoundaryMovedError):
        read(engine, live.item("blocks", 30, 70), old)
    assert read(engine, live.item("blocks", 20, 39), old).num_rows == 20
    new = live.source("blocks", committed(live, "blocks", 59), 59)
    assert plain(read(engine, live.item("blocks", 0, 119), new)) == plain(cut_rows("blocks", 0, 119))


def test_files_have_the_columns_of_the_table(engine: SparkOperators, live: LiveChain) -> None:
    rows = cut_rows("blocks", 20, 39)
    item = live.item("blocks", 20, 39)

    def read_file(table: pa.Table) -> pa.Table:
        file = live.add_file("blocks", 20, 39, table)
        found: pa.Table = read(engine, item, live.source("blocks", [file], 39))
        return found

    with pytest.raises(NonRetryableError, match=r"timestamp of blocks is decimal.*and bigint in its table"):
        read_file(rows.set_column(6, "timestamp", rows["timestamp"].cast(pa.uint64())))
    extended = rows.append_column("size", pa.array(range(20)))
    assert plain(read_file(extended)) == plain(rows)


@pytest.mark.parametrize("name", ["blocks", "transactions"])
def test_columns_that_a_file_lacks_are_null(
    engine: SparkOperators, dsn: str, transfer: DirectoryTransfer, tmp_path: Path, name: EvmTable
) -> None:
    """The table got columns, also lists, after the first files; files with and without them, and the table, are one
    frame, and so they are for operators that open files."""
    live = LiveChain(dsn, transfer, tmp_path, nested_tables(), nested_rows())
    live.write(20, 119, seal=79)
    added = NESTED[name]
    old = live.add_file(name, 20, 39, cut_rows(name, 20, 39, nested_rows()).drop_columns([*added]))
    new = live.add_file(name, 40, 59, cut_rows(name, 40, 59, nested_rows()))
    nulls = dict.fromkeys(added)
    expected = [row | nulls for row in plain(cut_rows(name, 30, 39, nested_rows()))]
    expected += plain(cut_rows(name, 40, 70, nested_rows()))
    for files in ([old, new], [new, old]):
        assert plain(read(engine, live.item(name, 30, 70), live.source(name, files, 59))) == expected
    inside = live.item(name, 30, 59)
    source = live.source(name, [old, new], 59)
    assert plain(read(engine, inside, source)) == [row for row in expected if row["block_number"] <= 59]

    def opened(work: SparkWork) -> list[dict[str, Any]]:
        files = work.open_input(inside)
        assert files is not None
        return plain(files.read([*keys, *added]))

    keys = [key for key in ("block_number", "transaction_index") if key in cut_rows(name, 30, 30).column_names]
    assert read(engine, inside, source, opened) == [
        {column: row[column] for column in (*keys, *added)} for row in expected if row["block_number"] <= 59
    ]


def test_columns_that_a_file_lacks_are_null_for_executors(
    spark: SparkSession, live: LiveChain, transfer: DirectoryTransfer, tmp_path: Path
) -> None:
    """On a cluster, where each Spark task fetches its files."""
    columns = live.source("blocks", [], 39).table.columns
    rows = cut_rows("blocks", 20, 39)
    files = [
        live.add_file("blocks", 20, 29, rows.slice(0, 10).drop_columns(["author"])),
        live.add_file("blocks", 30, 39, rows.slice(10)),
    ]
    reader = Reader(spark, FileCache(tmp_path / "cache", transfer), tmp_path / "links", local=False)
    frame = reader.read("blocks", files, Selection(25, 34), LiveColumns.of(columns))
    expected = [row | ({"author": None} if row["block_number"] < 30 else {}) for row in plain(rows.slice(5, 10))]
    assert plain(frame.toArrow()) == expected
    opened = reader.open("blocks", files, Selection(25, 34), LiveColumns.of(columns)).read(["author"])
    assert plain(opened) == [{key: row[key] for key in ("block_number", "author")} for row in expected]


def test_operators_that_open_files_take_units_that_are_files(engine: SparkOperators, live: LiveChain) -> None:
    source = live.source("blocks", committed(live, "blocks", 39), 39)
    item = live.item("blocks", 20, 39)

    def opened(work: SparkWork) -> int:
        files = work.open_input(item)
        assert files is not None
        return int(files.read(["block_number"]).num_rows)

    assert read(engine, item, source, opened) == 20
    above = live.item("blocks", 20, 41)
    with pytest.raises(NonRetryableError, match="is a table"):
        read(engine, above, source, lambda work: work.open_input(above))


def test_queries_of_users_see_one_relation(engine: SparkOperators, live: LiveChain, tmp_path: Path) -> None:
    """A join of two live inputs, each partly in files, in one snapshot; rows are written as they are anywhere."""
    sources = {index: live.source(name, committed(live, name, 39), 39) for index, name in enumerate(("blocks", "logs"))}
    items = [live.item(name, 20, 50, index=index) for index, name in enumerate(("blocks", "logs"))]
    query = (
        "SELECT b.block_number, count(l.log_index) AS logs FROM blocks b LEFT JOIN logs l"
        " ON l.block_number = b.block_number GROUP BY b.block_number"
    )
    config = {"query": query, "inputs": {"blocks": 0, "logs": 1}}
    given: Sequence[Any] = [("blocks", [], None), ("logs", [], None)]
    context = make_context("spark_sql", config, items[0].unit, given, {"out": f"{BUCKET}out/1/"})
    context = replace(context, inputs=items, files=lambda item: sources[item.input_index])
    written: list[Any] = []

    def query_and_read(work: SparkWork) -> None:
        run_sql(work)
        written.extend(work.written[0].files)

    run(engine, context, query_and_read)
    rows = pa.concat_tables(pq.read_table(engine.transfer.path(file.meta.uri)) for file in written)  # type: ignore[attr-defined]
    logs = cut_rows("logs", 20, 50)["block_number"].to_pylist()
    assert {row["block_number"]: row["logs"] for row in rows.to_pylist()} == {
        number: logs.count(number) for number in range(20, 51)
    }


@pytest.mark.parametrize(("first", "last"), [(20, 29), (30, 39), (35, 44), (40, 49)])
def test_a_chain_is_checked_across_the_boundary(engine: SparkOperators, live: LiveChain, first: int, last: int) -> None:
    """A unit in files whose next block is in the table, and others around it."""
    sources = {index: live.source(name, committed(live, name, 39), 39) for index, name in enumerate(TABLES)}
    items = [live.item(name, first, last, index=index) for index, name in enumerate(TABLES)]
    given: Sequence[Any] = [(name, [], None) for name in TABLES]
    context = make_context("integrity_check", {}, items[0].unit, given, {"out": f"{BUCKET}out/1/"})
    context = replace(context, inputs=items, files=lambda item: sources[item.input_index])
    (result,) = run(engine, context, run_check)
    assert [report.row_count for report in result.outputs] == [0]


def test_the_process_of_an_org_gets_both(
    spark: SparkSession, live: LiveChain, transfer: DirectoryTransfer, tmp_path: Path
) -> None:
    """Through the worker, which holds the snapshot and checks the boundary there."""
    item = live.item("logs", 30, 50)
    source = live.source("logs", committed(live, "logs", 39), 39)
    context = make_context("noop", {}, item.unit, [("logs", [], None)], {"out": f"{BUCKET}out/1/"})
    context = replace(context, inputs=[item], files=lambda _item: source)

    def ask(boundary: int | None) -> list[int]:
        scratch = f"s3://trace-scratch/scratch/{boundary}/1/"
        granted = replace(context, files=lambda _item: replace(source, boundary=boundary))
        broker = AttemptBroker(granted, transfer, lambda: live.dsn, tmp_path / "transit", 0, scratch)
        with closing(broker):
            answer = check(broker.answer(AskFiles(0, item.unit), None))
            assert isinstance(answer, LiveAnswer)
            assert (answer.files, answer.boundary) == (source.files, boundary)
            reader = Reader(spark, FileCache(tmp_path / "cache", transfer), tmp_path / "links", local=False)
            tables = ExportedTables(reader, lambda body: check(broker.answer(body, None)))
            frame, _ = tables.read(item, replace(source, boundary=boundary))
            return sorted(row["block_number"] for row in frame.collect())

    logs = cut_rows("logs", 30, 50)["block_number"].to_pylist()
    assert ask(39) == [number for number in logs if number > 39]
    assert ask(50) == []
    live.store.remove_rows([live.tables["logs"].dataset_uuid], 45)
    with pytest.raises(BoundaryMovedError):
        ask(39)
    assert ask(45) == [number for number in logs if number > 45]


def test_a_table_that_is_not_there_yet_is_empty(spark: SparkSession, live: LiveChain, tmp_path: Path) -> None:
    other = LiveChain(live.dsn, live.objects, tmp_path)
    with closing(TableReader(spark, lambda: live.dsn)) as reader:
        for chain, count in ((other, 0), (live, 11)):
            frame, _ = reader.read(chain.item("blocks", 30, 40), chain.source("blocks", [], None))
            assert frame.count() == count
            assert frame.schema["gas_used"].dataType.simpleString() == "decimal(20,0)"
