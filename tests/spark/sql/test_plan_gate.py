"""The second gate, on its own: what Spark understood. Queries come here as if the first gate had let them through."""

import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.sql.corpus import CORPUS, FACTS, OTHERS
from tests.spark.sql.differential import ARGUMENTS
from tests.spark.sql.hostile import HOSTILE
from tests.spark.sql.tables import BLOCKS, TRANSFERS, signed
from tracelake.catalogue.sql.findings import SqlRefusedError
from tracelake.catalogue.sql.gate import gate
from tracelake.spark.plan_gate import PlanRefusedError, check_analysed, check_parsed

VIEWS = ["v_transfers", "v_blocks"]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.createDataFrame(signed(TRANSFERS)).createOrReplaceTempView("v_transfers")
    spark.createDataFrame(signed(BLOCKS)).createOrReplaceTempView("v_blocks")
    spark.createDataFrame(signed(BLOCKS)).createOrReplaceTempView("v_of_another_task")
    spark.conf.set("spark.sql.variable.substitute", "false")
    return spark


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM v_of_another_task",
        "SELECT * FROM text.`/etc/passwd`",
        "SELECT * FROM range(10)",
        "SELECT * FROM VALUES (1) JOIN v_of_another_task",
        "SELECT reflect('java.lang.System', 'getenv', 'HOME')",
        "SELECT java_method('java.util.UUID', 'randomUUID')",
        "SELECT system.builtin.upper('x')",
        "SELECT default.f(1)",
        "SELECT rand()",
        "SELECT * FROM v_transfers WHERE EXISTS (SELECT 1 FROM v_of_another_task)",
        "SELECT (SELECT max(block_number) FROM v_of_another_task)",
        "SELECT * FROM v_transfers WHERE amount IN (SELECT rand() FROM v_blocks)",
        "WITH a AS (SELECT * FROM v_of_another_task) SELECT * FROM a",
        "WITH a AS (SELECT reflect('a', 'b')) SELECT 1",
        "SELECT * FROM v_transfers, LATERAL (SELECT * FROM v_of_another_task)",
        "SELECT * FROM v_transfers LATERAL VIEW json_tuple('{}', 'a') t AS x",
        "SELECT TRANSFORM (amount) USING 'cat' AS (x) FROM v_transfers",
        "SELECT /*+ REPARTITION(100) */ * FROM v_transfers",
        "SELECT * FROM IDENTIFIER('v_of_another_task')",
        "SELECT transform(array(1), x -> rand())",
        "SELECT sum(amount) OVER (ORDER BY rand()) FROM v_transfers",
        "SET spark.sql.ansi.enabled = false",
        "DROP VIEW v_transfers",
        "CREATE TEMPORARY VIEW x AS SELECT 1",
        "INSERT INTO v_transfers SELECT 1",
        "ADD FILE '/etc/passwd'",
        "CACHE TABLE v_transfers",
        "EXPLAIN SELECT 1",
        "SHOW TABLES",
        "EXECUTE IMMEDIATE 'SELECT 1'",
        "BEGIN SELECT 1; END",
    ],
)
def test_what_spark_understood_is_refused_before_it_runs(session: SparkSession, query: str) -> None:
    with pytest.raises(PlanRefusedError):
        check_parsed(session, query, VIEWS)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT current_user AS x",
        "SELECT `current_user` AS x",
        "SELECT current_date AS x",
        "SELECT reflect('java.util.UUID', 'randomUUID') AS x",
        "SELECT input_file_name() AS x FROM v_transfers",
        "SELECT version() AS x",
        "SELECT * FROM v_of_another_task",
        "SELECT * FROM range(10)",
        "SELECT * FROM v_transfers WHERE EXISTS (SELECT 1 FROM v_of_another_task o WHERE o.block_number = amount)",
        "SELECT (SELECT max(block_number) FROM v_of_another_task) AS x",
        "WITH a AS (SELECT * FROM v_of_another_task) SELECT * FROM a",
        "SELECT x FROM v_transfers, LATERAL (SELECT max(block_number) AS x FROM v_of_another_task)",
        "SELECT uuid() AS x",
        "SELECT rand() AS x",
        "SELECT /*+ REPARTITION(3) */ * FROM v_transfers",
        "SELECT * FROM v_transfers TABLESAMPLE (50 PERCENT)",
    ],
)
def test_what_names_turned_out_to_be(session: SparkSession, query: str) -> None:
    with pytest.raises(PlanRefusedError):
        check_analysed(session.sql(query), VIEWS)


