"""From checked answers to Arrow tables: `blocks`, `transactions`, `logs`, with the columns and types that cryo gives
them (and `parent_hash`), column by column.

Prices and gas limits are what a sender offers or a chain computes without a bound, so a value beyond 64 bits is
legitimate: it is written as 2^64 - 1. All other numbers have a bound in the protocol, and a larger one is refused.

The answers must have passed `answer_checks`: that receipts fit their transactions and logs are numbered is taken as
given.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.spark.evm.answers import Block
from tracelake.spark.evm.columns import BadHexError, binary, numbers, spread_lists, words, zeros_in
from tracelake.spark.evm.optional_columns import OPTIONAL, decode_optional, optional_type
from tracelake.spark.evm.packed import (
    MOST_TOPICS,
    AnyBlock,
    PackedBlock,
    PackedReceipts,
    block_values,
    transaction_columns,
    transaction_values,
)
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
TRACES = pa.schema(
    [
        ("block_number", pa.uint32()),
        ("transaction_index", pa.uint32()),
        ("transaction_hash", pa.binary()),
        ("trace_index", pa.uint32()),
        ("trace_address", pa.list_(pa.int64())),
        ("subtraces", pa.uint32()),
        ("trace_type", pa.string()),
        ("call_type", pa.string()),
        ("reward_type", pa.string()),
        ("from_address", pa.binary()),
        ("to_address", pa.binary()),
        ("value_binary", pa.binary()),
        ("value_string", pa.string()),
        ("value_f64", pa.float64()),
        ("gas", pa.uint64()),
        ("gas_used", pa.uint64()),
        ("input", pa.binary()),
        ("output", pa.binary()),
        ("error", pa.string()),
        ("success", pa.bool_()),
        ("chain_id", pa.uint64()),
    ]
)
SCHEMAS = {"blocks": BLOCKS, "transactions": TRANSACTIONS, "logs": LOGS}
"""Of the tables that every node has. `traces` need more of a node."""


def schema_of(table: str, optional: Sequence[str] = ()) -> pa.Schema:
    """The columns of a table, followed by these optional ones."""
    schema: pa.Schema = TRACES if table == "traces" else SCHEMAS[table]
    for name in optional:
        schema = schema.append(pa.field(name, optional_type(table, name)))
    return schema


def blocks_table(blocks: Sequence[AnyBlock], chain_id: int, optional: Sequence[str] = ()) -> pa.Table:
    return _table(
        schema_of("blocks", optional),
        binary("block_hash", [block.hash for block in blocks], _HASH),
        binary("parent_hash", [block.parent_hash for block in blocks], _HASH),
        binary("author", [block.miner for block in blocks], _ADDRESS),
        numbers("block_number", [block.number for block in blocks], "uint32"),
        numbers("gas_used", [block.gas_used for block in blocks], "uint64"),
        binary("extra_data", [block.extra_data for block in blocks]),
        numbers("timestamp", [block.timestamp for block in blocks], "uint32"),
        _saturated("base_fee_per_gas", [block.base_fee_per_gas for block in blocks]),
        _same(chain_id, len(blocks)),
        *(decode_optional("blocks", name, block_values(blocks, OPTIONAL["blocks"][name].field)) for name in optional),
    )


def transactions_table(
    blocks: Sequence[Block | PackedBlock],
    receipts: Sequence[PackedReceipts],
    chain_id: int,
    optional: Sequence[str] = (),
) -> pa.Table:
    rows = transaction_columns(blocks)
    counts = _counts(receipts)
    values, decimals, floats = words("value", rows["value"])
    input_data = binary("input", rows["input"])
    sizes = np.diff(np.frombuffer(input_data.buffers()[1], np.int32, len(values) + 1)).astype(np.uint32)
    zeros = zeros_in(input_data)
    no_input = rows["input"].nulls
    return _table(
        schema_of("transactions", optional),
        pa.array(np.repeat(_numbers_of(blocks), counts)),
        pa.array(_transaction_places(receipts, counts).astype(np.uint64)),
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
        pa.array(sizes, mask=no_input),
        pa.array(zeros, mask=no_input),
        pa.array(sizes - zeros, mask=no_input),
        _same(chain_id, len(values)),
        *(_optional_of_transactions(name, blocks, receipts, counts) for name in optional),
    )


def _optional_of_transactions(
    name: str, blocks: Sequence[Block | PackedBlock], receipts: Sequence[PackedReceipts], counts: npt.NDArray[np.int64]
) -> pa.Array:
    if name not in OPTIONAL["transactions"]:
        return copied_column(name, blocks, counts)
    column = OPTIONAL["transactions"][name]
    if column.of_receipt:
        values = [value for of_some in receipts for value in of_some.fields[column.field]]
    else:
        values = transaction_values(blocks, column.field)
    return decode_optional("transactions", name, values)


def copied_column(name: str, blocks: Sequence[AnyBlock], counts: npt.NDArray[np.int64]) -> pa.Array:
    """A column of blocks, repeated for each of their rows."""
    if name == "block_hash":
        column = binary(name, [block.hash for block in blocks], _HASH)
    else:
        column = numbers(name, [block.timestamp for block in blocks], "uint32")
    return column.take(pa.array(np.repeat(np.arange(len(blocks)), counts)))


def logs_table(
    blocks: Sequence[AnyBlock],
    receipts: Sequence[PackedReceipts],
    chain_id: int,
    hashes: pa.Array | pa.ChunkedArray | None = None,
    optional: Sequence[str] = (),
) -> pa.Table:
    """`hashes`: those of the transactions, if they were decoded before; a log's is its receipt's."""
    by_fate = np.array([count for of_some in receipts for count in of_some.log_counts], np.int64)
    fates_of = _counts(receipts)
    passed = np.concatenate(([0], np.cumsum(by_fate)))
    ends = np.cumsum(fates_of)
    by_block = passed[ends] - passed[ends - fates_of]
    places = _transaction_places(receipts, fates_of)
    if hashes is None:
        hashes = binary("transaction_hash", Texts.concat([of_block.hashes for of_block in receipts]), _HASH)
    topic_counts = np.array([count for of_some in receipts for count in of_some.topic_counts], np.int64)
    data = binary("data", Texts.concat([of_block.data for of_block in receipts]))
    return _table(
        schema_of("logs", optional),
        pa.array(np.repeat(_numbers_of(blocks), by_block)),
        pa.array(np.repeat(places, by_fate).astype(np.uint32)),
        pa.array(_log_places(receipts, by_block).astype(np.uint32)),
        hashes.take(pa.array(np.repeat(np.arange(len(by_fate)), by_fate))),
        binary("address", Texts.concat([of_block.address for of_block in receipts]), _ADDRESS),
        *spread_lists(
            "topics", Texts.concat([of_block.topics for of_block in receipts]), topic_counts, MOST_TOPICS, _HASH
        ),
        data,
        _same(chain_id, len(topic_counts)),
        *(sizes_of(data) if name == "n_data_bytes" else copied_column(name, blocks, by_block) for name in optional),
    )


def sizes_of(values: pa.Array) -> pa.Array:
    """How many bytes each has."""
    return pc.binary_length(values).cast(pa.uint32())


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


def _transaction_places(receipts: Sequence[PackedReceipts], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """In their blocks."""
    return _replaced_positions(counts, [(len(of_some.hashes), of_some.places) for of_some in receipts])


def _log_places(receipts: Sequence[PackedReceipts], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """In their blocks, or as the node numbers them."""
    return _replaced_positions(counts, [(len(of_some.topic_counts), of_some.log_places) for of_some in receipts])


def _replaced_positions(
    counts: npt.NDArray[np.int64], parts: Iterable[tuple[int, Sequence[int] | None]]
) -> npt.NDArray[np.int64]:
    """Positions in groups; parts, each with its length, may have others."""
    positions = _positions(counts)
    start = 0
    for length, others in parts:
        if others is not None:
            positions[start : start + length] = others
        start += length
    return positions


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
