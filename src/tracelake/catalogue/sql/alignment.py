"""Compares the words of a query with the words of the text that was written for it.

The parser accepts more than Spark's grammar: it skips a superfluous comma, a name that a rule has no place for, or a
word that it considers optional. Skipped words are not in the tree, so no rule can notice them. This comparison does:
every word, name, literal and sign of the query must be in the written text, in the same order, and the written text may
add only what is on a short list. Brackets are not compared: they follow from the tree.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot.tokenizer_core import Token, TokenType

_SAME = {
    "!=": "<>",
    "==": "=",
    "minus": "except",
    "setminus": "except",
    "regexp": "rlike",
    "integer": "int",
    "long": "bigint",
    "short": "smallint",
    "byte": "tinyint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}
"""Spellings of the same thing."""
_TYPED = {"date", "timestamp", "timestamp_ltz", "timestamp_ntz"}
_SETS = {"union", "except", "intersect", "minus", "setminus"}
_INTERVAL_PART = re.compile(r"[0-9.]+|[A-Za-z]+|\S")

Key = tuple[str, str]
"""The kind of a word, and the word."""


@dataclass(slots=True)
class _Words:
    """The words of a text in their normal spelling, without brackets."""

    keys: list[Key] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    negations: int = 0
    """NOT may stand before or inside a condition, so only the number is compared."""

    def add(self, kind: str, text: str, start: int) -> None:
        self.keys.append((kind, text))
        self.starts.append(start)


def first_difference(query: Sequence[Token], output: Sequence[Token], renamed: Mapping[str, str]) -> int | None:
    """The offset of the first word by which the query and the written text differ; None if they agree.

    `renamed` maps each name that the writer invented to the name in the query."""
    ours, theirs = _words(output), _words(query)
    index = 0
    for place, key in enumerate(ours.keys):
        if index < len(theirs.keys) and (key == theirs.keys[index] or _renamed(key, renamed) == theirs.keys[index]):
            index += 1
        elif not _is_addition(ours.keys, place, renamed):
            break
    else:
        if index == len(theirs.keys) and ours.negations == theirs.negations:
            return None
    return theirs.starts[min(index, len(theirs.starts) - 1)]


def _renamed(key: Key, renamed: Mapping[str, str]) -> Key:
    return (key[0], renamed.get(key[1], key[1]))


def _is_addition(keys: Sequence[Key], place: int, renamed: Mapping[str, str]) -> bool:
    """Whether the writer added the word: AS, a relation's own name as its alias, or the order of rows."""
    kind, word = keys[place]
    if kind != "word":
        return False
    before = [text for kind, text in keys[max(0, place - 2) : place] if kind == "word"]
    if before[-1:] == ["as"] and len(before) == 2:
        return word in (before[0], renamed.get(before[0]))
    if word in ("first", "last"):
        return before[-1:] == ["nulls"]
    if word == "nulls":
        return before[-1:] in (["asc"], ["desc"])
    return word in ("as", "asc")


def _words(tokens: Sequence[Token]) -> _Words:
    words = _Words()
    texts = ["" if token.token_type is TokenType.STRING else token.text.lower() for token in tokens]
    index = 0
    while index < len(tokens):
        token, text = tokens[index], texts[index]
        kind, start = token.token_type, token.start
        before = texts[index - 1] if index else ""
        index += 1
        if kind is TokenType.STRING:
            _add_string(words, token, before)
        elif kind is TokenType.HEX_STRING:
            words.add("bytes", text, start)
        elif kind is TokenType.DOT and _begins_number(tokens, index):
            words.add("number", f"0.{texts[index]}", start)
            index += 1
        elif kind is TokenType.NUMBER:
            words.add("number", text, start)
        elif kind is TokenType.IDENTIFIER:
            words.add("word", text, start)
        elif kind in (TokenType.L_PAREN, TokenType.R_PAREN, TokenType.SEMICOLON):
            continue
        elif text in ("not", "!"):
            words.negations += 1
        elif text == "is" and (length := _distinct_from(texts, index)):
            words.negations += length == 2
            words.add("word", "<=>", start)
            index += length
        elif text == "cast" and texts[index : index + 1] == ["("]:
            continue
        elif text == "::":
            words.add("word", "as", start)
        elif (text == "distinct" and before in _SETS) or (text == "all" and before == "select"):
            continue
        else:
            words.add("word", _SAME.get(text, text), start)
    return words


def _add_string(words: _Words, token: Token, before: str) -> None:
    if before in _TYPED and words.keys and words.keys[-1] == ("word", _SAME.get(before, before)):
        # `DATE '2024-01-01'` is `CAST('2024-01-01' AS DATE)`.
        kind, start = words.keys.pop(), words.starts.pop()
        words.add("text", token.text, token.start)
        words.add("word", "as", start)
        words.add(*kind, start)
    elif before == "interval":
        # `INTERVAL '1 day'` is `INTERVAL '1' DAY` is `INTERVAL 1 DAY`.
        for part in _INTERVAL_PART.findall(token.text.lower()):
            words.add("number" if part[0].isdigit() or part[0] == "." else "word", part, token.start)
    else:
        words.add("text", token.text, token.start)


def _begins_number(tokens: Sequence[Token], index: int) -> bool:
    """Whether the dot before `index` begins a number like `.5`."""
    if index == len(tokens) or tokens[index].token_type is not TokenType.NUMBER:
        return False
    return tokens[index - 1].end + 1 == tokens[index].start


def _distinct_from(texts: Sequence[str], index: int) -> int:
    """The number of words of [NOT] DISTINCT FROM at `index`."""
    if texts[index : index + 2] == ["distinct", "from"]:
        return 2
    return 3 if texts[index : index + 3] == ["not", "distinct", "from"] else 0
