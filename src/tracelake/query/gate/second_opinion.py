"""sqlglot as a second parser: it has to see the same kind of statement, the same relations and the same functions.

Two parsers that read one text differently are how a query hides something. DuckDB runs the text that was written from
the checked tree, so a difference cannot be used against it; it is refused all the same, since one of the two views that
people and tools have of such a query is wrong.

DuckDB turns operators, literals and special forms into calls, and it renames some functions; `_SUGAR` and `_RENAMED`
are those. Every other function has to be seen by both.
"""

from collections.abc import Iterator
from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import SqlglotError
from sqlglot.parser import Parser
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import TokenType

from tracelake.query.gate.walker import NamesInUse
from tracelake.query.gate.word_sets import words

_SUGAR = words(
    """+ - * / // % ** ^ || & | << >> ~ @ ^@ && <@ @> ->> <-> <=> ~~ !~~ ~~* !~~* ~~~ !__postfix
    like_escape not_like_escape ilike_escape not_ilike_escape regexp_matches regexp_full_match factorial
    contains list_value struct_pack map row list_apply list_filter struct_extract array_agg unnest count_star
    to_years to_quarters to_months to_weeks to_days to_hours to_minutes to_seconds to_milliseconds to_microseconds
    to_decades to_centuries to_millennia trunc date_part timezone trim ltrim rtrim substring position overlay"""
)
"""Functions that may stand in DuckDB's tree without a call in the text."""
_FORMS = words(
    """cast try_cast coalesce ifnull grouping grouping_id columns try exists array any all unpack extract not
    values"""
)
"""Words before a bracket that are no functions in DuckDB's tree."""
_RENAMED = {
    "percentile_cont": "quantile_cont",
    "percentile_disc": "quantile_disc",
    "count": "count_star",
    "list_pack": "list_value",
}
_KEPT_FORMS = ("CAST", "TRY_CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "TRIM")


class _OpinionParser(DuckDBParser):
    """Functions keep their names: none is translated, and few have a grammar of their own."""

    FUNCTIONS = {}
    NO_PAREN_FUNCTIONS = {}
    FUNCTION_PARSERS = {name: Parser.FUNCTION_PARSERS[name] for name in _KEPT_FORMS}

    def _parse_paren(self) -> exp.Expr | None:
        """DuckDB writes a lambda inside of brackets."""
        if self._next is not None and self._next.text.lower() == "lambda" and self._match(TokenType.L_PAREN):
            body = self._parse_lambda()
            self._match_r_paren()
            return self.expression(exp.Paren(this=body))
        return super()._parse_paren()


class _OpinionDialect(DuckDB):
    class Tokenizer(DuckDB.Tokenizer):
        HEX_STRINGS = [("x'", "'"), ("X'", "'")]


_DIALECT = _OpinionDialect()
_TYPED_FORMS: dict[type[exp.Expression], str] = {
    exp.Overlay: "overlay",
    exp.StrPosition: "position",
    exp.Substring: "substring",
    exp.Trim: "trim",
    exp.If: "if",
    exp.Unnest: "unnest",
}


def agrees(sql: str, names: NamesInUse) -> bool:
    """Whether sqlglot sees one query with these relations and functions."""
    try:
        parser = _OpinionParser(dialect=_DIALECT)
        trees = [tree for tree in parser.parse(list(_DIALECT.tokenize(sql)), sql) if tree is not None]
    except (SqlglotError, RecursionError, ValueError, AttributeError, TypeError, IndexError, KeyError):
        return False
    if len(trees) != 1 or not isinstance(trees[0], exp.Query | exp.Values | exp.Pivot):
        return False
    tables: set[str] = set()
    functions: set[str] = set()
    for node in trees[0].walk():
        if isinstance(node, exp.Command | exp.DDL | exp.DML) and not isinstance(node, exp.Query):
            return False
        if isinstance(node, exp.Table):
            if not isinstance(node.this, exp.Identifier):
                continue  # a function, which the walk meets below
            if node.args.get("db") or node.args.get("catalog"):
                return False
            tables.add(str(node.this.this).lower())
        else:
            functions.update(_called(node))
    if tables != names.tables:
        return False
    renamed_functions = {_RENAMED.get(name, name) for name in functions} | functions
    only_in_duckdb = names.functions - renamed_functions - _SUGAR
    only_in_sqlglot = {name for name in functions - _FORMS if name not in names.functions}
    return not only_in_duckdb and not {name for name in only_in_sqlglot if _RENAMED.get(name) not in names.functions}


def _called(node: Any) -> Iterator[str]:
    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
        yield (node.this if isinstance(node.this, str) else node.name).lower()
    elif type(node) in _TYPED_FORMS and not (isinstance(node, exp.If) and isinstance(node.parent, exp.Case)):
        yield _TYPED_FORMS[type(node)]
