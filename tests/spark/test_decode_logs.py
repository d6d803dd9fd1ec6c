"""decode_logs over the recorded chain, against a slow decoding of the same logs, one by one, in plain Python."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from tests.chain.ethereum import keccak256
from tests.spark.abi.encoder import encode_all
from tests.spark.chain_tables import LOGS, chain_tables
from tests.spark.support import Bench
from tracelake.catalogue.abi import parse_event
from tracelake.catalogue.context import NonRetryableError, OperatorResult
from tracelake.catalogue.decode import DecodeLogsConfig
from tracelake.catalogue.evm_columns import EVM_COLUMNS
from tracelake.catalogue.spec import JobInput
from tracelake.model.columns import DatasetColumns
from tracelake.spark.integer_types import signed
from tracelake.spark.operators.decode_logs import run
from tracelake.wire.units import Unit

BLOCKS = 4000
TRANSFER = keccak256(b"Transfer(address,address,uint256)")
SINGLE = keccak256(b"TransferSingle(address,address,address,uint256,uint256)")
BATCH = keccak256(b"TransferBatch(address,address,address,uint256[],uint256[])")
ODDITIES = bytes.fromhex("0165878a594ca255338adfa4d48449f69242eb8f")
EXCHANGE = "0x2279b7a0a67db372996a5fab50d91eaa73d2ebe6"
SWAP = "Swap(address,uint256,uint256,uint256,uint256,address)"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def logs() -> pa.Table:
    return chain_tables(BLOCKS)["logs"]


def _decode(
    bench: Bench, logs: pa.Table, config: Row | None = None, *, blocks: int = BLOCKS, outputs: int = 2
) -> OperatorResult:
    bench.add_input("logs", logs)
    for name in ("decoded", "left")[:outputs]:
        bench.add_output(name)
    return bench.run("decode_logs", run, config, blocks=(0, blocks - 1))


def _words(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + 32], "big") for at in range(0, len(data), 32)]


def _slowly(log: Row) -> list[Row] | None:
    """The transfers of a log; None if it claims to be of a transfer and is not."""
    moved: list[tuple[int | None, int]]
    topics = [log[f"topic{number}"] for number in range(4) if log[f"topic{number}"] is not None]
    if log["topic0"] == TRANSFER:
        if len(topics) == 3 and len(log["data"]) == 32:
            moved, standard = [(None, _words(log["data"])[0])], "erc20"
        elif len(topics) == 4 and not log["data"]:
            moved, standard = [(_words(topics.pop())[0], 1)], "erc721"
        else:
            return None
    elif log["topic0"] == SINGLE:
        moved, standard = [(_words(log["data"])[0], _words(log["data"])[1])], "erc1155"
    else:
        words = _words(log["data"])
        ids, values = words[0] // 32, words[1] // 32
        moved = list(
            zip(words[ids + 1 : ids + 1 + words[ids]], words[values + 1 : values + 1 + words[values]], strict=True)
        )
        standard = "erc1155"
    if any(topic[:12] != bytes(12) for topic in topics[1:]):
        return None
    *operator, sender, receiver = (topic[12:] for topic in topics[1:])
    return [
        {
            **{name: log[name] for name in ("block_number", "transaction_index", "log_index", "transaction_hash")},
            "chain_id": log["chain_id"],
            "token": log["address"],
            "standard": standard,
            "event": {TRANSFER: "Transfer", SINGLE: "TransferSingle", BATCH: "TransferBatch"}[log["topic0"]],
            "operator_address": operator[0] if operator else None,
            "from_address": sender,
            "to_address": receiver,
            "token_id_binary": None if token_id is None else token_id.to_bytes(32, "big"),
            "token_id_string": None if token_id is None else str(token_id),
            "amount_binary": amount.to_bytes(32, "big"),
            "amount_string": str(amount),
            "amount_f64": float(amount),
            "batch_index": index,
        }
        for index, (token_id, amount) in enumerate(moved)
    ]


def _expected(logs: pa.Table) -> Iterator[tuple[Row, list[Row] | None]]:
    for log in logs.to_pylist():
        if log["topic0"] in (TRANSFER, SINGLE, BATCH):
            yield log, _slowly(log)


def test_every_transfer_of_the_chain(bench: Bench, logs: pa.Table) -> None:
    result = _decode(bench, logs)
    expected = list(_expected(logs))
    transfers = [row for _, rows in expected for row in rows or []]
    fakes = [log for log, rows in expected if rows is None]
    left = bench.table(1)
    assert bench.table(0).to_pylist() == transfers
    assert left.drop(["reason", "detail"]).to_pylist() == fakes
    assert left.schema.names == [*logs.schema.names, "reason", "detail"]
    assert {log["address"] for log in fakes} == {ODDITIES}
    assert Counter(left["reason"].to_pylist()) == {"topic_count": 27, "data_length": 56, "address_padding": 68}
    assert [output.row_count for output in result.outputs] == [len(transfers), 151]


def test_it_says_what_became_of_the_logs(bench: Bench, logs: pa.Table) -> None:
    bench.add_input("logs", logs)
    bench.add_output("decoded")
    said: list[str] = []
    work = bench.work("decode_logs", {}, Unit(partition_key="0-3999", start=0, end=3999), 1, {})
    work.context = replace(work.context, progress=said.append)
    run(work)
    matched = len(list(_expected(logs)))
    assert said == [f"{matched - 151} logs decoded, 151 undecodable, {logs.num_rows - matched} of other events"]


def test_what_is_of_another_event_is_kept_if_wanted(bench: Bench, logs: pa.Table) -> None:
    _decode(bench, logs, {"keep_other": True})
    left = bench.table(1)
    reasons = Counter(zip(left["reason"].to_pylist(), left["topic0"].is_null().to_pylist(), strict=True))
    assert reasons["other_event", True] == 138
    kept = {(row["block_number"], row["log_index"]) for row in left.to_pylist()}
    kept |= {(row["block_number"], row["log_index"]) for row in bench.table(0).to_pylist()}
    assert kept == {(row["block_number"], row["log_index"]) for row in logs.to_pylist()}


def test_keeping_others_needs_a_place(bench: Bench, logs: pa.Table) -> None:
    with pytest.raises(NonRetryableError, match="second output"):
        _decode(bench, logs, {"keep_other": True}, outputs=1)


def test_an_event_of_ones_own(bench: Bench, logs: pa.Table) -> None:
    written = (
        "event Swap(address indexed sender, uint256 amount0In, uint256 amount1In, uint256 amount0Out,"
        " uint256 amount1Out, address indexed to)"
    )
    _decode(bench, logs, {"events": [written], "addresses": [EXCHANGE]}, blocks=1000, outputs=1)
    topic0 = keccak256(SWAP.encode())
    swaps = [log for log in logs.to_pylist() if log["topic0"] == topic0 and log["block_number"] < 1000]
    amounts = ("amount0In", "amount1In", "amount0Out", "amount1Out")
    rows = bench.table().to_pylist()
    assert len(rows) == len(swaps) > 100
    for row, log in zip(rows, swaps, strict=True):
        assert [int(row[f"{name}_string"]) for name in amounts] == _words(log["data"])
        assert (row["sender"], row["to"]) == (log["topic1"][12:], log["topic2"][12:])
        assert (row["event"], row["address"], row["log_index"]) == ("Swap", log["address"], log["log_index"])


def test_only_some_contracts(bench: Bench, logs: pa.Table) -> None:
    contracts = ["0x" + ODDITIES.hex().upper(), EXCHANGE]
    result = _decode(bench, logs, {"addresses": contracts})
    assert [output.row_count for output in result.outputs] == [0, 151]


def test_several_events_share_a_table(bench: Bench, logs: pa.Table) -> None:
    _decode(bench, logs, {"events": ["erc20.Approval", "erc721.Approval", "erc1155.URI"]})
    rows = bench.table().to_pylist()
    assert Counter(row["event"] for row in rows) == {"Approval": 362 + 306 + 230 + 118, "URI": 119}
    assert sum(row["tokenId_string"] is not None for row in rows) == 118
    assert str(2**256 - 1) in {row["value_string"] for row in rows if row["event"] == "Approval"}
    assert all(isinstance(row["value"], str) for row in rows if row["event"] == "URI")
    assert bench.table(1).num_rows == 0


def test_values_of_every_kind(bench: Bench) -> None:
    written = (
        "Kinds(uint64 a, int8 b, bool c, bytes4 d, string e, uint256[][] f, (address who, uint64[2] pair)[] g,"
        " bytes indexed h, int128 indexed i)"
    )
    event = parse_event(written)
    values: list[Any] = [
        *(2**64 - 1, -128, True, b"abcd", "caf\u00e9", [[1, 2**255], []]),
        [(b"\x07" * 20, [1, 2**63]), (b"\x08" * 20, [0, 0])],
    ]
    good: Row = {
        "block_number": 1,
        "log_index": 0,
        "address": b"\x01" * 20,
        "topic0": keccak256(event.signature.encode()),
        "topic1": b"\x09" * 32,
        "topic2": (2**256 - 5).to_bytes(32, "big"),
        "topic3": None,
        "data": encode_all([parameter.type for parameter in event.plain], values),
    }
    huge = good["data"][: 4 * 32] + (2**255).to_bytes(32, "big") + good["data"][5 * 32 :]
    rows = [good, good | {"log_index": 1, "data": huge}, good | {"log_index": 2, "topic3": bytes(32)}]
    schema = pa.schema([field for field in LOGS if field.name in good])
    _decode(bench, pa.Table.from_pylist(rows, schema), {"events": [written]})
    (row,) = bench.table().to_pylist()
    assert row == {
        **{name: good[name] for name in ("block_number", "log_index", "address")},
        "event": "Kinds",
        "a": Decimal(2**64 - 1),
        "b": -128,
        "c": True,
        "d": b"abcd",
        "e": "caf\u00e9",
        "f": [["1", str(2**255)], []],
        "g": [
            {"who": b"\x07" * 20, "pair": [Decimal(1), Decimal(2**63)]},
            {"who": b"\x08" * 20, "pair": [Decimal(0), Decimal(0)]},
        ],
        "h_hash": b"\x09" * 32,
        "i_binary": good["topic2"],
        "i_string": "-5",
        "i_f64": -5.0,
    }
    assert [(row["log_index"], row["reason"]) for row in bench.table(1).to_pylist()] == [
        (1, "offset"),
        (2, "topic_count"),
    ]


def test_a_range_without_logs(bench: Bench, logs: pa.Table) -> None:
    result = _decode(bench, logs.slice(0, 0))
    assert [output.row_count for output in result.outputs] == [0, 0]
    assert "amount_string" in bench.table().schema.names


def test_no_dataset_of_logs(bench: Bench, logs: pa.Table) -> None:
    with pytest.raises(NonRetryableError, match="no column log_index"):
        _decode(bench, logs.drop(["log_index"]))


@pytest.mark.parametrize(
    "events", [[], ["Swap(address indexed sender, uint64 at, uint8[] parts, (bool a, bytes b) c)"]]
)
def test_columns_known_at_deploy_are_those_that_are_written(bench: Bench, events: list[str]) -> None:
    _decode(bench, chain_tables(50)["logs"], {"events": events}, blocks=50)
    logs_input = JobInput("logs", DatasetColumns(columns=EVM_COLUMNS["logs"]))
    for index in range(2):
        result = DecodeLogsConfig(events=list(events)).result(index, [logs_input])
        assert result is not None
        written = from_arrow_schema(signed(bench.table(index).schema)).fields
        known = [(column.name, column.type) for column in result.columns.columns]
        assert known == [(field.name, field.dataType.simpleString()) for field in written]
