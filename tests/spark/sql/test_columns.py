"""Columns that are inferred are those that Spark finds: names, types where they are certain, and mistakes.

The one promise that matters most: a query that Spark accepts has no findings.
"""

import random
import re
from collections.abc import Iterator
from itertools import product

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tests.spark.sql.corpus import CORPUS
from tests.spark.sql.differential import ARGUMENTS, Differential
from tests.spark.sql.queries import BENIGN
from tests.spark.sql.tables import BLOCKS, TRANSFERS, signed
from tracelake.catalogue.sql.columns.analysis import QueryColumns
from tracelake.catalogue.sql.columns.functions import NEEDS_BYTES, NEEDS_NUMBER, NEEDS_TIME
from tracelake.catalogue.sql.columns.scopes import RelationColumn, SqlRelation
from tracelake.catalogue.sql.columns.types import parse_type
from tracelake.catalogue.sql.findings import SqlRefusedError
from tracelake.catalogue.sql.functions import FUNCTIONS
from tracelake.catalogue.sql.gate import analyse, gate

_EXAMPLE = re.compile(r"> (SELECT .*?);\s*$", re.MULTILINE)
TYPES = (
    *("tinyint", "smallint", "int", "bigint", "float", "double", "decimal(20,0)", "decimal(10,2)", "decimal(38,18)"),
    *("string", "binary", "boolean", "date", "timestamp", "timestamp_ntz", "array<int>", "array<bigint>"),
    *("map<string,int>", "struct<a:int,b:string>"),
)


def relation(schema: StructType) -> SqlRelation:
    return SqlRelation(tuple(RelationColumn(field.name, parse_type(field.dataType.simpleString())) for field in schema))


class Oracle:
    """Spark with some views, and the same views for the inference."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        columns = ", ".join(f"CAST(NULL AS {kind}) AS c{index}" for index, kind in enumerate(TYPES))
        session.sql(f"SELECT {columns}").createOrReplaceTempView("typed")
        for name, table in (("transfers", TRANSFERS), ("blocks", BLOCKS)):
            session.createDataFrame(signed(table)).createOrReplaceTempView(name)
        names = ("typed", "facts", "others", "transfers", "blocks")
        self.relations = {name: relation(session.table(name).schema) for name in names}

    def schema(self, query: str) -> StructType | None:
        """What Spark finds; None if it refuses the query."""
        gated = gate(query, frozenset(self.relations))
        arguments = {name: ARGUMENTS[name] for name in gated.parameters}
        try:
            return self.session.sql(gated.sql({name: name for name in gated.relations}), args=arguments).schema
        except PySparkException:
            return None

    def differences(self, query: str) -> list[str]:
        """What is wrong with the inferred columns; raises SqlRefusedError if the gate refuses the query."""
        schema = self.schema(query)
        inferred = analyse(query, self.relations)
        if schema is None:
            return []
        return [f"{query}: {difference}" for difference in _differences(inferred, schema)]


def _differences(inferred: QueryColumns, schema: StructType) -> Iterator[str]:
    yield from (f"{finding.code}: {finding.message}" for finding in inferred.findings)
    if not inferred.relation.complete:
        return
    columns = inferred.relation.columns
    if len(columns) != len(schema.fields):
        yield f"{len(columns)} columns, Spark has {len(schema.fields)}"
        return
    for column, expected in zip(columns, schema.fields, strict=True):
        if column.name is not None and column.name != expected.name:
            yield f"the name {column.name}, Spark has {expected.name}"
        if column.type.is_known and str(column.type) != expected.dataType.simpleString():
            yield f"{column.name} is {column.type}, Spark has {expected.dataType.simpleString()}"


@pytest.fixture(scope="module")
def oracle(spark: SparkSession) -> Iterator[Oracle]:
    differential = Differential(spark)
    yield Oracle(spark)
    differential.close()


def test_the_corpus(oracle: Oracle) -> None:
    differences: list[str] = []
    columns = typed = 0
    for query in (*CORPUS, *BENIGN):
        differences += oracle.differences(query)
        inferred = analyse(query, oracle.relations).relation
        columns += len(inferred.columns)
        typed += sum(column.type.is_known for column in inferred.columns)
    assert differences == []
    assert typed > 0.75 * columns


def test_spark_s_own_examples_of_every_function(oracle: Oracle) -> None:
    differences: list[str] = []
    compared = 0
    for name in sorted(FUNCTIONS - {"timestampadd", "timestampdiff"}):  # grammar, and not functions, to Spark
        rows = oracle.session.sql(f"DESCRIBE FUNCTION EXTENDED {name}").collect()
        for example in _EXAMPLE.findall("\n".join(row[0] for row in rows)):
            try:
                differences += oracle.differences(f"SELECT * FROM ({example}) AS example")
            except SqlRefusedError:
                continue
            compared += 1
    assert differences == []
    assert compared > 400


_OPERATIONS = (
    *("{} + {}", "{} - {}", "{} * {}", "{} / {}", "{} % {}", "{} DIV {}", "{} & {}", "{} = {}", "{} || {}"),
    *("coalesce({}, {})", "array({}, {})", "{} BETWEEN {} AND NULL", "{} IN ({}, NULL)", "max_by({}, {})"),
)


def test_operations_on_all_pairs_of_types(oracle: Oracle) -> None:
    """What is called a mismatch is one for Spark, and what is not has the type that Spark finds."""
    pairs = list(product(range(len(TYPES)), repeat=2))
    random.Random(5).shuffle(pairs)
    differences: list[str] = []
    mismatches = 0
    for operation in _OPERATIONS:
        for left, right in pairs[:40]:
            query = f"SELECT {operation.format(f'c{left}', f'c{right}')} AS x FROM typed"
            differences += oracle.differences(query)
            mismatches += bool(analyse(query, oracle.relations).findings)
    assert differences == []
    assert mismatches > 60


def test_functions_of_one_argument_on_all_types(oracle: Oracle) -> None:
    names = sorted(
        {*NEEDS_NUMBER, *NEEDS_TIME, *NEEDS_BYTES, "min", "upper", "size", "explode", "hex", "ceil", "array_max"}
    )
    more = {"sha2": ", 256", "trunc": ", 'month'", "date_format": ", 'yyyy'"}
    differences: list[str] = []
    for name, index in product(names, range(len(TYPES))):
        arguments = f"'hour', c{index}" if name == "date_trunc" else f"c{index}{more.get(name, '')}"
        query = f"SELECT {name}({arguments}) AS x FROM typed"
        schema = oracle.schema(query)
        assert not (schema is not None and analyse(query, oracle.relations).findings), query
        differences += oracle.differences(query)
    assert differences == []
