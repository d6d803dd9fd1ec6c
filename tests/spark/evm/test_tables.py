"""Answers of real nodes become the tables that others made of them, value by value."""

import csv
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.spark.evm.support import expected
from tests.support.chain import recorded
from tracelake.demo.chain.recording import RecordedBlock
from tracelake.spark.evm.answer_checks import check_blocks, check_receipts
from tracelake.spark.evm.answers import Block, BlockHeader, Receipt
from tracelake.spark.evm.calls import AnswerDecoder, PackingDecoder, answers_of
from tracelake.spark.evm.fetch import make_tables
from tracelake.spark.evm.packed import pack_receipts, pack_regular_block, pack_regular_receipts
from tracelake.spark.evm.tables import SCHEMAS, logs_table

MAINNET = Path(__file__).parent / "data" / "mainnet"
CONFORMANCE = Path(__file__).parents[2] / "chain" / "data" / "rpc_conformance"
TABLES = ("blocks", "transactions", "logs")
TYPED = (answers_of(Block), answers_of(list[Receipt]))
PACKED = (
    PackingDecoder(Block, pack_regular_block, least=0),
    PackingDecoder(list[Receipt], pack_regular_receipts, least=0),
)
Json = dict[str, Any]


def tables_of(blocks: list[Json], receipts: list[list[Json]], chain_id: int = 1) -> dict[str, list[Json]]:
    """Through the very decoders, checks and tables that the operator uses; packed or not, they are the same."""
    packed = _tables_of(blocks, receipts, chain_id, *PACKED)
    assert packed == _tables_of(blocks, receipts, chain_id, *TYPED)
    return packed


def _tables_of(
    blocks: list[Json],
    receipts: list[list[Json]],
    chain_id: int,
    block_answers: AnswerDecoder,
    receipt_answers: AnswerDecoder,
) -> dict[str, list[Json]]:
    said = [{"jsonrpc": "2.0", "id": place, "result": block} for place, block in enumerate(blocks)]
    told = [{"jsonrpc": "2.0", "id": place, "result": of_block} for place, of_block in enumerate(receipts)]
    numbers = [int(block["number"], 16) for block in blocks]
    read = [answer.result for answer in block_answers.decode(msgspec.json.encode(said))]
    fates = [answer.result for answer in receipt_answers.decode(msgspec.json.encode(told))]
    checked = check_blocks(numbers, read, "node")
    kept = [check_receipts(*one, "node") for one in zip(numbers, checked, fates, strict=True)]
    made = make_tables(checked, kept, TABLES, chain_id)
    assert {name: table.schema for name, table in made.items()} == SCHEMAS
    for table in made.values():
        table.validate(full=True)
    return {name: table.to_pylist() for name, table in made.items()}


def lines(path: str) -> list[Json]:
    return [json.loads(line) for line in (MAINNET / path).read_text().splitlines()]


def raw(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text[2:])


def test_two_blocks_of_mainnet() -> None:
    """The answers are rebuilt from the tables that ethereum-etl made of these blocks: what its columns keep."""
    blocks = lines("blocks_17173049_17173050/expected_blocks.json")
    rows = lines("blocks_17173049_17173050/expected_transactions.json")
    logs = lines("blocks_17173049_17173050/expected_logs.json")
    made = tables_of(*_rebuilt(blocks, rows, logs))

    assert (len(made["blocks"]), len(made["transactions"]), len(made["logs"])) == (2, 298, 681)
    for row, block in zip(made["blocks"], blocks, strict=True):
        assert row == {
            "block_hash": raw(block["hash"]),
            "parent_hash": raw(block["parent_hash"]),
            "author": raw(block["miner"]),
            "block_number": block["number"],
            "gas_used": block["gas_used"],
            "extra_data": raw(block["extra_data"]),
            "timestamp": block["timestamp"],
            "base_fee_per_gas": block["base_fee_per_gas"],
            "chain_id": 1,
        }
    ordered = sorted(rows, key=lambda one: (one["block_number"], one["transaction_index"]))
    for row, one in zip(made["transactions"], ordered, strict=True):
        data = raw(one["input"]) or b""
        assert row == {
            "block_number": one["block_number"],
            "transaction_index": one["transaction_index"],
            "transaction_hash": raw(one["hash"]),
            "nonce": one["nonce"],
            "from_address": raw(one["from_address"]),
            "to_address": raw(one["to_address"]),
            "value_binary": one["value"].to_bytes(32, "big"),
            "value_string": str(one["value"]),
            "value_f64": float(one["value"]),
            "input": data,
            "gas_limit": one["gas"],
            "gas_used": one["receipt_gas_used"],
            "gas_price": one["gas_price"],
            "transaction_type": one["transaction_type"],
            "max_priority_fee_per_gas": one["max_priority_fee_per_gas"],
            "max_fee_per_gas": one["max_fee_per_gas"],
            "success": one["receipt_status"] == 1,
            "n_input_bytes": len(data),
            "n_input_zero_bytes": data.count(0),
            "n_input_nonzero_bytes": len(data) - data.count(0),
            "chain_id": 1,
        }
    for row, log in zip(
        made["logs"], sorted(logs, key=lambda one: (one["block_number"], one["log_index"])), strict=True
    ):
        topics = [raw(topic) for topic in log["topics"]] + [None] * 4
        assert row == {
            "block_number": log["block_number"],
            "transaction_index": log["transaction_index"],
            "log_index": log["log_index"],
            "transaction_hash": raw(log["transaction_hash"]),
            "address": raw(log["address"]),
            **{f"topic{place}": topics[place] for place in range(4)},
            "data": raw(log["data"]),
            "chain_id": 1,
        }


