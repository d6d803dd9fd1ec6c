"""The gate at deploy: what is hostile is refused with a code and a place, what people write passes."""

import re
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spark.sql.hostile import HOSTILE
from tests.spark.sql.queries import BENIGN
from tracelake.catalogue import read_config
from tracelake.catalogue.sql.findings import CODES, SqlRefusedError
from tracelake.catalogue.sql.functions import FUNCTIONS
from tracelake.catalogue.sql.functions.refused import REFUSED
from tracelake.catalogue.sql.gate import GatedQuery, gate
from tracelake.catalogue.sql.nodes import text_literal
from tracelake.catalogue.sql.writer import MARK
from tracelake.errors import TraceError

INPUTS = frozenset({"transfers", "blocks"})


def refusal(query: str, inputs: frozenset[str] | None = INPUTS) -> SqlRefusedError:
    with pytest.raises(SqlRefusedError) as caught:
        gate(query, inputs)
    return caught.value


@pytest.mark.parametrize(("query", "code"), HOSTILE, ids=lambda value: ascii(value[:60]))
def test_hostile_queries_are_refused(query: str, code: str) -> None:
    finding = refusal(query).finding
    assert finding.code in CODES
    assert not code or finding.code == code, str(finding)
    lines = query.split("\n")
    assert 1 <= finding.line <= len(lines)
    assert 1 <= finding.column <= len(lines[finding.line - 1]) + 1
    assert finding.message.isprintable()
    assert len(finding.message) < 200


def test_there_are_hundreds_and_every_code_is_among_them() -> None:
    assert len(HOSTILE) > 300
    assert {refusal(query).finding.code for query, _ in HOSTILE} == set(CODES)


@pytest.mark.parametrize("query", BENIGN, ids=lambda query: query[:70])
def test_what_people_write_passes(query: str) -> None:
    gated = gate(query, INPUTS)
    assert gated.relations <= INPUTS
    check_written(gated)


def check_written(gated: GatedQuery) -> None:
    """Nothing is left to interpretation: plain characters, and relations that are ours alone."""
    assert gated.text.isascii()
    assert gated.text.replace(MARK, "").isprintable()
    outside = re.sub("'[^']*'", "''", gated.text)
    assert not set(outside) & set(';"${}@?#\\')
    assert "/*" not in outside
    assert "--" not in outside
    for before, name in re.findall(r"(\S+) (`\w+`) AS `", outside):
        assert before not in ("FROM", "JOIN") or re.fullmatch(r"`cte_\d+`", name)


def test_relations_are_ours_by_name_alone() -> None:
    gated = gate("WITH x AS (SELECT * FROM Transfers) SELECT * FROM x JOIN blocks b USING (block_number)", INPUTS)
    assert gated.relations == INPUTS
    assert gated.sql({"transfers": "view_a", "blocks": "view_b"}) == (
        "WITH `cte_1` AS (SELECT * FROM `view_a` AS `Transfers`) "
        "SELECT * FROM `cte_1` AS `x` JOIN `view_b` AS `b` USING (`block_number`)"
    )


def test_a_common_table_expression_hides_an_input_from_there_on() -> None:
    gated = gate("WITH transfers AS (SELECT 1 AS n) SELECT * FROM transfers", INPUTS)
    assert gated.relations == frozenset()
    gated = gate("WITH transfers AS (SELECT * FROM transfers) SELECT * FROM transfers", INPUTS)
    assert gated.relations == {"transfers"}
    assert gated.text.count(MARK) == 2


@pytest.mark.parametrize(
    "query",
    [
        # A window that builds on a named one: Spark has no such thing, and the name would be lost.
        "SELECT sum(amount) OVER (w ORDER BY amount) AS s FROM transfers WINDOW w AS (PARTITION BY sender)",
        "SELECT sum(amount) OVER v AS s FROM transfers WINDOW w AS (PARTITION BY sender), v AS (w ORDER BY amount)",
        "SELECT sum(amount) OVER v AS s FROM transfers WINDOW w AS (PARTITION BY sender), v AS (w ROWS 1 PRECEDING)",
        "SELECT sum(amount) OVER v AS s FROM transfers WINDOW w AS (PARTITION BY sender), v w",
        "SELECT sum(amount) OVER + 1 AS s FROM transfers",
        "SELECT sum(amount) OVER (LAST ORDER BY amount) AS s FROM transfers",
        # What the parser skips.
        "SELECT amount, FROM transfers",
        "SELECT amount, , sender FROM transfers",
        "SELECT coalesce(amount, ) AS a FROM transfers",
        "SELECT amount AS , sender FROM transfers",
        "SELECT AS amount sender FROM transfers",
        "SELECT sender AS 'x' FROM transfers",
        "SELECT explode(tags AS ) tag FROM blocks",
        "SELECT sum(amount) FILTER (amount > 1) AS s FROM transfers",
        "SELECT sum(amount) AS s FROM transfers GROUP BY",
        "SELECT CAST(amount AS DECIMAL(10, 2 amount)) AS d FROM transfers",
        "SELECT CAST(amount AS STRING AS s FROM transfers",
        "SELECT amount JOIN blocks",
        "SELECT amount FROM transfers LATERAL VIEW explode(x) e AS y JOIN blocks",
        "SELECT amount FROM transfers OFFSET 1 LIMIT 2",
        "SELECT amount FROM transfers OUTER JOIN blocks",
        "SELECT amount FROM transfers NATURAL JOIN blocks ON TRUE",
        "SELECT upper(sender AS s) AS u FROM transfers",
        "SELECT DATE 'today' AS d",
        "SELECT DATE '2024-01-01'::STRING AS d",
        "SELECT INTERVAL 1 DAY 2 HOURS AS i",
        "SELECT sum(amount) OVER (ORDER BY amount ROWS BETWEEN UNBOUNDED AND CURRENT ROW) AS s FROM transfers",
    ],
)
def test_what_would_be_lost_is_refused(query: str) -> None:
    assert refusal(query).finding.code in ("sql_syntax", "sql_construct", "sql_text")


