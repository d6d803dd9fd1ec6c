"""From checked answers to Arrow tables: `blocks`, `transactions`, `logs`, with the columns and types that cryo gives
them (and `parent_hash`), column by column.

Prices and gas limits are what a sender offers or a chain computes without a bound, so a value beyond 64 bits is
legitimate: it is written as 2^64 - 1. All other numbers have a bound in the protocol, and a larger one is refused.

The answers must have passed `answer_checks`: that receipts fit their transactions and logs are numbered is taken as
given.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracelake.spark.evm.answers import Block
from tracelake.spark.evm.columns import BadHexError, binary, numbers, spread_lists, words, zeros_in
from tracelake.spark.evm.packed import MOST_TOPICS, AnyBlock, PackedBlock, PackedReceipts, transaction_columns
from tracelake.spark.evm.texts import Texts

_HASH, _ADDRESS = 32, 20

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


def blocks_table(blocks: Sequence[AnyBlock], chain_id: int) -> pa.Table:
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


def transactions_table(
    blocks: Sequence[Block | PackedBlock], receipts: Sequence[PackedReceipts], chain_id: int
) -> pa.Table:
    rows = transaction_columns(blocks)
    counts = _counts(receipts)
    values, decimals, floats = words("value", rows["value"])
    input_data = binary("input", rows["input"])
    sizes = np.diff(np.frombuffer(input_data.buffers()[1], np.int32, len(values) + 1)).astype(np.uint32)
    zeros = zeros_in(input_data)
    return _table(
        TRANSACTIONS,
        pa.array(np.repeat(_numbers_of(blocks), counts)),
        pa.array(_positions(counts).astype(np.uint64)),
        binary("transaction_hash", rows["hash"], _HASH),
        numbers("nonce", rows["nonce"], "uint64"),
        binary("from_address", rows["from_"], _ADDRESS),
        binary("to_address", rows["to"], _ADDRESS),
        values,
        decimals,
        floats,
        input_data,
        _saturated("gas_limit", rows["gas"]),
        numbers("gas_used", Texts.concat([of_block.gas_used for of_block in receipts]), "uint64"),
        _saturated("gas_price", _prices(rows["gas_price"], receipts)),
        _types(rows["type"]),
        _saturated("max_priority_fee_per_gas", rows["max_priority_fee_per_gas"]),
        _saturated("max_fee_per_gas", rows["max_fee_per_gas"]),
        _success([status for of_block in receipts for status in of_block.statuses]),
        pa.array(sizes),
        pa.array(zeros),
        pa.array(sizes - zeros),
        _same(chain_id, len(values)),
    )


def logs_table(
    blocks: Sequence[AnyBlock],
    receipts: Sequence[PackedReceipts],
    chain_id: int,
    hashes: pa.Array | pa.ChunkedArray | None = None,
) -> pa.Table:
    """`hashes`: those of the transactions, if they were decoded before; a log's is its receipt's."""
    by_fate = np.array([count for of_some in receipts for count in of_some.log_counts], np.int64)
    fates_of = _counts(receipts)
    passed = np.concatenate(([0], np.cumsum(by_fate)))
    ends = np.cumsum(fates_of)
    by_block = passed[ends] - passed[ends - fates_of]
    places = _positions(fates_of)
    if hashes is None:
        hashes = binary("transaction_hash", Texts.concat([of_block.hashes for of_block in receipts]), _HASH)
    topic_counts = np.array([count for of_some in receipts for count in of_some.topic_counts], np.int64)
    return _table(
        LOGS,
        pa.array(np.repeat(_numbers_of(blocks), by_block)),
        pa.array(np.repeat(places, by_fate).astype(np.uint32)),
        pa.array(_positions(by_block).astype(np.uint32)),
        hashes.take(pa.array(np.repeat(np.arange(len(by_fate)), by_fate))),
        binary("address", Texts.concat([of_block.address for of_block in receipts]), _ADDRESS),
        *spread_lists(
            "topics", Texts.concat([of_block.topics for of_block in receipts]), topic_counts, MOST_TOPICS, _HASH
        ),
        binary("data", Texts.concat([of_block.data for of_block in receipts])),
        _same(chain_id, len(topic_counts)),
    )


def _table(schema: pa.Schema, *columns: pa.Array) -> pa.Table:
    return pa.Table.from_arrays(list(columns), schema=schema)


def _prices(prices: Texts, receipts: Sequence[PackedReceipts]) -> Texts:
    """Where a transaction does not say its price, its receipt may."""
    if prices.nulls is None:
        return prices
    others = Texts.concat([of_block.gas_price for of_block in receipts])
    if not (prices.is_sound and others.is_sound):
        raise BadHexError("gas_price")
    pairs = zip(prices.to_list(), others.to_list(), strict=True)
    return Texts.of([other if mine is None else mine for mine, other in pairs])


def _types(types: Texts) -> pa.Array:
    """Before there were types, all were what is type 0 now."""
    column = numbers("transaction_type", types, "uint32")
    return column if types.nulls is None else column.fill_null(0)


def _counts(receipts: Sequence[PackedReceipts]) -> npt.NDArray[np.int64]:
    """Of each block, of its receipts, which are as many as its transactions."""
    return np.array([count for of_some in receipts for count in of_some.counts], np.int64)


def _saturated(name: str, values: Sequence[str | None] | Texts) -> pa.Array:
    return numbers(name, values, "uint64", saturate=True)


def _same(value: int, count: int) -> pa.Array:
    return pa.array(np.full(count, value, np.uint64))


def _numbers_of(blocks: Sequence[AnyBlock]) -> npt.NDArray[np.uint32]:
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
    if distinct_statuses <= {"0x0", "0x1"}:
        return pa.array(np.fromiter(map("0x1".__eq__, statuses), np.bool_, len(statuses)))
    if distinct_statuses - {"0x0", "0x1", None}:
        raise BadHexError("success")
    return pa.array([None if status is None else status == "0x1" for status in statuses], pa.bool_())
