"""The parser of regular expressions: a strict subset of Java's, read into a tree whose cost `patterns` measures."""

from collections.abc import Iterable
from dataclasses import dataclass

from tracelake.catalogue.sql.literals.errors import LiteralError

MAX_LENGTH = 1_000
MAX_REPEATS = 1_000
"""The largest number of a quantifier; also the largest number of atoms of a pattern, written out."""
MAX_NESTED_GROUPS = 8

_UNIVERSE = (1 << 129) - 1
"""Sets of characters are bits: those of ASCII, and one for all others."""
_OTHERS = 1 << 128


def _bits(characters: Iterable[str]) -> int:
    bits = 0
    for character in characters:
        bits |= 1 << ord(character) if character.isascii() else _OTHERS
    return bits


_DIGITS = _bits("0123456789")
_WORD = _DIGITS | _bits("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_SPACE = _bits(" \t\n\r\x0b\x0c")
_CLASSES = {
    "d": _DIGITS,
    "w": _WORD,
    "s": _SPACE,
    "D": _UNIVERSE & ~_DIGITS,
    "W": _UNIVERSE & ~_WORD,
    "S": _UNIVERSE & ~_SPACE,
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r"}
_DOT = _UNIVERSE & ~_bits("\n\r")
_PUNCTUATION = frozenset("!\"#%&',-/:;<=>@_`~ \\^$.|?*+()[]{}")
_BOUNDS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of a set."""

    bits: int


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place between characters: `^`, `$`, `\\b` or `\\B`."""

    sign: str


@dataclass(frozen=True, slots=True)
class Repeat:
    item: "PatternNode"
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class PatternChoice:
    """Alternatives, each a sequence. A group is a choice too, of one alternative if it has no `|`."""

    branches: tuple[tuple["PatternNode", ...], ...]


PatternNode = Characters | Anchor | Repeat | PatternChoice


def parse_pattern(text: str) -> PatternChoice:
    if len(text) > MAX_LENGTH:
        raise LiteralError(f"a pattern has at most {MAX_LENGTH:,} characters")
    return _PatternParser(text).read_pattern()


class _PatternParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._ignores_case = text.startswith("(?i)")
        self._place = 4 if self._ignores_case else 0

    def read_pattern(self) -> PatternChoice:
        choice = self._read_choice(0)
        if self._place < len(self._text):
            raise LiteralError("the pattern has a `)` without a `(`")
        return choice

    def _read_choice(self, depth: int) -> PatternChoice:
        if depth > MAX_NESTED_GROUPS:
            raise LiteralError(f"a pattern has at most {MAX_NESTED_GROUPS} groups inside each other")
        branches = [self._read_sequence(depth)]
        while self._peek() == "|":
            self._place += 1
            branches.append(self._read_sequence(depth))
        return PatternChoice(tuple(branches))

    def _read_sequence(self, depth: int) -> tuple[PatternNode, ...]:
        items: list[PatternNode] = []
        while self._peek() not in ("", "|", ")"):
            atom = self._read_atom(depth)
            items.append(self._read_quantifier(atom))
        return tuple(items)

    def _read_atom(self, depth: int) -> PatternNode:
        sign = self._take()
        if sign == "(":
            if self._peek() == "?":
                if self._text[self._place : self._place + 2] != "?:":
                    raise LiteralError("of groups with `?`, a pattern may have `(?:...)`, and `(?i)` at its begin")
                self._place += 2
            inner = self._read_choice(depth + 1)
            if self._take() != ")":
                raise LiteralError("`(` of a pattern is not closed")
            return inner
        if sign == "[":
            return Characters(self._read_class())
        if sign == ".":
            return Characters(_DOT)
        if sign in "^$":
            return Anchor(sign)
        if sign == "\\":
            return self._read_escape()
        if sign in "*+?{":
            raise LiteralError("a quantifier follows nothing")
        if sign in "]}":
            raise LiteralError(f"write `\\\\{sign}` for a bracket as a character")
        return Characters(self._folded(_bits(sign)))

    def _read_escape(self) -> PatternNode:
        sign = self._take()
        if sign in _CLASSES:
            return Characters(_CLASSES[sign])
        if sign in ("b", "B"):
            return Anchor(sign)
        return Characters(self._folded(self._escaped(sign)))

    def _escaped(self, sign: str) -> int:
        if sign in _CONTROLS:
            return _bits(_CONTROLS[sign])
        if sign not in _PUNCTUATION:
            raise LiteralError("a backslash stands before d, w, s, D, W, S, b, B, t, n, r or a sign; not before others")
        return _bits(sign)

    def _read_class(self) -> int:
        negated = self._peek() == "^"
        self._place += negated
        bits, is_empty = 0, True
        while self._peek() != "]" or is_empty:
            first = self._read_member()
            is_empty = False
            if self._peek() == "-" and self._text[self._place + 1 : self._place + 2] != "]":
                self._place += 1
                last = self._read_member()
                if not isinstance(first, str) or not isinstance(last, str) or last < first:
                    raise LiteralError("a range in `[...]` goes from a smaller character to a larger one")
                bits |= self._range(first, last)
            else:
                bits |= _bits(first) if isinstance(first, str) else first
        self._place += 1
        bits = self._folded(bits)
        return _UNIVERSE & ~bits | _OTHERS if negated else bits

    def _read_member(self) -> "str | int":
        """A character, or the bits of a class like `\\d`."""
        sign = self._take()
        if sign == "\\":
            sign = self._take()
            if sign in _CLASSES:
                return _CLASSES[sign]
            self._escaped(sign)
            return _CONTROLS.get(sign, sign)
        if sign in "[]&^":
            raise LiteralError(f"write `\\\\{sign}` for `{sign}` inside of `[...]`")
        return sign

    @staticmethod
    def _range(first: str, last: str) -> int:
        if not first.isascii() or not last.isascii():
            return _OTHERS | (_bits(chr(code) for code in range(ord(first), 128)) if first.isascii() else 0)
        return _bits(chr(code) for code in range(ord(first), ord(last) + 1))

    def _folded(self, bits: int) -> int:
        if not self._ignores_case:
            return bits
        letters = [chr(code) for code in range(128) if bits >> code & 1 and chr(code).isalpha()]
        return bits | _bits(letter.swapcase() for letter in letters)

    def _read_quantifier(self, atom: PatternNode) -> PatternNode:
        bounds = self._read_bounds()
        if bounds is None:
            return atom
        if self._peek() in ("?", "+"):
            self._place += 1
        if self._peek() in ("*", "+", "?", "{"):
            raise LiteralError("two quantifiers stand behind one part of the pattern")
        if isinstance(atom, Anchor):
            raise LiteralError("a quantifier stands behind an anchor")
        return Repeat(atom, *bounds)

    def _read_bounds(self) -> tuple[int, int | None] | None:
        sign = self._peek()
        if sign in _BOUNDS:
            self._place += 1
            return _BOUNDS[sign]
        if sign != "{":
            return None
        end = self._text.find("}", self._place)
        low, comma, high = self._text[self._place + 1 : max(end, self._place + 1)].partition(",")
        if not _is_count(low) or (high and not _is_count(high)):
            raise LiteralError("a quantifier with numbers is like `{3}`, `{3,}` or `{3,5}`, up to 1,000")
        self._place = end + 1
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if most is not None and (most < least or most == 0):
            raise LiteralError("the second number of a quantifier is not smaller than the first, and not 0")
        return least, most

    def _peek(self) -> str:
        return self._text[self._place : self._place + 1]

    def _take(self) -> str:
        if self._place >= len(self._text):
            raise LiteralError("the pattern is incomplete")
        self._place += 1
        return self._text[self._place - 1]


def _is_count(text: str) -> bool:
    return 0 < len(text) <= 4 and text.isascii() and text.isdigit() and int(text) <= MAX_REPEATS