def _rebuilt(blocks: list[Json], rows: list[Json], logs: list[Json]) -> tuple[list[Json], list[list[Json]]]:
    def number(value: int | None) -> str | None:
        return None if value is None else hex(value)

    answers: list[Json] = []
    receipts: list[list[Json]] = []
    for block in blocks:
        own = sorted(
            (one for one in rows if one["block_hash"] == block["hash"]), key=lambda one: one["transaction_index"]
        )
        transactions = [
            {
                "hash": one["hash"],
                "nonce": hex(one["nonce"]),
                "transactionIndex": hex(one["transaction_index"]),
                "blockHash": one["block_hash"],
                "from": one["from_address"],
                "to": one["to_address"],
                "value": hex(one["value"]),
                "gas": hex(one["gas"]),
                "gasPrice": hex(one["gas_price"]),
                "input": one["input"],
                "type": hex(one["transaction_type"]),
                "maxFeePerGas": number(one["max_fee_per_gas"]),
                "maxPriorityFeePerGas": number(one["max_priority_fee_per_gas"]),
            }
            for one in own
        ]
        answers.append(
            {
                "hash": block["hash"],
                "parentHash": block["parent_hash"],
                "number": hex(block["number"]),
                "miner": block["miner"],
                "gasUsed": hex(block["gas_used"]),
                "extraData": block["extra_data"],
                "timestamp": hex(block["timestamp"]),
                "baseFeePerGas": hex(block["base_fee_per_gas"]),
                "transactions": transactions,
            }
        )
        receipts.append(
            [
                {
                    "transactionHash": one["hash"],
                    "transactionIndex": hex(one["transaction_index"]),
                    "blockHash": one["block_hash"],
                    "gasUsed": hex(one["receipt_gas_used"]),
                    "status": hex(one["receipt_status"]),
                    "effectiveGasPrice": hex(one["receipt_effective_gas_price"]),
                    "logs": [
                        {
                            "address": log["address"],
                            "topics": log["topics"],
                            "data": log["data"],
                            "logIndex": hex(log["log_index"]),
                            "blockHash": log["block_hash"],
                            "transactionHash": log["transaction_hash"],
                        }
                        for log in sorted(logs, key=lambda log: log["log_index"])
                        if log["transaction_hash"] == one["hash"]
                    ],
                }
                for one in own
            ]
        )
    return answers, receipts


