"""Kinds of values: how each is read from a node, and the JSON Schema that describes it.

`read` returns the value, or INVALID after it has reported what is wrong. It never raises.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from tracelake.dag.nodes import BadNode, ListNode, MapNode, ScalarNode, YamlNode, joined
from tracelake.dag.problems import ProblemList, one_of, shown
from tracelake.dag.scalars import Unclear, meaning
from tracelake.model.dag import Scalar

JsonSchema = dict[str, Any]


class _Invalid(Enum):
    INVALID = "invalid"


INVALID: Final = _Invalid.INVALID


@dataclass(frozen=True, slots=True)
class DocumentPlace:
    """A node and its path; an aliased node has one place for each path to it."""

    node: YamlNode
    path: str
    problems: ProblemList

    def problem(self, code: str, message: str, suggestion: str = "") -> None:
        self.problems.add(
            code, message, line=self.node.line, column=self.node.column, path=self.path, suggestion=suggestion
        )

    def problem_inside(self, code: str, message: str, suggestion: str = "", offset: int | None = None) -> None:
        """A problem of one place in a text."""
        line, column = self.node.line, self.node.column
        if offset is not None and isinstance(self.node, ScalarNode) and self.node.raw is not None:
            line, column = self.node.raw.locate(self.node.text, offset)
        self.problems.add(code, message, line=line, column=column, path=self.path, suggestion=suggestion)

    def below(self, key: str) -> str:
        return joined(self.path, key)

    def entries(self) -> dict[str, tuple["DocumentPlace", "DocumentPlace"]]:
        """Places of keys and of values; both have the value's path."""
        assert isinstance(self.node, MapNode)
        return {
            name: (
                DocumentPlace(key, self.below(name), self.problems),
                DocumentPlace(value, self.below(name), self.problems),
            )
            for name, (key, value) in self.node.entries.items()
        }

    def items(self) -> list["DocumentPlace"]:
        assert isinstance(self.node, ListNode)
        return [
            DocumentPlace(item, f"{self.path}[{index}]", self.problems) for index, item in enumerate(self.node.items)
        ]

    def wrong_type(self, expected: str, suggestion: str = "") -> _Invalid:
        if not isinstance(self.node, BadNode):
            self.problem("wrong_type", f"{self.title} must be {expected}, not {_described(self.node)}.", suggestion)
        return INVALID

    @property
    def title(self) -> str:
        """The subject of a message, which is shown next to the path."""
        return "It" if self.path else "The document"


class Kind(Protocol):
    def read(self, place: DocumentPlace) -> Any: ...
    def schema(self) -> JsonSchema: ...


@dataclass(frozen=True, slots=True)
class Text:
    what: str = "text"
    pattern: str | None = None
    """Python and JSON Schema read it alike."""
    max_length: int = 1000
    example: str = ""
    code: str = "invalid_value"

    def read(self, place: DocumentPlace) -> Any:
        node = place.node
        if not isinstance(node, ScalarNode):
            return place.wrong_type(self.what)
        if node.plain:
            value = meaning(node.text)
            if not isinstance(value, str) and value is not Unclear.WORD:
                hint = f'Quote it: "{shown(node.text)[1:-1]}".' if node.text else "Give a value, or leave it out."
                return place.wrong_type(self.what, hint)
        if len(node.text) > self.max_length:
            place.problem("out_of_range", f"{place.title} has {len(node.text)} characters, over {self.max_length}.")
            return INVALID
        if self.pattern is not None and not re.fullmatch(self.pattern, node.text):
            place.problem(self.code, f"{shown(node.text)} is not {self.what}.", self.example)
            return INVALID
        return node.text

    def schema(self) -> JsonSchema:
        pattern = {} if self.pattern is None else {"pattern": f"^{self.pattern}$"}
        return {"type": "string", "maxLength": self.max_length, **pattern}


