"""Optional columns: the values of real and of hand-built answers, null where a chain has no such field."""

import copy
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.chain import recorded
from tracelake.catalogue.evm_columns import EVM_COLUMNS, EVM_OPTIONAL_COLUMNS
from tracelake.spark.evm.answer_checks import check_blocks, check_receipts
from tracelake.spark.evm.calls import AnswerDecoder, PackingDecoder
from tracelake.spark.evm.columns import BadHexError
from tracelake.spark.evm.errors import RpcError, ValueTooLargeError
from tracelake.spark.evm.fetch import make_tables
from tracelake.spark.evm.optional_columns import COPIED, OPTIONAL, answer_types
from tracelake.spark.evm.packed import PackedBlock, PackedReceipts, pack_regular_block, pack_regular_receipts
from tracelake.spark.evm.read_options import USUAL, ReadOptions, decoders_of
from tracelake.spark.evm.tables import SCHEMAS, schema_of

CONFORMANCE = Path(__file__).parents[2] / "chain" / "data" / "rpc_conformance"
Json = dict[str, Any]
TABLES = ("blocks", "transactions", "logs")
ALL = ReadOptions.of({table: [*COPIED[table], *OPTIONAL[table]] for table in TABLES})
WORD = "0x" + "ab" * 32
ADDRESS = "0x" + "cd" * 20


def tables_of(blocks: list[Json], receipts: list[list[Json]], options: ReadOptions = ALL) -> dict[str, list[Json]]:
    """As the operator makes them, of packed and of typed answers."""
    kinds, fields = answer_types(options.fields), options.fields
    packing = (
        PackingDecoder(kinds.block, lambda block: pack_regular_block(block, fields), least=0),
        PackingDecoder(list[kinds.receipt], lambda fates: pack_regular_receipts(fates, fields), least=0),  # type: ignore[name-defined]
    )
    typed = (AnswerDecoder(kinds.block), AnswerDecoder(list[kinds.receipt]))  # type: ignore[name-defined]
    packed: Any
    packed, plain = (_outcome(decoders, blocks, receipts, options) for decoders in (packing, typed))
    assert packed == plain
    if isinstance(packed, Exception):
        raise packed
    rows: dict[str, list[Json]] = packed
    return rows


class _Failure(Exception):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Failure) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


def _outcome(decoders: Any, blocks: list[Json], receipts: list[list[Json]], options: ReadOptions) -> Any:
    try:
        read = [one.result for one in decoders[0].decode(_answers(blocks))]
        told = [one.result for one in decoders[1].decode(_answers(receipts))]
        numbers = [int(block["number"], 16) for block in blocks]
        checked = [check_blocks([number], [block], "node")[0] for number, block in zip(numbers, read, strict=True)]
        fates = [check_receipts(*one, "node") for one in zip(numbers, checked, told, strict=True)]
        made = make_tables(checked, fates, TABLES, 1, options)
    except (RpcError, BadHexError, ValueTooLargeError, msgspec.ValidationError) as error:
        return _Failure(type(error).__name__, str(error))
    for name, table in made.items():
        assert table.schema == schema_of(name, options.optional(name))
        table.validate(full=True)
    return {name: table.to_pylist() for name, table in made.items()}


def _answers(results: list[Any]) -> bytes:
    return msgspec.json.encode([{"id": place, "result": result} for place, result in enumerate(results)])


def conformance(name: str) -> Any:
    lines = (CONFORMANCE / name).read_text().splitlines()
    return json.loads(next(line for line in lines if line.startswith("<< "))[3:])["result"]


def raw(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text[2:])


def one_transaction() -> tuple[Json, Json, Json]:
    """A recorded block with one transaction that has logs, to be changed; the transaction; its receipt."""
    recording = next(one for one in recorded(300) if len(one.receipts) == 1 and one.receipts[0]["logs"])
    one = copy.deepcopy(recording)
    return one.block, one.block["transactions"][0], one.receipts[0]


