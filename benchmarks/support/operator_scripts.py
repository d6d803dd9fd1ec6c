"""What each operator does, as a script of plain PySpark would do it: the same transformation, and nothing around it."""

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tracelake.catalogue.decode import COMMON_COLUMNS, TOKEN_TRANSFERS, TRANSFER_COLUMNS, built_in
from tracelake.spark.abi.tokens import TransferTable, transfer_decoders
from tracelake.spark.evm.keccak import keccak256

Script = Callable[[SparkSession, list[DataFrame], int], DataFrame]


def query(sql: str) -> Script:
    def script(session: SparkSession, frames: list[DataFrame], _last: int) -> DataFrame:
        frames[0].createOrReplaceTempView("logs")
        return session.sql(sql)

    return script


def decode(_session: SparkSession, frames: list[DataFrame], _last: int) -> DataFrame:
    """Token transfers, by the same decoder: nothing in Spark itself can write a number of 256 bits."""
    (logs,) = frames
    topics = {name: keccak256(built_in(name).signature.encode()) for name in TOKEN_TRANSFERS}
    own = StructType.fromDDL(", ".join(f"`{name}` {kind}" for name, kind in TRANSFER_COLUMNS))
    assert isinstance(own, StructType)
    common = [logs.schema[name] for name in COMMON_COLUMNS if name in logs.columns and name != "address"]
    schema = StructType(common + own.fields)
    table = TransferTable(transfer_decoders(topics), to_arrow_schema(schema, timezone="UTC"))
    return logs.filter(F.col("topic0").isin(sorted(set(topics.values())))).mapInArrow(table.decode, schema)


def integrity(session: SparkSession, frames: list[DataFrame], last: int) -> DataFrame:
    """The same checks, each by itself, as one would write them down."""
    blocks, transactions, logs = frames
    number = F.col("block_number")
    found = [
        session.range(0, last + 1).withColumnRenamed("id", "block_number").join(blocks, "block_number", "left_anti"),
        blocks.groupBy("block_number").count().filter("count > 1"),
        transactions.groupBy("transaction_hash")
        .agg(F.count(F.lit(1)).alias("n"), F.min("block_number").alias("block_number"))
        .filter("n > 1"),
        logs.join(transactions, ["block_number", "transaction_index", "transaction_hash"], "left_anti"),
    ]
    parents = blocks.select(
        (number + 1).alias("block_number"), F.col("block_hash").alias("before"), F.col("timestamp").alias("earlier")
    )
    pairs = blocks.join(parents, "block_number")
    found += [pairs.filter("parent_hash <> before"), pairs.filter("timestamp < earlier")]
    for frame, index in ((transactions, "transaction_index"), (logs, "log_index")):
        totals = frame.groupBy("block_number").agg(
            F.count(F.lit(1)).alias("n"), F.count_distinct(index).alias("different"), F.max(index).alias("highest")
        )
        found += [
            totals.filter("different <> n OR highest <> n - 1"),
            totals.join(blocks, "block_number", "left_anti"),
        ]
    gas = transactions.groupBy("block_number").agg(F.sum("gas_used").alias("gas"))
    found.append(blocks.join(gas, "block_number", "left").filter("gas_used <> coalesce(gas, 0)"))
    everything = found[0].select("block_number", F.lit("0").alias("check"))
    for place, each in enumerate(found[1:], 1):
        everything = everything.union(each.select("block_number", F.lit(str(place))))
    return everything
