"""The oddest things that a chain may hold, from the node through all operators to files: every value exact."""

from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.evm.support import CHAIN_ID, expected
from tests.spark.support import Bench, plain_name
from tests.support.chain import recorded, serve_chain
from tracelake.catalogue.context import NonRetryableError
from tracelake.demo.chain.recording import RecordedBlock
from tracelake.spark.operators.decode_logs import run as decode_logs
from tracelake.spark.operators.evm_ingest import run as evm_ingest
from tracelake.spark.operators.integrity_check import run as integrity_check
from tracelake.spark.operators.spark_sql import run as spark_sql

Json = dict[str, Any]
MOST = 2**256 - 1
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
BLOB = {"type": "0x3", "blobVersionedHashes": ["0x01" + "00" * 31], "maxFeePerBlobGas": "0x1"}
KINDS: list[tuple[Json, Json]] = [
    ({"value": hex(MOST)}, {}),
    ({"to": None}, {"contractAddress": "0x" + "11" * 20, "to": None}),
    (BLOB, {"type": "0x3", "blobGasUsed": "0x20000"}),
    ({"type": "0x7e", "sourceHash": "0x" + "00" * 32, "mint": None}, {"type": "0x7e", "depositNonce": "0x1"}),
    ({"type": None, "gasPrice": "0x1", "maxFeePerGas": None}, {"status": None, "root": "0x" + "22" * 32}),
    ({"nonce": hex(2**64 - 1), "gas": hex(2**64 - 1), "input": "0x" + "00" * 70_000}, {"status": "0x0"}),
]
AMOUNTS = [MOST, 2**255, 2**128, 0]
COLUMNS = ("blocks", "transactions", "logs")


def odd_block(one: RecordedBlock) -> RecordedBlock:
    """A block with a transaction of each kind; the first of them moved the largest of all amounts."""
    transaction, receipt = one.block["transactions"][0], one.receipts[0]
    transactions, receipts = [], []
    for index, (said, became) in enumerate(KINDS):
        own = {"transactionHash": "0x" + f"{index:02x}" * 32, "transactionIndex": hex(index)}
        transactions.append({**transaction, "hash": own["transactionHash"], "transactionIndex": hex(index), **said})
        logs = [_log(one, own, place, amount) for place, amount in enumerate(AMOUNTS)] if index == 0 else []
        receipts.append({**receipt, **own, "gasUsed": "0x5208", "logs": logs, **became})
    block = {**one.block, "transactions": transactions, "gasUsed": hex(0x5208 * len(KINDS))}
    return RecordedBlock(number=one.number, block=block, receipts=receipts)


def _log(one: RecordedBlock, own: Json, place: int, amount: int) -> Json:
    holders = ["0x" + "00" * 12 + digit * 40 for digit in "ab"]
    return {
        "address": "0x" + "33" * 20,
        "topics": [TRANSFER, *holders],
        "data": "0x" + amount.to_bytes(32, "big").hex(),
        "blockHash": one.block["hash"],
        "blockNumber": one.block["number"],
        "logIndex": hex(place),
        "removed": False,
        **own,
    }


def without_transactions(one: RecordedBlock) -> RecordedBlock:
    return RecordedBlock(
        number=one.number, block={**one.block, "transactions": [], "gasUsed": "0x0", "baseFeePerGas": None}, receipts=[]
    )


CHAIN = [
    recorded(100)[0],
    odd_block(recorded(100)[1]),
    without_transactions(recorded(100)[2]),
    without_transactions(recorded(100)[3]),
]


