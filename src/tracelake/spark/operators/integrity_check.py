"""integrity_check: does a range of a chain hold together: blocks without gap, each following the one before, with the
transactions and logs that belong to them.

Everything is said with DataFrame expressions, in one Spark job: each table is summed up by block, the sums are put side
by side, and one walk through the blocks in their order finds what is wrong. What the driver gets to see are the first
findings, for a message. The input of blocks comes first; transactions and logs are known by their columns, and may be
missing.
"""

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq

from tracelake.catalogue.context import NonRetryableError, OperatorResult
from tracelake.catalogue.integrity import IntegrityCheckConfig
from tracelake.spark.work import SparkWork
from tracelake.spark.writer import Spread, Written, write_frame
from tracelake.wire.units import Unit

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ERROR, WARNING = "error", "warning"
COLUMNS = ("check", "block_number", "severity", "expected", "found", "detail")
ORDER = ("block_number", "check")
_SHOWN = 5
"""Findings that the message of a failed task carries."""


def run(work: SparkWork) -> OperatorResult:
    config = work.context.config
    assert isinstance(config, IntegrityCheckConfig)
    frame = findings(work)
    work.stop_if_canceled()
    # Findings are few, whatever was looked at: one file.
    spread = Spread(small=work.spread().small)
    report = write_frame(frame, work.target(), *work.blocks, order=ORDER, spread=spread)
    if config.fail_on != "never" and report.rows:
        _fail_if_bad(work, report, config.fail_on)
    work.seal_output(0, report.files, None)
    return work.result()


def findings(work: SparkWork) -> "DataFrame":
    """All of them."""
    blocks = _checked(work.read(0), "blocks", ("block_number",))
    transactions, logs = _others(work)
    first, last = work.blocks
    # Units are made in any order: whichever of two neighbours comes later looks at what joins them.
    around = [frame for number in (first - 1, last + 1) if (frame := _neighbour(work, number)) is not None]
    together = work.spread().small
    sums = []
    if transactions is not None:
        sums.append(_transaction_totals(transactions))
    if logs is not None:
        sums.append(_log_totals(logs))
    totals = _totals(work, blocks, around, sums)
    checks = _block_checks(totals.columns)
    if transactions is not None:
        checks += _transaction_checks(totals.columns)
    if logs is not None:
        checks += _log_checks(totals.columns)
    parts = [_walk(totals, checks)]
    if transactions is not None:
        parts.append(_duplicate_transactions(transactions))
        if logs is not None and set(_PLACE) <= set(logs.columns):
            parts.append(_strays(logs, transactions, together=together))
    union = parts[0]
    for part in parts[1:]:
        union = union.unionByName(part)
    union = union.select(*COLUMNS)
    return union.coalesce(1) if together else union


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


def _neighbour(work: SparkWork, number: int) -> "DataFrame | None":
    """A block just outside of the unit, if it is there already."""
    if number < 0:
        return None
    item = next(item for item in work.context.inputs if item.input_index == 0)
    unit = Unit(partition_key=f"{number}-{number}", start=number, end=number)
    neighbour = msgspec.structs.replace(item, unit=unit)
    if not work.context.files(neighbour):
        work.context.progress(f"block {number} is not there yet: what joins it to this unit is not looked at")
        return None
    return work.read_input(neighbour)


