"""`check_query`: from the text of a caller to the SQL that the engine shall run, and what it will read.

1. The text: characters, length, nesting (`text`).
2. DuckDB's own syntax tree, node by node against allowlists (`walker`).
3. sqlglot's view of the same text (`second_opinion`).
4. The checked tree is written back as SQL and parsed once more: it has to be the same tree. This text runs, not the
   caller's.
5. DuckDB binds that text against empty tables of the granted columns: names and types are right, and the plan tells
   which columns it needs (`duckdb_parser`).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tracelake.errors import TraceError
from tracelake.query.gate.duckdb_parser import BindError, DuckDbParser, ParseError, Scan
from tracelake.query.gate.filters import ColumnFilter, find_filters
from tracelake.query.gate.parameters import BoundValue, QueryParameter, TypedValue, check_parameters
from tracelake.query.gate.refusals import closest, quote, refuse
from tracelake.query.gate.reserved_names import find_reserved_name
from tracelake.query.gate.rewriting import cast_parameters, comparable, fingerprint, name_results, unwrap_values
from tracelake.query.gate.second_opinion import agrees
from tracelake.query.gate.text import ByteOffsets, check_text, too_deep
from tracelake.query.gate.walker import NamesInUse, QueryWalker

Relations = Mapping[str, Mapping[str, str]]
"""Granted names with their columns and DuckDB's types of them, in the order of the columns."""
MAX_SQL = 400_000
_CAST = "SELECT CAST(NULL AS INTEGER)"
_MOST_TYPES = 10_000
_PIVOT = re.compile(r"\s*(un)?pivot\b", re.IGNORECASE)
_STATEMENTS = "A query is one SELECT, WITH, FROM, VALUES or PIVOT ... IN (...)."


@dataclass(frozen=True, slots=True)
class CheckedQuery:
    """A query that passed."""

    sql: str
    """What the engine shall run, with `$name` for parameters."""
    parameters: Mapping[str, BoundValue]
    """The values to bind; only those that the query uses."""
    relations: frozenset[str]
    columns: Mapping[str, frozenset[str]]
    """The columns of each relation whose values matter. The engine resolves the others too: they have to exist with
    their types, but may be null."""
    filters: Mapping[str, tuple[ColumnFilter, ...]]
    """Rows of a relation that fail one of its filters cannot contribute to the result; see `filters`."""
    fingerprint: str
    """SHA-256 of the query without its literals."""


