"""Simple filters of a query per relation, for reading less: blocks of files, or rows of a Postgres table.

A filter is `column op constant`, one of the conditions that all have to hold in the WHERE beside the relation. The
engine applies the WHERE itself all the same; a filter only says that rows which fail it cannot contribute to the
result. That is true if

- the relation stands once in the whole query, so every read of it has this WHERE;
- it is a part of inner or outer joins of that FROM: all of these comparisons reject null, so a row that an outer join
  makes up in place of a missing one fails the WHERE. In ASOF and positional joins other rows would take its place;
- no sample is taken from the relation;
- the constant has the column's type, so no conversion changes the comparison. Texts are compared for equality alone,
  since another database may order them differently.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tracelake.query.gate.calls import constant_of
from tracelake.query.gate.parameters import TypedValue
from tracelake.query.gate.word_sets import words

_OPERATORS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_FLIPPED = {"=": "=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_INTEGERS = words("tinyint smallint integer int bigint hugeint utinyint usmallint uinteger ubigint uhugeint")
_TEXTS = frozenset({"varchar", "text", "string"})
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?")
_ZONED = re.compile(_TIMESTAMP.pattern + r"(?:Z|\+00(?::00)?)")
_JOINS = frozenset({"REGULAR", "CROSS", "NATURAL"})
_MAX_LIST = 1_000


@dataclass(frozen=True, slots=True)
class ColumnFilter:
    """`column op value`; for `in` the value is a tuple. Times are texts in ISO format."""

    column: str
    operator: str
    value: int | str | tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A relation in FROM. `relation` is None for a subquery, a WITH or a function, whose columns are not known here."""

    alias: str
    relation: str | None
    is_readable: bool = True


def find_filters(
    statement: Any,
    relations: Mapping[str, Mapping[str, str]],
    parameters: Mapping[str, TypedValue],
    cte_names: frozenset[str],
) -> dict[str, tuple[ColumnFilter, ...]]:
    """Filters by relation. A relation whose name is also that of a WITH has none: one is easily taken for the other."""
    granted = {name.lower(): name for name in relations if name.lower() not in cte_names}
    queries = list(_queries(statement))
    scans = [granted.get(str(name).lower()) for query in queries for name in _tables(query["from_table"])]
    filters: dict[str, list[ColumnFilter]] = {}
    for query in queries:
        leaves, merged = _leaves(query["from_table"], granted)
        if not leaves:
            continue
        for relation, item in _conditions(query["where_clause"], leaves, merged, relations, parameters):
            if scans.count(relation) == 1 and item not in filters.setdefault(relation, []):
                filters[relation].append(item)
    return {relation: tuple(items) for relation, items in filters.items() if items}


