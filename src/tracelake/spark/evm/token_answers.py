"""What a contract answers when it is asked for its symbol, name or decimals, read without trust in it.

Contracts are written by anybody. Their answers may be empty, reverted, of another form, endless, or made to look like
something else. Whatever is not a short printable text, or a number that fits, is a problem with a name and no value.
"""

import unicodedata
from typing import NamedTuple

_WORD = 32
_MOST_BYTES, _MOST_LETTERS = 1024, 256
_MOST_DECIMALS = 255
_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Marks that make a text look like another."""
_UNPRINTABLE = frozenset({"Cc", "Co", "Zl", "Zp"})
"""Categories of control and private characters and of line ends. They are the same in every version of Unicode."""


class TokenText(NamedTuple):
    value: str | None = None
    problem: str | None = None


class TokenNumber(NamedTuple):
    value: int | None = None
    problem: str | None = None


def read_text(answer: bytes | None) -> TokenText:
    """`string` of the ABI, or 32 bytes of text as some early tokens have it. None: the call was reverted."""
    if answer is None:
        return TokenText(problem="reverted")
    if not answer:
        return TokenText(problem="empty")
    if len(answer) == _WORD:
        return _printable(answer)
    if len(answer) < 2 * _WORD:
        return TokenText(problem="malformed")
    start = int.from_bytes(answer[:_WORD], "big")
    if start > len(answer) - _WORD:
        return TokenText(problem="malformed")
    length = int.from_bytes(answer[start : start + _WORD], "big")
    if length > len(answer) - start - _WORD:
        return TokenText(problem="malformed")
    return _printable(answer[start + _WORD : start + _WORD + length])


def _printable(raw: bytes) -> TokenText:
    content = raw.rstrip(b"\0")
    if not content:
        return TokenText(problem="empty")
    if len(content) > _MOST_BYTES:
        return TokenText(problem="too_long")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return TokenText(problem="not_utf8")
    if len(text) > _MOST_LETTERS:
        return TokenText(problem="too_long")
    if any(unicodedata.category(letter) in _UNPRINTABLE or letter in _BIDIRECTIONAL for letter in text):
        return TokenText(problem="unprintable")
    return TokenText(text)


def read_decimals(answer: bytes | None) -> TokenNumber:
    if answer is None:
        return TokenNumber(problem="reverted")
    if not answer:
        return TokenNumber(problem="empty")
    if len(answer) < _WORD:
        return TokenNumber(problem="malformed")
    number = int.from_bytes(answer[:_WORD], "big")
    return TokenNumber(problem="out_of_range") if number > _MOST_DECIMALS else TokenNumber(number)
