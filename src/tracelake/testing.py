"""Tests of your own DAG documents, without a stack.

    from tracelake.testing import check_document, run_job

    def test_the_document():
        check_document("activity.yaml")

    def test_a_day():
        blocks = [{"block_number": 8, "timestamp": 1_772_409_600}]
        rows = run_job("activity.yaml", "daily", {"blocks": blocks, "transactions": []}, unit="2026-03-02")
        assert rows == [...]

`check_document` reports what `trace deploy --plan` would, as far as the document itself tells it. `run_job` computes
one unit of a `spark_sql` job with the code of a worker, on Spark in this process; Java starts with the first call.
"""

import atexit
import gc
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from tracelake.catalogue.sql.config import SparkSqlConfig
from tracelake.dag import DagInvalidError, KnownDataset, Surroundings, TypedDag, read_typed_dag
from tracelake.model.columns import UNKNOWN_COLUMNS, DatasetColumns
from tracelake.model.dag import Dag, Input, JobDocument, ReadMode, UnitGrid
from tracelake.model.runtime import BUILT_IN
from tracelake.model.windows import Window, parse_range, shift_window
from tracelake.spark.operators.spark_sql import run as run_spark_sql
from tracelake.spark.testing import Trial, local_session
from tracelake.wire.units import ReadScope

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows: TypeAlias = "Iterable[Mapping[str, Any]] | pa.Table"
_OPERATOR = "spark_sql"
_RANGE = re.compile(r"([0-9_]+)-([0-9_]+)")
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1",)
"""Most of the CPU time of so few queries would go into optimising Java itself."""
_DECIMAL = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")
_ARROW_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}

# When an interpreter ends, msgspec 0.22 may use what it knows of a type after it was freed: tests that passed would now
# and then end with status 139. What is frozen is not freed before the process ends.
atexit.register(gc.freeze)


class DocumentError(AssertionError):
    """A document has mistakes: one line for each, with its place."""


class SampleError(ValueError):
    """A test names a job, an input, a column or a unit that the document does not have."""


def check_document(path: Path | str, *, datasets: Sequence[str] = ()) -> Dag:
    """The DAG of the document. Raises DocumentError with all of its mistakes.

    `datasets` are those of other DAGs that it reads. Their columns are unknown here, and nothing is said of them.
    """
    return _read(Path(path), datasets).dag