def test_parameters_are_markers_and_never_text() -> None:
    gated = gate(
        "SELECT * FROM transfers WHERE block_number BETWEEN ${start} AND ${end} AND sender <> ${partition_key}"
    )
    assert gated.parameters == {"start", "end", "partition_key"}
    assert ":start" in gated.text
    assert "$" not in gated.text


@pytest.mark.parametrize(
    ("query", "line", "column", "suggestion"),
    [
        ("SELECT *\nFROM transfer", 2, 6, "Did you mean `transfers`?"),
        ("SELECT amount,\n       uper(sender) AS s\nFROM transfers", 2, 8, "Did you mean `upper`?"),
        ("SELECT a FROM transfers\nWHERE a = ${begin}", 2, 11, "There are `${start}`"),
        ("SELECT a FROM transfers; DROP TABLE x", 1, 24, "Remove the `;`."),
        ("SELECT a FROM transfers\nSORT BY a", 2, 9, "Rows of a file are sorted by `order_by`"),
        ("SELECT a,\n  b FROM transfers WHERE c ==== d", 2, 30, "Look at brackets"),
        ("SELECT a FROM transfers WHERE s = 'x\u200by'", 1, 37, "Remove it"),
        ("DELETE FROM transfers", 1, 1, "A query can read"),
    ],
)
def test_where_and_what_to_do(query: str, line: int, column: int, suggestion: str) -> None:
    finding = refusal(query).finding
    assert (finding.line, finding.column) == (line, column), str(finding)
    assert finding.suggestion.startswith(suggestion)


def test_the_config_says_what_is_wrong_with_its_query() -> None:
    with pytest.raises(TraceError) as caught:
        read_config("spark_sql", {"query": "SELECT reflect('a', 'b') AS x FROM t", "inputs": {"t": 0}})
    assert caught.value.code == "job_invalid"
    assert caught.value.details["field"] == "config.query"
    assert "line 1, column 8 of the query: queries may not call `reflect` (sql_function)" in caught.value.message


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "config"),
        ({"query": ""}, "config.query"),
        ({"query": 5}, "config.query"),
        ({"query": "SELECT 1 AS a", "files": 0}, "config.files"),
        ({"query": "SELECT 1 AS a", "files": 65}, "config.files"),
        ({"query": "SELECT 1 AS a", "order_by": ["a b"]}, "config.order_by[0]"),
        ({"query": "SELECT 1 AS a", "unique": ["`"]}, "config.unique[0]"),
        ({"query": "SELECT 1 AS a", "inputs": {"t": -1}}, "config.inputs[...]"),
        ({"query": "SELECT 1 AS a", "inputs": {"t": 0, "T": 1}}, "config.inputs"),
        ({"query": "SELECT * FROM u", "inputs": {"t": 0}}, "config.query"),
        ({"query": "SELECT 1 AS a", "more": 1}, "config"),
    ],
)
def test_bad_configs(config: dict[str, Any], field: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_config("spark_sql", config)
    assert caught.value.details["field"] == field


def test_without_names_of_inputs_relations_are_left_to_the_worker() -> None:
    assert gate("SELECT * FROM whatever").relations == {"whatever"}
    assert refusal("SELECT * FROM parquet.`/x`", None).finding.code == "sql_relation"


def test_no_function_is_both_allowed_and_refused() -> None:
    assert FUNCTIONS & set(REFUSED) == set()


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_refused_or_written_plainly(text: str) -> None:
    for query in (text, f"SELECT {text} FROM transfers", f"SELECT '{text}' AS x", f"SELECT `{text}` FROM transfers"):
        try:
            gated = gate(query, INPUTS)
        except SqlRefusedError:
            continue
        check_written(gated)
        assert gated.relations <= INPUTS


_SIGNS = """
    SELECT FROM WHERE WITH AS JOIN ON ( ) , * transfers blocks other parquet.`/x` `current_user` reflect ; ' " -- /* */
    /*+ UNION INTO TRANSFORM USING LATERAL VIEW explode ${start} ${env:HOME} :start 1 'x' amount VALUES TABLE CASE WHEN
    THEN END NOT BETWEEN AND IN EXISTS OVER [ ] . :: -> => | |> @ ? { } \\
"""
_WORDS = [*sorted(FUNCTIONS)[:40], *_SIGNS.split()]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(_WORDS), max_size=25))
def test_any_words_are_refused_or_written_plainly(words: list[str]) -> None:
    try:
        gated = gate("SELECT " + " ".join(words), INPUTS)
    except SqlRefusedError:
        return
    check_written(gated)
    assert gated.relations <= INPUTS


@given(st.text(alphabet=string.printable + "äöü🙂'\"\\`$", max_size=40))
def test_text_is_written_so_that_nothing_ends_it(text: str) -> None:
    written = text_literal(text)
    assert written[0] == written[-1] == "'"
    assert re.fullmatch(r"(?:[A-Za-z0-9 _.,:;/+*()<>=!?@#%&|^~\[\]-]|\\u[0-9A-F]{4})*", written[1:-1])
