"""Columns that are inferred before a query runs, against sqlglot's optimizer and Spark's own analysis.

    python -m benchmarks.columns [--quick | --smoke]

The queries are those of the corpus of the SQL gate that Spark accepts. The last line is one JSON object.

- `queries`, `columns`: what Spark accepts, and the columns of the results.
- For `trace` (`catalogue.sql.columns`) and `sqlglot` (`qualify` and `annotate_types`): `refused`, queries that are
  called wrong; `wrong_names` and `wrong_types`, columns that Spark names or types otherwise; `typed`, columns with a
  type; `seconds` for all queries, parsing included.
- `spark_seconds`: Spark's analysis of the same queries, in a session that is warm.
"""

import json
import logging
import re
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlglot
from pyspark.sql.types import StructType
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify
from sqlglot.schema import MappingSchema
from tests.spark.sql.corpus import CORPUS
from tests.spark.sql.differential import Differential
from tests.spark.sql.queries import BENIGN
from tests.spark.sql.test_columns import Oracle

from benchmarks.support.options import parse_scale, say
from tracelake.catalogue.sql.gate import analyse
from tracelake.spark.session import SharedSession, SparkConfig

_UNTYPED = ("unknown", "null", "void")


@dataclass
class Verdicts:
    refused: int = 0
    wrong_names: int = 0
    wrong_types: int = 0
    typed: int = 0
    seconds: float = 0.0

    def compare(self, name: str | None, kind: str, expected_name: str, expected_kind: str) -> None:
        self.wrong_names += name is not None and name != expected_name
        if kind not in _UNTYPED:
            self.typed += 1
            self.wrong_types += kind != expected_kind


def judge_trace(query: str, oracle: Oracle, schema: StructType, verdicts: Verdicts) -> None:
    began = time.monotonic()
    inferred = analyse(query, oracle.relations)
    verdicts.seconds += time.monotonic() - began
    verdicts.refused += bool(inferred.findings)
    if inferred.relation.complete and not inferred.findings:
        for column, field in zip(inferred.relation.columns, schema.fields, strict=True):
            kind = str(column.type) if column.type.is_known else "unknown"
            verdicts.compare(column.name, kind, field.name, field.dataType.simpleString())


def judge_sqlglot(query: str, relations: MappingSchema, schema: StructType, verdicts: Verdicts) -> None:
    plain = re.sub(r"\$\{(\w+)\}", r":\1", query).rstrip("; \n")
    began = time.monotonic()
    try:
        tree = qualify(
            sqlglot.parse_one(plain, read="spark"), schema=relations, dialect="spark", quote_identifiers=False
        )
        tree = annotate_types(tree, schema=relations, dialect="spark")
    except SqlglotError:
        verdicts.refused += 1
        return
    finally:
        verdicts.seconds += time.monotonic() - began
    items = tree.selects if isinstance(tree, exp.Query) else []
    if len(items) != len(schema.fields):
        verdicts.wrong_names += len(schema.fields)
        return
    for item, field in zip(items, schema.fields, strict=True):
        kind = "unknown" if item.type is None else item.type.sql("spark").lower()
        kind = kind.replace(", ", ",").replace(": ", ":")
        verdicts.compare(item.alias_or_name, kind, field.name, field.dataType.simpleString())


def main() -> None:
    scale = parse_scale(__doc__)
    queries = [*CORPUS, *BENIGN][:: scale.pick(1, 3, 20)]
    logging.disable(logging.CRITICAL)  # Spark logs every query that it refuses
    trace, optimizer = Verdicts(), Verdicts()
    accepted = columns = 0
    spark_seconds = 0.0
    with tempfile.TemporaryDirectory(prefix="trace-columns-") as directory:
        shared = SharedSession(SparkConfig(Path(directory), master="local[2]", memory="1g", log_level="off"))
        differential = Differential(shared.get())
        oracle = Oracle(shared.get())
        relations = MappingSchema(
            {
                name: {str(item.name): str(item.type) for item in each.columns}
                for name, each in oracle.relations.items()
            },
            dialect="spark",
        )
        for query in queries:
            began = time.monotonic()
            schema = oracle.schema(query)
            spark_seconds += time.monotonic() - began
            if schema is None:
                continue
            accepted, columns = accepted + 1, columns + len(schema.fields)
            judge_trace(query, oracle, schema, trace)
            judge_sqlglot(query, relations, schema, optimizer)
        differential.close()
        shared.close()
    say(f"{accepted} queries with {columns} columns: trace {trace}, sqlglot {optimizer}")
    figures = {"queries": accepted, "columns": columns, "spark_seconds": round(spark_seconds, 2)}
    for name, verdicts in (("trace", trace), ("sqlglot", optimizer)):
        figures |= {f"{name}_{key}": round(value, 2) for key, value in asdict(verdicts).items()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