def test_a_block_of_a_real_node() -> None:
    """Of the conformance tests of execution clients, with fields of all forks up to Prague."""
    block = conformance("eth_getBlockByNumber/get-latest.io")
    receipts = conformance("eth_getBlockReceipts/get-block-receipts-latest.io")
    made = tables_of([block], [receipts])
    (row,) = made["blocks"]
    for name in ("state_root", "transactions_root", "receipts_root", "mix_hash", "requests_hash", "withdrawals_root"):
        assert row[name] == raw(block[_camel(name)])
    assert row["parent_beacon_block_root"] == raw(block["parentBeaconBlockRoot"])
    assert (row["uncles_hash"], row["logs_bloom"]) == (raw(block["sha3Uncles"]), raw(block["logsBloom"]))
    assert (row["gas_limit"], row["size"], row["difficulty"]) == (0xBEBC200, 0x455, 0)
    assert (row["blob_gas_used"], row["excess_blob_gas"], row["nonce"], row["withdrawals"]) == (0, 0, b"\0" * 8, [])
    assert (row["total_difficulty"], row["l1_block_number"], row["l1_batch_number"]) == (None, None, None)
    for place, (sent, fate) in enumerate(zip(block["transactions"], receipts, strict=True)):
        row = made["transactions"][place]
        assert (row["block_hash"], row["timestamp"]) == (raw(block["hash"]), 0x21C)
        assert row["contract_address"] == raw(fate["contractAddress"])
        assert row["cumulative_gas_used"] == int(fate["cumulativeGasUsed"], 16)
        assert row["effective_gas_price"] == int(fate["effectiveGasPrice"], 16)
        assert row["v"] == int(sent["v"], 16)
        assert (row["r"], row["s"]) == tuple(int(sent[name], 16).to_bytes(32, "big") for name in "rs")
        others = {*OPTIONAL["transactions"]} - {"contract_address", "cumulative_gas_used", "effective_gas_price"}
        assert {row[name] for name in others - {"v", "r", "s"}} == {None}
    for row, log in zip(made["logs"], [log for fate in receipts for log in fate["logs"]], strict=True):
        assert (row["block_hash"], row["timestamp"]) == (raw(block["hash"]), 0x21C)
        assert row["n_data_bytes"] == len(row["data"]) == (len(log["data"]) - 2) // 2


def test_withdrawals() -> None:
    block = {**conformance("eth_getBlockByNumber/get-block-shanghai-fork.io"), "transactions": []}
    (row,) = tables_of([block], [[]])["blocks"]
    address = raw("0x3ae75c08b4c907eb63a8960c45b86e1e9ab6123c")
    assert row["withdrawals"] == [{"index": 0, "validator_index": 5, "address": address, "amount": 100}]


