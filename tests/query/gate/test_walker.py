"""A node or a field that nobody has looked at is refused, wherever it stands."""

import copy
from typing import Any

import pytest

from tests.query.gate.corpus import RELATIONS
from tests.query.gate.names import tree_of
from tracelake.errors import TraceError
from tracelake.query.gate.walker import QueryWalker

SQL = """
    WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5)
    SELECT DISTINCT CASE WHEN b.gas_used BETWEEN 1 AND 2 THEN CAST(n AS DECIMAL(10, 2)) END, b.*,
        sum(n) OVER (PARTITION BY author ORDER BY n), (SELECT max(n) FROM r), n IN (1, 2)
    FROM blocks b JOIN r ON b.block_number = r.n, range(3), (VALUES (1)) v(x)
    WHERE author = 'a' AND NOT gas_used > 1 ORDER BY n LIMIT 5
"""


def objects(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all objects of a tree."""
    if isinstance(node, dict):
        return [path, *(item for key, value in node.items() for item in objects(value, (*path, key)))]
    if isinstance(node, list):
        return [item for index, value in enumerate(node) for item in objects(value, (*path, index))]
    return []


def test_an_unknown_field_is_refused_in_every_object() -> None:
    statement = tree_of(SQL)["statements"][0]
    QueryWalker(SQL, RELATIONS, {}).walk(statement)
    for path in objects(statement):
        changed = copy.deepcopy(statement)
        node = changed
        for key in path:
            node = node[key]
        node["new_field"] = None
        with pytest.raises(TraceError):
            QueryWalker(SQL, RELATIONS, {}).walk(changed)


@pytest.mark.parametrize("name", ["type", "class"])
def test_an_unknown_node_is_refused_everywhere(name: str) -> None:
    statement = tree_of(SQL)["statements"][0]
    for path in objects(statement):
        changed = copy.deepcopy(statement)
        node = changed
        for key in path:
            node = node[key]
        if isinstance(node.get(name), str):
            node[name] = "NEW_NODE"
            with pytest.raises(TraceError):
                QueryWalker(SQL, RELATIONS, {}).walk(changed)
