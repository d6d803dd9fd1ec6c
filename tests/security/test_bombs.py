"""Queries made to hurt, at the gate: each is refused with a code, a place and advice, or known to be bounded.

Those that pass are run on Spark by `tests/spark/sql/test_bombs.py`.
"""

from typing import Any

import pytest

from tests.security.bombs import BOMBS, INPUTS
from tracelake.catalogue.sql.findings import SqlRefusedError
from tracelake.catalogue.sql.gate import gate


def test_the_corpus_is_large_and_names_are_unique() -> None:
    assert len(BOMBS) >= 60
    assert len({bomb["name"] for bomb in BOMBS}) == len(BOMBS)
    assert all(("code" in bomb) != ("ends" in bomb) for bomb in BOMBS)


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb["name"])
def test_the_gate_and_a_bomb(bomb: dict[str, Any]) -> None:
    if "ends" in bomb:
        assert gate.__wrapped__(bomb["query"], INPUTS).text
        return
    with pytest.raises(SqlRefusedError) as refused:
        gate.__wrapped__(bomb["query"], INPUTS)
    finding = refused.value.finding
    assert finding.code == bomb["code"], str(finding)
    assert finding.column >= 1
    assert finding.suggestion
