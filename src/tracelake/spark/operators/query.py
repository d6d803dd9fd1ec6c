"""A person's batch query: one SELECT over whole datasets, with typed values, into the files of its result.

The query passed the gate when it was submitted, and passes it again here; what Spark makes of it passes the plan gate.
Errors are of the catalogue of errors, by their codes: texts of Spark quote the query and its values, and an error is
stored, logged and shown to others.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tracelake.catalogue.context import CanceledError, NonRetryableError, OperatorResult
from tracelake.catalogue.sql.gate import GatedQuery
from tracelake.catalogue.sql.nodes import NAME
from tracelake.catalogue.sql.query_config import BatchQueryConfig, result_unit
from tracelake.errors.catalogue import CATALOGUE
from tracelake.model.prefixes import parse_uri
from tracelake.spark.failures import SparkFailedError, explain
from tracelake.spark.operators.spark_sql import CONDITION, FINAL_STATES, prepare_session, unstorable_types
from tracelake.spark.plan_gate import PlanRefusedError, check_analysed, check_parsed
from tracelake.spark.sizes import file_count, is_small
from tracelake.spark.work import SparkWork
from tracelake.spark.writer import Spread, Written, mark_success, write_frame
from tracelake.wire.task_calls import DatasetPublished, OutputReport, ReportedColumn, StorageRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CODES = (
    ("DIVIDE_BY_ZERO", "query_division_by_zero"),
    ("REMAINDER_BY_ZERO", "query_division_by_zero"),
    ("UNRESOLVED_COLUMN", "query_unknown_column"),
    ("UNRESOLVED_FIELD", "query_unknown_column"),
    ("FIELD_NOT_FOUND", "query_unknown_column"),
    ("UNRESOLVED_ROUTINE", "query_unknown_function"),
    ("PARSE_SYNTAX_ERROR", "query_syntax"),
)
"""Beginnings of names of Spark's conditions."""
_BY_STATE = {"22": "query_value_invalid", "42": "query_invalid", "0A": "query_not_allowed", "21": "query_value_invalid"}
_IDENTIFIER = re.compile(r"[\w`.]{1,100}")


def run(work: SparkWork) -> OperatorResult:
    config = work.context.config
    assert isinstance(config, BatchQueryConfig)
    query, values = config.gated(), config.values()
    work.settle([config.inputs[name] for name in query.relations])
    prepare_session(work.session)
    views = {
        name: f"trace_{work.context.task_id.hex}_{work.context.attempt}_{number}"
        for number, name in enumerate(sorted(query.relations))
    }
    with _catalogue_errors(work):
        try:
            for name, view in views.items():
                work.read(config.inputs[name]).createOrReplaceTempView(view)
            frame = _query(work, query, views, {name: values[name] for name in query.parameters})
            if config.limit is not None:
                frame = frame.limit(config.limit)
            _check_columns(frame)
            work.context.progress("the query runs")
            report = _write(work, frame, ordered=query.ordered)
        finally:
            for view in views.values():
                work.session.catalog.dropTempView(view)
        if config.max_bytes is not None and report.size > config.max_bytes:
            raise _failure("query_export_too_large", f"The result has {report.size:,} bytes.")
    work.context.progress(f"{report.rows} rows in {len(report.files)} files")
    return _result(work, frame, report)


def _query(work: SparkWork, query: GatedQuery, views: Mapping[str, str], values: dict[str, Any]) -> "DataFrame":
    sql = query.sql(views)
    check_parsed(work.session, sql, views.values())
    frame = work.session.sql(sql, args=values)
    check_analysed(frame, views.values())
    return frame


def _check_columns(frame: "DataFrame") -> None:
    names = [name.lower() for name in frame.columns]
    for item in frame.schema.fields:
        if not NAME.fullmatch(item.name):
            raise _failure("query_invalid", "A column of the result has no plain name: write `... AS name`.")
        if names.count(item.name.lower()) > 1:
            raise _failure("query_invalid", f"The result has two columns {item.name}: rename one.")
        if unstorable := unstorable_types(item.dataType):
            raise _failure("query_invalid", f"The column {item.name} is {min(unstorable)}: CAST it.")


def _write(work: SparkWork, frame: "DataFrame", *, ordered: bool) -> Written:
    """Rows that the query sorts are one file, in their order; others are written side by side."""
    target = work.target(block_column=None)
    size = work.input_bytes or 0
    spread = Spread(1, small=True) if ordered or is_small(size) else Spread(file_count(size), exact=True)
    report = write_frame(frame, target, 0, 0, spread=spread)
    mark_success(target, report.files)
    work.written[0] = report
    return report


def _result(work: SparkWork, frame: "DataFrame", report: Written) -> OperatorResult:
    """The files, and nothing that anybody would be told of."""
    output = work.output()
    assert output.storage.write_prefix is not None
    place = parse_uri(output.storage.write_prefix)
    assert place is not None
    result = OperatorResult()
    result.outputs.append(
        OutputReport(
            output_index=0,
            dataset_uuid=output.dataset_uuid,
            dataset_version=output.dataset_version,
            row_count=report.rows,
            size_bytes=report.size,
            file_count=len(report.files),
            columns=[
                ReportedColumn(name=field.name, type=field.dataType.simpleString()[:1000])
                for field in frame.schema.fields
            ],
        )
    )
    number = result_unit(work.context.task_id)
    result.datasets_published.append(
        DatasetPublished(
            dataset_uuid=output.dataset_uuid,
            dataset_version=output.dataset_version,
            storage_ref=StorageRef(scheme="s3", bucket=place[0], prefix=place[1], glob="*.parquet"),
            range_start=number,
            range_end=number,
        )
    )
    return result


def _failure(code: str, text: str = "") -> NonRetryableError:
    return NonRetryableError(f"{code}: {text or CATALOGUE[code].message}")


@contextmanager
def _catalogue_errors(work: SparkWork) -> Iterator[None]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except PlanRefusedError as error:
        raise _failure("query_not_allowed", f"{error}.") from None
    except (PySparkException, Py4JError) as error:
        if work.context.cancel.is_set():
            raise CanceledError from None
        raise _classify(error) from None


def _classify(error: Exception) -> Exception:
    from pyspark.errors import PySparkException

    explained = explain(error)
    if isinstance(explained, CanceledError):
        return explained
    name, state = "", ""
    if isinstance(error, PySparkException):
        name, state = error.getCondition() or "", error.getSqlState() or ""
    if not state.startswith(FINAL_STATES) and (match := CONDITION.search(str(error))):
        # Some errors of the engine come without their class; what they say is in the text.
        name, state = match["name"], match["state"]
    if state.startswith(FINAL_STATES):
        code = next(
            (code for start, code in _CODES if name.startswith(start)), _BY_STATE.get(state[:2], "query_failed")
        )
        text = CATALOGUE[code].message
        parameters = error.getMessageParameters() if isinstance(error, PySparkException) else None
        column = (parameters or {}).get("objectName", "")
        if code == "query_unknown_column" and _IDENTIFIER.fullmatch(column):
            text = f"The query names a column that does not exist: {column}."
        return _failure(code, f"{text} (Spark: {name})")
    if isinstance(explained, NonRetryableError):  # of our own code in an executor
        return _failure("query_failed", str(explained))
    return SparkFailedError("query_failed: Spark could not compute it; another attempt may")