def test_blocks_of_2015_as_a_node_said_them() -> None:
    """Before London, before Byzantium, with fields that nodes do not give any more. Receipts are made up: gas alone."""
    folder = MAINNET / "blocks_with_transactions"
    blocks = [
        json.loads((folder / f"web3_response.eth_getBlockByNumber_{number}_true.json").read_text())["result"]
        for number in ("0xb872", "0xb873")
    ]
    receipts = [
        [
            {
                "transactionHash": one["hash"],
                "transactionIndex": one["transactionIndex"],
                "blockHash": block["hash"],
                "gasUsed": "0x5208",
                "logs": [],
                "root": "0x" + "00" * 32,
            }
            for one in block["transactions"]
        ]
        for block in blocks
    ]
    made = tables_of(blocks, receipts)
    wanted = list(csv.DictReader((folder / "expected_blocks.csv").open()))
    assert [row["parent_hash"] for row in made["blocks"]] == [raw(row["parent_hash"]) for row in wanted]
    assert [row["base_fee_per_gas"] for row in made["blocks"]] == [None, None]
    assert [row["gas_used"] for row in made["blocks"]] == [int(row["gas_used"]) for row in wanted]
    assert [row["extra_data"] for row in made["blocks"]] == [raw(row["extra_data"]) for row in wanted]
    rows = list(csv.DictReader((folder / "expected_transactions.csv").open()))
    for row, one in zip(made["transactions"], rows, strict=True):
        assert row["value_string"] == one["value"]
        assert (row["nonce"], row["gas_limit"], row["gas_price"]) == tuple(
            int(one[name]) for name in ("nonce", "gas", "gas_price")
        )
        assert (row["from_address"], row["transaction_type"], row["success"]) == (raw(one["from_address"]), 0, None)
        assert (row["max_fee_per_gas"], row["max_priority_fee_per_gas"]) == (None, None)


def test_receipts_before_byzantium_as_a_node_said_them() -> None:
    folder = MAINNET / "receipts_with_logs"
    said = [json.loads(path.read_text())["result"] for path in folder.glob("web3_response.*.json")]
    receipts = msgspec.convert(sorted(said, key=lambda one: int(one["transactionIndex"], 16)), list[Receipt])
    header = BlockHeader(
        hash=receipts[0].block_hash,
        parent_hash="0x" + "00" * 32,
        number=hex(483920),
        miner="0x" + "00" * 20,
        gas_used="0x0",
        extra_data="0x",
        timestamp="0x0",
        transactions=[receipt.transaction_hash for receipt in receipts],
    )
    checked = check_receipts(483920, header, receipts, "node")
    assert {receipt.status for receipt in receipts} == {None}
    wanted = [json.loads(line) for line in (folder / "expected_logs.json").read_text().splitlines()]
    made = logs_table([header], pack_receipts([checked]), 1).to_pylist()
    for row, log in zip(made, sorted(wanted, key=lambda log: log["log_index"]), strict=True):
        assert (row["block_number"], row["log_index"], row["transaction_index"]) == (
            483920,
            log["log_index"],
            log["transaction_index"],
        )
        topics = log["topics"].split(",") if isinstance(log["topics"], str) else log["topics"]
        assert [row[f"topic{place}"] for place in range(len(topics))] == [raw(topic) for topic in topics]
        assert (row["address"], row["data"]) == (raw(log["address"]), raw(log["data"]))


def _pairs(method: str) -> list[Any]:
    found = []
    for path in sorted((CONFORMANCE / method).glob("*.io")):
        (answer,) = [json.loads(line[2:]) for line in path.read_text().splitlines() if line.startswith("<<")]
        if answer.get("result"):
            found.append(pytest.param(answer["result"], id=path.stem))
    return found


@pytest.mark.parametrize("block", _pairs("eth_getBlockByNumber"))
def test_blocks_of_the_specification(block: Json) -> None:
    whole = all(isinstance(one, dict) for one in block["transactions"])
    wanted = expected(
        [RecordedBlock(number=int(block["number"], 16), block={**block, "transactions": []}, receipts=[])]
    )
    kind = Block if whole else BlockHeader
    (read,) = answers_of(kind).decode(msgspec.json.encode([{"id": 0, "result": block}]))
    checked = check_blocks([int(block["number"], 16)], [read.result], "node")
    made = make_tables(checked, [], ["blocks"], wanted["blocks"][0]["chain_id"])
    assert made["blocks"].to_pylist() == wanted["blocks"]


@pytest.mark.parametrize("receipts", _pairs("eth_getBlockReceipts"))
def test_receipts_of_the_specification(receipts: list[Json]) -> None:
    number = int(receipts[0]["blockNumber"], 16)
    typed = msgspec.convert(receipts, list[Receipt])
    header = BlockHeader(
        hash=receipts[0]["blockHash"],
        parent_hash="0x" + "00" * 32,
        number=hex(number),
        miner="0x" + "00" * 20,
        gas_used="0x0",
        extra_data="0x",
        timestamp="0x0",
        transactions=[receipt["transactionHash"] for receipt in receipts],
    )
    checked = check_receipts(number, header, typed, "node")
    wanted = expected(
        [RecordedBlock(number=number, block={**_no_block(number), "transactions": []}, receipts=receipts)], 1
    )
    assert logs_table([header], pack_receipts([checked]), 1).to_pylist() == wanted["logs"]


