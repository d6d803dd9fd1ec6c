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
        differences += oracle.differences(query)
    assert differences == []


# --- random queries

_NAMES = ("k", "k", "k", "k", "k", "g", "n", "d", "v", "zz")


def _expression(choose: random.Random, owners: list[str], depth: int = 0) -> str:
    kind = choose.randrange(9 if depth < 2 else 3)
    if kind < 2:
        owner = choose.choice(["", *owners, *owners])
        return (f"{owner}." if owner else "") + choose.choice(_NAMES)

    def part() -> str:
        return _expression(choose, owners, depth + 1)

    return {
        2: lambda: choose.choice(["1", "2.5", "'x'", "3L", "NULL", "-7", "1e3"]),
        3: lambda: f"({part()} {choose.choice(['+', '-', '*', '/', '%'])} {part()})",
        4: lambda: f"coalesce({part()}, {part()})",
        5: lambda: f"CASE WHEN {part()} = {part()} THEN {part()} ELSE {part()} END",
        6: lambda: f"{choose.choice(['abs', 'upper', 'length', 'hex', 'round', 'ceil'])}({part()})",
        7: lambda: f"CAST({part()} AS {choose.choice(['STRING', 'BIGINT', 'DECIMAL(20,4)'])})",
        8: lambda: f"({part()} IN ({part()}, {part()}))",
    }[kind]()


def _query(choose: random.Random, depth: int = 0) -> str:
    """A SELECT whose names may be unknown, ambiguous, hidden by USING, or aliases of its own."""
    relations = []
    for index in range(choose.randint(1, 2)):
        nested = depth < 2 and choose.random() < 0.3
        relations.append(
            (f"({_query(choose, depth + 1)})" if nested else choose.choice(["facts", "others"]), f"r{index}")
        )
    owners = [name for _, name in relations]
    text = f"{relations[0][0]} AS {owners[0]}"
    for relation, name in relations[1:]:
        side = choose.choice(["", "LEFT ", "RIGHT ", "FULL ", "LEFT SEMI ", "LEFT ANTI "])
        condition = choose.choice([f"ON {owners[0]}.k = {name}.k", "USING (k)", "USING (k, g)"])
        text += f" {side}JOIN {relation} AS {name} {condition}"
    items = [
        f"{_expression(choose, owners)} AS {choose.choice(_NAMES)}{index or ''}"
        for index in range(choose.randint(1, 3))
    ]
    items += choose.choice([[], [], ["*"], [f"{owners[0]}.*"], [choose.choice(_NAMES)]])
    query = f"SELECT {', '.join(items)} FROM {text}"
    if choose.random() < 0.4:
        query += f" WHERE {_expression(choose, owners)} = {_expression(choose, owners)}"
    if choose.random() < 0.3:
        query += f" ORDER BY {_expression(choose, owners)}"
    if depth == 0 and choose.random() < 0.2:
        query = f"{query} UNION ALL {_query(choose, 1)}" if "ORDER BY" not in query else query
    return query


def test_random_queries(oracle: Oracle) -> None:
    """No query that Spark accepts has a finding; and of those with wrong names, most are found."""
    choose = random.Random(20)
    differences: list[str] = []
    accepted = refused = detected = 0
    for _ in range(150):
        query = _query(choose)
        try:
            schema = oracle.schema(query)
        except SqlRefusedError:
            continue
        inferred = analyse(query, oracle.relations)
        if schema is None:
            refused += 1
            detected += bool(inferred.findings)
        else:
            accepted += 1
            differences += [f"{query}: {difference}" for difference in _differences(inferred, schema)]
    assert differences == []
    assert accepted > 10
    assert detected > 0.7 * refused
