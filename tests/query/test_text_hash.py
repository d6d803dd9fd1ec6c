"""The hash of a query that the gate refused: no value is in it, and no text makes it slow."""

import pytest

from tracelake.query.service import hash_text


def test_spaces_case_comments_and_constants_do_not_matter() -> None:
    first = hash_text("SELECT *  FROM t WHERE a = 'x''y' AND b > 1.5 -- mine")
    assert first == hash_text("select * from T\nwhere a = 'other' and b > 27 /* yours */".replace("/*", "--"))
    assert first != hash_text("SELECT * FROM t WHERE a = 'x' AND c > 1")


@pytest.mark.parametrize("opening", ["'", "/*", "'a''", "/* *"])
def test_what_is_not_closed_reaches_to_the_end(opening: str) -> None:
    """Otherwise the end would be looked for from every place: a text of quotes would take seconds."""
    assert hash_text(f"SELECT {opening} secret one") == hash_text(f"SELECT {opening} other -- two")