def _no_block(number: int) -> Json:
    zero = "0x" + "00" * 32
    return {
        "hash": zero,
        "parentHash": zero,
        "miner": "0x" + "00" * 20,
        "number": hex(number),
        "gasUsed": "0x0",
        "extraData": "0x",
        "timestamp": "0x0",
    }


def test_the_recorded_chain_with_all_its_kinds_of_transactions() -> None:
    blocks = recorded(400)
    made = tables_of([one.block for one in blocks], [one.receipts for one in blocks], 7)
    assert made == expected(blocks, 7)
    assert {row["transaction_type"] for row in made["transactions"]} >= {0, 2}
    assert None in {row["to_address"] for row in made["transactions"]}, "contracts are made"
    assert {row["success"] for row in made["transactions"]} == {True, False}


@pytest.mark.parametrize(
    ("transaction", "receipt", "wanted"),
    [
        ({"value": hex(2**256 - 1)}, {}, {"value_string": str(2**256 - 1), "value_binary": b"\xff" * 32}),
        ({"to": None}, {"contractAddress": "0x" + "11" * 20}, {"to_address": None}),
        ({"type": "0x3", "blobVersionedHashes": ["0x01"], "maxFeePerBlobGas": "0x1"}, {}, {"transaction_type": 3}),
        ({"type": "0x7e", "sourceHash": "0x00", "mint": None}, {}, {"transaction_type": 126}),
        ({"type": None}, {}, {"transaction_type": 0}),
        ({"gasPrice": None}, {"effectiveGasPrice": "0x2a"}, {"gas_price": 42}),
        ({"gasPrice": None}, {"effectiveGasPrice": None}, {"gas_price": None}),
        ({"maxFeePerGas": None, "maxPriorityFeePerGas": None}, {}, {"max_fee_per_gas": None}),
        ({"input": "0x" + "00" * 70_000 + "01"}, {}, {"n_input_zero_bytes": 70_000, "n_input_bytes": 70_001}),
        ({"input": "0x"}, {}, {"input": b"", "n_input_bytes": 0}),
        ({"nonce": hex(2**64 - 1)}, {}, {"nonce": 2**64 - 1}),
        ({"gas": hex(2**64)}, {}, {"gas_limit": 2**64 - 1}),
        ({"gasPrice": hex(2**256 - 1)}, {}, {"gas_price": 2**64 - 1}),
        ({"gasPrice": None}, {"effectiveGasPrice": hex(2**70)}, {"gas_price": 2**64 - 1}),
        ({"maxFeePerGas": hex(2**64)}, {}, {"max_fee_per_gas": 2**64 - 1}),
        ({"maxPriorityFeePerGas": hex(2**128)}, {}, {"max_priority_fee_per_gas": 2**64 - 1}),
        ({}, {"status": "0x0"}, {"success": False}),
        ({}, {"status": None, "root": "0x" + "00" * 32}, {"success": None}),
    ],
)
def test_transactions_of_every_kind(transaction: Json, receipt: Json, wanted: Json) -> None:
    one = next(one for one in recorded(100) if len(one.receipts) == 1)
    block = {**one.block, "transactions": [{**one.block["transactions"][0], **transaction}]}
    (row,) = tables_of([block], [[{**one.receipts[0], **receipt}]])["transactions"]
    assert {name: row[name] for name in wanted} == wanted


def test_a_base_fee_beyond_its_column_is_the_largest_that_it_holds() -> None:
    one = recorded(100)[1]
    made = tables_of([{**one.block, "baseFeePerGas": hex(2**64 + 5)}], [one.receipts])
    assert made["blocks"][0]["base_fee_per_gas"] == 2**64 - 1


def test_a_genesis_block_and_no_block_at_all() -> None:
    genesis = recorded(100)[0]
    made = tables_of([genesis.block], [[]])
    assert made["blocks"][0]["block_number"] == 0
    assert (made["transactions"], made["logs"]) == ([], [])
    assert tables_of([], []) == {"blocks": [], "transactions": [], "logs": []}