SHAPES: dict[str, tuple[Json, Json, Json]] = {
    "a blob transaction (EIP-4844)": (
        {"type": "0x3", "blobVersionedHashes": [WORD, WORD], "maxFeePerBlobGas": "0x7", "accessList": []},
        {"blobGasUsed": "0x40000", "blobGasPrice": "0x1"},
        {
            "blob_versioned_hashes": [raw(WORD)] * 2,
            "max_fee_per_blob_gas": 7,
            "access_list": [],
            "blob_gas_used": 0x40000,
            "blob_gas_price": 1,
            "authorization_list": None,
        },
    ),
    "an access list (EIP-2930)": (
        {"type": "0x1", "accessList": [{"address": ADDRESS, "storageKeys": [WORD]}, {"address": ADDRESS}]},
        {},
        {
            "access_list": [
                {"address": raw(ADDRESS), "storage_keys": [raw(WORD)]},
                {"address": raw(ADDRESS), "storage_keys": []},
            ]
        },
    ),
    "a delegation (EIP-7702), with a chain id and a nonce beyond any": (
        {
            "type": "0x4",
            "authorizationList": [
                {
                    "chainId": hex(2**256 - 1),
                    "address": ADDRESS,
                    "nonce": hex(2**64 - 1),
                    "yParity": "0x1",
                    "r": "0x1",
                    "s": WORD,
                }
            ],
        },
        {},
        {
            "authorization_list": [
                {
                    "chain_id": 2**63 - 1,
                    "address": raw(ADDRESS),
                    "nonce": 2**63 - 1,
                    "y_parity": 1,
                    "r": b"\0" * 31 + b"\1",
                    "s": raw(WORD),
                }
            ]
        },
    ),
    "a deposit of the OP stack": (
        {"type": "0x7e", "sourceHash": WORD, "mint": hex(10**30), "isSystemTx": True, "gasPrice": "0x0"},
        {"depositNonce": "0x9", "depositReceiptVersion": "0x1", "l1Fee": "0x0"},
        {
            "source_hash": raw(WORD),
            "mint": Decimal(10**30),
            "is_system_tx": True,
            "deposit_nonce": 9,
            "l1_fee": Decimal(0),
            "l1_gas_used": None,
        },
    ),
    "a fee of the OP stack before Ecotone": (
        {},
        {"l1Fee": hex(2**64), "l1GasUsed": "0x10", "l1GasPrice": "0x20", "l1FeeScalar": "0.684"},
        {"l1_fee": Decimal(2**64), "l1_gas_used": 16, "l1_gas_price": 32, "l1_fee_scalar": "0.684"},
    ),
    "a fee of the OP stack since Isthmus": (
        {},
        {
            "l1Fee": hex(2**256 - 1),
            "l1BaseFeeScalar": "0x1",
            "l1BlobBaseFee": "0x2",
            "l1BlobBaseFeeScalar": "0x3",
            "operatorFeeScalar": "0x4",
            "operatorFeeConstant": hex(2**64),
        },
        {
            "l1_fee": Decimal(10**38 - 1),
            "l1_base_fee_scalar": 1,
            "l1_blob_base_fee": 2,
            "l1_blob_base_fee_scalar": 3,
            "operator_fee_scalar": 4,
            "operator_fee_constant": 2**64 - 1,
        },
    ),
    "Arbitrum": (
        {"type": "0x6a"},
        {"gasUsedForL1": "0x5", "l1BlockNumber": "0x1234"},
        {"gas_used_for_l1": 5, "l1_block_number": 0x1234},
    ),
    "zkSync": (
        {"type": "0x71", "l1BatchNumber": "0x1", "l1BatchTxIndex": "0x2"},
        {},
        {"l1_batch_number": 1, "l1_batch_tx_index": 2},
    ),
}
"""Hand-built from what the specifications say of each kind: fields of the transaction, of its receipt, and columns."""


@pytest.mark.parametrize("name", SHAPES)
def test_transactions_of_many_chains(name: str) -> None:
    sent, fate, columns = SHAPES[name]
    block, transaction, receipt = one_transaction()
    transaction |= sent
    receipt |= fate
    (row,) = tables_of([block], [[receipt]])["transactions"]
    assert {column: row[column] for column in columns} == columns


@pytest.mark.parametrize(
    ("of", "field", "value"),
    [
        ("block", "stateRoot", "0x12"),
        ("block", "size", "12"),
        ("block", "logsBloom", "0x"),
        ("block", "totalDifficulty", "0x1_0"),
        ("block", "withdrawals", [{"index": "0x1"}]),
        ("transaction", "accessList", [{"address": "0x12", "storageKeys": []}]),
        ("transaction", "accessList", [{"address": ADDRESS, "storageKeys": ["0x1"]}]),
        ("transaction", "blobVersionedHashes", ["0x1"]),
        ("transaction", "blobVersionedHashes", "0x1"),
        ("transaction", "r", hex(2**256)),
        ("transaction", "isSystemTx", "0x1"),
        ("receipt", "contractAddress", "0x"),
        ("receipt", "l1FeeScalar", "1e9"),
        ("receipt", "l1FeeScalar", "0.684\n"),
        ("receipt", "l1BlockNumber", 7),
    ],
)
def test_a_value_that_is_not_as_it_should_be_is_refused(of: str, field: str, value: Any) -> None:
    block, transaction, receipt = one_transaction()
    {"block": block, "transaction": transaction, "receipt": receipt}[of][field] = value
    with pytest.raises(_Failure):
        tables_of([block], [[receipt]])


