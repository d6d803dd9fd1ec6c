"""The gate for SQL from a DAG: it runs in the Dispatcher, without Spark or Java, and trusts nothing in a query.

First it bounds its own work: length, tokens and nesting by limits, and the parser's backtracking by a budget (see
`_GateParser`), so that a small text cannot keep a processor busy.

It examines a query in five steps: as characters and tokens (nothing hidden, nothing too large, one SELECT); as a tree
(every node by a rule, see `writer`, and every argument by its kind, see `functions`); by rewriting it; for what it may
cost (`cost`, `relations`); and by comparing the words of both texts (nothing lost, see `alignment`). Spark gets the
rewritten text alone, so a text that two parsers read differently is harmless. The worker has Spark's own parser check
it once more (`spark.plan_gate`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parser import Parser
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from tracelake.catalogue.sql.alignment import first_difference
from tracelake.catalogue.sql.block_bounds import Blocks, find_block_bounds
from tracelake.catalogue.sql.columns.analysis import QueryColumns, analyse_tree
from tracelake.catalogue.sql.columns.scopes import SqlRelation
from tracelake.catalogue.sql.cost import CostError
from tracelake.catalogue.sql.expressions import WRITTEN
from tracelake.catalogue.sql.findings import MAX_LENGTH, Finding, SqlRefusedError, position, shown
from tracelake.catalogue.sql.nodes import TYPED
from tracelake.catalogue.sql.nodes import offset as place_of
from tracelake.catalogue.sql.relations import QueryCost
from tracelake.catalogue.sql.writer import COMMA, MARK, QueryWriter, result_columns

PARAMETERS: Mapping[str, str] = {
    "start": "First block of the unit.",
    "end": "Last block of the unit.",
    "after": "The block before the first one.",
    "to": "Last block of the unit.",
    "partition_key": "The unit's key, as text.",
}
MAX_TOKENS = 5_000
MAX_NESTING = 24
MAX_HEIGHT = 120
REREADS_PER_TOKEN = 4
REREADS_FREE = 500
"""The parser may go back over so many words in all. Queries that people write stay below one per word."""
_PARAMETER = re.compile(r"\$\{([^{}]*)\}")
_VALUE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_MEASURED = frozenset({"sequence"})
"""Functions whose cost follows from values that the text has to show."""
_OTHER_LITERALS = (TokenType.RAW_STRING, TokenType.BYTE_STRING, TokenType.NATIONAL_STRING, TokenType.BIT_STRING)
_SIZED_TEXT = (TokenType.VARCHAR, TokenType.NVARCHAR, TokenType.CHAR, TokenType.NCHAR, TokenType.BPCHAR)
_REFUSED_TOKENS = {
    TokenType.HINT: ("sql_construct", "hints are not supported", "Spark decides how a query runs; leave the hint out."),
    TokenType.PIPE_GT: ("sql_construct", "`|>` is not supported", "Use WITH."),
    **dict.fromkeys(_OTHER_LITERALS, ("sql_text", "only '...' is text here", r"Write `\\` for a backslash.")),
    **dict.fromkeys(_SIZED_TEXT, ("sql_construct", "{} is not a supported type", "Use STRING.")),
}
_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
_BRACKETS = (TokenType.L_PAREN, TokenType.L_BRACKET)
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END}
_PAIRS = {
    TokenType.R_PAREN: TokenType.L_PAREN,
    TokenType.R_BRACKET: TokenType.L_BRACKET,
    TokenType.R_BRACE: TokenType.L_BRACE,
}
_PREFIXES = {TokenType.NOT, TokenType.DASH, TokenType.PLUS, TokenType.TILDE}
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


class _GateParser(SparkParser):
    """Functions stay what they are called: none is translated, none has a grammar of its own but a few."""

    STRICT_CAST = True
    ADD_JOIN_ON_TRUE = False
    JOINS_HAVE_EQUAL_PRECEDENCE = False
    FUNCTIONS = {}
    FUNCTION_PARSERS = {name: Parser.FUNCTION_PARSERS[name] for name in ("CAST", "EXTRACT", "TRIM", "TRY_CAST")}
    NO_PAREN_FUNCTIONS = {}
    NO_PAREN_FUNCTION_PARSERS = {"CASE": Parser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
    rereads_left = 0

    def _parse_types(
        self,
        check_func: bool = False,
        schema: bool = False,
        allow_identifiers: bool = True,
        with_collation: bool = False,
    ) -> exp.Expr | None:
        """In an expression, a type's name before a bracket is a function or a column.

        The parser would read everything in the brackets as parameters of a type first and as arguments afterwards:
        twice on each level, so 2^n times on n levels of `date(date(...))`.
        """
        if check_func and self._next.token_type in _BRACKETS and self._curr.token_type in self.TYPE_TOKENS:
            return None
        return super()._parse_types(check_func, schema, allow_identifiers, with_collation)

    def _retreat(self, index: int) -> None:
        """Whatever else makes the parser go back is paid from a budget, so that the whole stays linear."""
        self.rereads_left -= max(0, self._index - index)
        if self.rereads_left < 0:
            raise _RereadError(self._tokens[max(0, min(self._index, len(self._tokens) - 1))].start)
        super()._retreat(index)

    def _parse_paren(self) -> exp.Expr | None:
        """The parser adds brackets of its own, where it thinks that it knows better: those of the text are marked."""
        parsed = super()._parse_paren()
        if isinstance(parsed, exp.Paren):
            parsed.meta[WRITTEN] = True
        return parsed

    def _parse_join(self, *args: Any, **options: Any) -> exp.Join | None:
        """A comma binds less than JOIN, so the one is not written as the other."""
        is_comma = self._curr is not None and self._curr.token_type is TokenType.COMMA
        parsed = super()._parse_join(*args, **options)
        if parsed is not None and is_comma:
            parsed.meta[COMMA] = True
        return parsed

    def _parse_type(self, *args: Any, **options: Any) -> exp.Expr | None:
        is_typed = self._next is not None and self._next.token_type is TokenType.STRING
        parsed = super()._parse_type(*args, **options)
        if is_typed and type(parsed) is exp.Cast:
            parsed.meta[TYPED] = True
        return parsed

    def _parse_named_window(self) -> exp.Expr | None:
        if self._next is None or self._next.token_type is not TokenType.ALIAS:
            self.raise_error("expected AS")
        return super()._parse_named_window()

    def _parse_trim(self) -> exp.Expr:  # type: ignore[override]
        """A call with plain arguments is a call: only the words in it make it something else."""
        if self._curr is not None and self._curr.text.upper() in self.TRIM_TYPES:
            return super()._parse_trim()
        arguments = [self._parse_lambda()]
        if arguments[0] is not None and self._match(TokenType.FROM):
            return self.expression(exp.Trim(this=self._parse_bitwise(), expression=arguments[0]))
        while self._match(TokenType.COMMA):
            arguments.append(self._parse_lambda())
        return self.expression(exp.Anonymous(this="trim", expressions=[item for item in arguments if item is not None]))


class _RereadError(Exception):
    """The parser went back too often."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset


@dataclass(frozen=True, slots=True)
class GatedQuery:
    """A query that passed, as Spark will get it."""

    text: str
    relations: frozenset[str]
    """Names it reads, in small letters."""
    parameters: frozenset[str]
    columns: tuple[tuple[str, int, int], ...]
    """Columns of the result that the query names, each with its line and column in the query."""
    names_all_columns: bool
    """False: there are others too, by `*`."""
    ordered: bool = False
    """The outermost SELECT has an ORDER BY."""
    blocks: Mapping[str, Blocks] = field(default_factory=dict)
    """Of a person's query: the blocks that it needs of relations of which it does not need all."""

    def sql(self, views: Mapping[str, str]) -> str:
        """With the views' names put in; they are ours."""
        parts = self.text.split(MARK)
        return "".join(f"`{views[part]}`" if index % 2 else part for index, part in enumerate(parts))


@lru_cache(maxsize=256)
def gate(query: str, inputs: frozenset[str] | None = None) -> GatedQuery:
    """Raises SqlRefusedError. `inputs` are names in small letters; None: they are not known yet."""
    return _gate(query, inputs, None)


def gate_with_values(query: str, inputs: frozenset[str], values: Mapping[str, Any]) -> GatedQuery:
    """The gate for a person's query, in which `$name` stands for a value. Nothing of the text is kept in memory."""
    return _gate(query, inputs, values)


