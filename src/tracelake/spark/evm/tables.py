"""From checked answers to Arrow tables: `blocks`, `transactions`, `logs`, with the columns and types that cryo gives
them (and `parent_hash`), column by column.

Prices and gas limits are what a sender offers or a chain computes without a bound, so a value beyond 64 bits is
legitimate: it is written as 2^64 - 1. All other numbers have a bound in the protocol, and a larger one is refused.

The answers must have passed `check`: that receipts fit their transactions and logs are numbered is taken as given.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracelake.spark.evm.answers import Block, BlockHeader, Receipt
from tracelake.spark.evm.columns import BadHexError, binary, distinct, integers, lists, numbers, words, zeros_in

_HASH, _ADDRESS, _TOPICS = 32, 20, 4

BLOCKS = pa.schema(
    [
        ("block_hash", pa.binary()),
        ("parent_hash", pa.binary()),
        ("author", pa.binary()),
        ("block_number", pa.uint32()),
        ("gas_used", pa.uint64()),
        ("extra_data", pa.binary()),
        ("timestamp", pa.uint32()),
        ("base_fee_per_gas", pa.uint64()),
        ("chain_id", pa.uint64()),
    ]
)
TRANSACTIONS = pa.schema(
    [
        ("block_number", pa.uint32()),
        ("transaction_index", pa.uint64()),
        ("transaction_hash", pa.binary()),
        ("nonce", pa.uint64()),
        ("from_address", pa.binary()),
        ("to_address", pa.binary()),
        ("value_binary", pa.binary()),
        ("value_string", pa.string()),
        ("value_f64", pa.float64()),
        ("input", pa.binary()),
        ("gas_limit", pa.uint64()),
        ("gas_used", pa.uint64()),
        ("gas_price", pa.uint64()),
        ("transaction_type", pa.uint32()),
        ("max_priority_fee_per_gas", pa.uint64()),
        ("max_fee_per_gas", pa.uint64()),
        ("success", pa.bool_()),
        ("n_input_bytes", pa.uint32()),
        ("n_input_zero_bytes", pa.uint32()),
        ("n_input_nonzero_bytes", pa.uint32()),
        ("chain_id", pa.uint64()),
    ]
)
LOGS = pa.schema(
    [
        ("block_number", pa.uint32()),
        ("transaction_index", pa.uint32()),
        ("log_index", pa.uint32()),
        ("transaction_hash", pa.binary()),
        ("address", pa.binary()),
        ("topic0", pa.binary()),
        ("topic1", pa.binary()),
        ("topic2", pa.binary()),
        ("topic3", pa.binary()),
        ("data", pa.binary()),
        ("chain_id", pa.uint64()),
    ]
)
SCHEMAS = {"blocks": BLOCKS, "transactions": TRANSACTIONS, "logs": LOGS}


def blocks_table(blocks: Sequence[Block | BlockHeader], chain_id: int) -> pa.Table:
    return _table(
        BLOCKS,
        binary("block_hash", [block.hash for block in blocks], _HASH),
        binary("parent_hash", [block.parent_hash for block in blocks], _HASH),
        binary("author", [block.miner for block in blocks], _ADDRESS),
        numbers("block_number", [block.number for block in blocks], "uint32"),
        numbers("gas_used", [block.gas_used for block in blocks], "uint64"),
        binary("extra_data", [block.extra_data for block in blocks]),
        numbers("timestamp", [block.timestamp for block in blocks], "uint32"),
        _saturated("base_fee_per_gas", [block.base_fee_per_gas for block in blocks]),
        _same(chain_id, len(blocks)),
    )


def transactions_table(blocks: Sequence[Block], receipts: Sequence[Sequence[Receipt]], chain_id: int) -> pa.Table:
    rows = [transaction for block in blocks for transaction in block.transactions]
    fates = [receipt for of_block in receipts for receipt in of_block]
    counts = np.fromiter([len(block.transactions) for block in blocks], np.int64, len(blocks))
    values, which = distinct([row.value for row in rows])
    places = pa.array(which)
    exact = integers("value", values)
    input_data = binary("input", [row.input for row in rows])
    sizes = np.diff(np.frombuffer(input_data.buffers()[1], np.int32, len(rows) + 1)).astype(np.uint32)
    zeros = zeros_in(input_data)
    prices = [
        fate.effective_gas_price if row.gas_price is None else row.gas_price
        for row, fate in zip(rows, fates, strict=True)
    ]
    return _table(
        TRANSACTIONS,
        pa.array(np.repeat(_numbers_of(blocks), counts)),
        pa.array(_positions(counts).astype(np.uint64)),
        binary("transaction_hash", [row.hash for row in rows], _HASH),
        numbers("nonce", [row.nonce for row in rows], "uint64"),
        binary("from_address", [row.from_ for row in rows], _ADDRESS),
        binary("to_address", [row.to for row in rows], _ADDRESS),
        words("value", exact).take(places),
        pa.array([str(value) for value in exact], pa.string()).take(places),
        pa.array([float(value) for value in exact], pa.float64()).take(places),
        input_data,
        _saturated("gas_limit", [row.gas for row in rows]),
        numbers("gas_used", [fate.gas_used for fate in fates], "uint64"),
        _saturated("gas_price", prices),
        numbers("transaction_type", ["0x0" if row.type is None else row.type for row in rows], "uint32"),
        _saturated("max_priority_fee_per_gas", [row.max_priority_fee_per_gas for row in rows]),
        _saturated("max_fee_per_gas", [row.max_fee_per_gas for row in rows]),
        _success([fate.status for fate in fates]),
        pa.array(sizes),
        pa.array(zeros),
        pa.array(sizes - zeros),
        _same(chain_id, len(rows)),
    )


def logs_table(
    blocks: Sequence[Block | BlockHeader],
    receipts: Sequence[Sequence[Receipt]],
    chain_id: int,
    hashes: pa.Array | pa.ChunkedArray | None = None,
) -> pa.Table:
    """`hashes`: those of the transactions, if they were decoded before; a log's is its receipt's."""
    fates = [receipt for of_block in receipts for receipt in of_block]
    rows = [log for fate in fates for log in fate.logs]
    by_fate = np.fromiter([len(fate.logs) for fate in fates], np.int64, len(fates))
    fates_of = np.fromiter(map(len, receipts), np.int64, len(receipts))
    passed = np.concatenate(([0], np.cumsum(by_fate)))
    ends = np.cumsum(fates_of)
    by_block = passed[ends] - passed[ends - fates_of]
    places = _positions(fates_of)
    if hashes is None:
        hashes = binary("transaction_hash", [fate.transaction_hash for fate in fates], _HASH)
    return _table(
        LOGS,
        pa.array(np.repeat(_numbers_of(blocks), by_block)),
        pa.array(np.repeat(places, by_fate).astype(np.uint32)),
        pa.array(_positions(by_block).astype(np.uint32)),
        hashes.take(pa.array(np.repeat(np.arange(len(fates)), by_fate))),
        binary("address", [log.address for log in rows], _ADDRESS),
        *lists("topics", [log.topics for log in rows], _TOPICS, _HASH),
        binary("data", [log.data for log in rows]),
        _same(chain_id, len(rows)),
    )


def _table(schema: pa.Schema, *columns: pa.Array) -> pa.Table:
    return pa.Table.from_arrays(list(columns), schema=schema)


def _saturated(name: str, values: Sequence[str | None]) -> pa.Array:
    return numbers(name, values, "uint64", saturate=True)


def _same(value: int, count: int) -> pa.Array:
    return pa.array(np.full(count, value, np.uint64))


def _numbers_of(blocks: Sequence[Block | BlockHeader]) -> npt.NDArray[np.uint32]:
    block_numbers: npt.NDArray[np.uint32] = numbers(
        "block_number", [block.number for block in blocks], "uint32"
    ).to_numpy(zero_copy_only=False)
    return block_numbers


def _positions(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, ... anew for each group of so many."""
    starts = np.cumsum(counts) - counts
    total = int(counts.sum())
    return np.arange(total, dtype=np.int64) - np.repeat(starts, counts)


def _success(statuses: Sequence[str | None]) -> pa.Array:
    """Null where the receipt does not say, as before Byzantium."""
    distinct_statuses = set(statuses)
    if distinct_statuses <= {"0x1"}:
        return pa.array(np.ones(len(statuses), np.bool_))
    if distinct_statuses - {"0x0", "0x1", None}:
        raise BadHexError("success")
    return pa.array([None if status is None else status == "0x1" for status in statuses], pa.bool_())