def test_without_columns_nothing_else_is_read() -> None:
    """Wrong values of fields that nobody asked for do not matter, and the tables are the usual ones."""
    block, transaction, receipt = one_transaction()
    block["stateRoot"] = transaction["accessList"] = receipt["contractAddress"] = 7
    made = tables_of([block], [[receipt]], USUAL)
    assert {name: [*rows[0]] for name, rows in made.items()} == {name: SCHEMAS[name].names for name in TABLES}
    assert decoders_of(USUAL) is decoders_of(ReadOptions.of({"blocks": ()}))


def test_columns_are_added_in_the_order_of_the_catalogue() -> None:
    options = ReadOptions.of({"transactions": ["timestamp", "l1_fee"], "logs": ["timestamp"]})
    block, _, receipt = one_transaction()
    made = tables_of([block], [[receipt]], options)
    assert [*made["transactions"][0]] == [*SCHEMAS["transactions"].names, "timestamp", "l1_fee"]
    assert [*made["logs"][0]] == [*SCHEMAS["logs"].names, "timestamp"]
    assert [*made["blocks"][0]] == SCHEMAS["blocks"].names


def test_the_catalogue_names_what_can_be_read() -> None:
    for table, columns in EVM_OPTIONAL_COLUMNS.items():
        assert {column.name for column in columns} == {*COPIED[table], *OPTIONAL[table]}
        assert not {column.name for column in columns} & {column.name for column in EVM_COLUMNS[table]}


TEXTS = st.sampled_from(["", "0x", "0x0", "0x1", "0x01", WORD, ADDRESS, "é", "0x1\n00x2", hex(2**64), hex(2**256)])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["address", "storageKeys", "chainId", "nonce", "index"]), inner, max_size=3)
    ),
    max_leaves=4,
)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 3))
def test_whatever_a_node_says(data: st.DataObject, changes: int) -> None:
    """Packed or not, the same rows or the same refusal; nothing else is raised."""
    block, transaction, receipt = one_transaction()
    objects = {"blocks": block, "transactions": transaction}
    for _ in range(changes):
        table = data.draw(st.sampled_from(sorted(objects)))
        column = OPTIONAL[table][data.draw(st.sampled_from(sorted(OPTIONAL[table])))]
        (receipt if column.of_receipt else objects[table])[_camel(column.field)] = data.draw(ANYTHING)
    try:
        made = tables_of([block], [[receipt]])
    except _Failure:
        return
    assert len(made["transactions"]) == 1


def test_packed_answers_hold_the_chosen_fields() -> None:
    """Or the tests above would compare typed answers with themselves."""
    block, _, receipt = one_transaction()
    decoders = decoders_of(ALL)
    padding = [{"id": 9, "padding": "x" * 100_000}]
    read: list[Any] = decoders.blocks.decode(msgspec.json.encode([{"id": 0, "result": block}, *padding]), 2)
    told: list[Any] = decoders.block_receipts.decode(msgspec.json.encode([{"id": 0, "result": [receipt]}, *padding]), 2)
    assert (type(read[0].result), type(told[0].result)) == (PackedBlock, PackedReceipts)
    made = make_tables([read[0].result], [told[0].result], TABLES, 1, ALL)
    assert isinstance(made["blocks"].column("size")[0], pa.UInt64Scalar)


def test_every_optional_column_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operators" / "evm_ingest.md").read_text()
    section = page.partition("### Optional columns")[2].partition("\n## ")[0]
    for table, columns in EVM_OPTIONAL_COLUMNS.items():
        rows = section.partition(f"| {table} | type")[2].partition("\n\n")[0]
        assert [column.name for column in columns if f"`{column.name}`" not in rows] == []