def _gate(query: str, inputs: frozenset[str] | None, values: Mapping[str, Any] | None) -> GatedQuery:
    """`values` are those that names stand for; None: the parameters are those of a unit."""
    names = None if values is None else frozenset(values)
    _check_text(query)
    marked, places = _mark_parameters(query) if names is None else _mark_values(query, names)
    tokens = _tokens(query, marked)
    _check_tokens(query, tokens, places)
    if names is not None:
        _check_values(query, tokens)
    try:
        trees = _parse(tokens, marked)
        if len(trees) != 1:
            raise _refused(query, 0, "sql_statement", "a query is one SELECT", "Remove what is behind the first one.")
        if (deepest := _deeper_than(trees[0], MAX_HEIGHT)) is not None:
            raise _too_deep(query, deepest)
        if names is not None:
            _check_measured(query, trees[0])
        writer = QueryWriter(query, inputs, frozenset(PARAMETERS) if names is None else names)
        text = writer.query(trees[0], outermost=True)
    except SqlglotError as error:
        raise _syntax(query, error) from None
    except _RereadError as error:
        message = "the query takes too long to read; it can be read in too many ways up to here"
        hint = "Use WITH for what is inside, and names that are not types."
        raise _refused(query, error.offset, "sql_limit", message, hint) from None
    except RecursionError:
        raise _too_deep(query, 0) from None
    assert all(" " <= character <= "~" or character == MARK for character in text)
    assert "${" not in text
    _check_alignment(query, tokens, text, writer)
    _check_cost(query, trees[0])
    columns, names_all = result_columns(trees[0])
    return GatedQuery(
        text,
        frozenset(writer.used_inputs),
        frozenset(writer.used_parameters),
        tuple((name, *position(query, offset)) for name, offset in columns),
        names_all,
        trees[0].unnest().args.get("order") is not None,
        {} if inputs is None or values is None else find_block_bounds(trees[0], inputs, _integers(values)),
    )


def _parse(tokens: list[Token], marked: str) -> list[exp.Expr]:
    parser = _GateParser(dialect=_DIALECT)
    parser.rereads_left = REREADS_FREE + REREADS_PER_TOKEN * len(tokens)
    return [tree for tree in parser.parse(tokens, marked) if tree is not None]


def analyse(query: str, inputs: Mapping[str, SqlRelation]) -> QueryColumns:
    """The columns of a query of a DAG that passed the gate, from those of its inputs, by names in lower case.

    The tree is read again: kept with what passed, trees of large queries would fill a process that reads documents."""
    marked, _ = _mark_parameters(query)
    return analyse_tree(query, _parse(_tokens(query, marked), marked)[0], inputs)


def _integers(values: Mapping[str, Any]) -> dict[str, int]:
    return {name: value for name, value in values.items() if isinstance(value, int) and not isinstance(value, bool)}


_DIALECT = Spark()


def _refused(query: str, offset: int, code: str, message: str, suggestion: str = "") -> SqlRefusedError:
    return SqlRefusedError(Finding(code, message, *position(query, offset), suggestion))


def _too_deep(query: str, offset: int) -> SqlRefusedError:
    message = (
        f"the query nests too deeply: at most {MAX_NESTING} brackets and {MAX_HEIGHT} operations inside each other"
    )
    return _refused(query, offset, "sql_limit", message, "Use WITH for what is inside.")


def _check_text(query: str) -> None:
    if len(query) > MAX_LENGTH:
        raise _refused(query, MAX_LENGTH, "sql_limit", f"a query has at most {MAX_LENGTH:,} characters")
    for offset, character in enumerate(query):
        # Letters and signs of other languages may stand in quotes and comments; what cannot be seen, nowhere.
        if not (character.isprintable() or character in "\n\t\r"):
            what = f"the character U+{ord(character):04X} may not stand in a query"
            raise _refused(query, offset, "sql_text", what, "Remove it, or write it as \\u0000 in quotes.")