def test_a_function_of_the_session_is_no_function_of_a_query(session: SparkSession) -> None:
    session.sql("CREATE OR REPLACE TEMPORARY FUNCTION trace_secret() RETURNS INT RETURN 5")
    try:
        with pytest.raises(PlanRefusedError, match="trace_secret"):
            check_parsed(session, "SELECT trace_secret() AS x", VIEWS)
    finally:
        session.sql("DROP TEMPORARY FUNCTION trace_secret")


def test_hostile_queries_that_spark_takes_are_refused_by_its_plan_as_well(session: SparkSession) -> None:
    """Those that concern relations and functions: the second gate does without the first."""
    passed = []
    for query, code in HOSTILE:
        if code not in ("sql_relation", "sql_function"):
            continue
        try:
            check_parsed(session, query, VIEWS)
            # What is a column to the parser is a function to the analyser.
            check_analysed(session.sql(query), VIEWS)
        except (PlanRefusedError, PySparkException):
            continue
        passed.append(query)
    assert passed == []


class Grammar:
    """Random SELECTs: mostly sound, with something hostile now and then."""

    def __init__(self, choose: random.Random) -> None:
        self._choose = choose
        self._ctes: list[str] = []

    def pick(self, *options: str) -> str:
        return self._choose.choice(options)

    def value(self, depth: int) -> str:
        if depth <= 0 or self._choose.random() < 0.3:
            evil = self._choose.random() < 0.03
            hostile = ("current_user", "reflect('a', 'b')", "rand()", "input_file_name()", "_metadata.file_path")
            plain = ("amount", "block_number", "sender", "1", "'x'", "NULL", "2.5", ":start", "X'ff'", "t.amount")
            return self.pick(*(hostile if evil else plain))
        one, two = self.value(depth - 1), self.value(depth - 1)
        return self.pick(
            f"({one} + {two})",
            f"({one} = {two})",
            f"coalesce({one}, {two})",
            f"concat({one}, {two})",
            f"CASE WHEN ({one} = 1) THEN {two} ELSE {one} END",
            f"CAST({one} AS {self.pick('STRING', 'DECIMAL(38, 2)', 'BIGINT', 'DATE')})",
            f"({one} IN ({two}, 1))",
            f"({one} BETWEEN {two} AND 5)",
            f"sum({one}) OVER (PARTITION BY {two} ORDER BY amount)",
            f"transform(array({one}), x -> concat(x, {two}))",
            f"(SELECT max({self.pick('amount', 'block_number')}) FROM {self.relation()} t)",
            f"({one} IS NOT NULL)",
            f"named_struct('a', {one}).a",
            f"hex({one})",
        )

    def relation(self) -> str:
        hostile = ("v_of_another_task", "text.`/etc/passwd`", "range(3)", "parquet.`/x`", "v_transfers")
        good = ("transfers", "blocks", "Transfers", *self._ctes)
        return self.pick(*(hostile if self._choose.random() < 0.04 else good))

    def select(self, depth: int) -> str:
        before = list(self._ctes)
        text = ""
        if depth and self._choose.random() < 0.3:
            name = self.pick("a", "b", "transfers", "blocks")
            text = f"WITH {name} AS ({self.select(depth - 1)}) "
            self._ctes.append(name)
        source = f"{self.relation()} t" if self._choose.random() < 0.7 or not depth else f"({self.select(depth - 1)}) t"
        text += f"SELECT {self.value(2)} AS amount, {self.value(2)} AS block_number, {self.value(1)} AS sender"
        text += f" FROM {source}"
        if self._choose.random() < 0.3:
            text += f" {self.pick('LEFT', 'INNER', 'CROSS', 'FULL OUTER')} JOIN {self.relation()} u"
        if self._choose.random() < 0.4:
            text += f" WHERE {self.value(2)} = {self.value(1)}"
        if self._choose.random() < 0.2:
            text += " ORDER BY amount DESC LIMIT 5"
        elif depth and self._choose.random() < 0.2:
            text += f" UNION ALL SELECT {self.value(1)} AS a, 1 AS b, 2 AS c"
        self._ctes = before
        return text


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_what_the_first_gate_lets_through_the_second_does_too(session: SparkSession, seed: int) -> None:
    """If they disagreed, one of them would have a hole: the second one asks Spark."""
    query = Grammar(random.Random(seed)).select(2)
    try:
        gated = gate(query, frozenset({"transfers", "blocks"}))
    except SqlRefusedError:
        return
    for evil in ("another_task", "passwd", "reflect", "rand()", "current_user", "range(", "_metadata"):
        assert evil not in query
    written = gated.sql({"transfers": "v_transfers", "blocks": "v_blocks"})
    check_parsed(session, written, VIEWS)
    try:
        frame = session.sql(written, args=dict.fromkeys(gated.parameters, 1))
    except PySparkException:
        return  # types that do not fit, names that are not there
    check_analysed(frame, VIEWS)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 AS x FROM v_transfers t CROSS JOIN v_blocks b",
        "SELECT 1 AS x FROM v_transfers t JOIN v_blocks b ON b.ts = b.ts",
        "SELECT 1 AS x FROM v_transfers t JOIN v_blocks b ON sender = receiver",
        "SELECT 1 AS x FROM v_transfers t JOIN v_blocks b ON b.block_number > t.block_number",
        "SELECT 1 AS x FROM (SELECT sender FROM v_transfers) t NATURAL JOIN (SELECT ts FROM v_blocks) b",
        "SELECT 1 AS x FROM v_transfers t, v_blocks b, v_blocks c WHERE t.block_number = b.block_number",
        "SELECT 1 AS x FROM v_transfers WHERE amount IN (SELECT amount FROM v_transfers t CROSS JOIN v_blocks b)",
        "WITH a AS (SELECT ts FROM v_blocks) SELECT 1 AS x FROM a CROSS JOIN a b",
        "SELECT 1 AS x FROM v_transfers t, v_blocks b WHERE t.block_number = b.block_number"
        " UNION ALL SELECT 1 AS x FROM v_transfers t, v_blocks b",
    ],
)
def test_relations_that_do_not_hang_together(session: SparkSession, query: str) -> None:
    with pytest.raises(PlanRefusedError, match="without an equality"):
        check_analysed(session.sql(query), VIEWS)


