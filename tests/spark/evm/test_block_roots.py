"""Hashes and roots are those of Ethereum: of blocks of mainnet, and of every recorded block."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.chain import ethereum
from tests.support.chain import RECORDING
from tracelake.demo.chain.recording import Recording
from tracelake.spark.evm.answer_checks import check_blocks, check_receipts
from tracelake.spark.evm.block_roots import encode_receipt, receipts_root, withdrawals_root
from tracelake.spark.evm.errors import WrongHashError
from tracelake.spark.evm.keccak import keccak256
from tracelake.spark.evm.optional_columns import ChosenFields, Withdrawal
from tracelake.spark.evm.read_options import ReadOptions, decoders_of
from tracelake.spark.evm.root_checks import check_block_roots, check_receipts_root
from tracelake.spark.evm.verified_answers import VerifiedReceipt, verified_types

MAINNET = Path(__file__).parent / "data" / "mainnet"
VERIFIED = ReadOptions.of({"blocks": ["withdrawals"]}, verify_roots=True)
WITH_BLOBS = [154, 1172, 1220, 1318, 1383, 2046, 2061, 2117, 2433, 2656, 3340, 3358, 3900, 3912]
"""Recorded blocks with blobs: anvil computes their transactions root from the blobs as well, which no block has."""


def verify(block: Any, receipts: Any = None) -> None:
    """As a job does. `receipts`: None if they are not known."""
    decoders = decoders_of(VERIFIED)
    read: Any = decoders.blocks.decode_single(msgspec.json.encode({"id": 0, "result": block}))[0].result
    number = int(block["number"], 16)
    check_blocks([number], [read], "node-1")
    check_block_roots(number, read, "node-1", VERIFIED.fields, full=True)
    if receipts is not None:
        of_block: Any = decoders.block_receipts.decode_single(msgspec.json.encode({"id": 0, "result": receipts}))[
            0
        ].result
        check_receipts_root(number, read, check_receipts(number, read, of_block, "node-1"), "node-1")


@pytest.mark.parametrize("number", ["0xb872", "0xb873"])
def test_blocks_of_mainnet(number: str) -> None:
    path = MAINNET / "blocks_with_transactions" / f"web3_response.eth_getBlockByNumber_{number}_true.json"
    block = json.loads(path.read_text())["result"]
    verify(block)
    with pytest.raises(WrongHashError, match="the header of block"):
        verify({**block, "difficulty": "0x1"})


def lines_of(name: str) -> list[dict[str, Any]]:
    path = MAINNET / "blocks_17173049_17173050" / name
    return [json.loads(line) for line in path.read_text().splitlines()]


def bloom_of(logs: Sequence[dict[str, Any]]) -> str:
    bits = 0
    for log in logs:
        for item in (log["address"], *log["topics"]):
            bits |= ethereum.bloom_bits(keccak256(ethereum.data(item)))
    return f"0x{bits:0512x}"


def test_receipts_and_withdrawals_of_mainnet() -> None:
    """The files have rows, not answers, so the receipts are put together from them."""
    logs = {
        place: list(some)
        for place, some in groupby(lines_of("expected_logs.json"), lambda log: log["transaction_hash"])
    }
    rows = lines_of("expected_transactions.json")
    for block in lines_of("expected_blocks.json"):
        receipts, kinds = [], []
        for row in (row for row in rows if row["block_number"] == block["number"]):
            kinds.append(row["transaction_type"])
            own_logs = logs.get(row["hash"], [])
            receipt = {
                "blockHash": row["block_hash"],
                "transactionHash": row["hash"],
                "transactionIndex": hex(row["transaction_index"]),
                "gasUsed": hex(row["receipt_gas_used"]),
                "cumulativeGasUsed": hex(row["receipt_cumulative_gas_used"]),
                "status": hex(row["receipt_status"]),
                "logsBloom": bloom_of(own_logs),
                "logs": [
                    {
                        "address": log["address"],
                        "topics": log["topics"],
                        "data": log["data"],
                        "transactionHash": row["hash"],
                        "blockHash": row["block_hash"],
                        "logIndex": hex(log["log_index"]),
                    }
                    for log in own_logs
                ],
            }
            receipts.append(msgspec.convert(receipt, VerifiedReceipt))
        assert {0, 2} <= {*kinds}
        assert "0x" + receipts_root(receipts, kinds) == block["receipts_root"]
        withdrawals = [
            Withdrawal(
                index=hex(one["index"]),
                validator_index=hex(one["validator_index"]),
                address=one["address"],
                amount=hex(one["amount"]),
            )
            for one in block["withdrawals"]
        ]
        assert "0x" + withdrawals_root(withdrawals) == block["withdrawals_root"]


def test_a_receipt_from_before_byzantium_has_a_state_root() -> None:
    receipt = msgspec.convert(
        {
            "blockHash": "",
            "transactionHash": "",
            "transactionIndex": "0x0",
            "gasUsed": "0x5208",
            "cumulativeGasUsed": "0x5208",
            "root": "0x" + "ab" * 32,
            "logsBloom": "0x" + "00" * 256,
            "logs": [],
        },
        VerifiedReceipt,
    )
    fields = [b"\xab" * 32, b"\x52\x08", bytes(256), []]
    assert encode_receipt(receipt, 0) == ethereum.rlp(fields).hex()  # type: ignore[arg-type]
    receipt.status = "0x1"
    with pytest.raises(ValueError, match="a state root and a status"):
        encode_receipt(receipt, 0)
    receipt.root = None
    assert encode_receipt(receipt, 0) == ethereum.rlp([b"\x01", *fields[1:]]).hex()  # type: ignore[list-item]


def test_fields_of_roots_are_read_only_where_they_are_wanted() -> None:
    types = verified_types(ChosenFields(block=("size", "state_root")))
    assert {"size", "state_root", "logs_bloom"} <= {*types.header.__struct_fields__}
    plain = decoders_of(ReadOptions())
    answer = {"id": 0, "result": [{"logsBloom": 1}]}
    with pytest.raises(msgspec.ValidationError, match="missing required field"):
        plain.block_receipts.decode_single(msgspec.json.encode(answer))


@pytest.mark.system
def test_every_recorded_block_but_those_with_blobs() -> None:
    assert list(unverified(4000)) == WITH_BLOBS


def test_recorded_blocks() -> None:
    assert list(unverified(200)) == WITH_BLOBS[:1]


def unverified(count: int) -> Iterator[int]:
    for place, one in zip(range(count), Recording(RECORDING), strict=False):
        if place not in WITH_BLOBS:
            verify(one.block, one.receipts)
            continue
        with pytest.raises(WrongHashError, match=f"^node-1: the transactions of block {place} do not have the root"):
            verify(one.block, one.receipts)
        yield place
