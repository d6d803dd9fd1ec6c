"""What the gate writes means what the user wrote: both texts run on Spark, and rows and schemas are compared.

The corpus has every construct that the gate accepts; mutations of it look for what the gate accepts and should not, and
compositions for what goes wrong only in company.
"""

import random
import re
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.spark.sql.corpus import CORPUS, REFUSED_BY_SPARK
from tests.spark.sql.differential import VIEWS, Differential
from tracelake.catalogue.sql.findings import SqlRefusedError
from tracelake.catalogue.sql.functions import FUNCTIONS
from tracelake.catalogue.sql.gate import _DIALECT, gate

BOUNDED = settings(
    max_examples=10, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def differential(spark: SparkSession) -> Iterator[Differential]:
    differential = Differential(spark)
    yield differential
    differential.close()


@pytest.mark.parametrize("query", CORPUS, ids=lambda query: query[:70])
def test_the_written_query_gives_the_same_rows(differential: Differential, query: str) -> None:
    assert differential.compare(query) == ""


def test_what_spark_refuses_is_refused(differential: Differential) -> None:
    for query in REFUSED_BY_SPARK:
        assert not differential.is_parsed(query), query
        with pytest.raises(SqlRefusedError):
            gate(query, frozenset(VIEWS))


# --- Spark's own examples of its functions

_EXAMPLE = re.compile(r"> (SELECT .*?);\s*$", re.MULTILINE)
WITHOUT_EXAMPLES = {"timestampadd", "timestampdiff"}
"""Grammar and not functions, to Spark."""


def test_spark_s_own_examples_of_every_function(differential: Differential) -> None:
    unknown = set(FUNCTIONS) - WITHOUT_EXAMPLES
    differences = []
    for name in sorted(unknown):
        rows = differential.session.sql(f"DESCRIBE FUNCTION EXTENDED {name}").collect()
        for example in _EXAMPLE.findall("\n".join(row[0] for row in rows)):
            try:
                difference = differential.compare(f"SELECT * FROM ({example}) AS example", run=False)
            except SqlRefusedError:
                continue
            unknown.discard(name)
            differences += [difference] if difference else []
            break
    assert differences == []
    called = set(re.findall(r"(\w+) ?\(", " ".join(CORPUS).lower()))
    assert unknown - called == set()


# --- mutations

_SQL = """
    SELECT FROM WHERE WITH AS JOIN ON ( ) , * UNION ALL DISTINCT EXCEPT INTERSECT ORDER BY GROUP HAVING LIMIT OFFSET
    WINDOW OVER PARTITION ROWS RANGE BETWEEN AND OR NOT NULL NULLS FIRST LAST ASC DESC IS TRUE UNBOUNDED PRECEDING
    FOLLOWING CURRENT ROW LATERAL VIEW OUTER LEFT RIGHT FULL INNER CROSS SEMI ANTI NATURAL USING CASE WHEN THEN ELSE END
    CAST TRY_CAST INTERVAL DAY IN EXISTS LIKE ILIKE RLIKE ESCAPE FILTER IGNORE RESPECT ROLLUP CUBE GROUPING SETS VALUES
    1 2 -1 'a' '%' 1.5 5L w t k g n o . [ ] :: -> + - / % DIV = <> <=> < > ! ~ & | ^ || TRIM BOTH LEADING EXTRACT DATE
    TIMESTAMP STRING INT DECIMAL ARRAY MAP STRUCT sum count max explode upper X'ff' TABLE QUALIFY SORT FETCH facts
    others
"""
_WORDS = _SQL.split()
_TOKENS = [
    [query[token.start : token.end + 1] for token in _DIALECT.tokenize(query)] for query in CORPUS if "$" not in query
]


def mutate(choose: random.Random) -> str:
    """A query of the corpus with up to three words added, removed, replaced or exchanged."""
    tokens = list(choose.choice(_TOKENS))
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        place, other = choose.randrange(len(tokens)), choose.randrange(len(tokens))
        operation = choose.randrange(5)
        if operation == 0 and len(tokens) > 1:
            del tokens[place]
        elif operation == 1:
            tokens.insert(place, tokens[other])
        elif operation == 2:
            tokens.insert(place, choose.choice(_WORDS))
        elif operation == 3:
            tokens[place] = choose.choice(_WORDS)
        else:
            tokens[place], tokens[other] = tokens[other], tokens[place]
    return " ".join(tokens)


@BOUNDED
@given(st.integers(0, 2**32))
def test_mutations_mean_the_same_or_are_refused(differential: Differential, seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(40):
        query = mutate(choose)
        try:
            gate(query, frozenset(VIEWS))
        except SqlRefusedError:
            continue
        assert differential.is_parsed(query), f"Spark does not parse {query}"
        assert differential.compare(query, run=False) == ""


# --- compositions

_NUMBERS = [
    "k",
    "n",
    "1",
    "-2",
    "NULL",
    "2.5",
    "v",
    "(k + 1)",
    "-k",
    "k * 2",
    "k % 3",
    "abs(k)",
    "length(g)",
    "size(xs)",
]
_NUMBERS += ["st.a", "xs[0]", "CAST(g <> 'a' AS INT)", "k::BIGINT"]
_TEXTS = ["g", "'a'", "''", "'b%'", "NULL", "upper(g)", "g || 'x'", "k::STRING", "st.b", "trim('a' FROM g)"]
_TEXTS += ["coalesce(g, 'n')", "substring(g, 1, 1)"]
_CONDITIONS = [
    "{n} > {n}",
    "{n} <=> {n}",
    "{t} = {t}",
    "{t} LIKE {t}",
    "{t} NOT LIKE 'a%'",
    "{n} BETWEEN {n} AND {n}",
    "{n} NOT IN ({n}, 1)",
    "{t} IS NOT NULL",
    "{n} IS DISTINCT FROM {n}",
    "NOT ({c})",
    "({c}) AND ({c})",
    "({c}) OR {n} < 3",
    "({c}) IS TRUE",
    "b",
]
_VALUES = [
    "{n} + {n} - {n}",
    "{n} * {n} + {n}",
    "{n} - ({n} - {n})",
    "try_divide({n}, {n})",
    "CASE WHEN {c} THEN {n} WHEN {c} THEN {n} ELSE {n} END",
    "CASE {n} WHEN {n} THEN {t} END",
    "{t} || {t}",
    "{c}",
    "if({c}, {n}, {n})",
    "sum({n}) OVER (PARTITION BY {t} ORDER BY {n} DESC, {n})",
    "count({t}) OVER (ORDER BY k NULLS LAST ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
    "max({n}) OVER w",
    "transform(array({n}, {n}), x -> x + {n})",
    "(SELECT max(v) FROM others i WHERE i.k = f.k)",
    "struct({n} AS a, {t} AS c).a",
]


def compose(choose: random.Random, pattern: str) -> str:
    while match := re.search(r"\{(\w)\}", pattern):
        options = {"n": _NUMBERS, "t": _TEXTS, "c": _CONDITIONS}[match[1]]
        inner = choose.choice(options[:-4] if len(pattern) > 200 else options)
        pattern = pattern[: match.start()] + inner + pattern[match.end() :]
    return pattern


@BOUNDED
@given(st.integers(0, 2**32))
def test_compositions_mean_the_same(differential: Differential, seed: int) -> None:
    """Many expressions in one query: what Spark costs is per query."""
    choose = random.Random(seed)
    values = ", ".join(f"{compose(choose, choose.choice(_VALUES))} AS c{index}" for index in range(6))
    source = choose.choice(
        [
            "facts f CROSS JOIN (SELECT 5 AS v)",
            "facts f LEFT JOIN (SELECT k AS j, v FROM others) o ON f.k = o.j",
            "(SELECT *, k AS v FROM facts WHERE k > 0 OR k IS NULL) f",
        ]
    )
    query = f"SELECT {values} FROM {source} WHERE {compose(choose, '{c}')} WINDOW w AS (PARTITION BY g ORDER BY k)"
    tail = choose.choice(["", " ORDER BY 1, 2, 3, 4, 5, 6 LIMIT 3"])
    with suppress(SqlRefusedError):  # brackets that would have to be there
        assert differential.compare(query + tail) == ""
