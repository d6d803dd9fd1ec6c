"""Final rows of tables become files: complete, the same as `evm_ingest` writes, and removed once they are committed."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.direct.support import ask, new_writer, stored_rows
from tests.spark.evm.support import CHAIN_ID
from tests.spark.live_chain import (
    BLOCKS,
    NESTED,
    LiveChain,
    chain_rows,
    cut_rows,
    make_table,
    nested_blocks,
    nested_tables,
    plain_tables,
)
from tests.spark.support import BUCKET, Bench, DirectoryTransfer, plain_name
from tests.support.chain import serve_chain
from tests.support.postgres import TestCluster
from tracelake.catalogue.context import LiveOutput, NonRetryableError, OperatorContext, OperatorResult
from tracelake.catalogue.evm_columns import EVM_TABLES
from tracelake.errors import TraceError
from tracelake.follower.rpc_nodes import RpcChainNode
from tracelake.model.buffered import quoted, table_name
from tracelake.ports.direct_tables import WHOLE_TABLE, RangeReplacement
from tracelake.spark.evm import endpoints
from tracelake.spark.evm.log_filter import LogSelection
from tracelake.spark.evm.node import RpcOptions
from tracelake.spark.evm.read_options import ReadOptions
from tracelake.spark.evm.tables import SCHEMAS, schema_of
from tracelake.spark.operators.evm_ingest import run as run_ingest
from tracelake.spark.operators.parquet_compact import CompactionError
from tracelake.spark.session import SharedSession
from tracelake.spark.testing import make_context, make_unit
from tracelake.wire.units import TaskOutput
from tracelake.worker.spark import SparkOperators

MODULE = "tracelake.spark.operators.parquet_compact"


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


@pytest.fixture
def transfer(tmp_path: Path) -> DirectoryTransfer:
    return DirectoryTransfer(tmp_path / "objects")


@pytest.fixture
def live(dsn: str, transfer: DirectoryTransfer, tmp_path: Path) -> LiveChain:
    chain = LiveChain(dsn, transfer, tmp_path)
    chain.write(20, 119, seal=79)
    return chain


@pytest.fixture
def engine(shared: SharedSession, dsn: str, transfer: DirectoryTransfer, tmp_path: Path) -> SparkOperators:
    return SparkOperators(shared, transfer, tmp_path / "scratch", lambda: dsn)


def context_of(
    live: LiveChain,
    first: int,
    last: int,
    config: Mapping[str, Any] | None = None,
    *,
    boundary: int | None = None,
    tables: Sequence[str] = EVM_TABLES,
) -> OperatorContext:
    """As a worker makes it; what it would ask the Dispatcher is told here."""
    attempt = uuid4().hex
    prefixes = {name: f"{BUCKET}{name}/{attempt}/" for name in tables}
    made = make_context(
        "parquet_compact", {"chunk_blocks": 8, **(config or {})}, make_unit((first, last)), [], prefixes
    )
    outputs = {output.output_index: live.tables[output.name] for output in made.outputs}

    def live_output(output: TaskOutput) -> LiveOutput:
        return LiveOutput(outputs[output.output_index], boundary)

    def remove_rows(output: LiveOutput, to: int) -> int:
        return live.store.remove_rows([output.table.dataset_uuid], to)

    own = [
        TaskOutput(
            output_index=output.output_index,
            dataset_uuid=outputs[output.output_index].dataset_uuid,
            dataset_version=output.dataset_version,
            name=output.name,
            storage=output.storage,
        )
        for output in made.outputs
    ]
    return replace(made, outputs=own, live_output=live_output, remove_rows=remove_rows)


def compact(engine: SparkOperators, context: OperatorContext) -> OperatorResult:
    return engine._run(MODULE, context)


def files_of(transfer: DirectoryTransfer, context: OperatorContext, index: int) -> list[Path]:
    prefix = context.outputs[index].storage.write_prefix
    assert prefix is not None
    return sorted(path for path in transfer.path(prefix + "x").parent.iterdir() if path.suffix == ".parquet")


def read_files(transfer: DirectoryTransfer, context: OperatorContext, index: int) -> pa.Table:
    paths = files_of(transfer, context, index)
    return pa.concat_tables(
        pq.read_table(path) for path in sorted(paths, key=lambda path: int(path.name.split("_")[1]))
    )


@pytest.mark.parametrize("nested", [False, True], ids=["usual_columns", "columns_of_lists"])
def test_files_are_those_that_evm_ingest_writes(
    engine: SparkOperators, bench: Bench, live: LiveChain, monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    """Row by row and column by column, over the recorded chain: once from nodes to files, once by way of the tables,
    with the rows that a follower reads."""
    columns: dict[str, tuple[str, ...]] = NESTED if nested else dict.fromkeys(EVM_TABLES, ())
    config = {"columns": {name: list(names) for name, names in columns.items()}}
    followed = LiveChain(live.dsn, live.objects, live.scratch, nested_tables() if nested else plain_tables())
    with serve_chain(nested_blocks(BLOCKS)) as chain:
        monkeypatch.setenv("TRACE_RPC_DEFAULT", chain.url)
        bench.outputs = list(EVM_TABLES)
        bench.run("evm_ingest", run_ingest, {"chain_id": CHAIN_ID, "chunk_blocks": 8, **config}, blocks=(3, 99))
        follow(followed, columns, 3, 109, seal=99)
    ingested = [bench.table(index) for index in range(3)]
    names = [sorted(map(plain_name, bench.files(index))) for index in range(3)]
    context = context_of(followed, 3, 99, config)
    result = compact(engine, context)

    for index, name in enumerate(EVM_TABLES):
        table = read_files(followed.objects, context, index)
        assert table.schema == ingested[index].schema == schema_of(name, columns[name])
        assert table.equals(ingested[index])
        assert sorted(map(plain_name, files_of(followed.objects, context, index))) == names[index]
        published = result.datasets_published[index]
        assert (published.range_start, published.range_end, published.table_start) == (3, 99, 3)
        times = ingested[0]["timestamp"].to_pylist()
        assert (published.time_min, published.time_max) == (times[0], times[-1])
        assert result.outputs[index].row_count == table.num_rows
        metadata = pq.read_metadata(files_of(followed.objects, context, index)[0])
        assert metadata.row_group(0).sorting_columns
        for column in columns[name]:
            values = table[column].to_pylist()
            shapes = {None if value is None else min(len(value), 2) for value in values}
            assert shapes == {None, 0, 1, 2}, column
    assert result.events == []


def test_filtered_files_are_those_that_evm_ingest_writes(
    engine: SparkOperators, bench: Bench, live: LiveChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a filter, on both ways all blocks and the logs that it takes."""
    followed = LiveChain(live.dsn, live.objects, live.scratch, {name: make_table(name) for name in ("blocks", "logs")})
    topic = "0x" + chain_rows()["logs"]["topic0"].drop_null()[0].as_py().hex()
    config = {"chain_id": CHAIN_ID, "tables": ["blocks", "logs"]}
    log_filter = LogSelection.of([], [[topic]])
    with serve_chain(BLOCKS) as chain:
        monkeypatch.setenv("TRACE_RPC_DEFAULT", chain.url)
        bench.outputs = ["blocks", "logs"]
        ingest_filter = {"topics": [topic], "blocks": "all", "chunk_blocks": 8}
        bench.run("evm_ingest", run_ingest, {**config, "filter": ingest_filter}, blocks=(3, 99))
        follow(followed, {}, 3, 109, seal=99, log_filter=log_filter)
    context = context_of(followed, 3, 99, {"tables": ["blocks", "logs"]}, tables=("blocks", "logs"))
    compact(engine, context)
    for index, name in enumerate(("blocks", "logs")):
        table = read_files(followed.objects, context, index)
        assert table.schema == bench.table(index).schema
        assert table.equals(bench.table(index))
        names = [
            sorted(map(plain_name, files)) for files in (bench.files(index), files_of(live.objects, context, index))
        ]
        assert names[0] == names[1]
        assert 0 < table.num_rows <= cut_rows(name, 3, 99).num_rows
    assert bench.table(0).equals(cut_rows("blocks", 3, 99))
    assert bench.table(1).num_rows < cut_rows("logs", 3, 99).num_rows


