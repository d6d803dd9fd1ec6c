"""Paths into JSON documents: a small strict grammar.

    path  = "$" steps | first steps | "@" word
    first = name | index
    steps = ( "." name | index ) ...
    name  = a letter or _, then letters, digits, _ or -
    index = "[" number "]" | '["' any text with \\" and \\\\ escaped '"]'

`$` is the document; a path without it begins at the record. `@word` is a value that comes with a record and not in it,
such as its number. The path to the list of records may end with `.*`: the members of an object are the records then.
"""

import re
from dataclasses import dataclass
from typing import Any

MAX_LENGTH = 500
MAX_STEPS = 32
MAX_INDEX = 1_000_000

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_INDEX = re.compile(r"\[(0|[1-9][0-9]{0,6})\]", re.ASCII)
_QUOTED = re.compile(r'\["((?:[^"\\\x00-\x1f]|\\["\\])*)"\]')
_ESCAPED = re.compile(r'\\(["\\])')
_SPECIAL = re.compile(r"@[a-z][a-z_]*", re.ASCII)


class PathError(ValueError):
    """A text that is not a path; says where it ends to be one."""


class MissingValue:
    """The value at a path that a document does not have."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = MissingValue()


@dataclass(frozen=True, slots=True)
class JsonPath:
    steps: tuple[str | int, ...] = ()
    """Names of members and indexes of items."""
    root: bool = False
    """It begins at the document, not at the record."""
    special: str = ""
    """The word after `@`; such a path has no steps."""
    members: bool = False
    """It ends with `.*`."""

    def find(self, value: Any) -> Any:
        """The value there, or MISSING. Nothing is below null, and nothing below a value of another kind."""
        for step in self.steps:
            if isinstance(step, str):
                if not isinstance(value, dict) or step not in value:
                    return MISSING
            elif not isinstance(value, list) or step >= len(value):
                return MISSING
            value = value[step]
        return value

    def __str__(self) -> str:
        """The canonical text."""
        if self.special:
            return f"@{self.special}"
        text = "$" if self.root else ""
        for step in self.steps:
            if isinstance(step, int):
                text += f"[{step}]"
            elif _NAME.fullmatch(step):
                text += f".{step}" if text else step
            else:
                escaped = step.replace("\\", "\\\\").replace('"', '\\"')
                text += f'["{escaped}"]'
        return text + (".*" if self.members else "")


def parse_path(text: str) -> JsonPath:
    """The path of a column. Raises PathError."""
    if text.startswith("@"):
        if not _SPECIAL.fullmatch(text):
            raise PathError(f"{_shown(text)} is not a word like @row")
        return JsonPath(special=text[1:])
    path = _parse(text)
    if path.members:
        raise PathError("`.*` is for the path of the records, not for one value")
    return path


def parse_rows_path(text: str) -> JsonPath:
    """The path from the document to its records. Raises PathError."""
    if text.startswith("@"):
        raise PathError("records are in the document: expected a path like data.items")
    path = _parse(text)
    return JsonPath(path.steps, root=True, members=path.members)


def _parse(text: str) -> JsonPath:
    if not text or len(text) > MAX_LENGTH:
        raise PathError(f"a path has 1 to {MAX_LENGTH} characters")
    root = text.startswith("$")
    place = 1 if root else 0
    steps: list[str | int] = []
    while place < len(text):
        if text[place:] == ".*" and (steps or root):
            return JsonPath(tuple(steps), root=root, members=True)
        step, place = _step(text, place, first=not steps and not root)
        steps.append(step)
        if len(steps) > MAX_STEPS:
            raise PathError(f"a path has at most {MAX_STEPS} steps")
    return JsonPath(tuple(steps), root=root)


def _step(text: str, place: int, *, first: bool) -> tuple[str | int, int]:
    if match := _INDEX.match(text, place):
        index = int(match[1])
        if index > MAX_INDEX:
            raise PathError(f"an index is at most {MAX_INDEX:,}")
        return index, match.end()
    if match := _QUOTED.match(text, place):
        return _ESCAPED.sub(r"\1", match[1]), match.end()
    begin = place
    if not first:
        if text[place] != ".":
            raise _unexpected(text, place)
        begin += 1
    match = _NAME.match(text, begin)
    if match is None:
        raise _unexpected(text, begin)
    return match[0], match.end()


def _unexpected(text: str, place: int) -> PathError:
    received = f"{text[place]!r} at character {place + 1}" if place < len(text) else "the end"
    return PathError(f'expected a name, [0] or ["name"] in {_shown(text)}, received {received}')


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}...")