def run_job(
    path: Path | str, job: str, inputs: Mapping[str, Rows], unit: str, *, datasets: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The rows that a `spark_sql` job computes for one unit.

    `inputs` has the rows of each input by the name that the query has for it: maps of columns, or an Arrow table.
    Columns of the dataset that a row leaves out are null. `unit` is a window of time like `2026-03-02`, or blocks like
    `0-999`.
    """
    document = _read(Path(path), datasets)
    definition = _find_job(document.dag, job)
    config = SparkSqlConfig(**definition.config)
    names = _input_names(document.dag, definition, config)
    if unknown := set(inputs).symmetric_difference(names):
        raise SampleError(f"the job {job} reads {', '.join(names)}; the inputs differ in {', '.join(sorted(unknown))}")
    window = _parse_unit(definition, unit)
    with tempfile.TemporaryDirectory() as directory:
        trial = Trial(_session(), Path(directory))
        for name, item in zip(names, definition.inputs, strict=True):
            table = _make_table(name, inputs[name], _find_columns(document, item))
            trial.add_input(name, table, where=item.where, scope=_scope(definition.units, item, window))
        trial.add_output("result")
        trial.run(_OPERATOR, run_spark_sql, definition.config, blocks=(window.start, window.end))
        rows: list[dict[str, Any]] = trial.table().to_pylist()
    return rows


def _read(path: Path, datasets: Sequence[str]) -> TypedDag:
    elsewhere = KnownDataset(owner_dag="elsewhere", schema=None, storage="s3")
    surroundings = Surroundings(runtimes=BUILT_IN, datasets=dict.fromkeys(datasets, elsewhere), bundles={})
    try:
        return read_typed_dag(path.read_bytes(), surroundings)
    except DagInvalidError as error:
        lines = (
            f"{path}:{problem.line}:{problem.column}: {problem.code}: {problem.message} {problem.suggestion}".rstrip()
            for problem in error.problems
        )
        raise DocumentError("\n".join(lines)) from None


def _find_job(dag: Dag, name: str) -> JobDocument:
    definition = next((job for job in dag.jobs if job.name == name), None)
    if definition is None:
        raise SampleError(f"the DAG has no job {name}; it has {', '.join(job.name for job in dag.jobs)}")
    if definition.operator != _OPERATOR:
        raise SampleError(f"expected a job of {_OPERATOR}, received {name}, which runs {definition.operator}")
    return definition


def _input_names(dag: Dag, definition: JobDocument, config: SparkSqlConfig) -> list[str]:
    """What the query calls each input of the job."""
    aliases = {index: name for name, index in config.inputs.items()}
    published = {output: publish.name for publish in dag.publish for output in publish.sources}
    names = []
    for index, item in enumerate(definition.inputs):
        name = item.dataset if item.output is None else published.get(item.output)
        names.append(aliases.get(index) or name or f"input{index}")
    return names


def _parse_unit(definition: JobDocument, unit: str) -> Window:
    grid = definition.units
    try:
        if grid is not None and grid.by == "time":
            return parse_range(grid, unit)
        match = _RANGE.fullmatch(unit.strip())
        if match is None or int(match[1]) > int(match[2]):
            raise ValueError(f"expected blocks like 0-999, received {unit!r}")
        return Window(int(match[1]), int(match[2]))
    except ValueError as error:
        raise SampleError(f"unit: {error}") from None


def _scope(grid: UnitGrid | None, item: Input, window: Window) -> ReadScope | None:
    """How much of the input a task of this window reads; None: just its unit."""
    if item.read is ReadMode.UNIT:
        return None
    in_seconds = grid is not None and grid.by == "time"
    start = window.start
    if item.read is ReadMode.WINDOW and item.lookback:
        assert grid is not None
        start = shift_window(grid, window, -item.lookback).start
    elif item.read is not ReadMode.WINDOW:
        start = 0
    by = item.by if item.read in (ReadMode.WINDOW, ReadMode.HISTORY) else None
    return ReadScope(
        mode=item.read,
        unit_in_seconds=in_seconds,
        columns=item.columns,
        column=by,
        first=None if by is None else start,
        last=None if by is None else window.end,
        time_zone=None if grid is None or by is None else grid.time_zone,
    )


def _find_columns(document: TypedDag, item: Input) -> DatasetColumns:
    if item.columns is not None:
        return UNKNOWN_COLUMNS
    return next((entry.columns for entry in document.columns if entry.output == item.output), UNKNOWN_COLUMNS)


def _make_table(name: str, rows: Rows, columns: DatasetColumns) -> pa.Table:
    """The rows with all columns of the dataset, as far as these are known."""
    if isinstance(rows, pa.Table):
        return rows
    records = [dict(row) for row in rows]
    sample_names = list(dict.fromkeys(column for record in records for column in record))
    types = {column.name: _arrow_type(column.type) for column in columns.columns}
    if columns.complete and (unknown := [column for column in sample_names if column not in types]):
        raise SampleError(f"{name} has no column {unknown[0]}; it has {', '.join(types)}")
    return pa.table(
        {
            column: pa.array([record.get(column) for record in records], types.get(column))
            for column in dict.fromkeys([*types, *sample_names])
        }
    )


def _arrow_type(spark_type: str) -> pa.DataType | None:
    """None: as Arrow makes it of the values."""
    if match := _DECIMAL.fullmatch(spark_type):
        return pa.decimal128(int(match[1]), int(match[2]))
    return _ARROW_TYPES.get(spark_type)


@cache
def _session() -> "SparkSession":
    """One for the process: to start it takes seconds."""
    stack = ExitStack()
    atexit.register(stack.close)
    scratch = stack.enter_context(tempfile.TemporaryDirectory())
    return stack.enter_context(local_session(Path(scratch), java_options=_SHORT_LIVED))