def follow(
    live: LiveChain,
    columns: Mapping[str, Sequence[str]],
    first: int,
    last: int,
    *,
    seal: int,
    log_filter: LogSelection | None = None,
) -> None:
    """Writes the tables as a follower does, a few blocks at a time, from the endpoint `default`."""
    (endpoint,) = endpoints.resolve("", "default")
    reading = ReadOptions.of(columns, log_filter=log_filter)
    node = RpcChainNode(endpoint, RpcOptions(chain_id=CHAIN_ID), tuple(live.tables), reading=reading)
    with closing(node), closing(live.store.open(list(live.tables.values()), WHOLE_TABLE, new_writer())) as writer:
        for start in range(first, last + 1, 7):
            end = min(last, start + 6)
            rows = node.read_rows(start, end).tables
            batches = {table.dataset_uuid: rows[name].to_batches() for name, table in live.tables.items()}
            writer.replace(RangeReplacement(start, end, batches, above=True, live=True, seal=min(end, seal)))


def test_tables_without_rows_are_files_without_rows(
    engine: SparkOperators, live: LiveChain, transfer: DirectoryTransfer
) -> None:
    other = LiveChain(live.dsn, live.objects, live.scratch)
    empty = {name: chain_rows()[name].slice(0, 0) for name in ("transactions", "logs")}
    rows = {other.tables[name].dataset_uuid: table.to_batches() for name, table in empty.items()}
    rows[other.tables["blocks"].dataset_uuid] = cut_rows("blocks", 5, 14).to_batches()
    with closing(other.store.open(list(other.tables.values()), WHOLE_TABLE, new_writer())) as writer:
        writer.replace(RangeReplacement(5, 14, rows, live=True, seal=14))
    context = context_of(other, 5, 14)
    result = compact(engine, context)
    assert [report.row_count for report in result.outputs] == [10, 0, 0]
    for index in (1, 2):
        assert read_files(transfer, context, index).schema == SCHEMAS[EVM_TABLES[index]]
        assert len(files_of(transfer, context, index)) == 2


