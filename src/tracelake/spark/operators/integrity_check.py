"""integrity_check: does a range of a chain hold together: blocks without gap, each following the one before, with the
transactions and logs that belong to them.

Spark tasks read files by themselves and check whole columns at a time (`spark/chain_checks.py`). A small unit is
one Spark task. Of a large one, tasks sum up ranges of blocks side by side, and one task walks through the sums. Rows of
tables come to these tasks as frames, all of one snapshot. The input of blocks comes first; transactions and logs are
known by their columns, and may be missing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tracelake.catalogue.context import NonRetryableError, OperatorResult
from tracelake.catalogue.integrity import IntegrityCheckConfig
from tracelake.ports import ObjectMeta
from tracelake.spark import chain_checks as checks
from tracelake.spark.input_files import BLOCK, InputFiles
from tracelake.spark.python_gc import settle
from tracelake.spark.sizes import file_count, is_small, session_for_small
from tracelake.spark.unit_findings import KIND, RESULT_DDL, SHOWN, RowsCheck, UnitFindings
from tracelake.spark.work import SparkWork
from tracelake.spark.writer import WrittenFile
from tracelake.wire.units import PayloadInput, Unit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TRANSACTION_KEYS = ("transaction_index", "transaction_hash")
_SUMS_DDL = ", ".join(f"{field.name} {'binary' if field.name == 'hash' else 'bigint'}" for field in checks.SUMS)


def run(work: SparkWork) -> OperatorResult:
    config = work.context.config
    assert isinstance(config, IntegrityCheckConfig)
    frame = _check_frames(work, config) if _reads_tables(work) else _check_files(work, config)
    (row,) = frame.collect()
    _fail_if_bad(work, row, config.fail_on)
    work.seal_output(0, [WrittenFile(ObjectMeta(row.uri, row["size"], row.etag, row.sha256), row["rows"])], None)
    return work.result()


def _reads_tables(work: SparkWork) -> bool:
    """Whether rows of the unit are in a table, or the block after it is: that of a live dataset begins somewhere."""
    inputs = sorted(work.context.inputs, key=lambda item: item.input_index)
    if any(work.is_table(item) for item in inputs):
        return True
    _, last = _checked_range(work, inputs[0])
    return work.is_table(_outside(inputs[0], last + 1))


def _check_files(work: SparkWork, config: IntegrityCheckConfig) -> "DataFrame":
    check = _open(work, config)
    work.stop_if_canceled()
    if is_small(work.input_bytes or 0):
        return session_for_small(work.session).range(0, 1, 1, 1).mapInArrow(check.check_unit, RESULT_DDL)
    return _sums(work, check).repartition(1).mapInArrow(check.check_sums, RESULT_DDL)


@dataclass(frozen=True, slots=True)
class UnitCheck:
    """What Spark's Python processes do for a unit in files."""

    findings: UnitFindings
    blocks: tuple[InputFiles, ...]
    """Of the unit, and of the blocks before and after it, where they are there."""
    transactions: InputFiles | None
    transactions_input: int
    logs: InputFiles | None

    def check_unit(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All of it in one task."""
        settle()
        for _ in batches:
            transactions, logs = self._read(self.findings.first, self.findings.last)
            parts = [checks.sum_by_block(transactions, logs)]
            if transactions is not None:
                parts.append(checks.find_repeats(transactions))
            yield self._walk(pa.concat_tables(parts))

    def sum_range(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sums of ranges of blocks, whose ends come as rows."""
        settle()
        for batch in batches:
            for row in batch.to_pylist():
                yield from checks.sum_by_block(*self._read(row["first"], row["last"])).to_batches()

    def check_sums(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The walk, in one task."""
        settle()
        yield self._walk(pa.Table.from_batches([batch.cast(checks.SUMS) for batch in batches], checks.SUMS))

    def _read(self, first: int, last: int) -> tuple[pa.Table | None, pa.Table | None]:
        """Transactions and logs of these blocks."""
        transactions = self.transactions and self.transactions.read(checks.TRANSACTION_COLUMNS, first, last)
        return transactions, self.logs and self.logs.read(checks.LOG_COLUMNS, first, last)

    def _walk(self, sums: pa.Table) -> pa.RecordBatch:
        return self.findings.report(pa.concat_tables([files.read(checks.BLOCK_COLUMNS) for files in self.blocks]), sums)


def _open(work: SparkWork, config: IntegrityCheckConfig) -> UnitCheck:
    inputs = sorted(work.context.inputs, key=lambda item: item.input_index)
    first, last = _checked_range(work, inputs[0])
    blocks = _opened(work, inputs[0], "blocks")
    # Units are made in any order: whichever of two neighbours comes later looks at what joins them.
    neighbours = (_neighbour(work, inputs[0], number) for number in (first - 1, last + 1))
    hashes = {name for name in checks.BLOCK_COLUMNS if name in blocks.schema.names}
    around = [files for files in neighbours if files is not None and hashes <= {*files.schema.names}]
    transactions: InputFiles | None = None
    logs: InputFiles | None = None
    transactions_input = 0
    for item in inputs[1:]:
        files = _opened(work, item, item.name)
        if "log_index" in files.schema.names:
            logs = files
        else:
            transactions, transactions_input = files, item.input_index
            _check_columns(item.name, files.schema.names, _TRANSACTION_KEYS)
    columns = {
        "transactions": None if transactions is None else transactions.schema.names,
        "logs": None if logs is None else logs.schema.names,
    }
    findings = _findings(work, config, (first, last), columns)
    return UnitCheck(findings, (blocks, *around), transactions, transactions_input, logs)


def _findings(
    work: SparkWork, config: IntegrityCheckConfig, blocks: tuple[int, int], columns: Mapping[str, Sequence[str] | None]
) -> UnitFindings:
    """`columns`: of transactions and of logs, if they are there."""
    tables = [name for name, names in columns.items() if names is not None]
    gas = ["gas"] if "gas_used" in (columns["transactions"] or ()) else []
    bad = (checks.ERROR,) if config.fail_on == checks.ERROR else (checks.ERROR, checks.WARNING)
    target = work.target().lend([work.blocks])
    return UnitFindings(*blocks, work.blocks, (*tables, *gas), target, bad, config.ignore)


def _checked_range(work: SparkWork, blocks: PayloadInput) -> tuple[int, int]:
    """The blocks of the unit. The first window of a chain begins where the chain does."""
    first, last = work.blocks
    start, end = blocks.blocks
    return max(first, start or 0), last if end is None else min(last, end)


def _opened(work: SparkWork, item: PayloadInput, name: str) -> InputFiles:
    files = work.open_input(item)
    if files is None:
        raise NonRetryableError(f"the input {name} has no files for this unit")
    _check_columns(name, files.schema.names)
    return files


def _check_columns(name: str, columns: Sequence[str], expected: Sequence[str] = ()) -> None:
    missing = [column for column in (BLOCK, *expected) if column not in columns]
    if missing:
        raise NonRetryableError(
            f"the input {name} has no column {', '.join(missing)}; inputs: blocks, transactions, logs"
        )


def _neighbour(work: SparkWork, blocks: PayloadInput, number: int) -> InputFiles | None:
    """A block just outside of the unit, if it is there already."""
    if number < 0:
        return None
    files = work.open_input(_outside(blocks, number))
    if files is None:
        work.context.progress(f"block {number} is not there yet: what joins it to this unit is not looked at")
    return files


def _outside(blocks: PayloadInput, number: int) -> PayloadInput:
    unit = Unit(partition_key=f"{number}-{number}", start=number, end=number)
    return msgspec.structs.replace(blocks, unit=unit, scope=None)


def _sums(work: SparkWork, check: UnitCheck) -> "DataFrame":
    """Transactions and logs by block, and hashes that repeat, by Spark tasks side by side."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    first, last = check.findings.first, check.findings.last
    parts = max(1, min(file_count(work.input_bytes or 0), last - first + 1))
    width = -(-(last - first + 1) // parts)
    start = F.col("id") * width + first
    ranges = work.session.range(0, parts, 1, parts).select(
        start.alias("first"), F.least(start + width - 1, F.lit(last)).alias("last")
    )
    sums = ranges.mapInArrow(check.sum_range, _SUMS_DDL)
    if check.transactions is None:
        return sums
    return sums.unionByName(_repeats(work.read(check.transactions_input)), allowMissingColumns=True)


def _repeats(transactions: "DataFrame") -> "DataFrame":
    """Hashes that occur more than once."""
    from pyspark.sql import functions as F  # noqa: N812

    hashes = transactions.groupBy(F.col("transaction_hash").alias("hash"))
    counts = hashes.agg(F.count(F.lit(1)).alias("repeats"), F.min(BLOCK).cast("bigint").alias("number"))
    return counts.filter("repeats > 1")


def _check_frames(work: SparkWork, config: IntegrityCheckConfig) -> "DataFrame":
    """The check of rows in tables: Spark brings the rows of a block, or of all blocks, to one task."""
    from pyspark.sql import functions as F  # noqa: N812

    inputs = sorted(work.context.inputs, key=lambda item: item.input_index)
    first, last = _checked_range(work, inputs[0])
    blocks = _tagged(work.read_input(_widened(inputs[0], first, last)), "blocks", "blocks", checks.BLOCK_COLUMNS)
    content: dict[str, DataFrame] = {}
    columns: dict[str, Sequence[str] | None] = {"transactions": None, "logs": None}
    for item in inputs[1:]:
        frame = work.read_input(item)
        kind = "logs" if "log_index" in frame.columns else "transactions"
        _check_columns(item.name, frame.columns, () if kind == "logs" else _TRANSACTION_KEYS)
        columns[kind] = frame.columns
        needed_columns = checks.LOG_COLUMNS if kind == "logs" else checks.TRANSACTION_COLUMNS
        content[kind] = _tagged(frame, kind, item.name, needed_columns)
    work.stop_if_canceled()
    check = RowsCheck(_findings(work, config, (first, last), columns))
    if is_small(work.input_bytes or 0) or not content:
        return _union([blocks, *content.values()]).repartition(1).mapInArrow(check.check_rows, RESULT_DDL)
    parts = max(1, min(file_count(work.input_bytes or 0), last - first + 1))
    rows = _union(list(content.values())).repartition(parts, BLOCK)
    sums = rows.mapInArrow(check.sum_rows, _SUMS_DDL)
    if "transactions" in content:
        sums = sums.unionByName(_repeats(content["transactions"]), allowMissingColumns=True)
    tagged = sums.withColumn(KIND, F.lit("sums"))
    return _union([blocks, tagged]).repartition(1).mapInArrow(check.check_sums, RESULT_DDL)


def _widened(blocks: PayloadInput, first: int, last: int) -> PayloadInput:
    """With the blocks before and after the range, where they are there."""
    start, end = max(0, first - 1), last + 1
    unit = Unit(partition_key=f"{start}-{end}", start=start, end=end)
    return msgspec.structs.replace(blocks, unit=unit, scope=None)


def _tagged(frame: "DataFrame", kind: str, name: str, columns: Sequence[str]) -> "DataFrame":
    """These columns of a table, as far as it has them, and which table it is."""
    from pyspark.sql import functions as F  # noqa: N812

    _check_columns(name, frame.columns)
    return frame.select(BLOCK, *(column for column in columns if column in frame.columns)).withColumn(KIND, F.lit(kind))


def _union(frames: "Sequence[DataFrame]") -> "DataFrame":
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _fail_if_bad(work: SparkWork, row: Any, fail_on: str) -> None:
    """Nothing of it is committed then; the files go the way of everything that is not."""
    total = {"never": 0, checks.ERROR: row.errors, checks.WARNING: row.errors + row.warnings}[fail_on]
    if not total:
        return
    first, last = work.blocks
    more = f"; and {total - SHOWN} more" if total > SHOWN else ""
    raise NonRetryableError(
        f"blocks {first} to {last} do not hold together: {row.errors} errors, {row.warnings} warnings."
        f" {row.shown}{more}. All of them: run the check with `fail_on: never`."
    )