@dataclass(frozen=True, slots=True)
class Choice:
    words: tuple[str, ...]

    def read(self, place: DocumentPlace) -> Any:
        node = place.node
        if not isinstance(node, ScalarNode) or (node.plain and not node.text):
            return place.wrong_type(f"one of {one_of(self.words)}")
        if node.text not in self.words:
            choices = f"It takes {one_of(self.words)}."
            hint = place.problems.did_you_mean(node.text, self.words)
            place.problem("unknown_value", f"{place.title} cannot be {shown(node.text)}. {choices}", hint)
            return INVALID
        # The known word itself: encoders that leave out defaults compare by identity.
        return self.words[self.words.index(node.text)]

    def schema(self) -> JsonSchema:
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Integer:
    low: int
    high: int

    def read(self, place: DocumentPlace) -> Any:
        value = _plain_value(place)
        if value is INVALID:
            return INVALID
        if isinstance(value, bool) or not isinstance(value, int):
            hint = "Numbers are plain decimal digits, like 1000."
            if value is Unclear.TOO_LARGE:
                return self._out_of_range(place)
            return place.wrong_type("a whole number", hint)
        return value if self.low <= value <= self.high else self._out_of_range(place)

    def _out_of_range(self, place: DocumentPlace) -> _Invalid:
        place.problem("out_of_range", f"{place.title} must be {self.low} to {self.high}.")
        return INVALID

    def schema(self) -> JsonSchema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class PositiveNumber:
    """A number above 0, which need not be whole."""

    high: int

    def read(self, place: DocumentPlace) -> Any:
        value = _plain_value(place)
        if value is INVALID:
            return INVALID
        if isinstance(value, bool) or not isinstance(value, int | float):
            return place.wrong_type("a number", "Numbers are plain decimal digits, like 2.5.")
        if 0 < value <= self.high:
            return value
        place.problem("out_of_range", f"{place.title} must be above 0 and at most {self.high}.")
        return INVALID

    def schema(self) -> JsonSchema:
        return {"type": "number", "exclusiveMinimum": 0, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Boolean:
    def read(self, place: DocumentPlace) -> Any:
        value = _plain_value(place)
        if value is INVALID or isinstance(value, bool):
            return value
        return place.wrong_type("true or false", "Booleans are spelled `true` and `false`.")

    def schema(self) -> JsonSchema:
        return {"type": "boolean"}


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_DURATION = re.compile(r"([1-9][0-9]{0,9})([smhd])")


@dataclass(frozen=True, slots=True)
class Duration:
    """Whole seconds, or a number with one of s, m, h, d."""

    low: int
    high: int

    def read(self, place: DocumentPlace) -> Any:
        node = place.node
        if isinstance(node, ScalarNode) and (match := _DURATION.fullmatch(node.text)):
            seconds = int(match[1]) * _UNITS[match[2]]
            if self.low <= seconds <= self.high:
                return seconds
            place.problem("out_of_range", f"{place.title} must be {self.low} to {self.high} seconds.")
            return INVALID
        if isinstance(node, ScalarNode) and isinstance(_plain_value(place), str):
            message = f"{shown(node.text)} is not a length of time."
            place.problem("invalid_value", message, 'Write seconds (90) or a number with s, m, h or d ("5m").')
            return INVALID
        return Integer(self.low, self.high).read(place)

    def schema(self) -> JsonSchema:
        text = {"type": "string", "pattern": f"^{_DURATION.pattern}$"}
        return {"anyOf": [{"type": "integer", "minimum": self.low, "maximum": self.high}, text]}


@dataclass(frozen=True, slots=True)
class ListOf:
    item: Kind
    low: int
    high: int
    distinct: bool = False
    whole: bool = True
    """One bad item makes the whole list INVALID; if False, only the item is INVALID."""

    def read(self, place: DocumentPlace) -> Any:
        if not isinstance(place.node, ListNode):
            return place.wrong_type("a list")
        if not self.low <= len(place.node.items) <= self.high:
            count = len(place.node.items)
            place.problem("out_of_range", f"{place.title} has {count} items; it takes {self.low} to {self.high}.")
            return INVALID
        places = place.items()
        values = [self.item.read(item) for item in places]
        if self.distinct:
            earlier_values: list[Any] = []
            for value, item in zip(values, places, strict=True):
                if value is not INVALID and value in earlier_values:
                    text = ", ".join(value) if isinstance(value, list) else str(value)
                    item.problem("duplicate_item", f"{shown(text)} is in the list already.", "Keep one of them.")
                earlier_values.append(value)
        return INVALID if self.whole and INVALID in values else values

    def schema(self) -> JsonSchema:
        distinct = {"uniqueItems": True} if self.distinct else {}
        least = {"minItems": self.low} if self.low else {}
        return {"type": "array", "items": self.item.schema(), **least, "maxItems": self.high, **distinct}


@dataclass(frozen=True, slots=True)
class OneOrMany:
    """One item, or a list of them; reads as a list."""

    many: ListOf

    def read(self, place: DocumentPlace) -> Any:
        if isinstance(place.node, ListNode):
            return self.many.read(place)
        value = self.many.item.read(place)
        return INVALID if value is INVALID else [value]

    def schema(self) -> JsonSchema:
        return {"anyOf": [self.many.item.schema(), self.many.schema()]}


@dataclass(frozen=True, slots=True)
class FreeMap:
    """A map of any JSON values."""

    def read(self, place: DocumentPlace) -> Any:
        return free_value(place) if isinstance(place.node, MapNode) else place.wrong_type("a map")

    def schema(self) -> JsonSchema:
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class Field:
    kind: Kind
    help: str
    required: bool = False
    default: Any = None
    """The value that applies when the field is left out, for the JSON Schema."""


@dataclass(slots=True)
class Record:
    """A map with known fields after reading: the valid values, and the place of every field that is written."""

    place: DocumentPlace
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, DocumentPlace] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def has(self, name: str) -> bool:
        """Whether the field is written, valid or not."""
        return name in self.places

    def bad(self, name: str) -> bool:
        """Whether the field is written but invalid: checks that depend on it are skipped."""
        return name in self.places and name not in self.values

    def at(self, name: str) -> DocumentPlace:
        """The place of the field, or the place that it would have."""
        place = self.places.get(name)
        return place or DocumentPlace(self.place.node, self.place.below(name), self.place.problems)

    def missing(self, name: str, suggestion: str = "") -> None:
        self.at(name).problem("missing_field", f"`{name}` is missing.", suggestion)