def _mark_parameters(query: str) -> tuple[str, dict[int, str]]:
    """`${start}` as `:start`, of the same length, so that every position stays; and where they are."""
    places: dict[int, str] = {}

    def mark(match: "re.Match[str]") -> str:
        name = match[1]
        if name not in PARAMETERS:
            names = ", ".join(f"`${{{item}}}`" for item in PARAMETERS)
            message = f"there is no parameter {shown(match[0])}"
            raise _refused(query, match.start(), "sql_parameter", message, f"There are {names}.")
        places[match.start()] = name
        return f":{name}  "

    marked = _PARAMETER.sub(mark, query)
    if (offset := marked.find("${")) >= 0:
        raise _refused(query, offset, "sql_parameter", "`${` begins a parameter and does not end", "Write `${start}`.")
    return marked, places


def _mark_values(query: str, names: frozenset[str]) -> tuple[str, dict[int, str]]:
    """`$low` as `:low`; and where they are. A `$` before anything else stays what it is, and is no SQL."""
    places: dict[int, str] = {}
    if (offset := query.find("${")) >= 0:  # Spark has a use for it, which is turned off: this is the second lock
        raise _refused(query, offset, "sql_parameter", "`${` may not stand in a query", "Write `$name`.")

    def mark(match: "re.Match[str]") -> str:
        if match[1] not in names:
            return match[0]
        places[match.start()] = match[1]
        return f":{match[1]}"

    return _VALUE.sub(mark, query), places


def _check_values(query: str, tokens: list[Token]) -> None:
    for token, following in pairwise(tokens):
        if token.token_type is TokenType.PARAMETER:
            message = f"no value was sent for {shown('$' + following.text)}"
            raise _refused(query, token.start, "sql_parameter", message, "Send it in `parameters`.")


def _check_measured(query: str, tree: exp.Expr) -> None:
    for call in tree.find_all(exp.Anonymous):
        if str(call.this).lower() in _MEASURED and call.find(exp.Placeholder) is not None:
            message = f"no parameter may stand in {shown(str(call.this))}: how much it makes has to be in the text"
            raise _refused(query, place_of(call), "sql_parameter", message, "Write the values out.")


def _tokens(query: str, marked: str) -> list[Token]:
    try:
        return list(_DIALECT.tokenize(marked))
    except SqlglotError:
        message = "a quote or a comment is not closed"
        raise _refused(query, 0, "sql_syntax", message, "Look for the quote that has no partner.") from None


def _check_tokens(query: str, tokens: list[Token], places: dict[int, str]) -> None:
    if not tokens:
        raise _refused(query, 0, "sql_statement", "the query is empty", "Begin with SELECT or WITH.")
    if len(tokens) > MAX_TOKENS:
        raise _refused(query, tokens[MAX_TOKENS].start, "sql_limit", f"a query has at most {MAX_TOKENS:,} words")
    first = next((token for token in tokens if token.token_type is not TokenType.L_PAREN), tokens[0])
    if first.token_type not in (TokenType.SELECT, TokenType.WITH):
        message = f"a query begins with SELECT or WITH, not with {shown(first.text)}"
        raise _refused(query, first.start, "sql_statement", message, "A query can read, and nothing else.")
    starts = {token.start for token in tokens if token.token_type is TokenType.COLON}
    for offset, name in places.items():
        if offset not in starts:
            message = f"the parameter {shown(name)} stands inside quotes or a comment"
            hint = "A parameter is a value of its own, as in `concat('x', ...)`."
            raise _refused(query, offset, "sql_parameter", message, hint)
    nesting = prefixes = 0
    before = None
    for index, token in enumerate(tokens):
        kind = token.token_type
        nesting += (kind in _OPENING) - (kind in _CLOSING)
        prefixes = prefixes + 1 if kind in _PREFIXES else 0
        if nesting > MAX_NESTING or prefixes > MAX_NESTING:
            raise _too_deep(query, token.start)
        if kind is TokenType.SEMICOLON and index < len(tokens) - 1:
            raise _refused(query, token.start, "sql_statement", "a query is one SELECT", "Remove the `;`.")
        if kind in _REFUSED_TOKENS:
            code, message, hint = _REFUSED_TOKENS[kind]
            raise _refused(query, token.start, code, message.format(shown(token.text)), hint)
        if kind is TokenType.HEX_STRING and query[token.start : token.start + 2].lower() != "x'":
            raise _refused(
                query, token.start, "sql_text", "expected a number in decimal digits", "Bytes are written X'ff'."
            )
        if kind is TokenType.STRING:
            if before is TokenType.STRING:
                message = "two text literals are adjacent"
                raise _refused(query, token.start, "sql_text", message, r"Write `\'` for a quote in a text.")
            _check_string(query, token)
        before = kind
    _check_brackets(query, tokens)