def _queries(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        if node.get("type") == "SELECT_NODE":
            yield node
        for value in node.values():
            yield from _queries(value)
    elif isinstance(node, list):
        for item in node:
            yield from _queries(item)


def _tables(relation: Any) -> Iterator[Any]:
    """The tables of a FROM, without those of its subqueries."""
    kind = relation["type"]
    if kind == "BASE_TABLE":
        yield relation["table_name"]
    elif kind == "JOIN":
        yield from _tables(relation["left"])
        yield from _tables(relation["right"])
    elif kind == "PIVOT":
        yield from _tables(relation["source"])


def _leaves(relation: Any, granted: Mapping[str, str]) -> tuple[list[_Leaf], list[str]]:
    """The relations of a FROM, and the columns that joins merge; nothing if a join is of another kind."""
    kind = relation["type"]
    if kind == "JOIN":
        if relation["ref_type"] not in _JOINS or relation["join_type"] not in ("INNER", "LEFT", "RIGHT", "FULL"):
            return [], []
        left, left_merged = _leaves(relation["left"], granted)
        right, right_merged = _leaves(relation["right"], granted)
        if not left or not right or relation["ref_type"] == "NATURAL":
            return [], []
        return left + right, left_merged + right_merged + [name.lower() for name in relation["using_columns"]]
    if kind != "BASE_TABLE":
        return [_Leaf(str(relation.get("alias", "")).lower(), None)], []
    name = str(relation["table_name"]).lower()
    is_readable = relation["sample"] is None and not relation["column_name_alias"]
    return [_Leaf(str(relation["alias"] or name).lower(), granted.get(name), is_readable)], []


def _conditions(
    where: Any,
    leaves: list[_Leaf],
    merged: list[str],
    relations: Mapping[str, Mapping[str, str]],
    parameters: Mapping[str, TypedValue],
) -> Iterator[tuple[str, ColumnFilter]]:
    if where is None:
        return
    if where["class"] == "CONJUNCTION" and where["type"] == "CONJUNCTION_AND":
        for child in where["children"]:
            yield from _conditions(child, leaves, merged, relations, parameters)
        return
    for reference, operator, constants in _comparisons(where):
        for relation, column in _owners(reference, leaves, merged, relations):
            values = [
                _value(constant, operator, relations[relation][column].lower(), parameters) for constant in constants
            ]
            if any(value is None for value in values):
                continue
            constants_of_type = tuple(value for value in values if value is not None)
            yield (
                relation,
                ColumnFilter(column, operator, constants_of_type if operator == "in" else constants_of_type[0]),
            )


def _comparisons(node: Any) -> Iterator[tuple[list[str], str, list[Any]]]:
    """Column, operator and constants of a comparison."""
    kind = node["class"]
    if kind == "BETWEEN" and node["input"]["class"] == "COLUMN_REF":
        yield node["input"]["column_names"], ">=", [node["lower"]]
        yield node["input"]["column_names"], "<=", [node["upper"]]
    elif kind == "COMPARISON" and node["type"] in _OPERATORS:
        operator = _OPERATORS[node["type"]]
        if node["left"]["class"] == "COLUMN_REF":
            yield node["left"]["column_names"], operator, [node["right"]]
        elif node["right"]["class"] == "COLUMN_REF":
            yield node["right"]["column_names"], _FLIPPED[operator], [node["left"]]
    elif kind == "OPERATOR" and node["type"] == "COMPARE_IN" and 2 <= len(node["children"]) <= _MAX_LIST:
        first, *others = node["children"]
        if first["class"] == "COLUMN_REF":
            yield first["column_names"], "in", others


def _owners(
    reference: list[str], leaves: list[_Leaf], merged: list[str], relations: Mapping[str, Mapping[str, str]]
) -> list[tuple[str, str]]:
    """The relations whose column it is, with its name there; several if a join by USING makes them equal."""
    name = reference[-1].lower()
    if len(reference) == 2:
        matching = [leaf for leaf in leaves if leaf.alias == reference[0].lower()]
        if len(matching) != 1 or any(_column(leaf, reference[0].lower(), relations) for leaf in leaves):
            return []
    elif len(reference) == 1:
        if len(leaves) > 1 and any(leaf.relation is None for leaf in leaves):
            return []
        matching = [leaf for leaf in leaves if _column(leaf, name, relations)]
    else:
        return []
    if len(matching) > 1 and merged.count(name) != len(matching) - 1:
        return []
    owners = [
        (leaf.relation, column)
        for leaf in matching
        if leaf.is_readable and leaf.relation is not None and (column := _column(leaf, name, relations)) is not None
    ]
    kinds = {relations[relation][column].lower() for relation, column in owners}
    return owners if len(kinds) == 1 and len(owners) == len(matching) else []


def _column(leaf: _Leaf, name: str, relations: Mapping[str, Mapping[str, str]]) -> str | None:
    if leaf.relation is None:
        return None
    return next((column for column in relations[leaf.relation] if column.lower() == name), None)


def _value(node: Any, operator: str, kind: str, parameters: Mapping[str, TypedValue]) -> int | str | None:
    """The constant, if a comparison with a column of this type is exact in any database."""
    value = constant_of(node, parameters)
    source = node
    while source["class"] == "CAST":
        if str(source["type_expr"]["type_name"]).lower() != kind and source["child"]["class"] != "PARAMETER":
            return None
        source = source["child"]
    if isinstance(value, bool):
        return None
    if kind in _INTEGERS:
        return value if isinstance(value, int) and abs(value) < 2**63 else None
    if not isinstance(value, str):
        return None
    if source["class"] == "PARAMETER" and parameters[source["identifier"]].sql_type.lower() != kind:
        return None
    if kind in _TEXTS:
        return value if operator in ("=", "in") else None
    pattern = {"date": _DATE, "timestamp": _TIMESTAMP, "timestamp with time zone": _ZONED, "timestamptz": _ZONED}
    return value if kind in pattern and pattern[kind].fullmatch(value) else None
