"""What the gate writes means to Spark what the text meant: rows, precedence, texts, functions."""

import random
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.sql.queries import BENIGN
from tests.spark.sql.tables import BLOCKS, TRANSFERS, signed
from tracelake.catalogue.sql.findings import SqlRefusedError
from tracelake.catalogue.sql.functions import FUNCTIONS
from tracelake.catalogue.sql.gate import gate
from tracelake.catalogue.sql.nodes import text_literal
from tracelake.spark.plan_gate import check_analysed, check_parsed

VIEWS = {"transfers": "transfers", "blocks": "blocks"}
ARGUMENTS = {"start": 1, "end": 3, "after": 0, "to": 3, "partition_key": "1-3"}


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    for name, table in (("transfers", TRANSFERS), ("blocks", BLOCKS)):
        spark.createDataFrame(signed(table)).createOrReplaceTempView(name)
    spark.conf.set("spark.sql.variable.substitute", "false")
    return spark


@pytest.mark.parametrize("query", BENIGN, ids=lambda query: query[:70])
def test_the_same_rows(session: SparkSession, query: str) -> None:
    gated = gate(query, frozenset(VIEWS))
    written = gated.sql(VIEWS)
    check_parsed(session, written, VIEWS)
    frame = session.sql(written, args={name: ARGUMENTS[name] for name in gated.parameters})
    check_analysed(frame, VIEWS)
    plain = re.sub(r"\$\{(\w+)\}", r":\1", query).rstrip(";")
    expected = session.sql(plain, args={name: ARGUMENTS[name] for name in gated.parameters})
    assert frame.columns == expected.columns
    assert rows(frame) == rows(expected)


def rows(frame: Any) -> list[str]:
    return sorted(str(row) for row in frame.collect())


_OPERATORS = ["+", "-", "*", "/", "DIV", "%", "&", "|", "^", "||", "=", "<>", "<", ">=", "<=>", "!=", "==", "AND", "OR"]
_OPERATORS += ["LIKE", "RLIKE", "IS DISTINCT FROM", "NOT LIKE"]
_BEFORE = ["", "", "", "", "- ", "NOT ", "~ ", "! "]
_BEHIND = [
    "",
    "",
    "",
    "",
    " IS NULL",
    " IS NOT NULL",
    " IN (1, 2)",
    " NOT IN (3)",
    " BETWEEN 1 AND 2",
    " NOT BETWEEN 1 AND 2",
]
_BEHIND += ["::INT", "[0]", " IS TRUE", " IS NOT FALSE", " ILIKE 'x'"]
_VALUES = ["a", "b", "2.5", "t.a", "'x'", "abs(a)", "(a)", "(a + b)", "CASE WHEN a THEN b END"]


def expression(choose: random.Random) -> str:
    parts = []
    for number in range(choose.randint(2, 4)):
        parts += [choose.choice(_OPERATORS)] if number else []
        parts.append(choose.choice(_BEFORE) + choose.choice(_VALUES) + choose.choice(_BEHIND))
    return " ".join(parts)


def test_what_is_taken_together(session: SparkSession) -> None:
    """Without brackets, Spark's grammar decides; whatever the gate does not refuse, it reads in the same way."""
    parser = session._jsparkSession.sessionState().sqlParser()

    def plan(sql: str) -> str:
        try:
            text = str(parser.parsePlan(sql).toString())
        except PySparkException:
            return "not SQL"
        return re.sub(r"#\d+L?", "", text).replace("NOT isnull(", "isnotnull(")

    choose = random.Random(11)
    passed = 0
    for _ in range(1500):
        query = f"SELECT {expression(choose)} AS x FROM t"
        try:
            written = gate(query, frozenset({"t"})).sql({"t": "t"}).replace("FROM `t` AS `t`", "FROM t")
        except SqlRefusedError:
            continue
        expected = plan(query)
        if expected != "not SQL":
            passed += 1
            assert plan(written) == expected, query
    assert passed > 150


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=20).filter(lambda text: text.isprintable()), min_size=1, max_size=20))
def test_texts_arrive_as_they_are(session: SparkSession, texts: list[str]) -> None:
    columns = ", ".join(text_literal(text) for text in texts)
    assert session.sql(f"SELECT array({columns}) AS a").collect()[0].a == texts


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(alphabet="ab'\"\\ntr0%_uZ dx", max_size=8), min_size=1, max_size=10))
def test_quoted_texts_are_read_as_spark_reads_them(session: SparkSession, texts: list[str]) -> None:
    for text in texts:
        query = f"SELECT '{text}' AS x"
        try:
            written = gate(query).text
        except SqlRefusedError:
            continue
        assert outcome(session, written) == outcome(session, query)


def outcome(session: SparkSession, sql: str) -> object:
    try:
        return session.sql(sql).collect()
    except PySparkException as error:
        return error.getCondition()


def test_spark_knows_every_function(session: SparkSession) -> None:
    known = {row[0] for row in session.sql("SHOW SYSTEM FUNCTIONS").collect()}
    grammar = {"timestampadd", "timestampdiff"}
    assert FUNCTIONS - known - grammar == set()
