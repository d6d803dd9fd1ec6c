"""integrity_check: does a range of a chain hold together: blocks without gap, each following the one before, with the
transactions and logs that belong to them.

Everything is said with DataFrame expressions; what comes to the driver are counts and a few findings for a message.
The input of blocks comes first; transactions and logs are known by their columns, and may be missing.
"""

from functools import reduce
from typing import TYPE_CHECKING

import msgspec

from tracelake.catalogue.context import NonRetryableError, OperatorResult
from tracelake.catalogue.integrity import IntegrityCheckConfig
from tracelake.spark.work import SparkWork
from tracelake.wire.units import Unit

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ERROR, WARNING = "error", "warning"
COLUMNS = ("check", "block_number", "severity", "expected", "found", "detail")
_SHOWN = 5
"""Findings that the message of a failed task carries."""


def run(work: SparkWork) -> OperatorResult:
    config = work.context.config
    assert isinstance(config, IntegrityCheckConfig)
    found = findings(work)
    if config.fail_on == "never":
        work.write(found, order=("block_number", "check"))
        return work.result()
    kept = found.persist()
    try:
        _fail_if_bad(work, kept, config.fail_on)
        work.write(kept, order=("block_number", "check"))
    finally:
        kept.unpersist()
    return work.result()


def findings(work: SparkWork) -> "DataFrame":
    first, last = work.blocks
    blocks = _checked(work.read(0), "blocks", ("block_number",))
    transactions, logs = _others(work)
    parts = [_gaps(work, blocks, first, last), _duplicate_blocks(blocks), *_chain(work, blocks, first)]
    if transactions is not None:
        parts += _transactions(blocks, transactions)
    if logs is not None:
        parts += _logs(blocks, logs, transactions)
    return reduce(lambda one, other: one.unionByName(other), parts)


def _others(work: SparkWork) -> "tuple[DataFrame | None, DataFrame | None]":
    transactions: DataFrame | None = None
    logs: DataFrame | None = None
    for item in sorted(work.context.inputs, key=lambda item: item.input_index):
        if item.input_index == 0:
            continue
        frame = work.read(item.input_index)
        if "log_index" in frame.columns:
            logs = _checked(frame, item.name, ("block_number", "log_index"))
        else:
            transactions = _checked(frame, item.name, ("block_number", "transaction_index", "transaction_hash"))
    return transactions, logs


def _checked(frame: "DataFrame", name: str, columns: tuple[str, ...]) -> "DataFrame":
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise NonRetryableError(
            f"the input {name} has no column {', '.join(missing)}; inputs: blocks, transactions, logs"
        )
    return frame


