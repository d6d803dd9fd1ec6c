"""What Spark's Python processes do with the findings of `integrity_check`: write them, and report what they are."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tracelake.spark import chain_checks as checks
from tracelake.spark.input_files import BLOCK
from tracelake.spark.python_gc import settle
from tracelake.spark.writer import PartWriter, Target, WrittenFile

SHOWN = 5
"""Findings that the message of a failed task carries."""
RESULT_DDL = "uri string, size long, etag string, sha256 string, rows long, errors long, warnings long, shown string"
KIND = "_kind"
"""Which table a row is of, where rows of several come together."""


@dataclass(frozen=True, slots=True)
class UnitFindings:
    """Compares the blocks of a unit with each other and with sums of their content."""

    first: int
    last: int
    """Blocks that are checked."""
    unit: tuple[int, int]
    """Blocks of the task's unit, which the file is named by."""
    tables: tuple[str, ...]
    """What is summed up: `transactions`, `logs`, and `gas` of transactions."""
    target: Target
    shown: tuple[str, ...]
    """Severities of which the first findings are shown."""
    ignore: tuple[str, ...] = ()
    """Checks whose findings do not count."""

    def report(self, blocks: pa.Table, sums: pa.Table) -> pa.RecordBatch:
        """Writes the file of findings, and says what is in it."""
        findings = checks.find_in_blocks(blocks, sums, self.first, self.last, tables=self.tables)
        if self.ignore:
            findings = findings.filter(
                pc.invert(pc.is_in(findings["check"], value_set=pa.array(self.ignore, pa.string())))
            )
        part = PartWriter(self.target, checks.FINDINGS, order=checks.ORDER)
        try:
            part.write(findings)
            file = part.upload(*self.unit)
        finally:
            part.discard()
        return self._describe(file, findings)

    def _describe(self, file: WrittenFile, findings: pa.Table) -> pa.RecordBatch:
        severities = findings["severity"].to_pylist()
        bad = pc.is_in(findings["severity"], value_set=pa.array(self.shown, pa.string()))
        examples = [
            f"{row['check']} at block {row['block_number']} (expected {row['expected']}, found {row['found']}):"
            f" {row['detail']}"
            for row in findings.filter(bad).slice(0, SHOWN).to_pylist()
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


@dataclass(frozen=True, slots=True)
class RowsCheck:
    """The check of rows that come to a Spark task, tagged by `KIND`: blocks, transactions, logs, and sums of these."""

    findings: UnitFindings

    def check_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All of a unit in one task."""
        settle()
        rows = _collect(batches)
        transactions, logs = self._content(rows)
        parts = [checks.sum_by_block(transactions, logs)]
        if transactions is not None:
            parts.append(checks.find_repeats(transactions))
        yield self.findings.report(_of_kind(rows, "blocks"), pa.concat_tables(parts))

    def sum_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sums of transactions and logs; all rows of a block come to one task."""
        settle()
        rows = _collect(batches)
        if rows.num_rows:
            yield from checks.sum_by_block(*self._content(rows)).to_batches()

    def check_sums(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Blocks and sums, in one task."""
        settle()
        rows = _collect(batches)
        sums = _of_kind(rows, "sums").select(checks.SUMS.names).cast(checks.SUMS)
        yield self.findings.report(_of_kind(rows, "blocks"), sums)

    def _content(self, rows: pa.Table) -> tuple[pa.Table | None, pa.Table | None]:
        transactions, logs = (
            _of_kind(rows, kind) if kind in self.findings.tables else None for kind in ("transactions", "logs")
        )
        if transactions is not None and "gas" not in self.findings.tables:
            transactions = transactions.drop_columns([name for name in ("gas_used",) if name in rows.column_names])
        return transactions, logs


def _collect(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    collected = list(batches)
    return pa.Table.from_batches(collected) if collected else pa.table({KIND: pa.array([], pa.string())})


def _of_kind(rows: pa.Table, kind: str) -> pa.Table:
    """The rows of one table, without the columns that only others have. Columns are null in rows of other tables."""
    own = rows.filter(pc.equal(rows[KIND], kind)).drop_columns([KIND])
    if kind == "blocks":
        names = [name for name in own.column_names if name in (BLOCK, *checks.BLOCK_COLUMNS)]
        return own.select(names)
    return own