def _fail_if_bad(work: SparkWork, report: Written, fail_on: str) -> None:
    """Nothing of it is committed then; the files go the way of everything that is not."""
    bad = (ERROR,) if fail_on == ERROR else (ERROR, WARNING)
    counts: Counter[str] = Counter()
    examples: list[str] = []
    for file in report.files:
        with tempfile.TemporaryDirectory(prefix="trace-findings-") as directory:
            path = Path(directory, "findings.parquet")
            work.transfer.download(file.meta, path)
            for batch in pq.ParquetFile(path).iter_batches():
                counts.update(batch.column("severity").to_pylist())
                bad_rows = (row for row in batch.to_pylist() if len(examples) < _SHOWN and row["severity"] in bad)
                examples += [
                    f"{row['check']} at block {row['block_number']} (expected {row['expected']}, found {row['found']}):"
                    f" {row['detail']}"
                    for row in bad_rows
                ][: _SHOWN - len(examples)]
    total = sum(counts[severity] for severity in bad)
    if not total:
        return
    first, last = work.blocks
    more = f"; and {total - _SHOWN} more" if total > _SHOWN else ""
    raise NonRetryableError(
        f"blocks {first} to {last} do not hold together: {counts[ERROR]} errors, {counts[WARNING]} warnings."
        f" {'; '.join(examples)}{more}. All of them: run the check with `fail_on: never`."
    )


# What the tables say, by block.


def _number() -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    return F.col("block_number").cast("bigint").alias("number")


