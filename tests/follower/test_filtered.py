"""The follower with a filter: all blocks, and of logs only those that it takes, through reorganisations."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from tests.chain.faults import Call, RpcErrors
from tests.follower.conftest import BLOCKS
from tests.follower.source import Source, Steps, use
from tests.spark.evm.support import expected, pool_of
from tests.support.chain import ServedChain
from tracelake.follower.filtered_rows import NEAR_HEAD_BLOCKS, read_filtered_rows
from tracelake.spark.evm.errors import BrokenChainError, ForeignReceiptsError
from tracelake.spark.evm.log_filter import LogSelection
from tracelake.spark.evm.read_options import ReadOptions

Row = dict[str, Any]
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"


@pytest.fixture
def chain(nodes: tuple[ServedChain, ServedChain], monkeypatch: pytest.MonkeyPatch) -> ServedChain:
    use(monkeypatch, nodes[0])
    nodes[0].calls.clear()
    return nodes[0]


def source_of(**config: Any) -> Source:
    return Source(tables=["blocks", "logs"], filter={"topics": [TRANSFER]}, **config)


def matching(chain: ServedChain, last: int) -> tuple[list[Row], list[Row]]:
    """Blocks and logs, in plain Python."""
    rows = expected([chain.block(number) for number in range(last + 1)])
    logs = [row for row in rows["logs"] if row["topic0"] == bytes.fromhex(TRANSFER[2:])]
    assert 0 < len(logs) < len(rows["logs"])
    return rows["blocks"], logs


def assert_filtered(source: Source, chain: ServedChain, last: int) -> None:
    blocks, logs = matching(chain, last)
    assert source.rows("blocks") == blocks
    assert source.rows("logs") == logs


def log_queries(chain: ServedChain) -> tuple[list[Row], list[Row]]:
    """Those by range and those by hash."""
    queries = [call.params[0] for call in chain.calls if call.method == "eth_getLogs"]
    return [query for query in queries if "fromBlock" in query], [query for query in queries if "blockHash" in query]


def test_all_blocks_and_the_logs_that_it_takes_through_a_reorganisation(chain: ServedChain) -> None:
    chain.show(50)
    source = source_of()

    def reorganise() -> None:
        chain.reorganise(40)
        chain.show(BLOCKS)

    source.run_until_stopped(Steps(reorganise, lambda: None))
    assert_filtered(source, chain, BLOCKS - 1)
    assert source.reports[-1].last_reorg_depth == 10


def test_near_the_head_logs_are_asked_for_by_hash_and_below_by_range(chain: ServedChain) -> None:
    source = source_of()
    source.run_until_stopped(Steps())
    ranges, hashes = log_queries(chain)
    numbers = {chain.block(number).block["hash"]: number for number in range(BLOCKS)}
    assert {numbers[query["blockHash"]] for query in hashes} == set(range(BLOCKS - NEAR_HEAD_BLOCKS, BLOCKS))
    assert max(int(query["toBlock"], 16) for query in ranges) == BLOCKS - NEAR_HEAD_BLOCKS - 1
    assert len(ranges) < 10, "not one for each block"
    assert not any(call.method == "eth_getBlockReceipts" for call in chain.calls)
    assert not any(call.method == "eth_getBlockByNumber" and call.params[1] for call in chain.calls), "headers only"


def test_the_range_that_a_provider_takes_is_learnt(chain: ServedChain, monkeypatch: pytest.MonkeyPatch) -> None:
    def spans_more(calls: Sequence[Call]) -> bool:
        return any(
            call.method == "eth_getLogs"
            and "fromBlock" in call.params[0]
            and int(call.params[0]["toBlock"], 16) - int(call.params[0]["fromBlock"], 16) >= 5
            for call in calls
        )

    monkeypatch.setattr("tracelake.follower.filtered_rows.NEAR_HEAD_BLOCKS", 5)
    chain.inject(RpcErrors(-32602, "eth_getLogs is limited to a 5 block range"), times=None, when=spans_more)
    source = source_of()
    source.run_until_stopped(Steps())
    assert_filtered(source, chain, BLOCKS - 1)
    assert sum(spans_more([call]) for call in chain.calls) <= 2, "not met again and again"


def test_optional_columns_of_filtered_logs_and_of_blocks(chain: ServedChain) -> None:
    source = source_of(columns={"logs": ["block_hash", "timestamp", "n_data_bytes"], "blocks": ["gas_limit"]})
    source.run_until_stopped(Steps())
    blocks, logs = matching(chain, BLOCKS - 1)
    by_number = {row["block_number"]: row for row in blocks}
    for row in logs:
        block = by_number[row["block_number"]]
        row |= {
            "block_hash": block["block_hash"],
            "timestamp": block["timestamp"],
            "n_data_bytes": len(row["data"]),
        }
    assert source.rows("logs") == logs
    limits = [int(chain.block(number).block["gasLimit"], 16) for number in range(BLOCKS)]
    assert [row["gas_limit"] for row in source.rows("blocks")] == limits


def test_optional_columns_without_a_filter(chain: ServedChain) -> None:
    source = Source(columns={"transactions": ["timestamp", "cumulative_gas_used"], "logs": ["n_data_bytes"]})
    source.run_until_stopped(Steps())
    wanted = expected([chain.block(number) for number in range(BLOCKS)])
    times = {row["block_number"]: row["timestamp"] for row in wanted["blocks"]}
    rows = source.rows("transactions")
    assert [row["timestamp"] for row in rows] == [times[row["block_number"]] for row in wanted["transactions"]]
    receipts = [receipt for number in range(BLOCKS) for receipt in chain.block(number).receipts]
    assert [row["cumulative_gas_used"] for row in rows] == [int(one["cumulativeGasUsed"], 16) for one in receipts]
    assert [row["n_data_bytes"] for row in source.rows("logs")] == [len(row["data"]) for row in wanted["logs"]]


def at_logs(form: str, change: Callable[[], None]) -> Callable[[Sequence[Call]], None]:
    """Before the first query of this form is answered."""
    done: list[int] = []

    def watch(calls: Sequence[Call]) -> None:
        if not done and any(call.method == "eth_getLogs" and form in call.params[0] for call in calls):
            done.append(1)
            change()

    return watch


@pytest.mark.parametrize("form", ["fromBlock", "blockHash"])
def test_a_chain_that_changes_between_headers_and_logs_is_read_again(chain: ServedChain, form: str) -> None:
    chain.watch(at_logs(form, lambda: chain.reorganise(2)))
    source = source_of()
    cancel = Steps()
    cancel.ready = lambda: source.newest == BLOCKS - 1
    source.run_until_stopped(cancel)
    assert_filtered(source, chain, BLOCKS - 1)
    assert any(text.startswith("node_failed") for text in source.progress)


def test_a_backend_that_does_not_have_the_block_yet_is_asked_again(chain: ServedChain) -> None:
    """By numbers, it would have answered with no logs."""
    chain.watch(at_logs("blockHash", lambda: chain.show(BLOCKS - 5)))
    source = source_of()
    cancel = Steps(lambda: chain.show(BLOCKS))
    cancel.ready = lambda: bool(cancel._steps) or source.newest == BLOCKS - 1
    source.run_until_stopped(cancel)
    assert_filtered(source, chain, BLOCKS - 1)
    assert any("unknown block" in text for text in source.progress)


def reorganise_before_ends(chain: ServedChain, first: int) -> None:
    """After the headers of a stretch, before the two that `fetch_logs` begins with."""
    done: list[int] = []

    def watch(calls: Sequence[Call]) -> None:
        if not done and [call.method for call in calls] == ["eth_getBlockByNumber"] * 2:
            done.append(1)
            chain.reorganise(first)

    chain.watch(watch)


def test_logs_of_a_range_on_another_chain_are_refused_also_if_there_are_none(chain: ServedChain) -> None:
    pool = pool_of(chain, tries=1)
    nothing = LogSelection.of(["0x" + "99" * 20], [])
    reorganise_before_ends(chain, 5)
    with pytest.raises(BrokenChainError, match="block 20 is another than before its logs were read"):
        read_filtered_rows(pool, 0, 20, ReadOptions(filter=nothing), BLOCKS - 1)
    pool.close()


@pytest.mark.parametrize("head", [None, BLOCKS - 1])
def test_a_log_that_names_another_block_is_refused(chain: ServedChain, head: int | None) -> None:
    transfers = LogSelection.of([], [[TRANSFER]])
    (number,) = {row["block_number"] for row in matching(chain, 20)[1][:1]}
    chain._change(number, lambda block, receipts: (block, receipts))  # so that it is restored
    stored = chain._store.blocks[number]
    logs = []
    for log in stored.logs:
        body = msgspec.json.decode(log.body) | {"blockHash": "0x" + "99" * 32}
        logs.append(msgspec.structs.replace(log, body=msgspec.json.encode(body)))
    chain._store.blocks[number] = msgspec.structs.replace(stored, logs=tuple(logs))
    pool = pool_of(chain, tries=1)
    with pytest.raises(ForeignReceiptsError, match=f"logs of block {number} are of another block"):
        read_filtered_rows(pool, 0, 20, ReadOptions(filter=transfers), head)
    pool.close()
