"""The nodes of DuckDB's syntax tree that a query may consist of, each with its fields and the rule for each field.

A node or field that is not here is refused: it may be new, and nobody has looked at what it does. Rules are names of
methods of `walker.QueryWalker`, sets of allowed words, or `Fixed` values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracelake.query.gate.word_sets import words


@dataclass(frozen=True, slots=True)
class Fixed:
    """A field that has one of these values, and nothing else."""

    values: tuple[Any, ...]


Rule = str | frozenset[str] | Fixed
_EMPTY = Fixed(([],))
_NOTHING = Fixed((None,))
_NO_TEXT = Fixed(("",))
_FALSE = Fixed((False,))


EXPRESSION_FIELDS: Mapping[str, Rule] = {"class": "skip", "type": "skip", "alias": "name"}
COMPARISONS = words(
    """COMPARE_EQUAL COMPARE_NOTEQUAL COMPARE_LESSTHAN COMPARE_GREATERTHAN COMPARE_LESSTHANOREQUALTO
    COMPARE_GREATERTHANOREQUALTO COMPARE_DISTINCT_FROM COMPARE_NOT_DISTINCT_FROM"""
)
_WINDOW_BOUNDS = words(
    """UNBOUNDED_PRECEDING UNBOUNDED_FOLLOWING CURRENT_ROW_RANGE CURRENT_ROW_ROWS CURRENT_ROW_GROUPS
    EXPR_PRECEDING_ROWS EXPR_FOLLOWING_ROWS EXPR_PRECEDING_RANGE EXPR_FOLLOWING_RANGE EXPR_PRECEDING_GROUPS
    EXPR_FOLLOWING_GROUPS"""
)

EXPRESSION_TYPES: Mapping[str, frozenset[str]] = {
    "BETWEEN": words("COMPARE_BETWEEN"),
    "CASE": words("CASE_EXPR"),
    "CAST": words("OPERATOR_CAST"),
    "COLLATE": words("COLLATE"),
    "COLUMN_REF": words("COLUMN_REF"),
    "COMPARISON": COMPARISONS,
    "CONJUNCTION": words("CONJUNCTION_AND CONJUNCTION_OR"),
    "CONSTANT": words("VALUE_CONSTANT"),
    "FUNCTION": words("FUNCTION"),
    "LAMBDA": words("LAMBDA"),
    "OPERATOR": words(
        """OPERATOR_NOT OPERATOR_IS_NULL OPERATOR_IS_NOT_NULL OPERATOR_COALESCE OPERATOR_NULLIF OPERATOR_TRY
        OPERATOR_UNPACK COMPARE_IN COMPARE_NOT_IN ARRAY_EXTRACT ARRAY_SLICE ARRAY_CONSTRUCTOR STRUCT_EXTRACT
        GROUPING_FUNCTION"""
    ),
    "PARAMETER": words("VALUE_PARAMETER"),
    "POSITIONAL_REFERENCE": words("POSITIONAL_REFERENCE"),
    "STAR": words("STAR"),
    "SUBQUERY": words("SUBQUERY"),
    "TYPE": words("TYPE"),
    "WINDOW": words(
        """WINDOW_AGGREGATE WINDOW_ROW_NUMBER WINDOW_FIRST_VALUE WINDOW_LAST_VALUE WINDOW_NTH_VALUE WINDOW_RANK
        WINDOW_RANK_DENSE WINDOW_PERCENT_RANK WINDOW_CUME_DIST WINDOW_LEAD WINDOW_LAG WINDOW_NTILE WINDOW_FILL"""
    ),
}
"""Classes of expressions, with their types."""

EXPRESSIONS: Mapping[str, Mapping[str, Rule]] = {
    "BETWEEN": {"input": "expression", "lower": "expression", "upper": "expression"},
    "CASE": {"case_checks": "case_checks", "else_expr": "expression"},
    "CAST": {"child": "expression", "try_cast": "flag", "type_expr": "sql_type"},
    "COLLATE": {"child": "expression", "collation": frozenset({"nocase", "noaccent", "NOCASE", "NOACCENT"})},
    "COLUMN_REF": {"column_names": "names"},
    "COMPARISON": {"left": "expression", "right": "expression"},
    "CONJUNCTION": {"children": "expressions"},
    "CONSTANT": {"literal": "literal"},
    "FUNCTION": {
        "function_name": "skip",
        "schema": "skip",
        "catalog": "skip",
        "qualified_name": "skip",
        "filter": "optional_expression",
        "order_bys": "order_modifier",
        "distinct": "flag",
        "is_operator": "flag",
        "export_state": _FALSE,
        "arguments": "skip",
    },
    "LAMBDA": {"lhs": "expression", "expr": "expression", "syntax_type": words("SINGLE_ARROW LAMBDA_KEYWORD")},
    "OPERATOR": {"children": "expressions"},
    "PARAMETER": {"identifier": "name"},
    "POSITIONAL_REFERENCE": {"index": "number"},
    "STAR": {
        "relation_name": "name",
        "exclude_list": "names",
        "replace_list": "replacements",
        "columns": "flag",
        "expr": "optional_expression",
        "qualified_exclude_list": "qualified_columns",
        "rename_list": "renames",
    },
    "SUBQUERY": {
        "subquery_type": words("SCALAR EXISTS NOT_EXISTS ANY"),
        "subquery": "statement",
        "child": "optional_expression",
        "comparison_type": COMPARISONS | {"INVALID"},
    },
    "TYPE": {
        "catalog": _NO_TEXT,
        "schema": _NO_TEXT,
        "type_name": "skip",
        "qualified_name": "skip",
        "children": "skip",
    },
    "WINDOW": {
        "function_name": "skip",
        "schema": "skip",
        "catalog": "skip",
        "qualified_name": "skip",
        "partitions": "expressions",
        "orders": "orders",
        "start": _WINDOW_BOUNDS,
        "end": _WINDOW_BOUNDS,
        "start_expr": "optional_expression",
        "end_expr": "optional_expression",
        "offset_expr": "optional_expression",
        "default_expr": "optional_expression",
        "ignore_nulls": "flag",
        "filter_expr": "optional_expression",
        "exclude_clause": words("NO_OTHER CURRENT_ROW GROUP TIES"),
        "distinct": "flag",
        "arg_orders": "orders",
        "has_ignore_nulls": "flag",
        "arguments": "skip",
    },
}

_QUERY_FIELDS: Mapping[str, Rule] = {"type": "skip", "modifiers": "modifiers", "cte_map": "skip"}
QUERIES: Mapping[str, Mapping[str, Rule]] = {
    "SELECT_NODE": {
        **_QUERY_FIELDS,
        "select_list": "expressions",
        "from_table": "relation",
        "where_clause": "optional_expression",
        "group_expressions": "expressions",
        "group_sets": "group_sets",
        "aggregate_handling": words("STANDARD_HANDLING FORCE_AGGREGATES"),
        "having": "optional_expression",
        "sample": "sample",
        "qualify": "optional_expression",
    },
    "SET_OPERATION_NODE": {
        **_QUERY_FIELDS,
        "setop_type": words("UNION EXCEPT INTERSECT UNION_BY_NAME"),
        "left": _NOTHING,
        "right": _NOTHING,
        "setop_all": "flag",
        "children": "queries",
    },
    "RECURSIVE_CTE_NODE": {
        **_QUERY_FIELDS,
        "cte_name": "skip",
        "union_all": "flag",
        "left": "skip",
        "right": "skip",
        "aliases": "names",
        "key_targets": "expressions",
    },
}

_RELATION_FIELDS: Mapping[str, Rule] = {"type": "skip", "alias": "name", "sample": "sample"}
RELATIONS: Mapping[str, Mapping[str, Rule]] = {
    "EMPTY": _RELATION_FIELDS,
    "BASE_TABLE": {
        **_RELATION_FIELDS,
        "schema_name": "skip",
        "table_name": "skip",
        "catalog_name": "skip",
        "qualified_name": "skip",
        "column_name_alias": "names",
        "at_clause": _NOTHING,
    },
    "EXPRESSION_LIST": {
        **_RELATION_FIELDS,
        "expected_names": _EMPTY,
        "expected_types": _EMPTY,
        "values": "rows",
    },
    "JOIN": {
        **_RELATION_FIELDS,
        "left": "relation",
        "right": "relation",
        "condition": "optional_expression",
        "join_type": words("INNER LEFT RIGHT FULL SEMI ANTI"),
        "ref_type": words("REGULAR NATURAL CROSS POSITIONAL ASOF"),
        "using_columns": "names",
        "delim_flipped": _FALSE,
        "duplicate_eliminated_columns": _EMPTY,
        "is_implicit": "flag",
        "ranking_expression": _NOTHING,
        "nearest_count": Fixed((1,)),
        "nearest_order_type": words("ASCENDING"),
        "nearest_approx": _FALSE,
    },
    "PIVOT": {
        **_RELATION_FIELDS,
        "source": "relation",
        "aggregates": "expressions",
        "unpivot_names": "names",
        "pivots": "pivots",
        "groups": "names",
        "column_name_alias": "names",
        "include_nulls": "flag",
    },
    "SUBQUERY": {**_RELATION_FIELDS, "subquery": "statement", "column_name_alias": "names"},
    "TABLE_FUNCTION": {
        **_RELATION_FIELDS,
        "function": "skip",
        "column_name_alias": "names",
        "with_ordinality": words("WITHOUT_ORDINALITY WITH_ORDINALITY"),
    },
}

MODIFIERS: Mapping[str, Mapping[str, Rule]] = {
    "ORDER_MODIFIER": {"type": "skip", "orders": "orders"},
    "LIMIT_MODIFIER": {
        "type": "skip",
        "limit": "optional_expression",
        "offset": "optional_expression",
        "limit_type": words("ROW_COUNT PERCENTAGE"),
    },
    "DISTINCT_MODIFIER": {"type": "skip", "distinct_on_targets": "expressions"},
}

PARTS: Mapping[str, Mapping[str, Rule]] = {
    "statement": {"node": "query_node", "named_param_map": "parameter_map"},
    "order": {
        "type": words("ORDER_DEFAULT ASCENDING DESCENDING"),
        "null_order": Fixed(("ORDER_DEFAULT", "NULLS FIRST", "NULLS LAST", "NULLS_FIRST", "NULLS_LAST")),
        "expression": "expression",
    },
    "case_check": {"when_expr": "expression", "then_expr": "expression"},
    "argument": {"name": "name", "expression": "skip"},
    "cte": {
        "aliases": "names",
        "query_node": "skip",
        "materialized": words("CTE_MATERIALIZE_DEFAULT CTE_MATERIALIZE_ALWAYS CTE_MATERIALIZE_NEVER"),
        "key_targets": "expressions",
        "payload_aggregates": _EMPTY,
    },
    "literal": {
        "kind": words("INTEGER NUMERIC STRING BOOLEAN NULL_LITERAL HEX"),
        "text": "literal_text",
    },
    "pivot": {
        "pivot_expressions": "expressions",
        "unpivot_names": "names",
        "entries": "pivot_entries",
        "pivot_enum": _NO_TEXT,
    },
    "pivot_entry": {"values": _EMPTY, "star_expr": "optional_expression", "alias": "name"},
    "replacement": {"key": "name", "value": "expression"},
    "rename": {"key": "qualified_column", "value": "name"},
    "qualified_column": {"catalog": _NO_TEXT, "schema": _NO_TEXT, "table": "name", "column": "name"},
    "parameter": {"key": "name", "value": "number"},
    "sample": {
        "sample_size": "sample_size",
        "is_percentage": "flag",
        "method": words("System Bernoulli Reservoir"),
        "seed": "number",
        "repeatable": "flag",
        "sample_rate": "number",
    },
    "sample_size": {"type": "skip", "is_null": _FALSE, "value": "number"},
}
"""Objects of the tree that have no type of their own, by the place where they stand."""