def _check_brackets(query: str, tokens: list[Token]) -> None:
    """The parser forgives a bracket that is not closed, and an AS without a name."""
    opened: list[Token] = []
    for index, token in enumerate(tokens):
        kind = token.token_type
        if kind in _PAIRS.values():
            opened.append(token)
        elif kind in _PAIRS and (not opened or opened.pop().token_type is not _PAIRS[kind]):
            raise _refused(
                query, token.start, "sql_syntax", f"{shown(token.text)} closes no bracket", "Look at brackets."
            )
        elif kind is TokenType.ALIAS and (
            index == len(tokens) - 1 or tokens[index + 1].token_type in (*_PAIRS, TokenType.COMMA)
        ):
            raise _refused(query, token.start, "sql_syntax", "AS needs a name behind it", "Like `AS total`.")
        elif kind is TokenType.NOT and tokens[index + 1 : index + 2] and tokens[index + 1].token_type is TokenType.IS:
            raise _refused(query, token.start, "sql_syntax", "NOT stands before IS", "Write `IS NOT`.")
    if opened:
        raise _refused(query, opened[-1].start, "sql_syntax", "a bracket is not closed", "Look for its partner.")


def _check_string(query: str, token: Token) -> None:
    """Spark and the parser here must agree about what the text says."""
    raw = query[token.start : token.end + 1]
    if len(raw) < 2 or raw[0] not in "'\"" or raw[-1] != raw[0]:
        raise _refused(query, token.start, "sql_text", "only '...' is text here")
    if _as_spark_reads(raw[1:-1], raw[0]) != token.text:
        message = f"the text {shown(raw)} could be read in two ways"
        hint = r"Write `\\` for a backslash, and `\'` for a quote in the text."
        raise _refused(query, token.start, "sql_text", message, hint)


def _as_spark_reads(raw: str, quote: str) -> str | None:
    """None where there is something rare that nobody should rely on."""
    text, index = "", 0
    while index < len(raw):
        character = raw[index]
        if character == quote:
            return None
        if character == "\\":
            index += 1
            following = raw[index : index + 1]
            if not following or following.isdigit() or following in "uU":
                return None
            text += _ESCAPES.get(following, following)
        else:
            text += character
        index += 1
    return text


def _syntax(query: str, error: SqlglotError) -> SqlRefusedError:
    details = getattr(error, "errors", None) or [{}]
    line, end = details[0].get("line"), details[0].get("col")
    near = str(details[0].get("highlight") or "")
    if line is None or end is None:
        return _refused(query, 0, "sql_syntax", "this is not SQL", "Look at brackets and quotes.")
    column = max(1, int(end) - len(near) + 1)
    message = f"this is not understood, near {shown(near)}" if near else "this is not understood"
    return SqlRefusedError(Finding("sql_syntax", message, int(line), column, "Look at brackets, commas and quotes."))


def _check_alignment(query: str, tokens: list[Token], text: str, writer: QueryWriter) -> None:
    ours = list(_DIALECT.tokenize(text.replace(MARK, "`")))
    offset = first_difference(tokens, ours, writer.cte_names)
    if offset is not None:
        near = next(token.text for token in tokens if token.start == offset)
        message = f"this is not understood, near {shown(near)}"
        hint = "Look at commas and quotes; names that are words of SQL stand in backticks."
        raise _refused(query, offset, "sql_syntax", message, hint)


def _check_cost(query: str, tree: exp.Expr) -> None:
    try:
        QueryCost().check(tree)
    except CostError as error:
        raise _refused(query, place_of(error.node), error.code, str(error), error.suggestion) from None
    except RecursionError:
        raise _too_deep(query, 0) from None


def _deeper_than(tree: exp.Expr, height: int) -> int | None:
    """Where in the text a tree begins to have more levels than that; found without climbing."""
    level = [tree]
    for _ in range(height):
        level = [child for node in level for child in node.iter_expressions()]
    return place_of(level[0]) if level else None
