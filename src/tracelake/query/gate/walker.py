"""Walks DuckDB's syntax tree of a query and refuses whatever the tables of `nodes` and `functions` do not allow.

Names of relations are resolved in DuckDB's way: a name is the innermost WITH of that name which is visible at its
place, otherwise a granted relation. A WITH sees those before it and those of the queries around it; a recursive one
sees itself in its second part only.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tracelake.errors import TraceError
from tracelake.query.gate.calls import CallChecker
from tracelake.query.gate.functions.types import MAX_ARRAY, NESTED_TYPES, SCALAR_TYPES
from tracelake.query.gate.nodes import (
    EXPRESSION_FIELDS,
    EXPRESSION_TYPES,
    EXPRESSIONS,
    MODIFIERS,
    PARTS,
    QUERIES,
    RELATIONS,
    Fixed,
    Rule,
)
from tracelake.query.gate.parameters import TypedValue
from tracelake.query.gate.refusals import closest, quote, refuse
from tracelake.query.gate.sizes import ConstantSizes
from tracelake.query.gate.text import ByteOffsets, too_deep
from tracelake.query.gate.word_sets import words

MAX_NODES = 20_000
MAX_DEPTH = 100
MAX_NAME = 128
MAX_SCANS = 100
MAX_QUERIES = 200
_LISTED = "`trace datasets` lists what you may read, and so does `\\d` in `trace query`."
_LOCATIONS = frozenset({"query_location", "query_location_length"})
_NO_LOCATION = 2**64 - 1
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SYSTEM_NAME = re.compile(r"(duckdb|pragma|sqlite|pg)_.*|information_schema")
_SESSION_WORDS = words(
    """current_catalog current_database current_query current_role current_schema current_schemas current_user
    session_user user"""
)
"""Words that DuckDB reads as functions where no column has this name."""
_SYSTEM_COLUMNS = frozenset({"rowid"})
_TEXT_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(slots=True)
class NamesInUse:
    """What the tree names."""

    relations: set[str] = field(default_factory=set)
    """Granted names, as they were granted."""
    tables: set[str] = field(default_factory=set)
    """Every name of a relation in the text, in small letters; names of WITH too."""
    tables_of_with: frozenset[str] = frozenset()
    functions: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)


class QueryWalker:
    def __init__(
        self, query: str, relations: Mapping[str, Mapping[str, str]], parameters: Mapping[str, TypedValue]
    ) -> None:
        self.names = NamesInUse()
        self._query = query
        self._offsets = ByteOffsets(query)
        self._granted = {name.lower(): name for name in relations}
        self._columns = {column.lower() for columns in relations.values() for column in columns}
        self._parameters = parameters
        self._visible: frozenset[str] = frozenset()
        self._nodes = self._depth = self._scans = self._queries_seen = 0
        self._calls = CallChecker(parameters, self.refuse)
        self._sizes = ConstantSizes(parameters, self.refuse)

    def walk(self, statement: Any) -> NamesInUse:
        """Raises TraceError."""
        self._statement(statement)
        self._sizes.check(statement)
        return self.names

    def refuse(
        self, code: str, message: str, node: Any, *, name: str | None = None, suggestions: list[str] | None = None
    ) -> TraceError:
        return refuse(code, message, self._query, self._offset(node), name=name, suggestions=suggestions or ())

    def _offset(self, node: Any) -> int:
        """The first location in the node; parts that DuckDB added have none, and are said to be at the start."""
        pending = [node]
        while pending:
            part = pending.pop()
            if isinstance(part, dict):
                place = part.get("query_location", _NO_LOCATION)
                if isinstance(place, int) and place != _NO_LOCATION:
                    return self._offsets.character(place)
                pending.extend(reversed(part.values()))
            elif isinstance(part, list):
                pending.extend(reversed(part))
        return 0

    # --- fields

    def _fields(self, node: Any, rules: Mapping[str, Rule], what: str) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise self.refuse("query_too_complex", f"A query has at most {MAX_NODES:,} parts.", node)
        if not isinstance(node, dict) or node.keys() - rules.keys() - _LOCATIONS or rules.keys() - node.keys():
            raise self.refuse("query_not_allowed", f"This form of {what} is not supported.", node)
        for name, rule in rules.items():
            value = node[name]
            if isinstance(rule, Fixed):
                if value not in rule.values or type(value) not in {type(item) for item in rule.values}:
                    raise self.refuse("query_not_allowed", f"This form of {what} is not supported.", node)
            elif isinstance(rule, frozenset):
                if not isinstance(value, str) or value not in rule:
                    raise self.refuse("query_not_allowed", f"This form of {what} is not supported.", node)
            elif rule != "skip":
                getattr(self, "_" + rule)(value)

    def _typed_fields(self, node: Any, tables: Mapping[str, Mapping[str, Rule]], what: str) -> str:
        kind = node.get("type") if isinstance(node, dict) else None
        if not isinstance(kind, str) or kind not in tables:
            raise self.refuse("query_not_allowed", f"{_describe(kind, what)} is not supported.", node)
        self._fields(node, tables[kind], what)
        return kind

    @contextmanager
    def _deeper(self, node: Any) -> Iterator[None]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise too_deep(self._query, self._offset(node))
        yield
        self._depth -= 1

    def _list(self, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise self.refuse("query_not_allowed", "This form of the query is not supported.", value)
        return value

    def _name(self, value: Any) -> None:
        if not isinstance(value, str) or len(value) > MAX_NAME or not value.isprintable():
            message = f"A name has at most {MAX_NAME} visible characters."
            raise self.refuse("query_not_allowed", message, None, name=str(value))

    def _names(self, value: Any) -> None:
        for item in self._list(value):
            self._name(item)

    def _flag(self, value: Any) -> None:
        if not isinstance(value, bool):
            raise self.refuse("query_not_allowed", "This form of the query is not supported.", None)

    def _number(self, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse("query_not_allowed", "This form of the query is not supported.", None)

    def _group_sets(self, value: Any) -> None:
        for item in self._list(value):
            for index in self._list(item):
                self._number(index)

    # --- queries

    def _statement(self, node: Any) -> None:
        self._fields(node, PARTS["statement"], "statement")

    def _parameter_map(self, value: Any) -> None:
        for item in self._list(value):
            self._fields(item, PARTS["parameter"], "parameter")

    def _queries(self, value: Any) -> None:
        for item in self._list(value):
            self._query_node(item)

    def _query_node(self, node: Any) -> None:
        self._queries_seen += 1
        if self._queries_seen > MAX_QUERIES:
            raise self.refuse("query_too_complex", f"A query has at most {MAX_QUERIES} SELECTs.", node)
        with self._deeper(node):
            outer = self._visible
            try:
                if isinstance(node, dict):
                    self._ctes(node.get("cte_map"))
                if self._typed_fields(node, QUERIES, "query") == "RECURSIVE_CTE_NODE":
                    self._recursion(node)
            finally:
                self._visible = outer

    def _ctes(self, value: Any) -> None:
        if not isinstance(value, dict) or value.keys() != {"map"}:
            raise self.refuse("query_not_allowed", "This form of WITH is not supported.", value)
        for item in self._list(value["map"]):
            if not isinstance(item, dict) or item.keys() != {"key", "value"}:
                raise self.refuse("query_not_allowed", "This form of WITH is not supported.", value)
            name = self._cte_name(item["key"], item)
            self._fields(item["value"], PARTS["cte"], "WITH")
            self._query_node(item["value"]["query_node"])
            self._visible |= {name}
            self.names.tables_of_with |= {name}

    def _cte_name(self, value: Any, node: Any) -> str:
        name = value.lower() if isinstance(value, str) else ""
        if not _PLAIN_NAME.fullmatch(name) or len(name) > MAX_NAME or _SYSTEM_NAME.fullmatch(name):
            message = f"{quote(str(value))} cannot be the name of a WITH: use letters, digits and `_`."
            raise self.refuse("query_not_allowed", message, node, name=str(value))
        return name

    def _recursion(self, node: Any) -> None:
        name = self._cte_name(node["cte_name"], node)
        self._query_node(node["left"])
        if not _is_bounded(node["right"]):
            message = f"Nothing ends the recursion of {quote(name)}: the part behind UNION needs a WHERE or a join."
            raise self.refuse("query_not_allowed", message, node["right"], name=name)
        outer = self._visible
        self._visible |= {name}
        try:
            self._query_node(node["right"])
        finally:
            self._visible = outer

    def _modifiers(self, value: Any) -> None:
        for item in self._list(value):
            self._typed_fields(item, MODIFIERS, "clause")

    def _order_modifier(self, value: Any) -> None:
        self._typed_fields(value, {"ORDER_MODIFIER": MODIFIERS["ORDER_MODIFIER"]}, "clause")

    def _orders(self, value: Any) -> None:
        for item in self._list(value):
            self._fields(item, PARTS["order"], "ORDER BY")

    # --- relations

    def _relation(self, node: Any) -> None:
        with self._deeper(node):
            kind = self._typed_fields(node, RELATIONS, "relation")
            if kind == "BASE_TABLE":
                self._table(node)
            elif kind == "TABLE_FUNCTION":
                places = {name: node[name] for name in _LOCATIONS & node.keys()}
                self._function({**node["function"], **places}, table=True)

    def _table(self, node: Any) -> None:
        name = node["table_name"]
        self._scans += 1
        if self._scans > MAX_SCANS:
            message = f"A query names relations at most {MAX_SCANS} times."
            raise self.refuse("query_too_complex", message, node)
        plain = isinstance(name, str) and name.isascii() and node["catalog_name"] == node["schema_name"] == ""
        if not plain or node["qualified_name"] != {"path": [name]}:
            qualified = node["qualified_name"]
            path = qualified.get("path") if isinstance(qualified, dict) else None
            full_name = ".".join(str(part) for part in (path if isinstance(path, list) else [name]))
            raise self._unknown_relation(full_name, str(name), node)
        lower = name.lower()
        self.names.tables.add(lower)
        if lower in self._visible:
            return
        if lower not in self._granted:
            raise self._unknown_relation(name, name, node)
        self.names.relations.add(self._granted[lower])

    def _unknown_relation(self, full_name: str, name: str, node: Any) -> TraceError:
        suggestions = closest(name, self._granted.values())
        hint = f"Did you mean {quote(suggestions[0])}?" if suggestions else _LISTED
        message = f"There is no relation {quote(full_name)} that you may read. {hint}"
        return self.refuse("query_unknown_relation", message, node, name=full_name, suggestions=suggestions)

    def _rows(self, value: Any) -> None:
        for row in self._list(value):
            self._expressions(row)

    def _pivots(self, value: Any) -> None:
        for item in self._list(value):
            self._fields(item, PARTS["pivot"], "PIVOT")

    def _pivot_entries(self, value: Any) -> None:
        for item in self._list(value):
            self._fields(item, PARTS["pivot_entry"], "PIVOT")

    def _sample(self, value: Any) -> None:
        if value is not None:
            self._fields(value, PARTS["sample"], "SAMPLE")

    def _sample_size(self, value: Any) -> None:
        self._fields(value, PARTS["sample_size"], "SAMPLE")
        if value["type"] not in ({"id": kind, "type_info": None} for kind in ("BIGINT", "DOUBLE", "INTEGER")):
            raise self.refuse("query_not_allowed", "This form of SAMPLE is not supported.", value)

    # --- expressions

    def _optional_expression(self, value: Any) -> None:
        if value is not None:
            self._expression(value)

    def _expressions(self, value: Any) -> None:
        for item in self._list(value):
            self._expression(item)

    def _expression(self, node: Any) -> None:
        with self._deeper(node):
            kind = node.get("class") if isinstance(node, dict) else None
            if not isinstance(kind, str) or kind not in EXPRESSIONS or kind == "TYPE":
                raise self.refuse("query_not_allowed", f"{_describe(kind, 'expression')} is not supported.", node)
            if not isinstance(node.get("type"), str) or node["type"] not in EXPRESSION_TYPES[kind]:
                name = _describe(node.get("type"), "operation")
                raise self.refuse("query_not_allowed", f"{name} is not supported.", node)
            self._fields(node, {**EXPRESSION_FIELDS, **EXPRESSIONS[kind]}, "expression")
            if kind in ("FUNCTION", "WINDOW"):
                self._call(node, window=kind == "WINDOW")
            elif kind == "COLUMN_REF":
                self._column(node)
            elif kind == "PARAMETER":
                self._parameter(node)

    def _function(self, node: Any, *, table: bool) -> None:
        if not isinstance(node, dict) or node.get("class") != "FUNCTION" or node.get("type") != "FUNCTION":
            raise self.refuse("query_not_allowed", "This form of FROM is not supported.", node)
        self._fields(node, {**EXPRESSION_FIELDS, **EXPRESSIONS["FUNCTION"]}, "function")
        self._call(node, table=table)

    def _call(self, node: Any, *, window: bool = False, table: bool = False) -> None:
        arguments = self._list(node["arguments"])
        for argument in arguments:
            self._fields(argument, PARTS["argument"], "argument")
            self._expression(argument["expression"])
        self.names.functions.add(self._calls.check(node, arguments, window=window, table=table))

    def _column(self, node: Any) -> None:
        names = node["column_names"]
        last = names[-1].lower() if names else ""
        if len(names) == 1 and last in _SESSION_WORDS:
            message = f"{quote(names[0])} tells of the session. If it is a column, write the relation before it."
            raise self.refuse("query_not_allowed", message, node, name=names[0])
        if last in _SYSTEM_COLUMNS and last not in self._columns:
            raise self.refuse(
                "query_unknown_column", f"There is no column {quote(names[-1])}.", node, name=".".join(names)
            )

    def _parameter(self, node: Any) -> None:
        name = node["identifier"]
        if name not in self._parameters:
            suggestions = closest(name, self._parameters)
            message = f"The query uses the parameter {quote('$' + name)}, which has no value."
            if name.isdigit():
                message = "Parameters have names: write `$name`, and send its value under this name."
            raise self.refuse("query_parameter", message, node, name=name, suggestions=suggestions)
        self.names.parameters.add(name)

    def _literal(self, value: Any) -> None:
        self._fields(value, PARTS["literal"], "literal")

    def _literal_text(self, value: Any) -> None:
        if not isinstance(value, str) or _TEXT_CONTROLS.search(value):
            raise self.refuse("query_not_allowed", "A text cannot contain control characters.", None)

    def _case_checks(self, value: Any) -> None:
        for item in self._list(value):
            self._fields(item, PARTS["case_check"], "CASE")

    def _replacements(self, value: Any) -> None:
        for item in self._list(value):
            self._fields(item, PARTS["replacement"], "REPLACE")

    def _renames(self, value: Any) -> None:
        for item in self._list(value):
            self._fields(item, PARTS["rename"], "RENAME")

    def _qualified_columns(self, value: Any) -> None:
        for item in self._list(value):
            self._qualified_column(item)

    def _qualified_column(self, value: Any) -> None:
        self._fields(value, PARTS["qualified_column"], "column")

    def _sql_type(self, node: Any) -> None:
        with self._deeper(node):
            if not isinstance(node, dict) or node.get("class") != "TYPE" or node.get("type") != "TYPE":
                raise self.refuse("query_not_allowed", "This form of a type is not supported.", node)
            self._fields(node, {**EXPRESSION_FIELDS, **EXPRESSIONS["TYPE"]}, "type")
            name = node["type_name"]
            lower = name.lower() if isinstance(name, str) else ""
            if node["qualified_name"] != {"path": [name]} or lower not in SCALAR_TYPES | NESTED_TYPES:
                message = f"The type {quote(str(name))} is not supported."
                raise self.refuse("query_not_allowed", message, node, name=str(name))
            for child in self._list(node["children"]):
                if isinstance(child, dict) and child.get("class") == "TYPE" and lower in NESTED_TYPES:
                    self._sql_type(child)
                else:
                    self._type_number(child)

    def _type_number(self, node: Any) -> None:
        text = (
            node.get("literal", {}).get("text") if isinstance(node, dict) and node.get("class") == "CONSTANT" else None
        )
        self._expression(node)
        if not isinstance(text, str) or not text.isdigit() or len(text) > 5 or int(text) > MAX_ARRAY:
            raise self.refuse("query_not_allowed", "A type takes small numbers only.", node)


def _describe(kind: Any, what: str) -> str:
    names = {
        "SHOW_REF": "DESCRIBE, SHOW or SUMMARIZE",
        "INSERT_QUERY_NODE": "INSERT",
        "UPDATE_QUERY_NODE": "UPDATE",
        "DELETE_QUERY_NODE": "DELETE",
        "MERGE_QUERY_NODE": "MERGE",
        "DEFAULT": "DEFAULT",
    }
    return names.get(str(kind), f"This kind of {what}")


def _is_bounded(node: Any) -> bool:
    """Whether the repeated part of a recursion has a condition at all; the engine's deadline bounds the rest."""
    if not isinstance(node, dict):
        return False
    if node.get("type") == "SET_OPERATION_NODE":
        return all(_is_bounded(child) for child in node.get("children") or [None])
    return any(node.get(name) is not None for name in ("where_clause", "having", "qualify")) or _is_joined(
        node.get("from_table")
    )


def _is_joined(relation: Any) -> bool:
    if not isinstance(relation, dict) or relation.get("type") != "JOIN":
        return False
    is_conditional = relation.get("condition") is not None or bool(relation.get("using_columns"))
    return (
        is_conditional
        or relation.get("ref_type") == "NATURAL"
        or any(_is_joined(relation.get(side)) for side in ("left", "right"))
    )