@pytest.fixture(scope="module")
def ingested(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with serve_chain(CHAIN) as chain, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACE_RPC_DEFAULT", chain.url)
        bench = Bench(spark, tmp_path_factory.mktemp("extremes"))
        bench.outputs = list(COLUMNS)
        bench.run("evm_ingest", evm_ingest, {"chain_id": CHAIN_ID, "chunk_blocks": 2}, blocks=(0, 3))
        yield bench


def after(ingested: Bench, *inputs: int, where: Json | None = None) -> Bench:
    """A job that reads these outputs of the ingest, as they were committed."""
    bench = Bench(ingested.session, ingested.root)
    assert ingested.last is not None
    for index in inputs:
        files = [file.meta for file in ingested.last.written[index].files]
        bench.inputs.append((COLUMNS[index], files, where))
    bench.add_output("out")
    return bench


def then(before: Bench, name: str) -> Bench:
    bench = Bench(before.session, before.root)
    assert before.last is not None
    bench.inputs.append((name, [file.meta for file in before.last.written[0].files], None))
    bench.add_output("next")
    return bench


def test_every_value_is_in_the_files_as_the_node_said_it(ingested: Bench) -> None:
    wanted = expected(CHAIN)
    for index, name in enumerate(COLUMNS):
        assert ingested.table(index).to_pylist() == wanted[name]
    rows = ingested.table(1).to_pylist()
    assert [row["transaction_type"] for row in rows] == [2, 2, 3, 126, 0, 2]
    assert [row["success"] for row in rows] == [True, True, True, True, None, False]
    assert (rows[0]["value_string"], rows[0]["value_binary"]) == (str(MOST), b"\xff" * 32)
    assert rows[1]["to_address"] is None
    assert (rows[5]["nonce"], rows[5]["gas_limit"], rows[5]["n_input_zero_bytes"]) == (2**64 - 1, 2**64 - 1, 70_000)


def test_the_largest_amounts_pass_through_decoding_and_sql(ingested: Bench) -> None:
    decoded = after(ingested, 2)
    decoded.run("decode_logs", decode_logs, blocks=(0, 3))
    assert decoded.table()["amount_string"].to_pylist() == [str(amount) for amount in AMOUNTS]
    assert decoded.table()["amount_binary"].to_pylist() == [amount.to_bytes(32, "big") for amount in AMOUNTS]

    chosen = then(decoded, "transfers")
    query = "SELECT block_number, log_index, amount_string, amount_binary FROM transfers WHERE amount_string <> '0'"
    chosen.run("spark_sql", spark_sql, {"query": query, "order_by": ["log_index"]}, blocks=(0, 3))
    rows = chosen.table().to_pylist()
    assert [int(row["amount_string"]) for row in rows] == AMOUNTS[:-1]
    assert [int.from_bytes(row["amount_binary"], "big") for row in rows] == AMOUNTS[:-1]


def test_a_sum_that_no_number_holds_is_refused_not_rounded(ingested: Bench) -> None:
    decoded = after(ingested, 2)
    decoded.run("decode_logs", decode_logs, blocks=(0, 3))
    summed = then(decoded, "transfers")
    query = (
        "SELECT block_number, sum(cast(amount_string AS decimal(38, 0))) AS total FROM transfers GROUP BY block_number"
    )
    with pytest.raises(NonRetryableError, match=str(MOST)):
        summed.run("spark_sql", spark_sql, {"query": query}, blocks=(0, 3))


def test_it_holds_together(ingested: Bench) -> None:
    checked = after(ingested, 0, 1, 2)
    checked.run("integrity_check", integrity_check, {"fail_on": "warning"}, blocks=(0, 3))
    assert checked.table().num_rows == 0


def test_what_no_row_is_left_of_goes_on_as_columns(ingested: Bench) -> None:
    """A filter that nothing passes, through each operator and on through the next one."""
    nothing = {"address": "0x" + "99" * 20}
    decoded = after(ingested, 2, where=nothing)
    decoded.add_output("left")
    decoded.run("decode_logs", decode_logs, {"keep_other": True}, blocks=(0, 3))
    full = after(ingested, 2)
    full.run("decode_logs", decode_logs, blocks=(0, 3))
    assert [decoded.table(index).num_rows for index in (0, 1)] == [0, 0]
    assert decoded.table().schema == full.table().schema
    assert "reason" in decoded.table(1).column_names

    summed = then(decoded, "transfers")
    query = (
        "SELECT block_number, count(*) AS transfers, max(amount_string) AS most FROM transfers GROUP BY block_number"
    )
    summed.run("spark_sql", spark_sql, {"query": query}, blocks=(0, 3))
    assert summed.table().num_rows == 0
    assert summed.table().column_names == ["block_number", "transfers", "most"]

    last = then(summed, "sums")
    last.run("spark_sql", spark_sql, {"query": "SELECT block_number, most FROM sums"}, blocks=(0, 3))
    assert last.table().num_rows == 0


def test_a_chain_of_which_nothing_is_left_is_said_to_be_missing(ingested: Bench) -> None:
    checked = after(ingested, 0, where={"author": "0x" + "99" * 20})
    checked.run("integrity_check", integrity_check, {"fail_on": "never"}, blocks=(0, 3))
    assert {row["check"] for row in checked.table().to_pylist()} == {"gap"}


def test_blocks_alone_without_transactions(ingested: Bench) -> None:
    assert ingested.table(0)["block_number"].to_pylist() == [0, 1, 2, 3]
    assert ingested.table(0)["base_fee_per_gas"].to_pylist()[2:] == [None, None]
    by_file = [pq.read_metadata(path).num_rows for path in ingested.files(1)]
    assert by_file == [6, 0], "a chunk without transactions is a file without rows"
    assert plain_name(ingested.files(1)[1]) == "transactions_2_3.parquet"
