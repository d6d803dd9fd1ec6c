"""The whole operator on a real Spark session against a served chain."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.chain.faults import Call, Drop, RpcErrors, Status
from tests.spark.evm.support import CHAIN_ID, expected
from tests.spark.evm.trace_trees import CallNode, as_call_frames, rows_of
from tests.spark.support import Bench, plain_name
from tests.support.chain import ServedChain, recorded, serve_chain
from tracelake.catalogue.context import CanceledError, NonRetryableError, OperatorResult
from tracelake.catalogue.evm import EvmColumnChoice, EvmIngestConfig
from tracelake.catalogue.evm_columns import EVM_COLUMNS
from tracelake.spark.evm import endpoints
from tracelake.spark.evm.errors import IngestError
from tracelake.spark.evm.tables import SCHEMAS, TRACES, schema_of
from tracelake.spark.operators.evm_ingest import count_cores, run

TABLES = ("blocks", "transactions", "logs")
BLOCKS = 400
CONFIG = {"chain_id": CHAIN_ID, "chunk_blocks": 50}


@pytest.fixture(scope="module")
def served() -> Iterator[ServedChain]:
    with serve_chain(BLOCKS) as chain:
        yield chain


@pytest.fixture
def chain(served: ServedChain, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedChain]:
    monkeypatch.setenv("TRACE_RPC_DEFAULT", served.url)
    yield served
    served.clear()
    served.restore()
    served.show(BLOCKS)
    served.calls.clear()
    served._watchers.clear()


def ingest(
    bench: Bench, blocks: tuple[int, int], config: dict[str, Any] | None = None, attempt: int = 1
) -> OperatorResult:
    given = {**CONFIG, **(config or {})}
    bench.outputs = list(given.get("tables", TABLES))
    return bench.run("evm_ingest", run, given, blocks=blocks, attempt=attempt)


def test_a_range_becomes_the_tables_of_its_recording(chain: ServedChain, bench: Bench) -> None:
    result = ingest(bench, (0, 379))
    wanted = expected(recorded(BLOCKS)[:380])
    for index, table in enumerate(TABLES):
        found = bench.table(index)
        assert found.schema == SCHEMAS[table]
        assert found.to_pylist() == wanted[table]
        assert result.outputs[index].row_count == len(wanted[table])
    assert [(event.start, event.end) for event in result.events] == [(0, 379)] * 3
    names = [f"blocks_{first}_{min(379, first + 49)}.parquet" for first in range(0, 380, 50)]
    assert list(bench.names()) == sorted([*names, "_SUCCESS"])


def test_traces_are_the_fourth_output(chain: ServedChain, bench: Bench, spark: SparkSession) -> None:
    def trees(number: int) -> list[tuple[str, CallNode]]:
        inner = [CallNode("delegatecall", value=number), CallNode(error="reverted")]
        hashes = [transaction["hash"] for transaction in recorded(BLOCKS)[number].block["transactions"]]
        return [(name, CallNode(value=index, inner=inner)) for index, name in enumerate(hashes)]

    with pytest.raises(NonRetryableError, match=r"rpc_no_traces: .*trace_block .* and debug_traceBlockByHash"):
        ingest(bench, (0, 99), {"tables": ["traces"]})
    numbers = {one.block["hash"]: one.number for one in recorded(BLOCKS)}
    chain.add_method("debug_traceBlockByHash", lambda params: as_call_frames(trees(numbers[params[0]])))
    bench.outputs = [*TABLES, "traces"]
    result = bench.run("evm_ingest", run, CONFIG, blocks=(100, 199))
    rows = [row for number in range(100, 200) for row in rows_of(number, trees(number))]
    assert bench.table(3).schema == TRACES
    assert bench.table(3).to_pylist() == rows
    assert bench.table(2).to_pylist() == expected(recorded(BLOCKS)[100:200])["logs"]
    assert [report.row_count for report in result.outputs][3] == len(rows)
    seen = spark.read.parquet(*(str(path) for path in bench.files(3))).schema
    assert [field.name for field in seen.fields] == [column.name for column in EVM_COLUMNS["traces"]]


def test_optional_columns_are_behind_the_others_and_queries_see_their_types(
    chain: ServedChain, bench: Bench, spark: SparkSession
) -> None:
    columns = {"blocks": ["withdrawals", "size"], "transactions": ["access_list", "timestamp", "l1_fee"]}
    ingest(bench, (100, 199), {"columns": columns})
    wanted = expected(recorded(BLOCKS)[100:200])
    blocks, rows = bench.table(0), bench.table(1)
    assert blocks.schema == schema_of("blocks", ["size", "withdrawals"])
    assert rows.schema == schema_of("transactions", ["timestamp", "access_list", "l1_fee"])
    assert blocks["size"].to_pylist() == [int(one.block["size"], 16) for one in recorded(BLOCKS)[100:200]]
    assert rows.drop_columns(["timestamp", "access_list", "l1_fee"]).to_pylist() == wanted["transactions"]
    times = {row["block_number"]: row["timestamp"] for row in wanted["blocks"]}
    assert rows["timestamp"].to_pylist() == [times[row["block_number"]] for row in wanted["transactions"]]
    assert bench.table(2).schema == SCHEMAS["logs"]
    config = EvmIngestConfig(chain_id=CHAIN_ID, columns=EvmColumnChoice(**{key: (*v,) for key, v in columns.items()}))
    for index in (0, 1):
        result = config.result(index, [])
        assert result is not None
        seen = spark.read.parquet(*map(str, bench.files(index))).dtypes
        assert seen == [(column.name, column.type) for column in result.columns.columns]


def test_a_filter_reads_the_logs_of_some_contracts(chain: ServedChain, bench: Bench) -> None:
    wanted = expected(recorded(BLOCKS)[:380])
    address = max((row["address"] for row in wanted["logs"]), key=[row["address"] for row in wanted["logs"]].count)
    chosen = [row for row in wanted["logs"] if row["address"] == address]
    numbers = {row["block_number"] for row in chosen}
    bench.outputs[:] = ["logs", "blocks"]
    limits = {"addresses": ["0x" + address.hex()], "chunk_blocks": 100}
    config = {"chain_id": CHAIN_ID, "tables": ["logs", "blocks"], "filter": limits}
    result = bench.run("evm_ingest", run, config, blocks=(0, 379))
    assert bench.table(0).to_pylist() == chosen
    assert bench.table(1).to_pylist() == [row for row in wanted["blocks"] if row["block_number"] in numbers]
    assert len(bench.files(0)) == 4
    assert result.datasets_published[0].time_max == wanted["blocks"][-1]["timestamp"]
    assert {call.method for call in chain.calls} == {
        "eth_chainId",
        "eth_blockNumber",
        "eth_getLogs",
        "eth_getBlockByNumber",
    }


def test_each_file_is_sorted_and_holds_its_own_blocks(chain: ServedChain, bench: Bench) -> None:
    ingest(bench, (120, 260))
    for path in bench.files(2):
        numbers = pq.read_table(path)["block_number"].to_pylist()
        first, last = (int(part) for part in Path(plain_name(path)).stem.split("_")[-2:])
        assert numbers == sorted(numbers)
        assert all(first <= number <= last for number in numbers)


def test_only_the_tables_that_are_wanted_are_asked_for(chain: ServedChain, bench: Bench) -> None:
    ingest(bench, (5, 60), {"tables": ["logs"]})
    found = bench.table()
    assert found.to_pylist() == expected(recorded(BLOCKS)[5:61])["logs"]
    assert {call.params[1] for call in chain.calls if call.method == "eth_getBlockByNumber"} == {False}

    chain.calls.clear()
    ingest(bench, (5, 60), {"tables": ["blocks"]})
    assert bench.table().to_pylist() == expected(recorded(BLOCKS)[5:61])["blocks"]
    assert not [call for call in chain.calls if "Receipt" in call.method]


def test_a_block_range_without_logs_has_an_empty_table(chain: ServedChain, bench: Bench) -> None:
    ingest(bench, (0, 0))
    assert [bench.table(index).num_rows for index in range(3)] == [1, 0, 0]
    assert bench.table(2).schema == SCHEMAS["logs"]


def test_blocks_that_are_not_deep_enough_are_for_later(chain: ServedChain, bench: Bench) -> None:
    chain.show(100)
    with pytest.raises(IngestError, match=r"beyond_head.*the newest block is 99"):
        ingest(bench, (0, 90), {"confirmations": 10})
    ingest(bench, (0, 89), {"confirmations": 10})
    assert bench.table().num_rows == 90


def test_a_node_of_another_chain_is_never_tried_again(chain: ServedChain, bench: Bench) -> None:
    chain.other_chain(1)
    with pytest.raises(NonRetryableError, match=f"chain_mismatch.*chain 1, and the job is for chain {CHAIN_ID}"):
        ingest(bench, (0, 9))


def test_a_reorganisation_in_mid_range_commits_nothing(chain: ServedChain, bench: Bench) -> None:
    """The fourth chunk is begun when two of the others are done, and then the chain changes below all of them."""
    done = False

    def reorganise(calls: list[Call]) -> None:
        nonlocal done
        late = any(call.method == "eth_getBlockByNumber" and int(call.params[0], 16) >= 300 for call in calls)
        if late and not done:
            done = True
            chain.reorganise(20)

    chain.watch(reorganise)
    config = {"chunk_blocks": 100}
    with pytest.raises(IngestError, match=r"reorganised: block \d+ is not the child"):
        ingest(bench, (0, 399), config)
    assert bench.last is not None
    assert not bench.last.written
    assert "_SUCCESS" not in bench.names()

    ingest(bench, (0, 399), config, attempt=2)
    wanted = expected([chain.block(number) for number in range(400)])
    for index, table in enumerate(TABLES):
        assert bench.table(index).to_pylist() == wanted[table]


def test_what_a_node_does_not_give_names_the_block_and_not_the_address(
    chain: ServedChain, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE_RPC_KEYED", chain.url.replace("//", "//me:password@") + "/v3/topsecretkey?token=hidden")
    monkeypatch.setattr("tracelake.spark.operators.evm_ingest.RpcOptions", _impatient)
    chain.null_block(33)
    with pytest.raises(IngestError) as caught:
        ingest(bench, (0, 99), {"rpc": "keyed"})
    assert str(caught.value) == "rpc_missing_answer: blocks 0 to 49: node-1: null for block 33"


def test_a_node_that_leaves_out_a_log_beside_one_that_does_not(
    chain: ServedChain, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_log(block: Any, receipts: list[Any]) -> tuple[Any, list[Any]]:
        return block, [*receipts[:-1], {**receipts[-1], "logs": []}]

    number = next(one.number for one in recorded(BLOCKS)[20:150] if one.receipts and one.receipts[-1]["logs"])
    wanted = expected(recorded(BLOCKS)[:150])
    with serve_chain(BLOCKS) as lying:
        lying._change(number, without_log)
        monkeypatch.setattr("tracelake.spark.operators.evm_ingest.RpcOptions", _impatient)
        monkeypatch.setenv("TRACE_RPC_DEFAULT", lying.url)
        with pytest.raises(IngestError, match=f"^rpc_wrong_hash: .*: node-1: the receipts of block {number} do not"):
            ingest(bench, (0, 149), {"verify": "roots"})
        assert "_SUCCESS" not in bench.names()
        monkeypatch.setenv("TRACE_RPC_DEFAULT", f"{lying.url},{chain.url}")
        ingest(bench, (0, 149), {"verify": "roots"}, attempt=2)
    for index, table in enumerate(TABLES):
        assert bench.table(index).to_pylist() == wanted[table]


def test_faults_on_the_way_leave_no_trace_in_the_tables(
    chain: ServedChain, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelake.spark.operators.evm_ingest.RpcOptions", _impatient)
    chain.inject(Drop(), times=3)
    chain.inject(Status(503), times=3)
    chain.inject(Status(429), times=1)
    ingest(bench, (0, 99))
    assert bench.table(1).to_pylist() == expected(recorded(BLOCKS)[:100])["transactions"]


def test_a_plan_that_is_used_up_is_final(chain: ServedChain, bench: Bench) -> None:
    chain.inject(RpcErrors(-32000, "Monthly capacity limit exceeded."), times=None)
    with pytest.raises(NonRetryableError, match=r"^rpc_quota_exhausted: .*\(Monthly capacity limit exceeded\.\)"):
        ingest(bench, (0, 9))
    chain.clear()
    chain.inject(Status(402), times=None, when=lambda calls: calls[0].method == "eth_getBlockByNumber")
    with pytest.raises(NonRetryableError, match=r"^rpc_quota_exhausted: .*HTTP status 402"):
        ingest(bench, (0, 9), attempt=2)


def test_a_node_without_batches_and_a_limit_of_calls(chain: ServedChain, bench: Bench) -> None:
    chain.inject(Status(400), times=None, when=lambda calls: len(calls) > 1)
    ingest(bench, (0, 19), {"max_calls_per_second": 1000, "chunk_blocks": 10})
    assert bench.table(1).to_pylist() == expected(recorded(BLOCKS)[:20])["transactions"]


def test_unknown_endpoints_say_what_to_set(bench: Bench) -> None:
    with pytest.raises(NonRetryableError, match="set TRACE_RPC_NOWHERE on the workers"):
        ingest(bench, (0, 9), {"rpc": "nowhere"})


def test_endpoints_may_come_from_elsewhere(served: ServedChain, bench: Bench) -> None:
    endpoints.resolve_with(lambda _org, name: (endpoints.parse_endpoint(served.url),) if name == "mine" else ())
    try:
        ingest(bench, (0, 9), {"rpc": "mine"})
    finally:
        endpoints.resolve_with(endpoints.resolve_for_anybody)
    assert bench.table().num_rows == 10


def test_work_that_was_cancelled_stops(chain: ServedChain, bench: Bench) -> None:
    bench.cancel.set()
    with pytest.raises(CanceledError):
        ingest(bench, (0, 9))


def test_who_is_cancelled_while_the_nodes_are_asked_for_the_head_stops(chain: ServedChain, bench: Bench) -> None:
    requests = chain.requests
    chain.inject(Status(503), times=None)
    chain.watch(lambda _calls: bench.cancel.set())
    with pytest.raises(CanceledError):
        ingest(bench, (0, 9))
    assert chain.requests - requests == 1


def test_cores_are_known_without_a_context(spark: SparkSession) -> None:
    """As over Spark Connect, where a limit of requests is shared by as many tasks as run at a time."""
    assert count_cores(spark) == spark.sparkContext.defaultParallelism


def _impatient(**given: object) -> object:
    from tests.spark.evm.support import options

    return options(**given)


def test_readers_share_one_pool_of_memory(spark: SparkSession) -> None:
    """Or each thread, and Arrow, would keep what the others could use."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pools = [pa.default_memory_pool().backend_name, os.environ.get("MALLOC_ARENA_MAX")]
            yield pa.RecordBatch.from_pydict({"pools": [pools]})

    assert spark.range(1).mapInArrow(look, "pools array<string>").collect()[0].pools == ["system", "1"]
