"""How costs of queries are counted: sequences from their text, growth through names, joins by their equalities."""

from typing import Any

import pytest
from sqlglot import exp

from tracelake.catalogue.sql import relations as sql_relations
from tracelake.catalogue.sql.calls import STEPS
from tracelake.catalogue.sql.findings import SqlRefusedError
from tracelake.catalogue.sql.gate import gate
from tracelake.catalogue.sql.sequences import BLOCKS_OF_UNIT


def code(query: str) -> str:
    """Why it is refused; "": it is not."""
    try:
        gate.__wrapped__(query, frozenset({"t", "u"}))
    except SqlRefusedError as error:
        return error.finding.code
    return ""


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ("1, 10", 10),
        ("10, 1, -3", 4),
        ("-5, 5", 11),
        ("a, a + 9", 10),
        ("a, least(b, a + 9)", 10),
        ("(a), least((a + 9), b)", 10),
        ("${start}, ${end}", BLOCKS_OF_UNIT),
        ("DATE '2024-01-01', DATE '2024-01-31'", 31),
        ("DATE '2024-01-01', DATE '2024-12-31', INTERVAL 1 MONTH", 14),
        ("a, date_add(a, 6)", 7),
        ("a, a + INTERVAL 1 DAY, INTERVAL '1' HOUR", 27),
    ],
)
def test_sequences_are_counted(monkeypatch: pytest.MonkeyPatch, arguments: str, steps: int) -> None:
    counted = []
    growth = sql_relations.QueryCost._growth

    def observe(cost: sql_relations.QueryCost, node: exp.Anonymous, *rest: Any) -> int:
        counted.append(node.meta.get(STEPS))
        return growth(cost, node, *rest)

    monkeypatch.setattr(sql_relations.QueryCost, "_growth", observe)
    assert code(f"SELECT sequence({arguments}) AS x FROM t") == ""
    assert steps in counted


@pytest.mark.parametrize(
    "arguments",
    [
        "a, b",
        "1, a",
        "a, b + 9",
        "a, greatest(b, a + 9)",
        "a, a + b",
        "1, 10, 0",
        "a, a + 9, b",
        "1, ${end}",
        "a, a * 9",
    ],
)
def test_sequences_without_a_known_end_are_refused(arguments: str) -> None:
    assert code(f"SELECT sequence({arguments}) AS x FROM t") == "sql_limit"


DOUBLED = "concat(s, s)"


def test_growth_is_seen_through_every_name() -> None:
    def nested(depth: int) -> str:
        return "SELECT s FROM t" if not depth else f"SELECT {DOUBLED} AS s FROM ({nested(depth - 1)})"

    def with_clause(depth: int) -> str:
        steps = ", ".join(f"c{index + 1} AS (SELECT {DOUBLED} AS s FROM c{index})" for index in range(depth))
        return f"WITH c0 AS (SELECT s FROM t), {steps} SELECT s FROM c{depth}"

    def aliases(depth: int) -> str:
        steps = ", ".join(f"concat(s{index}, s{index}) AS s{index + 1}" for index in range(depth))
        return f"SELECT s AS s0, {steps} FROM t"

    def starred(depth: int) -> str:
        inner = "SELECT s FROM t"
        for _ in range(depth):
            inner = f"SELECT * FROM (SELECT {DOUBLED} AS s FROM ({inner}))"
        return inner

    def renamed(depth: int) -> str:
        steps = ", ".join(f"c{index + 1}(s) AS (SELECT {DOUBLED} FROM c{index})" for index in range(depth))
        return f"WITH c0(s) AS (SELECT s FROM t), {steps} SELECT s FROM c{depth}"

    def set_operations(depth: int) -> str:
        inner = "SELECT s FROM t"
        for _ in range(depth):
            inner = f"SELECT {DOUBLED} AS s FROM (SELECT 'x' AS s UNION ALL {inner})"
        return inner

    for build in (nested, with_clause, aliases, renamed, set_operations):
        assert code(build(10)) == ""
        assert code(build(18)) == "sql_limit", build.__name__
    assert code(starred(8)) == ""
    assert code(with_clause(40)) == "sql_limit"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("concat(acc, x)", ""),
        ("concat(acc, acc)", "sql_limit"),
        ("concat(acc, upper(acc))", "sql_limit"),
        ("replace(acc, 'a', acc)", "sql_limit"),
        ("if(length(acc) > 3, acc, concat(acc, x))", ""),
        ("named_struct('n', acc.n + 1, 's', acc.s + x)", ""),
        ("acc + acc", ""),
        ("CASE WHEN x > acc THEN x ELSE acc END", ""),
    ],
)
def test_a_fold_may_add_and_not_multiply(body: str, expected: str) -> None:
    assert code(f"SELECT aggregate(xs, 0, (acc, x) -> {body}) AS a FROM t") == expected


@pytest.mark.parametrize(
    "source",
    [
        "t JOIN u ON t.a = u.a",
        "t JOIN u ON u.b = t.a AND t.c < u.c",
        "t LEFT JOIN u USING (a)",
        "t, u WHERE t.a = u.a",
        "t, u, t AS v WHERE t.a = v.a AND u.b = v.b",
        "t JOIN u ON u.a = b",
        "t JOIN u ON lower(t.a) = concat(u.a, 'x')",
        "t CROSS JOIN (SELECT max(a) AS m FROM u) v",
        "t JOIN (VALUES (1), (2)) v(n) ON v.n < t.a",
        "t CROSS JOIN (SELECT a FROM u LIMIT 10) v",
        "t, LATERAL (SELECT max(a) AS m FROM u) v",
        "t, LATERAL (SELECT a AS m FROM u WHERE u.k = t.k) v",
        "(SELECT a AS j FROM t) x JOIN (SELECT a AS i FROM u) y ON j = i",
    ],
)
def test_relations_that_hang_together(source: str) -> None:
    assert code(f"SELECT 1 AS one FROM {source}") == ""


@pytest.mark.parametrize(
    "source",
    [
        "t, u",
        "t JOIN u ON t.a = t.b",
        "t JOIN u ON t.a + u.a = 5",
        "t JOIN u ON t.a = u.a OR t.b = u.b",
        "t JOIN u ON NOT t.a = u.a",
        "t, u, t AS v WHERE t.a = v.a",
        "t, u, t AS v, u AS w WHERE t.a = u.a AND v.a = w.a",
        "t JOIN u ON a = b",
        "t CROSS JOIN (SELECT a, count(*) AS n FROM u GROUP BY a) v",
        "t CROSS JOIN (SELECT explode(sequence(1, 20000)) AS n) v",
        "(SELECT a AS j, b AS i FROM t) x JOIN (SELECT a FROM u) y ON j = i",
    ],
)
def test_relations_that_do_not(source: str) -> None:
    assert code(f"SELECT 1 AS one FROM {source}") == "sql_join"
