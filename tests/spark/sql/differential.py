"""Runs a query as it stands and as the gate writes it, and compares what comes out."""

import re
from collections.abc import Iterable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.sql.corpus import FACTS, OTHERS
from tracelake.catalogue.sql.gate import gate
from tracelake.catalogue.sql.nodes import NAME

VIEWS = {"facts": "facts", "others": "others"}
ARGUMENTS = {"start": 1, "end": 3, "after": 0, "to": 3, "partition_key": "1-3"}

_SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.variable.substitute": "false",
    "spark.sql.runSQLOnFiles": "false",
    # Compiling takes longer than these queries.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


class Differential:
    """One Spark session with the tables of the corpus."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)
        for name, rows in (("facts", FACTS), ("others", OTHERS)):
            session.sql(rows).createOrReplaceTempView(name)

    def is_parsed(self, query: str) -> bool:
        """Whether Spark's own parser takes the query as it stands."""
        try:
            self.session._jsparkSession.sessionState().sqlParser().parsePlan(_plain(query))
        except PySparkException:
            return False
        return True

    def compare(self, query: str, *, run: bool = True) -> str:
        """Raises SqlRefusedError. "" if both mean the same, else the difference. Without `run`, two plans that Spark
        holds to be the same are not run."""
        gated = gate(query, frozenset(VIEWS))
        arguments = {name: ARGUMENTS[name] for name in gated.parameters}
        written = gated.sql(VIEWS)
        before, after = self._analyse(_plain(query), arguments), self._analyse(written, arguments)
        if isinstance(before, str) or isinstance(after, str):
            return "" if before == after else f"{query}\n{written}\n{before}\n{after}"
        if _schema(before) != _schema(after):
            return f"{query}\n{written}\n{before.schema}\n{after.schema}"
        if not run and before.sameSemantics(after):
            return ""
        is_sorted = bool(re.search(r" ORDER BY [^()]*$", written))
        rows, written_rows = _rows(before, is_sorted), _rows(after, is_sorted)
        return "" if rows == written_rows else f"{query}\n{written}\n{rows}\n{written_rows}"

    def close(self) -> None:
        for name in _SETTINGS:
            self.session.conf.unset(name)

    def _analyse(self, sql: str, arguments: dict[str, Any]) -> DataFrame | str:
        try:
            return self.session.sql(sql, args=arguments)
        except PySparkException as error:
            return _condition(error)


def _plain(query: str) -> str:
    return re.sub(r"\$\{(\w+)\}", r":\1", query).rstrip("; \n")


def _condition(error: PySparkException) -> str:
    return f"refused: {error.getCondition()}"


def _schema(frame: DataFrame) -> list[tuple[str, str, bool]]:
    """Names that Spark makes up show how a text is written; no result of a task can have them."""
    fields = frame.schema.fields
    return [(field.name if NAME.fullmatch(field.name) else "", str(field.dataType), field.nullable) for field in fields]


def _rows(frame: DataFrame, is_sorted: bool) -> Iterable[str]:
    try:
        rows = [str(row) for row in frame.collect()]
    except PySparkException as error:
        return _condition(error)
    return rows if is_sorted else sorted(rows)
