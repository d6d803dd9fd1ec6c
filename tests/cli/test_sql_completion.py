"""What the prompt offers at the cursor, which is `|` in these texts."""

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.cli.sql_completion import RESERVED, complete

RELATIONS = {
    "transfers": {"block_number": "BIGINT", "token": "BLOB", "amount": "BIGNUM", "from_address": "BLOB"},
    "large_transfers": {"block_number": "BIGINT", "at": "TIMESTAMP WITH TIME ZONE", "sender": "BLOB"},
    "Odd name": {"a b": "INTEGER"},
}


def offered(text: str) -> list[str]:
    cursor = text.index("|")
    return [candidate.text for candidate in complete(text.replace("|", "", 1), cursor, RELATIONS)]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("select * from |", ["transfers", "large_transfers", '"Odd name"', "generate_series("]),
        ("select * from tr|", ["transfers", "large_transfers"]),
        ("select * from transfers t join la|", ["large_transfers"]),
        ("select * from transfers, la|", ["large_transfers"]),
        ("select 1; select * from od|", ['"Odd name"']),
        ('select * from "O|', ['"Odd name"']),
        ("with big as (select 1) select * from b|", ["big"]),
        ("select t.| from transfers t", ["block_number", "token", "amount", "from_address"]),
        ("select T.am| from transfers AS t", ["amount"]),
        ("select x.| from transfers t, large_transfers x", ["block_number", '"at"', "sender"]),
        ("select l.a| from transfers t left join large_transfers l on true", ['"at"']),
        ('select l."a| from large_transfers l', []),
        ('select * from large_transfers l where l."a|', ['"at"']),
        ("select large_transfers.se| from large_transfers", ["sender"]),
        ("select | from transfers where token = 'x'", ["block_number", "token", "amount", "from_address", "transfers"]),
        ("select addr| from transfers", ["from_address"]),
        ("select approx_c| from transfers", ["approx_count_distinct("]),
        ("select a from transfers where exists (select se| from large_transfers)", ["sender"]),
        ("from transfers select to|", ["token"]),
        ("select a, to| from transfers", ["token"]),
        ("SEL|", ["SELECT"]),
        ("sele|", ["select"]),
        ("select 'from tr|", []),
        ("select 1 -- from tr|", []),
        ("select 1 /* from tr| */", []),
        ("select $$ from tr|", []),
        ("select 12|", []),
        ("select * from nothing n where n.|", []),
    ],
)
def test_candidates(text: str, first: list[str]) -> None:
    candidates = offered(text)
    assert candidates[: len(first)] == first
    assert first or not candidates


def test_columns_of_other_relations_are_not_offered() -> None:
    assert "sender" not in offered("select | from transfers")
    assert "sender" not in offered("select t.| from transfers t, large_transfers l")
    assert "sender" not in offered("select | from transfers; select * from large_transfers")


def test_functions_are_those_that_queries_may_call() -> None:
    assert offered("select read_|") == []
    assert offered("select * from read_|") == []
    assert "sum(" in offered("select su|")


def test_what_is_replaced() -> None:
    (candidate,) = complete("select tok, 1 from transfers", 10, RELATIONS)
    assert (candidate.start, candidate.text, candidate.detail) == (7, "token", "blob")


def test_names_that_need_quotes_are_those_of_duckdb() -> None:
    query = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
    with duckdb.connect() as connection:
        needed = {name for (name,) in connection.execute(query).fetchall()}
    assert needed == RESERVED


@given(st.text(alphabet="selctfromjwh '\"$;.,()*-/\n", max_size=60), st.integers(0, 60))
def test_no_text_is_too_odd(text: str, cursor: int) -> None:
    cursor = min(cursor, len(text))
    for candidate in complete(text, cursor, RELATIONS):
        assert 0 <= candidate.start <= cursor