def test_rows_of_committed_files_are_removed_first(
    engine: SparkOperators, live: LiveChain, transfer: DirectoryTransfer
) -> None:
    """Unit after unit: rows go one unit after their commit, and never those of the unit itself."""
    blocks = live.tables["blocks"]
    compact(engine, context_of(live, 20, 39))
    assert stored_rows(live.dsn, blocks, "block_number")[0] == (20,)
    compact(engine, context_of(live, 40, 59, boundary=39))
    for table in live.tables.values():
        assert stored_rows(live.dsn, table, "block_number")[0][0] >= 40
    # Once more, as a task that was triggered for it: its rows are still there.
    again = context_of(live, 40, 59, boundary=59)
    compact(engine, again)
    assert read_files(transfer, again, 2).to_pylist() == cut_rows("logs", 40, 59).to_pylist()
    compact(engine, context_of(live, 60, 79, boundary=59))
    with pytest.raises(NonRetryableError, match="were removed from the table"):
        compact(engine, context_of(live, 40, 59, boundary=59))
    extents = (
        f"SELECT table_start, sealed_to, removed_to FROM table_extents WHERE dataset_uuid = '{blocks.dataset_uuid}'"
    )
    assert ask(live.dsn, extents) == [(20, 79, 59)]


def test_units_that_are_not_sealed_wait(engine: SparkOperators, live: LiveChain) -> None:
    with pytest.raises(CompactionError, match=r"not_sealed: blocks 60 to 99 of blocks .* up to 79"):
        compact(engine, context_of(live, 60, 99))
    live.write(100, 119, seal=99)
    compact(engine, context_of(live, 60, 99))
    fresh = LiveChain(live.dsn, live.objects, live.scratch)
    live.store.open(list(fresh.tables.values()), WHOLE_TABLE, new_writer()).close()
    with pytest.raises(CompactionError, match="sealed up to None"):
        compact(engine, context_of(fresh, 0, 9))
    with pytest.raises(TraceError, match="does not exist yet"):
        compact(engine, context_of(LiveChain(live.dsn, live.objects, live.scratch), 0, 9))
    with pytest.raises(NonRetryableError, match="begins at block 20"):
        compact(engine, context_of(live, 19, 30))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("DELETE FROM {blocks} WHERE block_number = 30", "block 31 follows block 29"),
        ("DELETE FROM {blocks} WHERE block_number = 28", "block 29 follows block 27"),
        ("DELETE FROM {blocks} WHERE block_number = 39", "block 39 is not in the table"),
        ("UPDATE {blocks} SET parent_hash = '\\x00' WHERE block_number = 31", "block 31 is not the child"),
        ("UPDATE {blocks} SET parent_hash = '\\x00' WHERE block_number = 28", "block 28 is not the child of block 27"),
        ("UPDATE {blocks} SET block_hash = '\\x00' WHERE block_number = 30", "block 31 is not the child"),
    ],
)
def test_rows_that_are_not_a_chain_are_refused(
    engine: SparkOperators, live: LiveChain, change: str, reason: str
) -> None:
    """Blocks 20 to 27, 28 to 35 and 36 to 39 are chunks. Somebody changed the table outside of Trace."""
    statement = change.format(blocks=quoted(table_name(live.tables["blocks"].dataset_uuid)))
    with adbc.connect(live.dsn, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
    with pytest.raises(NonRetryableError, match=f"rows_incomplete: {reason}"):
        compact(engine, context_of(live, 20, 39))


def test_a_column_that_the_table_lacks_is_refused(engine: SparkOperators, live: LiveChain) -> None:
    with pytest.raises(NonRetryableError, match="has no column size"):
        compact(engine, context_of(live, 20, 39, {"columns": {"blocks": ["size"]}}))
    config = {"tables": ["logs", "blocks"]}
    context = context_of(live, 20, 39, config, tables=("logs", "blocks"))
    compact(engine, context)
    assert read_files(live.objects, context, 0).to_pylist() == cut_rows("logs", 20, 39).to_pylist()
    with pytest.raises(NonRetryableError, match="no output for `blocks`"):
        compact(engine, context_of(live, 20, 39, config, tables=("logs",)))


def test_attempts_at_once_write_the_same(engine: SparkOperators, live: LiveChain, transfer: DirectoryTransfer) -> None:
    """A stale attempt, its successor and the next unit, while the follower goes on."""
    contexts = [
        context_of(live, 40, 59, boundary=39),
        context_of(live, 40, 59, boundary=39),
        context_of(live, 60, 79, boundary=39),
    ]
    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(compact, engine, context) for context in contexts]
        writing = threads.submit(live.write, 80, 119, seal=99)
        for attempt in running:
            attempt.result(120)
        writing.result(120)
    for context, (first, last) in zip(contexts, [(40, 59), (40, 59), (60, 79)], strict=True):
        for index, name in enumerate(EVM_TABLES):
            assert read_files(transfer, context, index).to_pylist() == cut_rows(name, first, last).to_pylist()


def test_a_crash_after_the_removal_costs_nothing(
    engine: SparkOperators, live: LiveChain, transfer: DirectoryTransfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CrashedError(Exception):
        pass

    def crash(*_: Any) -> None:
        raise CrashedError

    for place in ("_check_extent", "_check_chain"):
        with monkeypatch.context() as patch:
            patch.setattr(f"{MODULE}.{place}", crash)
            with pytest.raises(CrashedError):
                compact(engine, context_of(live, 40, 59, boundary=39))
    context = context_of(live, 40, 59, boundary=39)
    compact(engine, context)
    assert read_files(transfer, context, 1).to_pylist() == cut_rows("transactions", 40, 59).to_pylist()