class QueryGate:
    """Checks queries, one at a time. Not safe for threads."""

    def __init__(self) -> None:
        self._duckdb = DuckDbParser()
        self._types: dict[str, Any] = {}
        self._known_types: set[str] = set()

    def check(self, sql: str, parameters: Mapping[str, QueryParameter], relations: Relations) -> CheckedQuery:
        """Raises TraceError."""
        try:
            return self._check(sql, parameters, relations)
        except RecursionError:
            raise too_deep(sql, 0) from None

    def _check(self, sql: str, parameters: Mapping[str, QueryParameter], relations: Relations) -> CheckedQuery:
        values = check_parameters(parameters)
        check_text(sql)
        statement = unwrap_values(self._parse(sql))
        names = QueryWalker(sql, relations, values).walk(statement)
        typed = self._type_parameters(statement, values, names)
        text = self._write(sql, typed)
        # sqlglot does not know what may follow the PIVOT statement; DuckDB writes it as a SELECT.
        if not agrees(text if _PIVOT.match(sql) else sql, names):
            message = "Two parsers read this query differently. Write it in a simpler way, and quote unusual names."
            raise refuse("query_ambiguous", message, sql, 0)
        self._recheck(sql, text, typed, relations, values, names)
        bound_values: dict[str, BoundValue] = {name: values[name].value for name in sorted(names.parameters)}
        granted = {name: relations[name] for name in sorted(names.relations)}
        self._check_types(granted)
        scans = self._bind(sql, text, bound_values, granted)
        return CheckedQuery(
            text,
            bound_values,
            frozenset(names.relations),
            _columns(scans, granted),
            find_filters(typed, granted, values, names.tables_of_with),
            fingerprint(typed),
        )

    def _parse(self, sql: str) -> Any:
        try:
            statements = self._duckdb.parse(sql)
        except ParseError as error:
            if error.is_statement:
                raise refuse("query_not_allowed", _STATEMENTS, sql, 0) from None
            if error.offset is None:  # the parser's own limit on depth
                raise too_deep(sql, 0) from None
            offset = ByteOffsets(sql).character(error.offset)
            if word := find_reserved_name(self._duckdb, sql, offset):
                message = (
                    f'The query cannot be parsed: {quote(word[0])} is a reserved word. For a name, write "{word[0]}".'
                )
                raise refuse("query_syntax", message, sql, word.start(), name=word[0]) from None
            raise refuse("query_syntax", "The query cannot be parsed from here on.", sql, offset) from None
        if len(statements) != 1:
            raise refuse("query_not_allowed", f"{_STATEMENTS} Received {len(statements)}.", sql, 0)
        return statements[0]

    def _type_parameters(self, statement: Any, values: Mapping[str, TypedValue], names: NamesInUse) -> Any:
        if not names.parameters:
            return statement
        statement = name_results(statement, self._duckdb.write)
        return cast_parameters(statement, {name: self._type(values[name].sql_type) for name in names.parameters})

    def _type(self, name: str) -> Any:
        if name not in self._types:
            tree = self._duckdb.parse(f"SELECT CAST(NULL AS {name})")[0]
            self._types[name] = tree["node"]["select_list"][0]["type_expr"]
        return self._types[name]

    def _check_types(self, granted: Relations) -> None:
        """Each type of a column is a type and nothing else. It stands in a statement when the query is bound, in a
        process that other orgs use too, and it comes from an engine that has read what users' code wrote."""
        for kind in {kind for columns in granted.values() for kind in columns.values()} - self._known_types:
            try:
                statements = self._duckdb.parse(f"SELECT CAST(NULL AS {kind})")
            except ParseError:
                statements = []
            if [_without_type(statement) for statement in statements] != [_without_type(self._duckdb.parse(_CAST)[0])]:
                raise TraceError("query_type_unsupported")
            if len(self._known_types) >= _MOST_TYPES:
                self._known_types.clear()
            self._known_types.add(kind)

    def _write(self, sql: str, statement: Any) -> str:
        try:
            text = self._duckdb.write(statement)
        except ParseError:
            raise _not_written(sql) from None
        if len(text) > MAX_SQL:
            raise refuse("query_too_complex", "The query is too long when it is written out.", sql, 0)
        return text

    def _recheck(
        self,
        sql: str,
        text: str,
        typed: Any,
        relations: Relations,
        values: Mapping[str, TypedValue],
        names: NamesInUse,
    ) -> None:
        """The text that runs is parsed and walked as if it came from a caller."""
        try:
            statements = self._duckdb.parse(text)
        except ParseError:
            raise _not_written(sql) from None
        again = unwrap_values(statements[0]) if len(statements) == 1 else None
        if comparable(again) != comparable(typed):
            raise _not_written(sql)
        if QueryWalker(text, relations, values).walk(again) != names:
            raise _not_written(sql)

    def _bind(self, sql: str, text: str, parameters: Mapping[str, BoundValue], granted: Relations) -> list[Scan]:
        try:
            scans = self._duckdb.bind(text, parameters, granted)
        except BindError as error:
            raise self._explain(sql, error, parameters, granted) from None
        if not {scan.relation for scan in scans} <= granted.keys():
            raise _not_written(sql)
        return scans

    def _explain(
        self, sql: str, error: BindError, parameters: Mapping[str, BoundValue], granted: Relations
    ) -> TraceError:
        """The error in our words, with its place in the caller's text."""
        offset = max(0, sql.lower().find(error.name.lower())) if error.name else 0
        try:
            self._duckdb.bind(sql, parameters, granted)
        except BindError as original:
            if original.offset is not None and original.subtype == error.subtype:
                offset = ByteOffsets(sql).character(original.offset)
        if error.name and error.name.lower() not in sql.lower():
            error.name = None  # a name that DuckDB made up
        if error.subtype == "COLUMN_NOT_FOUND" and error.name:
            columns = {column for types in granted.values() for column in types if column != error.name}
            suggestions = closest(error.name.rpartition(".")[2], columns)
            hint = f" Did you mean {quote(suggestions[0])}?" if suggestions else ""
            message = f"There is no column {quote(error.name)} here.{hint}"
            return refuse("query_unknown_column", message, sql, offset, name=error.name, suggestions=suggestions)
        return refuse("query_invalid", _reason(error), sql, offset, name=error.name)


def _without_type(statement: Any) -> Any:
    """The tree of a cast without the type that it has."""
    tree = comparable(statement)
    items = tree["node"].get("select_list") or [{}]
    items[0].pop("type_expr", None)
    return tree


def _reason(error: BindError) -> str:
    name = quote(error.name) if error.name else "This"
    if error.subtype == "NO_MATCHING_FUNCTION":
        return f"{name} does not take arguments of these types. Add a cast."
    for part, reason in _REASONS:
        if part in error.text:
            return reason
    return "The names or types of the query do not fit together at this place."


_REASONS = (
    ("lambda arrow", "Write a lambda as `lambda x: x + 1`, not with an arrow."),
    ("GROUP BY", "A column that is neither aggregated nor in GROUP BY has no single value. Add it to GROUP BY."),
    ("aggregate", "An aggregate stands where none is allowed, such as in WHERE: use HAVING or a subquery."),
    ("mbiguous", "The name is ambiguous: write the relation before the column."),
    ("Duplicate alias", "Two relations have the same name: give one of them an alias."),
    ("WINDOW", "A window function stands where none is allowed: use QUALIFY or a subquery."),
    ("window functions", "A window function stands where none is allowed: use QUALIFY or a subquery."),
    ("Cannot compare", "Values of these types cannot be compared. Add a cast."),
    ("Could not convert", "A constant does not have the type that is needed here."),
    ("set operation", "Both sides of a set operation need the same number of columns."),
    ("same number of result columns", "Both sides of a set operation need the same number of columns."),
    ("ubquery", "A subquery does not fit here: check the number of its columns."),
)


def _not_written(sql: str) -> TraceError:
    message = "The query cannot be written back without a change of its meaning. Write it in a simpler way."
    return refuse("query_ambiguous", message, sql, 0)


def _columns(scans: Iterable[Scan], granted: Relations) -> dict[str, frozenset[str]]:
    """Columns per relation; all of them where the plan's names cannot be told apart."""
    columns: dict[str, set[str]] = {name: set() for name in granted}
    for scan in scans:
        column_types = granted[scan.relation]
        for projection in scan.projections:
            matching = {column for column in column_types if projection == column}
            matching = matching or {
                column for column in column_types if projection.startswith((f"{column}.", f'"{column}"'))
            }
            columns[scan.relation] |= matching or set(column_types)
    return {name: frozenset(names) for name, names in columns.items()}