def _whole(name: str) -> "Column":
    """As a number that can be added up quickly. What is too large for that is nothing, and so is found wrong."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(name).try_cast("bigint")


_INSIDE, _BEGIN, _END = 0, 1, 2
_KEPT = ("block_hash", "parent_hash", "timestamp", "gas_used", "transaction_count", "log_count")


def _totals(work: SparkWork, blocks: "DataFrame", around: "list[DataFrame]", sums: "list[DataFrame]") -> "DataFrame":
    """A row for each number: those of the unit, the one before it and the one after it, where the walk begins and ends.

    The ends are rows, not numbers in expressions: what Spark compiled for one unit then serves the next one too."""
    from pyspark.sql import functions as F  # noqa: N812

    hash_columns = [name for name in _KEPT if name in blocks.columns]
    columns = [_number(), F.lit(1).alias("there")]
    columns += [F.col(name) if name.endswith("_hash") else _whole(name).alias(name) for name in hash_columns]
    rows = blocks.select(*columns)
    for frame in around:
        if set(hash_columns) <= set(frame.columns):
            rows = rows.unionByName(frame.select(*columns))
    first, last = work.blocks
    ends = [
        work.session.range(number, number + 1, 1, 1).select(F.col("id").alias("number"), F.lit(edge).alias("edge"))
        for number, edge in ((first - 1, _BEGIN), (last + 1, _END))
    ]
    for other in (*ends, *sums):  # not joined: that would take an exchange for each
        rows = rows.unionByName(other, allowMissingColumns=True)
    if work.spread().small:
        rows = rows.coalesce(1)
    lowest_and_highest = [of(name).alias(f"{of.__name__}_{name}") for name in hash_columns for of in (F.min, F.max)]
    the_only_one = [F.max(name).alias(name) for each in sums for name in each.columns if name != "number"]
    block_count = F.coalesce(F.sum("there"), F.lit(0)).alias("blocks")
    edge = F.coalesce(F.max("edge"), F.lit(_INSIDE)).alias("edge")
    return rows.groupBy("number").agg(block_count, edge, *lowest_and_highest, *the_only_one)


def _index_totals(frame: "DataFrame", index: str, kind: str, *more: "Column") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    place = F.col(index).cast("bigint")
    return frame.groupBy(_number()).agg(
        F.count(F.lit(1)).alias(kind),
        F.count_distinct(place).alias(f"different_{kind}"),
        F.min(place).alias(f"lowest_{kind}"),
        F.max(place).alias(f"highest_{kind}"),
        *more,
    )


def _transaction_totals(transactions: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    gas = [F.try_sum(_whole("gas_used")).alias("gas")] if "gas_used" in transactions.columns else []
    return _index_totals(transactions, "transaction_index", "transactions", *gas)


def _log_totals(logs: "DataFrame") -> "DataFrame":
    return _index_totals(logs, "log_index", "logs")


# What can be wrong with a block. Each check is null where nothing is.


def _check(
    wrong: "Column",
    check: str,
    severity: str,
    expected: "Column",
    actual: "Column",
    detail: "Column | str",
    at: "Column | None" = None,
) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    detail_column = F.lit(detail) if isinstance(detail, str) else detail
    finding = {
        "block_number": F.col("number") if at is None else at,
        "check": F.lit(check),
        "severity": F.lit(severity),
        "expected": expected.cast("string"),
        "found": actual.cast("string"),
        "detail": detail_column,
    }
    return F.when(wrong, F.struct(*(value.alias(name) for name, value in finding.items())))


def _hex(name: str) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    return F.coalesce(F.concat(F.lit("0x"), F.lower(F.hex(F.col(name)))), F.lit("nothing"))


def _block_checks(columns: list[str]) -> "list[Column]":
    from pyspark.sql import functions as F  # noqa: N812

    present, number, before = F.col("blocks") > 0, F.col("number"), F.col("before.number")
    after = F.col("edge") == _END  # the next unit's: only what joins it to this one is looked at
    missing = number - before - 1
    texts = F.concat(F.lit("blocks "), before + 1, F.lit(" to "), number - 1, F.lit(" are missing"))
    gap = (present | (F.col("edge") == _END)) & (missing > 0)
    checks = [
        _check(gap, "gap", ERROR, missing, F.lit(0), texts, at=before + 1),
        _check(
            (F.col("blocks") > 1) & ~after,
            "duplicate_block",
            ERROR,
            F.lit(1),
            F.col("blocks"),
            "the block is there more than once",
        ),
    ]
    follows = present & (F.col("before.blocks") > 0) & (before == number - 1)
    if {"min_block_hash", "min_parent_hash"} <= set(columns):
        broken = F.lit(False)
        for parent in ("min_parent_hash", "max_parent_hash"):
            for block in ("before.min_block_hash", "before.max_block_hash"):
                broken = broken | ~F.col(parent).eqNullSafe(F.col(block))
        expected, actual = _hex("before.min_block_hash"), _hex("min_parent_hash")
        # Of two blocks with one number, what is shown is a pair that does not fit.
        other = F.col("min_parent_hash").eqNullSafe(F.col("before.min_block_hash"))
        expected = F.when(other, _hex("before.max_block_hash")).otherwise(expected)
        actual = F.when(other, _hex("max_parent_hash")).otherwise(actual)
        detail = F.when(after, "the block after it has another parent").otherwise("the parent is not the block before")
        at = F.when(after, before).otherwise(number)
        checks.append(_check(follows & broken, "parent_hash", ERROR, expected, actual, detail, at=at))
    if "min_timestamp" in columns:
        earlier = F.col("min_timestamp") < F.col("before.max_timestamp")
        expected = F.concat(F.lit("at least "), F.col("before.max_timestamp"))
        text = "the block is older than the one before"
        checks.append(_check(follows & earlier & ~after, "timestamp", WARNING, expected, F.col("min_timestamp"), text))
    return checks


def _index_checks(kind: str, one: str) -> "list[Column]":
    """From 0 on, each once; of a block that is there."""
    from pyspark.sql import functions as F  # noqa: N812

    n, lowest, highest, different = (F.col(f"{word}{kind}") for word in ("", "lowest_", "highest_", "different_"))
    right = (lowest == 0) & (highest == n - 1) & (different == n)
    actual = F.concat(lowest, F.lit(" to "), highest, F.lit(", "), different, F.lit(" of them"))
    return [
        _check(
            (n > 0) & ~F.coalesce(right, F.lit(False)),
            f"{one}_index",
            ERROR,
            F.concat(F.lit("0 to "), n - 1),
            actual,
            f"{kind} are missing or there more than once",
        ),
        _check(
            (n > 0) & (F.col("blocks") == 0),
            f"{one}_block",
            ERROR,
            F.lit(0),
            n,
            f"{kind} of a block that is not there",
        ),
    ]


def _said_by_block(check: str, column: str, total: str) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    row_count = F.coalesce(F.col(total), F.lit(0))
    right = F.col(f"min_{column}").eqNullSafe(row_count) & F.col(f"max_{column}").eqNullSafe(row_count)
    declared = F.when(F.col(f"min_{column}") == row_count, F.col(f"max_{column}")).otherwise(F.col(f"min_{column}"))
    wrong = (F.col("blocks") > 0) & ~right & (F.col("edge") != _END)
    return _check(wrong, check, ERROR, F.coalesce(declared, F.lit(0)), row_count, f"the block says {column}")


def _transaction_checks(columns: list[str]) -> "list[Column]":
    checks = _index_checks("transactions", "transaction")
    if "min_transaction_count" in columns:
        checks.append(_said_by_block("transaction_count", "transaction_count", "transactions"))
    if {"gas", "min_gas_used"} <= set(columns):
        checks.append(_said_by_block("gas_used", "gas_used", "gas"))
    return checks


def _log_checks(columns: list[str]) -> "list[Column]":
    checks = _index_checks("logs", "log")
    if "min_log_count" in columns:
        checks.append(_said_by_block("log_count", "log_count", "logs"))
    return checks


def _walk(totals: "DataFrame", checks: "list[Column]") -> "DataFrame":
    """Through the blocks in their order, each with the last one before it that is there."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    of_before = ("number", "blocks", "min_block_hash", "max_block_hash", "max_timestamp")
    before_columns = F.struct(*(F.col(name) for name in of_before if name in totals.columns))
    # One partition: it has a row for each block, not for what is in them.
    earlier = Window.partitionBy(F.lit(1)).orderBy("number").rowsBetween(Window.unboundedPreceding, -1)
    is_known = (F.col("blocks") > 0) | (F.col("edge") == _BEGIN)
    before = F.last(F.when(is_known, before_columns), ignorenulls=True).over(earlier)
    rows = totals.withColumn("before", before).filter(F.col("edge") != _BEGIN)
    return rows.select(F.inline(F.array_compact(F.array(*checks))))


