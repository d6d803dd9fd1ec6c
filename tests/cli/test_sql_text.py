"""Where statements end: strings, names, comments and dollar quotes may hold semicolons. DuckDB is the judge."""

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake.cli.sql_text import SqlPieces, TokenKind, is_complete, quote_name, scan, split

# Each piece is a whole token or blank; "inside" stands for anything that must not end a statement.
INSIDE = st.lists(
    st.sampled_from([";", "a", " ", "''", "--", "/*x*/", "$", "$$", "$t$", "é", "\n", '""', "(", "1"]), max_size=5
)


def _joined(parts: list[str]) -> str:
    return "".join(parts)


TEXTS = INSIDE.map(_joined)
STRINGS = st.one_of(
    TEXTS.map(lambda text: "'" + text.replace("'", "''") + "'"),
    TEXTS.map(lambda text: "E'" + text.replace("'", "\\'") + "\\\\'"),
    TEXTS.filter(lambda text: "$$" not in text and not text.endswith("$")).map(lambda text: f"$${text}$$"),
    TEXTS.filter(lambda text: "$q$" not in text and not text.endswith("$")).map(lambda text: f"$q${text}$q$"),
)
NAMES = TEXTS.map(lambda text: '"n' + text.replace('"', '""') + '"')
BLANKS = st.one_of(
    st.just(" "),
    TEXTS.map(lambda text: "--" + text.replace("\n", "").replace("\r", "") + "\n"),
    TEXTS.map(lambda text: "/*" + text + "*/"),
)
STATEMENTS = st.builds(
    lambda before, value, between, name, after: f"{before}select {value}{between} as {name}{after}",
    BLANKS, STRINGS, BLANKS, NAMES, BLANKS,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.lists(STATEMENTS, min_size=1, max_size=4), st.booleans(), st.sampled_from([";", ";;", "; -- ;\n", "; /* ; */ ;"])
)
def test_statements_end_where_duckdb_ends_them(statements: list[str], last_ends: bool, separator: str) -> None:
    text = separator.join(statements) + (";" if last_ends else "")
    pieces = split(text)
    ours = [*pieces.statements, *([pieces.rest] if pieces.rest else [])]
    theirs = duckdb.extract_statements(text)
    assert [len(duckdb.extract_statements(each)) for each in ours] == [1] * len(theirs)
    assert _results(ours) == _results([statement.query for statement in theirs])
    assert is_complete(text) is last_ends


def _results(statements: list[str]) -> list[object]:
    with duckdb.connect() as connection:
        return [(connection.execute(each).fetchall(), connection.description[0][0]) for each in statements]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="'\"$;-/*\\eE aé1\n\r", max_size=40))
def test_tokens_are_the_text_and_an_open_one_is_the_last(text: str) -> None:
    tokens = list(scan(text))
    assert "".join(token.text for token in tokens) == text
    assert not any(token.open for token in tokens[:-1])
    pieces = split(text)
    assert all(not split(each).statements and split(each).rest for each in pieces.statements), "a piece has no `;`"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", SqlPieces([], "")),
        (" ; ;; -- none\n", SqlPieces([], "")),
        ("select 1;select 2", SqlPieces(["select 1"], "select 2")),
        ("select ';", SqlPieces([], "select ';")),
        ("select 1 /* ;", SqlPieces([], "select 1 /* ;")),
        ("select 1; /* ;", SqlPieces(["select 1"], " /* ;")),
        ("select $a$;$b$;", SqlPieces([], "select $a$;$b$;")),
        ("select $low; select a$b$;", SqlPieces(["select $low", "select a$b$"], "")),
        ("select '\\';", SqlPieces(["select '\\'"], "")),
        ("select e'\\';", SqlPieces([], "select e'\\';")),
        ("select the'\\';", SqlPieces(["select the'\\'"], "")),
        ("select 1 --;\r;", SqlPieces(["select 1 --;"], "")),
    ],
)
def test_edges(text: str, pieces: SqlPieces) -> None:
    assert split(text) == pieces


def test_names() -> None:
    (token,) = scan('"a ""b"""')
    assert (token.kind, token.name) == (TokenKind.NAME, 'a "b"')
    reserved = frozenset({"at"})
    assert [quote_name(name, reserved) for name in ("token", "AT", "a b", 'a"', "1a", "é")] == [
        "token", '"AT"', '"a b"', '"a"""', '"1a"', '"é"',
    ]  # fmt: skip


def test_the_cost_is_linear() -> None:
    """A pattern that backtracks would take hours for these."""
    for text in ("'" * 100_001, "/*" * 50_000, "$a$" * 33_333, "\\'" * 50_000, "e'\\" * 30_000, '"' * 100_001):
        assert "".join(token.text for token in scan(text)) == text
