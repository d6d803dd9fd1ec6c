"""integrity_check: does a range of a chain hold together: blocks without gap, each following the one before, with the
transactions and logs that belong to them.

Spark tasks read the files by themselves and check whole columns at a time (`spark/chain_checks.py`). A small unit is
one Spark task. Of a large one, tasks sum up ranges of blocks side by side, and one task walks through the sums. The
input of blocks comes first; transactions and logs are known by their columns, and may be missing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.catalogue.context import NonRetryableError, OperatorResult
from tracelake.catalogue.integrity import IntegrityCheckConfig
from tracelake.ports import ObjectMeta
from tracelake.spark import chain_checks as checks
from tracelake.spark.input_files import BLOCK, InputFiles
from tracelake.spark.python_gc import settle
from tracelake.spark.sizes import file_count, is_small, session_for_small
from tracelake.spark.work import SparkWork
from tracelake.spark.writer import PartWriter, Target, WrittenFile
from tracelake.wire.units import PayloadInput, Unit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHOWN = 5
"""Findings that the message of a failed task carries."""
_SUMS_DDL = ", ".join(f"{field.name} {'binary' if field.name == 'hash' else 'bigint'}" for field in checks.SUMS)
_RESULT_DDL = "uri string, size long, etag string, sha256 string, rows long, errors long, warnings long, shown string"


def run(work: SparkWork) -> OperatorResult:
    config = work.context.config
    assert isinstance(config, IntegrityCheckConfig)
    check = _open(work, config)
    work.stop_if_canceled()
    if is_small(work.input_bytes or 0):
        frame = session_for_small(work.session).range(0, 1, 1, 1).mapInArrow(check.check_unit, _RESULT_DDL)
    else:
        frame = _sums(work, check).repartition(1).mapInArrow(check.check_sums, _RESULT_DDL)
    (row,) = frame.collect()
    _fail_if_bad(work, row, config.fail_on)
    work.seal_output(0, [WrittenFile(ObjectMeta(row.uri, row["size"], row.etag, row.sha256), row["rows"])], None)
    return work.result()


@dataclass(frozen=True, slots=True)
class UnitCheck:
    """What Spark's Python processes do for a unit."""

    first: int
    last: int
    blocks: tuple[InputFiles, ...]
    """Of the unit, and of the blocks before and after it, where they are there."""
    transactions: InputFiles | None
    transactions_input: int
    logs: InputFiles | None
    target: Target
    shown: tuple[str, ...]
    """Severities of which the first findings are shown."""

    def check_unit(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All of it in one task."""
        settle()
        for _ in batches:
            transactions, logs = self._read(self.first, self.last)
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
        blocks = pa.concat_tables([files.read(checks.BLOCK_COLUMNS) for files in self.blocks])
        findings = checks.find_in_blocks(blocks, sums, self.first, self.last, tables=self._tables())
        part = PartWriter(self.target, checks.FINDINGS, order=checks.ORDER)
        try:
            part.write(findings)
            file = part.upload(self.first, self.last)
        finally:
            part.discard()
        return self._report(file, findings)

    def _tables(self) -> list[str]:
        """What was summed up."""
        tables = [name for name in ("transactions", "logs") if getattr(self, name) is not None]
        gas = self.transactions is not None and "gas_used" in self.transactions.schema.names
        return [*tables, *(["gas"] if gas else [])]

    def _report(self, file: WrittenFile, findings: pa.Table) -> pa.RecordBatch:
        severities = findings["severity"].to_pylist()
        bad = pc.is_in(findings["severity"], value_set=pa.array(self.shown, pa.string()))
        examples = [
            f"{row['check']} at block {row['block_number']} (expected {row['expected']}, found {row['found']}):"
            f" {row['detail']}"
            for row in findings.filter(bad).slice(0, _SHOWN).to_pylist()
        ]
        meta = file.meta
        counts = [file.rows, severities.count(checks.ERROR), severities.count(checks.WARNING)]
        return pa.RecordBatch.from_arrays(
            [
                pa.array([meta.uri], pa.string()),
                pa.array([meta.size], pa.int64()),
                pa.array([meta.etag], pa.string()),
                pa.array([meta.sha256], pa.string()),
                *(pa.array([count], pa.int64()) for count in counts),
                pa.array(["; ".join(examples)], pa.string()),
            ],
            names=["uri", "size", "etag", "sha256", "rows", "errors", "warnings", "shown"],
        )


def _open(work: SparkWork, config: IntegrityCheckConfig) -> UnitCheck:
    first, last = work.blocks
    inputs = sorted(work.context.inputs, key=lambda item: item.input_index)
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
            transactions = _checked(files, item.name, ("transaction_index", "transaction_hash"))
            transactions_input = item.input_index
    bad = (checks.ERROR,) if config.fail_on == checks.ERROR else (checks.ERROR, checks.WARNING)
    target = work.target().lend([(first, last)])
    return UnitCheck(first, last, (blocks, *around), transactions, transactions_input, logs, target, bad)


def _opened(work: SparkWork, item: PayloadInput, name: str) -> InputFiles:
    files = work.open_input(item)
    if files is None:
        raise NonRetryableError(f"the input {name} has no files for this unit")
    return _checked(files, name)


def _checked(files: InputFiles, name: str, columns: tuple[str, ...] = ()) -> InputFiles:
    missing = [column for column in (BLOCK, *columns) if column not in files.schema.names]
    if missing:
        raise NonRetryableError(
            f"the input {name} has no column {', '.join(missing)}; inputs: blocks, transactions, logs"
        )
    return files


def _neighbour(work: SparkWork, blocks: PayloadInput, number: int) -> InputFiles | None:
    """A block just outside of the unit, if it is there already."""
    if number < 0:
        return None
    unit = Unit(partition_key=f"{number}-{number}", start=number, end=number)
    files = work.open_input(msgspec.structs.replace(blocks, unit=unit))
    if files is None:
        work.context.progress(f"block {number} is not there yet: what joins it to this unit is not looked at")
    return files


def _sums(work: SparkWork, check: UnitCheck) -> "DataFrame":
    """Transactions and logs by block, and hashes that repeat, by Spark tasks side by side."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    parts = max(1, min(file_count(work.input_bytes or 0), check.last - check.first + 1))
    width = -(-(check.last - check.first + 1) // parts)
    start = F.col("id") * width + check.first
    ranges = work.session.range(0, parts, 1, parts).select(
        start.alias("first"), F.least(start + width - 1, F.lit(check.last)).alias("last")
    )
    sums = ranges.mapInArrow(check.sum_range, _SUMS_DDL)
    if check.transactions is None:
        return sums
    hashes = work.read(check.transactions_input).groupBy(F.col("transaction_hash").alias("hash"))
    counts = hashes.agg(F.count(F.lit(1)).alias("repeats"), F.min(BLOCK).cast("bigint").alias("number"))
    return sums.unionByName(counts.filter("repeats > 1"), allowMissingColumns=True)


def _fail_if_bad(work: SparkWork, row: Any, fail_on: str) -> None:
    """Nothing of it is committed then; the files go the way of everything that is not."""
    total = {"never": 0, checks.ERROR: row.errors, checks.WARNING: row.errors + row.warnings}[fail_on]
    if not total:
        return
    first, last = work.blocks
    more = f"; and {total - _SHOWN} more" if total > _SHOWN else ""
    raise NonRetryableError(
        f"blocks {first} to {last} do not hold together: {row.errors} errors, {row.warnings} warnings."
        f" {row.shown}{more}. All of them: run the check with `fail_on: never`."
    )
