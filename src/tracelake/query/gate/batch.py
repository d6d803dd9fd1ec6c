"""Batch queries, whose SQL is Spark's: the gate of `spark_sql`, with errors of the catalogue.

The worker checks a query again before it runs it, with Spark's own parser as well (`spark.plan_gate`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracelake.catalogue.spec import ConfigFieldError
from tracelake.catalogue.sql.findings import SqlRefusedError
from tracelake.catalogue.sql.gate import gate_with_values
from tracelake.catalogue.sql.query_config import BatchParameter, read_value
from tracelake.errors import TraceError
from tracelake.query.gate.parameters import LIST, QueryParameter, check_parameters
from tracelake.query.gate.refusals import closest, refuse
from tracelake.wire.batch_query import MAX_RELATIONS

_CODES = {
    "sql_function": "query_unknown_function",
    "sql_relation": "query_unknown_relation",
    "sql_parameter": "query_parameter",
    "sql_limit": "query_too_complex",
    "sql_syntax": "query_syntax",
    "sql_text": "query_syntax",
    "sql_argument": "query_invalid",
    "sql_column": "query_invalid",
    "sql_name": "query_invalid",
}
"""Whatever else the gate finds is something that queries may not use."""


@dataclass(frozen=True, slots=True)
class CheckedBatchQuery:
    """What a query that passed reads."""

    relations: list[str]
    blocks: dict[str, tuple[int, int]]
    """Of relations of which it does not need all blocks."""


def check_batch_query(
    sql: str, parameters: Mapping[str, QueryParameter], relations: Sequence[str]
) -> CheckedBatchQuery:
    """Raises TraceError."""
    check_parameters(parameters)
    values: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if isinstance(parameter.value, list) or parameter.type.endswith(LIST):
            message = f"`${name}` is a list, which batch queries do not take. Send each item by itself."
            raise refuse("query_parameter", message, name=name)
        try:
            values[name] = read_value(name, BatchParameter(parameter.type, parameter.value))
        except ConfigFieldError as error:
            raise refuse("query_parameter", f"{error}.", name=name) from None
    try:
        query = gate_with_values(sql, frozenset(relations), values)
    except SqlRefusedError as error:
        raise _refusal(error, relations) from None
    if len(query.relations) > MAX_RELATIONS:
        raise refuse("query_too_complex", f"A query reads at most {MAX_RELATIONS} datasets.")
    return CheckedBatchQuery(sorted(query.relations), dict(query.blocks))


def _refusal(error: SqlRefusedError, relations: Sequence[str]) -> TraceError:
    finding = error.finding
    code = _CODES.get(finding.code, "query_not_allowed")
    name = finding.message.partition("`")[2].partition("`")[0]
    names = closest(name, relations) if code == "query_unknown_relation" else ()
    message = f"{finding.message[:1].upper()}{finding.message[1:]}."
    if finding.suggestion:
        message += f" {finding.suggestion}"
    refusal = refuse(code, message, suggestions=names)
    refusal.details |= {"line": finding.line, "column": finding.column}
    return refusal
