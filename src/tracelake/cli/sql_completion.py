"""What can stand at the cursor of a query: datasets, columns of the relations that the statement names, functions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tracelake.cli.sql_text import SqlToken, TokenKind, quote_name, scan
from tracelake.query.gate.functions import SIGNATURES, TABLE_SIGNATURES
from tracelake.query.gate.word_sets import words

CandidateKind = Literal["dataset", "column", "alias", "function", "keyword"]

RESERVED = words(
    """all analyse analyze and anti any array as asc asof asymmetric at authorization binary both by case cast check
    collate collation column columns concurrently constraint create cross default deferrable desc describe
    distinct do else end except false fetch for foreign freeze from full generated glob group having ilike in
    initially inner intersect into is isnull join lambda lateral leading left like limit map natural not notnull
    null offset on only or order outer overlaps pivot pivot_longer pivot_wider placing positional primary
    qualify references returning right select semi show similar some struct summarize symmetric table
    tablesample then to trailing true try_cast tuple union unique unpack unpivot using variadic verbose when
    where window with"""
)
"""Names that DuckDB does not take for columns unless they are quoted."""
KEYWORDS = words(
    """all and anti as asc asof between by case cast columns cross current desc distinct else end except exclude exists
    false filter first following from full group having ilike in inner intersect interval is join last lateral
    left like limit not null nulls offset on or order outer over partition pivot preceding qualify range
    recursive replace right row rows select semi then true try_cast unbounded union unpivot using values when
    where window with"""
)
_ENDS_OF_FROM = words("where group order having qualify limit offset select union except intersect window values")
_JOIN_WORDS = words("join inner left right full outer cross natural asof semi anti positional lateral")
_NO_ALIASES = _ENDS_OF_FROM | _JOIN_WORDS | words("on using as tablesample pivot unpivot from")
_FUNCTIONS = tuple(sorted(name for name in SIGNATURES if name.isidentifier()))
_TABLE_FUNCTIONS = tuple(sorted(TABLE_SIGNATURES))

Relations = Mapping[str, Mapping[str, str]]
"""Names of datasets, with their columns and types."""


@dataclass(frozen=True, slots=True)
class Candidate:
    text: str
    start: int
    """Where the text that it replaces begins; that ends at the cursor."""
    kind: CandidateKind
    detail: str = ""


@dataclass(slots=True)
class _Sources:
    """What a statement reads."""

    relations: dict[str, str] = field(default_factory=dict)
    """Names of relations by alias, in small letters."""
    aliases: dict[str, str] = field(default_factory=dict)
    """The same keys, in the letters of the statement."""
    with_names: list[str] = field(default_factory=list)
    expects_relation: bool = False
    """After FROM, JOIN, or a comma between relations."""

    def add(self, relation: str, alias: str) -> None:
        self.relations[alias.lower()] = relation
        self.aliases[alias.lower()] = alias


def complete(text: str, cursor: int, relations: Relations) -> list[Candidate]:
    """Candidates for the word before the cursor, likely ones first. Inside of texts and comments there are none."""
    tokens = _statement(text, cursor)
    current = next((token for token in tokens if token.start < cursor <= token.end), None)
    if current is not None and not _can_complete(current, cursor):
        return []
    is_word = current is not None and current.kind in (TokenKind.WORD, TokenKind.NAME)
    start = current.start if is_word and current is not None else cursor
    word_text = text[start:cursor]
    prefix = word_text.removeprefix('"').replace('""', '"')
    others = [token for token in tokens if token.kind is not TokenKind.BLANK and not (is_word and token is current)]
    sources = _read_sources(others)
    before = [token for token in others if token.end <= start]
    candidates: Iterable[Candidate]
    if before and before[-1].text == "." and before[-1].end == start:
        qualifier = before[-2].name if len(before) > 1 else ""
        candidates = _columns(relations, [sources.relations.get(qualifier.lower(), qualifier)], start)
    elif _read_sources(before).expects_relation:
        candidates = _relations(relations, sources, start)
    else:
        candidates = _expressions(relations, sources, start, word_text)
    return _matching(candidates, prefix)


def _statement(text: str, cursor: int) -> list[SqlToken]:
    """The tokens of the statement that the cursor is in."""
    statement: list[SqlToken] = []
    for token in scan(text):
        if token.kind is TokenKind.OTHER and token.text == ";":
            if token.start >= cursor:
                break
            statement = []
        else:
            statement.append(token)
    return statement


def _can_complete(token: SqlToken, cursor: int) -> bool:
    if token.kind is TokenKind.BLANK:
        is_after_comment = token.text.startswith("/*") and not token.open and cursor == token.end
        return is_after_comment or not token.text.startswith(("--", "/*"))
    if token.kind is TokenKind.NAME:
        return token.open or cursor < token.end
    return token.kind is TokenKind.WORD or (token.kind is TokenKind.OTHER and not token.text[0].isdigit())


def _read_sources(tokens: Sequence[SqlToken]) -> _Sources:
    """The relations after FROM and JOIN, with their aliases, and the names of WITH; `tokens` has no blanks."""
    sources = _Sources()
    in_from = [False]  # for each open bracket
    has_with = False
    index = 0
    while index < len(tokens):
        token = tokens[index]
        word = token.text.lower() if token.kind is TokenKind.WORD else ""
        index += 1
        if token.text in ("(", "[", "{"):
            sources.expects_relation = False
            in_from.append(False)
        elif token.text in (")", "]", "}"):
            sources.expects_relation = False
            in_from = in_from[:-1] or [False]
        elif token.text == ",":
            sources.expects_relation = in_from[-1]
        elif word in ("from", "join"):
            in_from[-1] = sources.expects_relation = True
        elif word in _ENDS_OF_FROM:
            in_from[-1] = sources.expects_relation = False
        elif word == "with":
            has_with = True
        elif word not in _NO_ALIASES and token.kind in (TokenKind.WORD, TokenKind.NAME):
            if sources.expects_relation:
                index = _read_relation(sources, tokens, index, token)
            elif has_with and _is_with_name(tokens, index):
                sources.with_names.append(token.name)
    return sources


def _read_relation(sources: _Sources, tokens: Sequence[SqlToken], index: int, token: SqlToken) -> int:
    """Reads what follows the name of a relation; returns the index of the next token."""
    sources.expects_relation = False
    following = tokens[index] if index < len(tokens) else None
    if following is not None and following.text == "(":
        return index  # a function
    if following is not None and following.text.lower() == "as" and following.kind is TokenKind.WORD:
        index += 1
        following = tokens[index] if index < len(tokens) else None
    has_alias = following is not None and (
        following.kind is TokenKind.NAME
        or (following.kind is TokenKind.WORD and following.text.lower() not in _NO_ALIASES)
    )
    if has_alias and following is not None:
        sources.add(token.name, following.name)
        return index + 1
    sources.add(token.name, token.name)
    return index


def _is_with_name(tokens: Sequence[SqlToken], index: int) -> bool:
    """`name AS (`, or `name AS MATERIALIZED (`."""
    words = [token.text.lower() for token in tokens[index : index + 4]]
    return (
        words[:1] == ["as"]
        and "(" in words
        and all(word in ("not", "materialized") for word in words[1 : words.index("(")])
    )


def _columns(relations: Relations, names: Iterable[str], start: int) -> Iterator[Candidate]:
    by_lower = {name.lower(): columns for name, columns in relations.items()}
    listed_names: set[str] = set()
    for name in names:
        for column, kind in by_lower.get(name.lower(), {}).items():
            if column not in listed_names:
                listed_names.add(column)
                yield Candidate(quote_name(column, RESERVED), start, "column", kind.lower())


def _relations(relations: Relations, sources: _Sources, start: int) -> Iterator[Candidate]:
    for name in sources.with_names:
        yield Candidate(quote_name(name, RESERVED), start, "alias", "WITH")
    for name, columns in relations.items():
        yield Candidate(quote_name(name, RESERVED), start, "dataset", f"{len(columns)} columns")
    for name in _TABLE_FUNCTIONS:
        yield Candidate(f"{name}(", start, "function")


def _expressions(relations: Relations, sources: _Sources, start: int, word_text: str) -> Iterator[Candidate]:
    yield from _columns(relations, sources.relations.values(), start)
    for alias, relation in zip(sources.aliases.values(), sources.relations.values(), strict=True):
        yield Candidate(quote_name(alias, RESERVED), start, "alias", "" if alias == relation else relation)
    if not word_text or word_text.startswith('"'):
        return  # hundreds of functions would bury the columns
    for name in _FUNCTIONS:
        yield Candidate(f"{name}(", start, "function")
    for keyword in sorted(KEYWORDS):
        yield Candidate(keyword.upper() if word_text[0].isupper() else keyword, start, "keyword")


def _matching(candidates: Iterable[Candidate], prefix: str) -> list[Candidate]:
    """Those that begin with the prefix, then datasets and columns that contain it."""
    lower = prefix.lower()
    beginning: list[Candidate] = []
    containing: list[Candidate] = []
    for candidate in candidates:
        name = candidate.text.strip('"').lower()
        if name.startswith(lower):
            beginning.append(candidate)
        elif lower in name and candidate.kind in ("dataset", "column"):
            containing.append(candidate)
    return [*beginning, *containing]