@dataclass(frozen=True, slots=True)
class Fields:
    """A map with these fields and no others."""

    table: Mapping[str, Field]
    what: str = "a map"
    rule: Callable[[], JsonSchema] = dict
    """Further rules of its JSON Schema."""
    not_supported: Mapping[str, str] = field(default_factory=dict)
    """Fields that are rejected with a reason of their own."""

    def read(self, place: DocumentPlace) -> Any:
        if not isinstance(place.node, MapNode):
            return place.wrong_type(self.what)
        record = Record(place)
        for name, (key, value) in place.entries().items():
            field = self.table.get(name)
            if field is None:
                hint = self.not_supported.get(name) or place.problems.did_you_mean(name, self.table)
                hint = hint or f"It takes {one_of(self.table)}."
                key.problem("unknown_field", f"There is no field {shown(name)} here.", hint)
                continue
            record.places[name] = value
            result = field.kind.read(value)
            if result is not INVALID:
                record.values[name] = result
        for name, field in self.table.items():
            if field.required and name not in record.places:
                record.missing(name)
        return record

    def schema(self) -> JsonSchema:
        required = [name for name, field in self.table.items() if field.required]
        return {
            "type": "object",
            "properties": {name: _field_schema(field) for name, field in self.table.items()},
            **({"required": required} if required else {}),
            "additionalProperties": False,
            **self.rule(),
        }


def _field_schema(field: Field) -> JsonSchema:
    default = {} if field.default is None else {"default": field.default}
    return {"description": field.help, **field.kind.schema(), **default}


def free_value(place: DocumentPlace) -> Any:
    """A value of no known type, as JSON would have it."""
    node = place.node
    if isinstance(node, MapNode):
        mapping = {name: free_value(value) for name, (_, value) in place.entries().items()}
        return INVALID if INVALID in mapping.values() else mapping
    if isinstance(node, ListNode):
        values = [free_value(item) for item in place.items()]
        return INVALID if any(value is INVALID for value in values) else values
    return scalar_value(place)


def scalar_value(place: DocumentPlace) -> Scalar | _Invalid:
    """A value whose type follows from its spelling alone; an ambiguous spelling is rejected."""
    value = _plain_value(place)
    if not isinstance(value, Unclear):
        return value
    assert isinstance(place.node, ScalarNode)
    text = shown(place.node.text)
    if value is Unclear.TOO_LARGE:
        message = f"The number {text} does not fit: whole numbers have 64 bits, others are double precision."
        place.problem("out_of_range", message, "Quote it to keep it as text.")
    elif value is Unclear.WORD:
        hint = "Write `true` or `false`, `null`, or quote it if it shall be text."
        place.problem("value_ambiguous", f"Versions of YAML disagree about what {text} means.", hint)
    else:
        hint = "Write a plain decimal number, or quote it if it shall be text."
        place.problem("value_ambiguous", f"Versions of YAML disagree about what {text} means.", hint)
    return INVALID


def _plain_value(place: DocumentPlace) -> Scalar | Unclear | _Invalid:
    """The meaning of a scalar, maybe Unclear; INVALID for other nodes."""
    node = place.node
    if not isinstance(node, ScalarNode):
        return place.wrong_type("one value")
    return meaning(node.text) if node.plain else node.text


def _described(node: YamlNode) -> str:
    if isinstance(node, ListNode):
        return "a list"
    if isinstance(node, MapNode):
        return "a map"
    assert isinstance(node, ScalarNode)
    value = meaning(node.text) if node.plain else node.text
    if value is None:
        return "nothing (null)"
    return f"the text {shown(node.text)}" if isinstance(value, str) else shown(node.text)


SECONDS_MAX = 7 * 24 * 3600
NAME_PATTERN = "[a-z][a-z0-9_]{0,127}"
NAME = Text(
    "a name",
    NAME_PATTERN,
    128,
    "A name is lower-case letters, digits and _, begins with a letter and has at most 128 characters.",
    code="name_invalid",
)
REFERENCE = Text("a name", max_length=128)
"""The name of something that must exist, so that its form needs no check of its own."""
INDEX = Integer(0, 63)
POSITIVE = Integer(1, 2**31 - 1)
