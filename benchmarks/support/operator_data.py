"""Rows for the benchmark of operators, from a seed: the same ones every time."""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

LOGS_PER_BLOCK = 50
TRANSACTIONS_PER_BLOCK, CHAIN_LOGS_PER_BLOCK = 16, 33
BLOCK_ROWS = 1 + TRANSACTIONS_PER_BLOCK + CHAIN_LOGS_PER_BLOCK
TRANSFER = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
GAS = 21_000
SEED = "trace"


def _hash(*parts: Column) -> Column:
    return F.unhex(F.sha2(F.concat_ws("-", F.lit(SEED), *parts), 256))


def _address(kind: str, number: Column) -> Column:
    return F.substring(_hash(F.lit(kind), number), 1, 20)


def _topic(address: Column) -> Column:
    return F.concat(F.unhex(F.lit("00" * 12)), address)


def make_logs(session: SparkSession, blocks: int) -> DataFrame:
    """Nine of ten are transfers of one of 200 tokens between 50,000 addresses."""
    per_block = LOGS_PER_BLOCK
    rows = session.range(0, blocks * per_block, 1, 8)
    number, index = F.call_function("div", F.col("id"), F.lit(per_block)), F.col("id") % per_block
    mixed = F.xxhash64(F.col("id"))
    transfer = index % 10 != 9
    return rows.select(
        number.cast("bigint").alias("block_number"),
        F.call_function("div", index, F.lit(2)).alias("transaction_index"),
        index.alias("log_index"),
        _hash(number, F.call_function("div", index, F.lit(2))).alias("transaction_hash"),
        _address("token", F.pmod(mixed, F.lit(200))).alias("address"),
        F.when(transfer, F.unhex(F.lit(TRANSFER))).otherwise(_hash(F.lit("other"))).alias("topic0"),
        _topic(_address("holder", F.pmod(F.shiftright(mixed, 8), F.lit(50_000)))).alias("topic1"),
        F.when(transfer, _topic(_address("holder", F.pmod(F.shiftright(mixed, 24), F.lit(50_000))))).alias("topic2"),
        F.lit(None).cast("binary").alias("topic3"),
        F.unhex(F.lpad(F.hex(F.abs(F.shiftright(mixed, 2))), 64, "0")).alias("data"),
        F.lit(1).cast("bigint").alias("chain_id"),
    )


def make_chain(session: SparkSession, blocks: int) -> dict[str, DataFrame]:
    """Blocks, transactions and logs that belong together."""
    number = F.col("id")
    made = session.range(0, blocks, 1, 2).select(
        number.alias("block_number"),
        _hash(F.lit("block"), number).alias("block_hash"),
        _hash(F.lit("block"), number - 1).alias("parent_hash"),
        F.lit(TRANSACTIONS_PER_BLOCK * GAS).cast("bigint").alias("gas_used"),
        (number * 12).alias("timestamp"),
    )
    return {
        "chain_blocks": made,
        "chain_transactions": _members(session, blocks, TRANSACTIONS_PER_BLOCK, 1, "transaction_index"),
        "chain_logs": _members(session, blocks, CHAIN_LOGS_PER_BLOCK, 3, "log_index"),
    }


def _members(session: SparkSession, blocks: int, per_block: int, per_transaction: int, index: str) -> DataFrame:
    number, place = F.call_function("div", F.col("id"), F.lit(per_block)), F.col("id") % per_block
    transaction = F.call_function("div", place, F.lit(per_transaction))
    columns = {
        "block_number": number,
        "transaction_index": transaction,
        index: place,
        "transaction_hash": _hash(F.lit("transaction"), number, transaction),
    }
    if index == "transaction_index":
        columns["gas_used"] = F.lit(GAS).cast("bigint")
    rows = session.range(0, blocks * per_block, 1, 8)
    return rows.select(
        *(
            column.cast("bigint").alias(name) if name != "transaction_hash" else column.alias(name)
            for name, column in columns.items()
        )
    )
