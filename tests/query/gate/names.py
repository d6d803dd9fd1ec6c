"""A second, independent walk of DuckDB's tree: it knows no allowlist and collects every name that it meets anywhere."""

import json
from typing import Any

import duckdb

_CONNECTION = duckdb.connect(":memory:")


def tree_of(sql: str) -> dict[str, Any]:
    row = _CONNECTION.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone()
    assert row is not None
    tree: dict[str, Any] = json.loads(row[0])
    assert not tree["error"]
    return tree


def names_in(sql: str) -> tuple[set[str], set[str]]:
    """Names of tables that no WITH of the query has, and names of functions."""
    tables: set[str] = set()
    functions: set[str] = set()
    defined: set[str] = set()
    pending: list[Any] = [tree_of(sql)]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending.extend(node)
        elif isinstance(node, dict):
            if "table_name" in node:
                tables.add(
                    ".".join(part for part in (node["catalog_name"], node["schema_name"], node["table_name"]) if part)
                )
            if "function_name" in node:
                functions.add(
                    ".".join(part for part in (node["catalog"], node["schema"], node["function_name"]) if part)
                )
            for item in node["map"] if isinstance(node.get("map"), list) else ():
                defined.add(item["key"].lower())
            pending.extend(node.values())
    return {name.lower() for name in tables} - defined, {name.lower() for name in functions}
