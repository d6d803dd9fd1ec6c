"""Which blocks a batch query needs: narrowed where it is certain, and never where a row outside could matter."""

import pytest

from tracelake.catalogue.sql.block_bounds import LAST
from tracelake.query.gate.batch import check_batch_query
from tracelake.query.gate.parameters import QueryParameter

PARAMETERS = {
    "low": QueryParameter("int64", 100),
    "none": QueryParameter("int64", None),
    "text": QueryParameter("text", "100"),
}
CERTAIN = {
    "SELECT * FROM t WHERE block_number > 5": {"t": (6, LAST)},
    "SELECT * FROM t WHERE 5 >= block_number": {"t": (0, 5)},
    "SELECT * FROM t WHERE block_number BETWEEN 5 AND 9 AND a = 1": {"t": (5, 9)},
    "SELECT * FROM t WHERE (block_number >= $low AND (block_number < 200))": {"t": (100, 199)},
    "SELECT * FROM t AS x WHERE x.block_number = 7": {"t": (7, 7)},
    "SELECT * FROM t JOIN u ON t.a = u.a WHERE t.block_number > 5": {"t": (6, LAST)},
    "SELECT * FROM t LEFT JOIN u ON t.a = u.a WHERE u.block_number < 5 AND t.block_number > 7": {
        "t": (8, LAST),
        "u": (0, 4),
    },
    "WITH x AS (SELECT * FROM t WHERE block_number > 5) SELECT * FROM x JOIN u ON x.a = u.a": {"t": (6, LAST)},
    "SELECT * FROM (SELECT a, block_number FROM t WHERE block_number > 5) x": {"t": (6, LAST)},
    "SELECT a FROM t WHERE block_number = 5 UNION ALL SELECT a FROM t WHERE block_number = 9": {"t": (5, 9)},
    "SELECT * FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.block_number > 5 AND u.a = t.a)": {"u": (6, LAST)},
}
UNCERTAIN = [
    "SELECT * FROM t",
    "SELECT * FROM t WHERE block_number > 5 OR a = 1",
    "SELECT * FROM t WHERE NOT block_number > 5",
    "SELECT * FROM t WHERE block_number > a",
    "SELECT * FROM t WHERE block_number + 1 > 5",
    "SELECT * FROM t WHERE block_number > 5.5",
    "SELECT * FROM t WHERE block_number > '5'",
    "SELECT * FROM t WHERE block_number > $none OR a = $text",
    "SELECT * FROM t WHERE block_number > CAST($text AS BIGINT)",
    "SELECT * FROM t WHERE coalesce(block_number, 9) > 5",
    "SELECT * FROM t WHERE block_number IS NULL",
    "SELECT * FROM t WHERE block_number > 5 AND block_number < 3",
    "SELECT * FROM t JOIN u ON t.a = u.a WHERE block_number > 5",
    "SELECT * FROM t LEFT JOIN u ON t.a = u.a AND u.block_number > 5",
    "SELECT count(*) AS n, block_number FROM t GROUP BY block_number HAVING block_number > 5",
    "SELECT a FROM t WHERE block_number = 5 UNION ALL SELECT a FROM t",
    "SELECT * FROM t WHERE EXISTS (SELECT 1 FROM u WHERE block_number > 5)",
    "SELECT * FROM t WHERE a IN (SELECT a FROM u WHERE block_number > 5)",
    "SELECT t.s.block_number AS n FROM t WHERE t.s.block_number > 5",
    "WITH t AS (SELECT * FROM u) SELECT * FROM t WHERE block_number > 5",
    "SELECT * FROM t x JOIN t y ON x.a = y.a WHERE x.block_number > 5",
    "SELECT * FROM t LATERAL VIEW explode(b) x AS block_number WHERE block_number > 5",
]


@pytest.mark.parametrize(("sql", "bounds"), CERTAIN.items())
def test_blocks_that_are_certain(sql: str, bounds: dict[str, tuple[int, int]]) -> None:
    assert check_batch_query(sql, PARAMETERS, ["t", "u"]).blocks == bounds


@pytest.mark.parametrize("sql", UNCERTAIN)
def test_all_blocks_are_needed_where_nothing_is_certain(sql: str) -> None:
    assert check_batch_query(sql, PARAMETERS, ["t", "u"]).blocks == {}
