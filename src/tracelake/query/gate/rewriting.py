"""Changes of the checked tree before it is written back, and the form of a tree in which two are compared."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

_LOCATIONS = frozenset({"query_location", "query_location_length"})
_VALUES_ALIAS = "valueslist"
"""DuckDB wraps VALUES into one more subquery of this name each time that it writes and parses them."""


def transform(node: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """A copy of the tree in which `change` was applied to each object, the inner ones first."""
    if isinstance(node, dict):
        return change({name: transform(value, change) for name, value in node.items()})
    if isinstance(node, list):
        return [transform(item, change) for item in node]
    return node


def name_results(statement: Any, write: Callable[[Any], str]) -> Any:
    """Names for columns of results whose expressions have parameters: casts would change the names."""

    def change(node: dict[str, Any]) -> Any:
        if node.get("type") != "SELECT_NODE":
            return node
        return {**node, "select_list": [_named(item, node, write) for item in node["select_list"]]}

    return transform(statement, change)


def _named(item: Any, query: Any, write: Callable[[Any], str]) -> Any:
    if item["alias"] or item["class"] == "STAR" or not _has_parameter(item):
        return item
    empty = {"type": "EMPTY", "alias": "", "sample": None}
    bare: dict[str, Any] = {
        "modifiers": [],
        "cte_map": {"map": []},
        "select_list": [item],
        "from_table": empty,
        "where_clause": None,
    }
    bare |= {"group_expressions": [], "group_sets": [], "having": None, "sample": None, "qualify": None}
    return {**item, "alias": write({"node": {**query, **bare}, "named_param_map": []}).removeprefix("SELECT ")[:128]}


def _has_parameter(node: Any) -> bool:
    if isinstance(node, list):
        return any(_has_parameter(item) for item in node)
    return isinstance(node, dict) and (
        node.get("class") == "PARAMETER" or any(_has_parameter(value) for value in node.values())
    )


def cast_parameters(statement: Any, types: Mapping[str, Any]) -> Any:
    """Each parameter inside of a cast to its type. `types` has a node for each."""

    def change(node: dict[str, Any]) -> Any:
        if node.get("class") == "CAST" and _is_cast_parameter(node["child"]):
            inner = node["child"]
            outer_type, inner_type = comparable(node["type_expr"]), comparable(inner["type_expr"])
            return {**inner, "alias": node["alias"]} if outer_type == inner_type and not node["try_cast"] else node
        if node.get("class") != "PARAMETER":
            return node
        places = {name: value for name, value in node.items() if name in _LOCATIONS}
        return {
            **places,
            "class": "CAST",
            "type": "OPERATOR_CAST",
            "alias": node["alias"],
            "child": {**node, "alias": ""},
            "type_expr": types[node["identifier"]],
            "try_cast": False,
        }

    return transform(statement, change)


def _is_cast_parameter(node: Any) -> bool:
    return isinstance(node, dict) and node.get("class") == "CAST" and node["child"].get("class") == "PARAMETER"


def unwrap_values(statement: Any) -> Any:
    """VALUES without the subqueries that DuckDB put around them."""

    def change(node: dict[str, Any]) -> Any:
        if node.get("type") == "SUBQUERY" and node.get("alias") == _VALUES_ALIAS and "column_name_alias" in node:
            inner = node["subquery"]["node"]
            if not node["column_name_alias"] and node["sample"] is None and _is_plain_values(inner):
                return inner["from_table"]
        return node

    return transform(statement, change)


def _is_plain_values(query: Any) -> bool:
    """SELECT * FROM VALUES, and nothing else."""
    if query.get("type") != "SELECT_NODE" or query["from_table"]["type"] != "EXPRESSION_LIST":
        return False
    if query["from_table"]["alias"] != _VALUES_ALIAS:
        return False
    stars = query["select_list"]
    empty = ("modifiers", "where_clause", "group_expressions", "group_sets", "having", "sample", "qualify")
    return (
        len(stars) == 1
        and stars[0]["class"] == "STAR"
        and not any(stars[0][name] for name in stars[0] if name not in ("class", "type", *_LOCATIONS))
        and not any(query[name] for name in empty)
        and not query["cte_map"]["map"]
        and query["from_table"]["sample"] is None
    )


def comparable(node: Any) -> Any:
    """The tree without what writing it may change and no meaning depends on."""

    def change(part: dict[str, Any]) -> Any:
        fields = {name: value for name, value in part.items() if name not in _LOCATIONS and name != "named_param_map"}
        if fields.get("class") == "FUNCTION":
            fields.pop("is_operator", None)
        if fields.get("class") == "TYPE":
            fields["type_name"] = str(fields["type_name"]).lower()
            fields.pop("qualified_name", None)
        if fields.keys() == {"name", "expression"} and fields["name"]:
            fields["expression"] = {**fields["expression"], "alias": ""}  # DuckDB repeats the name there, or not
        return fields

    return transform(node, change)


def fingerprint(statement: Any) -> str:
    """A hash of the query without its literals: queries that differ in values alone have the same one."""

    def change(node: dict[str, Any]) -> Any:
        if "kind" in node and "text" in node:
            return "?"
        if node.get("type") == "EXPRESSION_LIST":
            return {**node, "values": node["values"][:1]}
        if node.get("type") == "COMPARE_IN" and all(item.get("class") == "CONSTANT" for item in node["children"][1:]):
            return {**node, "children": node["children"][:2]}
        if "sample_size" in node:
            return "?"
        return node

    tree = transform(comparable(statement), change)
    return hashlib.sha256(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
