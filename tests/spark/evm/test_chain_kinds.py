"""Chains that differ from Ethereum. Each case is a recorded block whose answers are changed by hand into the shape that
public nodes of the chain return: types and fields of transactions, numbers of logs, receipts that are not there."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.chain.faults import RpcErrors
from tests.spark.evm.support import TABLES, expected, pool_of
from tests.support.chain import ServedChain, recorded, serve_chain
from tracelake.catalogue import read_config
from tracelake.catalogue.evm import EvmIngestConfig
from tracelake.demo.chain.recording import RecordedBlock
from tracelake.spark.evm.chain_rules import STRICT, ChainRules
from tracelake.spark.evm.errors import AnswerError, LogGapError, MissingAnswerError, RpcError, WrongReceiptsError
from tracelake.spark.evm.fetch import fetch
from tracelake.spark.evm.read_options import ReadOptions

Json = dict[str, Any]
Rows = dict[str, list[Json]]
BLOCKS = 60
NUMBER = next(
    one.number
    for one in recorded(BLOCKS)
    if len(one.receipts) > 3 and sum(bool(receipt["logs"]) for receipt in one.receipts) > 2 and one.number > 10
)
NO_METHOD = RpcErrors(-32601, "the method eth_getBlockReceipts does not exist/is not available")
RENUMBER, AS_GIVEN = ChainRules("renumber"), ChainRules("as_given")
DROP, NULL = ChainRules(drop_phantoms=True), ChainRules(null_fields=True)


def changed(change: Callable[[Json, list[Json]], None]) -> list[RecordedBlock]:
    """The first blocks, one of them changed."""
    blocks = list(recorded(BLOCKS))
    one = copy.deepcopy(blocks[NUMBER])
    change(one.block, one.receipts)
    blocks[NUMBER] = one
    return blocks


@contextmanager
def served(blocks: list[RecordedBlock]) -> Iterator[ServedChain]:
    with serve_chain(blocks) as chain:
        yield chain


def read(chain: ServedChain, rules: ChainRules = STRICT, tables: tuple[str, ...] = TABLES, **pool: Any) -> Rows:
    nodes = pool_of(chain, **{"tries": 2, **pool})
    try:
        made = fetch(nodes, range(NUMBER - 2, NUMBER + 3), tables, options=ReadOptions(rules=rules)).tables
    finally:
        nodes.close()
    return {name: table.to_pylist() for name, table in made.items()}


def wanted(blocks: list[RecordedBlock]) -> Rows:
    return expected(blocks[NUMBER - 2 : NUMBER + 3])


def deposit(block: Json, receipts: list[Json]) -> None:
    """OP stack: the first transaction of each block is a deposit of the system. It has no price and no signature."""
    first = block["transactions"][0]
    for name in ("gasPrice", "maxFeePerGas", "maxPriorityFeePerGas", "chainId", "accessList", "yParity"):
        first.pop(name, None)
    first |= {"type": "0x7e", "sourceHash": "0x" + "5e" * 32, "mint": None, "isSystemTx": False, "nonce": "0x1b2c"}
    first |= {"gasPrice": "0x0", "v": "0x0", "r": "0x0", "s": "0x0", "depositReceiptVersion": "0x1"}
    receipts[0] |= {"type": "0x7e", "depositNonce": "0x1b2c", "depositReceiptVersion": "0x1", "l1Fee": "0x0"}


def internal(block: Json, receipts: list[Json]) -> None:
    """Arbitrum: an internal transaction first, then deposits and retryables with types from 0x64 on."""
    for transaction, receipt, kind in zip(block["transactions"], receipts, ("0x6a", "0x69", "0x68"), strict=False):
        transaction |= {"type": kind, "requestId": "0x" + "01" * 32}
        receipt |= {"type": kind, "gasUsedForL1": "0x0", "l1BlockNumber": "0x1234"}


def zksync(block: Json, receipts: list[Json]) -> None:
    """zkSync: its own type 0x71 and priority operations 0xff; batches, and messages to L1 beside the logs."""
    for transaction, receipt, kind in zip(block["transactions"], receipts, ("0xff", "0x71", "0x71"), strict=False):
        transaction |= {"type": kind, "l1BatchNumber": None, "l1BatchTxIndex": None}
        receipt |= {"type": kind, "l1BatchNumber": None, "l2ToL1Logs": [], "root": block["hash"]}
        for log in receipt["logs"]:
            log |= {"l1BatchNumber": None, "transactionLogIndex": "0x0", "logType": None}


@pytest.mark.parametrize("change", [deposit, internal, zksync])
def test_kinds_that_pass_all_checks(change: Callable[[Json, list[Json]], None]) -> None:
    blocks = changed(change)
    with served(blocks) as chain:
        assert read(chain) == wanted(blocks)


def state_sync(block: Json, receipts: list[Json]) -> None:
    """Polygon: a transaction of the validators at the end of the block, from and to nobody, without gas."""
    nobody = "0x" + "00" * 20
    block["transactions"][-1] |= {"from": nobody, "to": nobody, "gas": "0x0", "gasPrice": "0x0", "input": "0x"}
    receipts[-1] |= {"from": nobody, "to": nobody, "gasUsed": "0x0", "cumulativeGasUsed": "0x0"}


@pytest.mark.parametrize("tables", [TABLES, ("logs",)])
@pytest.mark.parametrize("padding", [0, 40_000])
def test_receipts_that_a_block_leaves_out_are_asked_for_singly(tables: tuple[str, ...], padding: int) -> None:
    """Without a rule: what comes is checked like any other. Also if the others were packed."""

    def change(block: Json, receipts: list[Json]) -> None:
        state_sync(block, receipts)
        receipts[0] |= {"padding": "x" * padding}

    blocks = changed(change)
    omitted = [blocks[NUMBER].receipts[place]["transactionHash"] for place in (1, -1)]
    with served(blocks) as chain:
        chain.omit_receipts(omitted)
        assert read(chain, tables=tables, batch_size=1) == {name: wanted(blocks)[name] for name in tables}
        singly = [call.params[0] for call in chain.calls if call.method == "eth_getTransactionReceipt"]
        assert singly == omitted


def test_a_single_receipt_of_another_block_is_refused() -> None:
    blocks = changed(lambda _block, receipts: receipts[1].update(blockHash="0x" + "ab" * 32))
    with served(blocks) as chain:
        chain.omit_receipts([blocks[NUMBER].receipts[1]["transactionHash"]])
        with pytest.raises(AnswerError, match="another block"):
            read(chain)


def phantom_rows(blocks: list[RecordedBlock], phantoms: list[int]) -> Rows:
    """Others keep their places in the block."""
    rows = wanted(blocks)
    for table in ("transactions", "logs"):
        rows[table] = [
            row for row in rows[table] if row["block_number"] != NUMBER or row["transaction_index"] not in phantoms
        ]
    return rows


@pytest.mark.parametrize("by_block", [True, False])
@pytest.mark.parametrize("padding", [0, 40_000])
def test_phantom_transactions(by_block: bool, padding: int) -> None:
    """Cronos: a block lists transactions that were not executed, for which there is no receipt."""

    def change(block: Json, receipts: list[Json]) -> None:
        block["transactions"][0] |= {"padding": "x" * padding}
        for place in (1, len(receipts) - 1):
            for log in receipts[place]["logs"]:
                log["logIndex"] = "0x0"
            receipts[place]["logs"] = []
        for index, log in enumerate(log for receipt in receipts for log in receipt["logs"]):
            log["logIndex"] = hex(index)

    blocks = changed(change)
    places = [1, len(blocks[NUMBER].receipts) - 1]
    phantoms = [blocks[NUMBER].receipts[place]["transactionHash"] for place in places]
    with served(blocks) as chain:
        chain.omit_receipts(phantoms, singly=False)
        error: type[RpcError] = WrongReceiptsError
        if not by_block:
            chain.inject(NO_METHOD, times=None, when=lambda calls: calls[0].method == "eth_getBlockReceipts")
            error = MissingAnswerError
        with pytest.raises(error):
            read(chain)
        assert read(chain, DROP, batch_size=1) == phantom_rows(blocks, places)
        assert read(chain, DROP, tables=("logs",)) == {"logs": phantom_rows(blocks, places)["logs"]}


def test_a_receipt_that_comes_late_is_not_taken_for_a_phantom() -> None:
    blocks = list(recorded(BLOCKS))
    late = blocks[NUMBER].receipts[1]["transactionHash"]
    with served(blocks) as chain:
        chain.omit_receipts([late], singly=False)

        def appear(calls: list[Any]) -> None:
            if any(call.method == "eth_getTransactionReceipt" for call in calls[:1]) and len(asked) < 2:
                asked.append(1)
                if len(asked) == 2:
                    chain._wrong.phantoms.clear()

        asked: list[int] = []
        chain.watch(appear)
        assert read(chain, ChainRules("renumber", drop_phantoms=True)) == wanted(blocks)


def test_a_node_without_any_receipt_of_a_block_does_not_have_the_block() -> None:
    """It lags behind: nothing is dropped."""
    blocks = list(recorded(BLOCKS))
    with served(blocks) as chain:
        chain.inject(NO_METHOD, times=None, when=lambda calls: calls[0].method == "eth_getBlockReceipts")
        chain.omit_receipts([one["transactionHash"] for one in blocks[NUMBER].receipts], singly=False)
        with pytest.raises(MissingAnswerError):
            read(chain, DROP)


def restarting(_block: Json, receipts: list[Json]) -> None:
    """Early Cronos: the logs of each transaction are numbered from 0 on."""
    for receipt in receipts:
        for index, log in enumerate(receipt["logs"]):
            log["logIndex"] = hex(index)


def with_gaps(_block: Json, receipts: list[Json]) -> None:
    """Stable: numbers grow, and leave some out."""
    for index, log in enumerate(log for receipt in receipts for log in receipt["logs"]):
        log["logIndex"] = hex(2 * index + 5)


@pytest.mark.parametrize("change", [restarting, with_gaps])
def test_log_indexes(change: Callable[[Json, list[Json]], None]) -> None:
    blocks = changed(change)
    with served(blocks) as chain:
        with pytest.raises(LogGapError):
            read(chain)
        assert read(chain, AS_GIVEN) == wanted(blocks)
        assert read(chain, RENUMBER) == wanted(list(recorded(BLOCKS)))


def test_a_log_number_that_no_column_holds_is_refused() -> None:
    def change(_block: Json, receipts: list[Json]) -> None:
        next(log for receipt in receipts for log in receipt["logs"])["logIndex"] = hex(2**32)

    with served(changed(change)) as chain, pytest.raises(AnswerError, match="too large"):
        read(chain, AS_GIVEN)


def calls_instead(block: Json, receipts: list[Json]) -> None:
    """Tempo: type 0x76 has a list of calls instead of value and input."""
    first = block["transactions"][0]
    for name in ("value", "input", "to"):
        del first[name]
    first |= {"type": "0x76", "calls": [{"to": "0x" + "11" * 20, "value": "0x0", "input": "0x"}], "feeToken": None}
    receipts[0] |= {"type": "0x76"}


@pytest.mark.parametrize("padding", [0, 40_000])
def test_types_without_value_and_input(padding: int) -> None:
    def change(block: Json, receipts: list[Json]) -> None:
        calls_instead(block, receipts)
        block["transactions"][0] |= {"padding": "x" * padding}

    blocks = changed(change)
    fields = {"value_binary", "value_string", "value_f64", "input", "to_address"}
    counts = {"n_input_bytes", "n_input_zero_bytes", "n_input_nonzero_bytes"}
    with served(blocks) as chain:
        with pytest.raises(AnswerError):
            read(chain)
        made = read(chain, NULL, batch_size=1)
    rows = expected(recorded(BLOCKS)[NUMBER - 2 : NUMBER + 3])
    row = next(row for row in rows["transactions"] if row["block_number"] == NUMBER)
    row |= dict.fromkeys(fields | counts) | {"transaction_type": 0x76}
    assert made == rows


@pytest.mark.parametrize("kind", ["0x0", "0x2", "0x4", None])
@pytest.mark.parametrize("name", ["value", "input", "gas", "nonce"])
def test_types_of_ethereum_lack_nothing(kind: str | None, name: str) -> None:
    def change(block: Json, _receipts: list[Json]) -> None:
        block["transactions"][1]["type"] = kind
        del block["transactions"][1][name]

    with served(changed(change)) as chain, pytest.raises(AnswerError, match="lacks value"):
        read(chain, NULL)


@pytest.mark.parametrize(
    ("config", "rules"),
    [
        ({}, STRICT),
        *(({"chain_kind": kind}, STRICT) for kind in ("ethereum", "op_stack", "arbitrum", "polygon", "zksync")),
        ({"chain_kind": "cronos"}, ChainRules("renumber", drop_phantoms=True)),
        ({"chain_kind": "cronos", "phantom_transactions": "fail"}, RENUMBER),
        ({"chain_kind": "cronos", "log_index": "as_given"}, ChainRules("as_given", drop_phantoms=True)),
        ({"chain_kind": "stable"}, RENUMBER),
        ({"chain_kind": "tempo"}, NULL),
        ({"missing_fields": "null", "log_index": "strict"}, NULL),
    ],
)
def test_kinds_are_names_for_rules(config: Json, rules: ChainRules) -> None:
    read_from = read_config("evm_ingest", {"chain_id": 1, **config})
    assert isinstance(read_from, EvmIngestConfig)
    assert ChainRules.of(read_from.preset) == rules