def test_the_second_gate_takes_what_the_first_one_takes(session: SparkSession) -> None:
    """Queries with every construct, as they are written for Spark."""
    for name, rows in (("facts", FACTS), ("others", OTHERS)):
        # Rows of a file, as those of an input: nothing is known of their number.
        session.sql(rows).repartition(2).createOrReplaceTempView(name)
    views = {"facts": "facts", "others": "others"}
    for query in CORPUS:
        gated = gate(query, frozenset(views))
        written = gated.sql(views)
        check_parsed(session, written, views)
        try:
            frame = session.sql(written, args={name: ARGUMENTS[name] for name in gated.parameters})
        except PySparkException:
            continue  # those that Spark refuses stay refused
        check_analysed(frame, views)


# --- types that name a class

MODULE = "trace_type_with_side_effects"
NAMED_CLASS = (
    '{"type": "struct", "fields": [{"name": "a", "nullable": true, "metadata": {}, "type": {"type": "udt", '
    f'"pyClass": "{MODULE}.Type", "serializedClass": "", "sqlType": "integer"}}}}]}}'
)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that Python can import."""
    (tmp_path / f"{MODULE}.py").write_text("from pyspark.sql.types import IntegerType as Type")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return MODULE


@pytest.mark.parametrize(
    "schema", [f"'{NAMED_CLASS}'", f"concat('', '{NAMED_CLASS}')"], ids=["a literal", "a computed text"]
)
def test_a_type_that_names_a_class_loads_nothing(session: SparkSession, module: str, schema: str) -> None:
    query = f"SELECT from_json('{{}}', {schema}) AS x"
    with pytest.raises(SqlRefusedError) as refused:
        gate(query)
    assert refused.value.finding.code == "sql_argument"
    with pytest.raises(PlanRefusedError):
        check_parsed(session, query, VIEWS)
    for outer in (
        query,
        f"SELECT size(map_keys(map(x, 1))) AS y FROM ({query})",
        f"SELECT x.a IS NULL AS y FROM ({query})",
    ):
        frame = session.sql(outer)
        with pytest.raises(PlanRefusedError, match="name a class"):
            check_analysed(frame, VIEWS)
    assert module not in sys.modules
