"""A SELECT over the inputs of a task.

The query passed the gate when the DAG was deployed, and passes it again here: Spark gets the text that the gate wrote.
Inputs become temporary views whose names no other attempt has, because tasks of a worker share sessions.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tracelake.catalogue.context import CanceledError, NonRetryableError, OperatorResult
from tracelake.catalogue.sql.config import SparkSqlConfig
from tracelake.catalogue.sql.findings import SqlRefusedError
from tracelake.catalogue.sql.gate import GatedQuery
from tracelake.catalogue.sql.nodes import NAME
from tracelake.spark.failures import SparkFailedError, explain
from tracelake.spark.plan_gate import PassedQueries, PlanFacts, check_analysed, check_parsed
from tracelake.spark.work import SparkWork

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOCK = "block_number"
_SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Names of files as tables, and ${...} inside of texts: nobody here means that.
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
}
CONDITION = re.compile(r"\[(?P<name>[A-Z][A-Z0-9_.]*)\] (?P<text>[^\n/]*?) ?SQLSTATE: (?P<state>[0-9A-Z]{5})")
FINAL_STATES = ("0A", "21", "22", "42")
"""Classes of SQLSTATE that another attempt does not change: not supported, too many rows, bad data, bad names."""
_passed = PassedQueries()
_WITHOUT_FILES = frozenset({"void", "interval", "variant", "geometry", "geography"})


def run(work: SparkWork) -> OperatorResult:
    config = work.context.config
    assert isinstance(config, SparkSqlConfig)
    query, sources = _resolve(work, config)
    parameters = unit_parameters(work, query)
    work.settle([sources[name] for name in query.relations])
    prepare_session(work.session)
    views = {
        name: f"trace_{work.context.task_id.hex}_{work.context.attempt}_{number}"
        for number, name in enumerate(sorted(query.relations))
    }
    with names_of_the_query(work, {view: name for name, view in views.items()}):
        try:
            frames = {name: work.read(sources[name]) for name in views}
            for name, view in views.items():
                frames[name].createOrReplaceTempView(view)
            frame, facts = run_query(work.session, query, views, frames, parameters)
            _check_result(work, frame, config)
            work.context.progress("the query runs")
            report = work.write(
                frame,
                order=config.order_by or (),
                files=config.files,
                unique=config.unique,
                row_by_row=facts.row_by_row,
            )
        finally:
            for view in views.values():
                work.session.catalog.dropTempView(view)
    work.context.progress(f"{report.rows} rows in {len(report.files)} files")
    return work.result()


def _resolve(work: SparkWork, config: SparkSqlConfig) -> tuple[GatedQuery, dict[str, int]]:
    """The query, and which input each of its names is."""
    inputs = work.context.inputs
    try:
        query = config.gated([item.name for item in inputs])
    except SqlRefusedError as error:
        raise NonRetryableError(f"{error.finding} {error.finding.suggestion}".strip()) from None
    if config.inputs:
        indexes = {item.input_index for item in inputs}
        sources = {name.lower(): index for name, index in config.inputs.items()}
        if missing := sorted(index for index in sources.values() if index not in indexes):
            raise NonRetryableError(f"the config names input {missing[0]}, and the job has {len(inputs)}")
        return query, sources
    sources = {}
    for item in inputs:
        if item.name.lower() in sources and item.name.lower() in query.relations:
            raise NonRetryableError(f"two inputs are called {item.name}: give them names in `inputs` of the config")
        sources[item.name.lower()] = item.input_index
    return query, sources


def unit_parameters(work: SparkWork, query: GatedQuery) -> dict[str, Any]:
    """What `${...}` stands for; handed to Spark as values, never as text."""
    values: dict[str, Any] = {}
    if query.parameters - {"partition_key"}:
        start, end = work.blocks
        values = {"start": start, "end": end, "after": start - 1, "to": end}
    if "partition_key" in query.parameters:
        key = work.unit.partition_key
        if key is None:
            raise NonRetryableError("the query asks for ${partition_key}, and the unit is a range of a cursor")
        values["partition_key"] = key
    return {name: values[name] for name in query.parameters}


def run_query(
    session: "SparkSession",
    query: GatedQuery,
    views: Mapping[str, str],
    frames: "Mapping[str, DataFrame]",
    parameters: dict[str, Any],
) -> "tuple[DataFrame, PlanFacts]":
    """The rows of the query, which passes Spark's own gate here, once for inputs of the same columns.

    Apart from names of views, and values of parameters, all attempts at a query are the same to Spark: limits, by which
    it tells that a relation is small, are numbers in the text."""
    columns = tuple((name, frame.schema.json()) for name, frame in sorted(frames.items()))
    kinds = tuple((name, type(value), _is_long(value)) for name, value in sorted(parameters.items()))
    key = (query.text, columns, kinds)
    facts = _passed.get(key)
    sql = query.sql(views)
    if facts is not None:
        return session.sql(sql, args=parameters), facts
    check_parsed(session, sql, views.values())
    frame = session.sql(sql, args=parameters)
    facts = check_analysed(frame, views.values())
    _passed.add(key, facts)
    return frame, facts


def _is_long(value: object) -> bool:
    """Spark gives numbers a type by their size."""
    return isinstance(value, int) and not -(2**31) <= value < 2**31


def prepare_session(session: "SparkSession") -> None:
    """Gives the session the settings that the gate relies on."""
    for name, value in _SETTINGS.items():
        if session.conf.get(name) != value:
            session.conf.set(name, value)


def _check_result(work: SparkWork, frame: "DataFrame", config: SparkSqlConfig) -> None:
    from pyspark.sql.types import DecimalType, IntegralType

    columns = frame.columns
    if bad := [name for name in columns if not NAME.fullmatch(name)]:
        raise NonRetryableError(f"the column {bad[0]!r} of the result has no proper name: write `... AS name`")
    folded = [name.lower() for name in columns]
    if twice := [name for name in folded if folded.count(name) > 1]:
        raise NonRetryableError(f"the result has two columns {twice[0]}: rename one, or name the columns you want")
    for column in (*(config.order_by or ()), *config.unique):
        if column not in columns:
            raise NonRetryableError(f"the result has no column {column}; it has {', '.join(columns[:20])}")
    if BLOCK in columns and work.tables and work.output().storage.kind != "buffered":
        raise NonRetryableError(
            f"the unit of this task counts commits of a table, so files cannot have a column {BLOCK}: rename it"
        )
    for item in frame.schema.fields:
        if unstorable := unstorable_types(item.dataType):
            raise NonRetryableError(f"the column {item.name} is {min(unstorable)}, which no file can hold: CAST it")
        whole = isinstance(item.dataType, IntegralType) or (
            isinstance(item.dataType, DecimalType) and item.dataType.scale == 0
        )
        if item.name == BLOCK and not whole:
            raise NonRetryableError(f"the column {BLOCK} of the result is not a whole number")


def unstorable_types(kind: Any) -> set[str]:
    """Those of the type and of the types in it that no file can hold."""
    return _type_words(kind) & _WITHOUT_FILES


def _type_words(kind: Any) -> set[str]:
    """Names of the type and of those in it, and of no field."""
    inner = [getattr(kind, name) for name in ("elementType", "keyType", "valueType") if hasattr(kind, name)]
    inner += [field.dataType for field in getattr(kind, "fields", [])]
    name = kind.typeName()
    words = {"interval" if "interval" in name else name}
    return words.union(*(_type_words(item) for item in inner))


@contextmanager
def names_of_the_query(work: SparkWork, names: Mapping[str, str]) -> Iterator[None]:
    """Errors of Spark become ours, short, and speak of inputs by the names that the query has for them."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        if work.context.cancel.is_set():
            raise CanceledError from None
        explained = explain(error)
        # Some errors of the engine come without their class; what they say is in the text.
        if isinstance(explained, SparkFailedError) and (match := CONDITION.search(str(error))):
            kind = NonRetryableError if match["state"].startswith(FINAL_STATES) else SparkFailedError
            explained = kind(f"[{match['name']}] {match['text'].strip()[:300]}")
        message = str(explained)
        for view, name in names.items():
            message = message.replace(view, name)
        raise type(explained)(message) from None
