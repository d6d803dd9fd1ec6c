"""Evaluates the checks of a feed's rows in the process that makes them, without Spark.

A check says the same of the same rows as in `spark.checks`. It sees the rows of the unit and nothing else: a deploy
refuses kinds that need more (`catalogue.check_values.UNIT_KINDS`).
"""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.acero
import pyarrow.compute as pc

from tracelake.catalogue.check_values import misfit
from tracelake.catalogue.context import NonRetryableError
from tracelake.catalogue.sql.columns.types import NUMERIC, TIMES, SqlType, declared_type
from tracelake.feeds.files import FilePiece
from tracelake.model.dag import CheckKind, Column, OutputCheck, Scalar
from tracelake.spark.checks.reports import (
    SampleBudget,
    find_columns,
    report_row_count,
    report_rows,
    report_unevaluated,
)
from tracelake.spark.checks.samples import Sample, label_columns, order_columns, shorten
from tracelake.wire.task_calls import MAX_SAMPLE_ROWS, CheckReport

assert pyarrow.acero  # groups rows; loaded while the process may still read files
_ROWS = "rows"
Offends = Callable[[tuple[Any, ...]], bool]


class FileOutput(Protocol):
    """`ParquetOutput` or `LinesOutput`."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def finish(self) -> list[FilePiece]: ...


class CheckedOutput:
    """Passes rows on to their output, and looks at each."""

    def __init__(self, output: FileOutput, columns: Sequence[Column], checks: Sequence[OutputCheck]) -> None:
        self._output, self._columns = output, columns
        self._checks = checks
        self._rows = 0
        self._counters: dict[str, _OffendingRows | _EqualRows] = {}
        self._unevaluated: dict[str, CheckReport] = {}
        for check in checks:
            if check.kind is CheckKind.ROW_COUNT:
                continue
            try:
                self._counters[check.name] = self._make_counter(check)
            except NonRetryableError as error:
                self._unevaluated[check.name] = report_unevaluated(check, error)

    def _make_counter(self, check: OutputCheck) -> "_OffendingRows | _EqualRows":
        names = [column.name for column in self._columns]
        positions = find_columns(check, names)
        if check.kind is CheckKind.UNIQUE:
            return _EqualRows(check)
        return _OffendingRows(names, positions, _predicate(check, [self._columns[index] for index in positions]))

    def write(self, batch: pa.RecordBatch) -> None:
        self._output.write(batch)
        self._rows += batch.num_rows
        for counter in self._counters.values():
            counter.add(batch)

    def finish(self) -> list[FilePiece]:
        return self._output.finish()

    def report(self, budget: SampleBudget) -> list[CheckReport]:
        """One for each check, once all rows were written."""
        return [self._report(check, budget) for check in self._checks]

    def _report(self, check: OutputCheck, budget: SampleBudget) -> CheckReport:
        if check.kind is CheckKind.ROW_COUNT:
            return report_row_count(check, self._rows)
        if check.name in self._unevaluated:
            return self._unevaluated[check.name]
        number, sample = self._counters[check.name].result()
        return report_rows(check, number, self._rows, budget.keep(sample))


class _OffendingRows:
    """Counts rows for which a predicate is true, and keeps the first ones as texts."""

    def __init__(self, names: Sequence[str], positions: Sequence[int], offends: Offends) -> None:
        self._positions, self._offends = positions, offends
        self._order = order_columns(len(names), positions)
        self._labels = label_columns([names[index] for index in self._order])
        self._number = 0
        self._sample: Sample = []

    def add(self, batch: pa.RecordBatch) -> None:
        values = zip(*(batch.column(index).to_pylist() for index in self._positions), strict=True)
        for row, cells in enumerate(values):
            if self._offends(cells):
                self._number += 1
                if len(self._sample) < MAX_SAMPLE_ROWS:
                    texts = (_to_text(batch.column(index)[row].as_py()) for index in self._order)
                    self._sample.append(dict(zip(self._labels, texts, strict=True)))

    def result(self) -> tuple[int, Sample]:
        return self._number, self._sample


class _EqualRows:
    """Counts rows that agree in all columns of the check with another one. Only these columns are kept."""

    def __init__(self, check: OutputCheck) -> None:
        self._names = list(check.columns)
        self._batches: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        # By position: two columns of a check may not be called alike, but names of groups could be.
        arrays = [_comparable(batch.column(name)) for name in self._names]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, [f"k{place}" for place in range(len(arrays))]))

    def result(self) -> tuple[int, Sample]:
        if not self._batches:
            return 0, []
        keys = self._batches[0].schema.names
        rows = pa.Table.from_batches(self._batches).drop_null()
        groups = rows.group_by(keys, use_threads=False).aggregate([([], "count_all")])
        equal = groups.filter(pc.greater(groups["count_all"], 1))
        labels = label_columns([*self._names, _ROWS])
        sample = [
            dict(zip(labels, map(_to_text, (*(row[key] for key in keys), row["count_all"])), strict=True))
            for row in equal.slice(0, MAX_SAMPLE_ROWS).to_pylist()
        ]
        return int(pc.sum(equal["count_all"]).as_py() or 0), sample


def _comparable(array: pa.Array) -> pa.Array:
    """-0.0 and 0.0 are one value."""
    return pc.add(array, 0.0) if pa.types.is_floating(array.type) else array


def _predicate(check: OutputCheck, columns: Sequence[Column]) -> Offends:
    """True for values that offend. Raises NonRetryableError if the check does not fit the type of its column."""
    if check.kind is CheckKind.NOT_NULL:
        return lambda values: any(value is None for value in values)
    kind = declared_type(columns[0])
    if check.kind is CheckKind.RANGE:
        return _outside(check, kind)
    accepted = {_value(check, kind, item) for item in check.values}
    return lambda values: values[0] is not None and values[0] not in accepted


def _outside(check: OutputCheck, kind: SqlType) -> Offends:
    if kind.kind not in NUMERIC | TIMES:
        raise NonRetryableError(f"the column {check.columns[0]} is {kind}, which has no such check")
    low = None if check.min is None else _value(check, kind, check.min)
    high = None if check.max is None else _value(check, kind, check.max)

    def offends(values: tuple[Any, ...]) -> bool:
        value = values[0]
        if value is None:
            return False
        if isinstance(value, float) and math.isnan(value):
            return True
        return (low is not None and value < low) or (high is not None and value > high)

    return offends


def _value(check: OutputCheck, kind: SqlType, value: Scalar) -> Any:
    """The value as rows of the column have it in Python; numbers are exact unless the column is not."""
    if wrong := misfit(kind, value):
        raise NonRetryableError(f"the column {check.columns[0]} is {kind}: {wrong} in the check")
    if kind.kind == "double":
        return float(value)  # type: ignore[arg-type]
    if kind.kind in NUMERIC:
        return Decimal(str(value))
    if kind.kind == "binary":
        return bytes.fromhex(str(value).removeprefix("0x"))
    if kind.kind == "date":
        return date.fromisoformat(str(value))
    if kind.kind == "timestamp":
        moment = datetime.fromisoformat(str(value))
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return value


def _to_text(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case bytes():
            return shorten(f"0x{value.hex()}", "binary")
        case Decimal():
            return shorten(format(value, "f"), "decimal")
        case datetime():
            return value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")
    return shorten(str(value), "string")
