"""Where a character of a scalar's value is written in the document, whatever the style of the scalar.

Styles fold, indent and escape white space in many ways, but the other characters of a value are written in their order.
So a character is found by how many others, that are not white space, come before it. An offset of a query is always
that of a word.
"""

import re
from dataclasses import dataclass

_SPACE = " \t\n"
_PROPERTIES = re.compile(r"(?:&[^\s]+\s+)*")
_ESCAPE_LENGTHS = {"x": 2, "u": 4, "U": 8}
_WHITE_ESCAPES = frozenset("tnr ev0abfNLP_\t\n")
"""What stands for white space, or for a character that no query has, behind a backslash."""


@dataclass(frozen=True, slots=True)
class RawScalar:
    """A scalar as it is written: from `start` to `end` in the text of the document."""

    document: str
    start: int
    end: int
    style: str
    """One of `|`, `>`, both quotes, or empty."""

    def locate(self, value: str, offset: int) -> tuple[int, int]:
        """Line and column, from 1, of a character of the value; those of the scalar if it cannot be told."""
        words = sum(character not in _SPACE for character in value[:offset])
        place = self._place(words)
        before = self.document[: self.start if place is None else place]
        return before.count("\n") + 1, len(before) - before.rfind("\n")

    def _place(self, words: int) -> int | None:
        """Where the character is that has so many others before it, white space aside."""
        place = self._first()
        while place < self.end:
            length, is_white = self._character(place)
            if not is_white:
                if not words:
                    return place
                words -= 1
            place += length
        return None

    def _first(self) -> int:
        """Where the content begins: behind an anchor, a quote, or the line of a block's header."""
        match = _PROPERTIES.match(self.document, self.start)
        place = self.start if match is None else match.end()
        if self.style in ("|", ">"):
            return self.document.find("\n", place) + 1 or self.end
        return place + (self.style in ("'", '"') and self.document[place : place + 1] == self.style)

    def _character(self, place: int) -> tuple[int, bool]:
        """The length of what stands for one character, and whether that is white space."""
        letter = self.document[place]
        if self.style == "'" and letter == "'":
            return 2, False
        if self.style != '"' or letter != "\\":
            return 1, letter in _SPACE
        name = self.document[place + 1 : place + 2]
        if name in _ESCAPE_LENGTHS:
            length = 2 + _ESCAPE_LENGTHS[name]
            code = self.document[place + 2 : place + length]
            return length, chr(int(code, 16)) in _SPACE
        return 2, name in _WHITE_ESCAPES