# What takes more than one block to see.

_PLACE = ("block_number", "transaction_index", "transaction_hash")


def _finding(frame: "DataFrame", check: str, actual: "Column", expected: int, detail: "Column") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    return frame.select(
        F.col("block_number").cast("bigint").alias("block_number"),
        F.lit(check).alias("check"),
        F.lit(ERROR).alias("severity"),
        F.lit(str(expected)).alias("expected"),
        actual.cast("string").alias("found"),
        detail.alias("detail"),
    )


def _duplicate_transactions(transactions: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    hashes = transactions.groupBy("transaction_hash").agg(
        F.count(F.lit(1)).alias("n"), F.min("block_number").alias("block_number")
    )
    return _finding(hashes.filter("n > 1"), "duplicate_transaction", F.col("n"), 1, _hex("transaction_hash"))


def _strays(logs: "DataFrame", transactions: "DataFrame", *, together: bool) -> "DataFrame":
    """Logs whose transaction is not there. Both are put together, since a join takes more exchanges than a sum."""
    from pyspark.sql import functions as F  # noqa: N812

    place = [F.col("block_number"), _whole("transaction_index").alias("index"), F.col("transaction_hash")]
    rows = logs.select(*place, F.lit(1).alias("log")).union(transactions.select(*place, F.lit(0)))
    if together:
        rows = rows.coalesce(1)
    by_place = rows.groupBy("block_number", "index", "transaction_hash").agg(
        F.sum("log").alias("logs"), F.min("log").alias("alone")
    )
    strays = by_place.filter("alone = 1").groupBy("block_number").agg(F.sum("logs").alias("n"))
    return _finding(strays, "log_transaction", F.col("n"), 0, F.lit("logs of a transaction that is not there"))