def _fail_if_bad(work: SparkWork, found: "DataFrame", fail_on: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    counts = {row["severity"]: row["count"] for row in found.groupBy("severity").count().collect()}
    counted = [severity for severity in (ERROR, WARNING) if severity == ERROR or fail_on == WARNING]
    bad = sum(counts.get(severity, 0) for severity in counted)
    if not bad:
        return
    shown = found.filter(F.col("severity").isin(counted)).orderBy("severity", "block_number", "check").limit(_SHOWN)
    said = "; ".join(
        f"{check} at block {number} (expected {expected}, found {seen}): {detail}"
        for check, number, _, expected, seen, detail in shown.select(*COLUMNS).collect()
    )
    first, last = work.blocks
    more = f"; and {bad - _SHOWN} more" if bad > _SHOWN else ""
    raise NonRetryableError(
        f"blocks {first} to {last} do not hold together: {counts.get(ERROR, 0)} errors, {counts.get(WARNING, 0)}"
        f" warnings. {said}{more}. All of them: run the check with `fail_on: never`."
    )


def _finding(
    frame: "DataFrame", check: str, severity: str, expected: "Column", found: "Column", detail: "Column"
) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    text = "string"
    return frame.select(
        F.lit(check).alias("check"),
        F.col("block_number").cast("bigint").alias("block_number"),
        F.lit(severity).alias("severity"),
        expected.cast(text).alias("expected"),
        found.cast(text).alias("found"),
        detail.cast(text).alias("detail"),
    )


def _gaps(work: SparkWork, blocks: "DataFrame", first: int, last: int) -> "DataFrame":
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    ends = work.session.createDataFrame([(first - 1,), (last + 1,)], "block_number bigint")
    numbers = blocks.select(F.col("block_number").cast("bigint").alias("block_number")).distinct().union(ends)
    # One partition: these are numbers of blocks alone.
    later = F.lead("block_number").over(Window.partitionBy(F.lit(1)).orderBy("block_number"))
    gaps = numbers.select((F.col("block_number") + 1).alias("block_number"), (later - 1).alias("to"))
    missing = F.col("to") - F.col("block_number") + 1
    detail = F.concat(F.lit("blocks "), F.col("block_number"), F.lit(" to "), F.col("to"), F.lit(" are missing"))
    return _finding(gaps.filter(missing > 0), "gap", ERROR, missing, F.lit(0), detail)


def _duplicate_blocks(blocks: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    twice = blocks.groupBy("block_number").agg(F.count(F.lit(1)).alias("n")).filter("n > 1")
    return _finding(twice, "duplicate_block", ERROR, F.lit(1), F.col("n"), F.lit("the block is there more than once"))


def _chain(work: SparkWork, blocks: "DataFrame", first: int) -> "list[DataFrame]":
    """Each block against the one before; of the first of the range too, if the one before is there to be read."""
    from pyspark.sql import functions as F  # noqa: N812

    names = [name for name in ("block_hash", "parent_hash", "timestamp") if name in blocks.columns]
    own = blocks.select("block_number", *names)
    before = _block_before(work, first)
    known = (
        own if before is None or not set(own.columns) <= set(before.columns) else own.union(before.select(*own.columns))
    )
    parents = known.select((F.col("block_number") + 1).alias("block_number"), *(F.col(n).alias(f"_{n}") for n in names))
    pairs = own.join(parents, "block_number")
    found = []
    if {"block_hash", "parent_hash"} <= set(names):
        broken = pairs.filter(~F.col("parent_hash").eqNullSafe(F.col("_block_hash"))).distinct()
        detail = F.lit("the parent is not the block before")
        found.append(_finding(broken, "parent_hash", ERROR, _hex("_block_hash"), _hex("parent_hash"), detail))
    if "timestamp" in names:
        earlier = pairs.filter(F.col("timestamp") < F.col("_timestamp")).distinct()
        expected = F.concat(F.lit("at least "), F.col("_timestamp"))
        detail = F.lit("the block is older than the one before")
        found.append(_finding(earlier, "timestamp", WARNING, expected, F.col("timestamp"), detail))
    return found


def _block_before(work: SparkWork, first: int) -> "DataFrame | None":
    if first == 0:
        return None
    number = first - 1
    item = next(item for item in work.context.inputs if item.input_index == 0)
    unit = Unit(partition_key=f"{number}-{number}", start=number, end=number)
    try:
        return work.read_input(msgspec.structs.replace(item, unit=unit))
    except NonRetryableError:
        work.context.progress(f"block {number} is not there: the parent of block {first} was not looked at")
        return None


def _hex(name: str) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    return F.coalesce(F.concat(F.lit("0x"), F.lower(F.hex(F.col(name)))), F.lit("nothing"))


def _per_block(frame: "DataFrame", index: str, *more: "Column") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    return frame.groupBy("block_number").agg(
        F.count(F.lit(1)).alias("n"),
        F.count_distinct(index).alias("different"),
        F.min(index).cast("bigint").alias("lowest"),
        F.max(index).cast("bigint").alias("highest"),
        *more,
    )


def _gapless(totals: "DataFrame", check: str, what: str) -> "DataFrame":
    """From 0 on, each once."""
    from pyspark.sql import functions as F  # noqa: N812

    right = (F.col("lowest") == 0) & (F.col("highest") == F.col("n") - 1) & (F.col("different") == F.col("n"))
    expected = F.concat(F.lit("0 to "), F.col("n") - 1)
    found = F.concat(
        F.col("lowest"), F.lit(" to "), F.col("highest"), F.lit(", "), F.col("different"), F.lit(" of them")
    )
    wrong = totals.filter(~F.coalesce(right, F.lit(False)))
    return _finding(wrong, check, ERROR, expected, found, F.lit(f"{what} are missing or there more than once"))


def _against_block(blocks: "DataFrame", totals: "DataFrame", check: str, column: str, total: str) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    said = blocks.select("block_number", F.col(column).alias("said")).distinct()
    both = said.join(totals.select("block_number", F.col(total).alias("counted")), "block_number", "left")
    counted = F.coalesce(F.col("counted"), F.lit(0))
    wrong = both.filter(~F.col("said").eqNullSafe(counted))
    return _finding(
        wrong, check, ERROR, F.coalesce(F.col("said"), F.lit(0)), counted, F.lit(f"the block says {column}")
    )


def _without_block(blocks: "DataFrame", totals: "DataFrame", check: str, what: str) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    alone = totals.join(blocks.select("block_number").distinct(), "block_number", "left_anti")
    return _finding(alone, check, ERROR, F.lit(0), F.col("n"), F.lit(f"{what} of a block that is not there"))


def _transactions(blocks: "DataFrame", transactions: "DataFrame") -> "list[DataFrame]":
    from pyspark.sql import functions as F  # noqa: N812

    gas = [F.sum("gas_used").alias("gas")] if "gas_used" in transactions.columns else []
    totals = _per_block(transactions, "transaction_index", *gas)
    hashes = transactions.groupBy("transaction_hash").agg(
        F.count(F.lit(1)).alias("n"), F.min("block_number").alias("block_number")
    )
    found = [
        _gapless(totals, "transaction_index", "transactions"),
        _without_block(blocks, totals, "transaction_block", "transactions"),
        _finding(
            hashes.filter("n > 1"), "duplicate_transaction", ERROR, F.lit(1), F.col("n"), _hex("transaction_hash")
        ),
    ]
    if "transaction_count" in blocks.columns:
        found.append(_against_block(blocks, totals, "transaction_count", "transaction_count", "n"))
    if gas and "gas_used" in blocks.columns:
        found.append(_against_block(blocks, totals, "gas_used", "gas_used", "gas"))
    return found


def _logs(blocks: "DataFrame", logs: "DataFrame", transactions: "DataFrame | None") -> "list[DataFrame]":
    from pyspark.sql import functions as F  # noqa: N812

    totals = _per_block(logs, "log_index")
    found = [
        _gapless(totals, "log_index", "logs"),
        _without_block(blocks, totals, "log_block", "logs"),
    ]
    if "log_count" in blocks.columns:
        found.append(_against_block(blocks, totals, "log_count", "log_count", "n"))
    place = ["block_number", "transaction_index", "transaction_hash"]
    if transactions is not None and set(place) <= set(logs.columns):
        alone = logs.join(transactions.select(*place), place, "left_anti")
        strays = alone.groupBy("block_number").agg(F.count(F.lit(1)).alias("n"))
        detail = F.lit("logs of a transaction that is not there")
        found.append(_finding(strays, "log_transaction", ERROR, F.lit(0), F.col("n"), detail))
    return found
