"""The types of the contract ABI, and the parsers of the two forms of an event: human-readable, and JSON ABI item.

    event Swap(address indexed sender, uint256 amount0In, uint256[] fees, (uint8 kind, string memo) note)

Everything is bounded, so that decoding an accepted event needs limited recursion and memory. All errors are
`ValueError` with a message for the author of the text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

MAX_TEXT = 4000
MAX_DEPTH = 8
"""The deepest nesting of arrays and tuples."""
MAX_PARAMETERS = 64
MAX_HEAD_WORDS = 1024
"""The most 32-byte words of the fixed part of an event."""
MAX_INDEXED = 3

Kind: TypeAlias = Literal["uint", "int", "address", "bool", "bytes"]


@dataclass(frozen=True, slots=True)
class Plain:
    """A value of one word: uint8 to uint256, int8 to int256, address, bool, bytes1 to bytes32."""

    kind: Kind
    size: int
    """Bits of a number, or bytes of bytesN; unused for the others."""

    def __str__(self) -> str:
        return self.kind if self.kind in ("address", "bool") else f"{self.kind}{self.size}"


@dataclass(frozen=True, slots=True)
class Bytes:
    """`bytes`, or `string`, which is UTF-8."""

    text: bool

    def __str__(self) -> str:
        return "string" if self.text else "bytes"


@dataclass(frozen=True, slots=True)
class Array:
    element: "AbiType"
    length: int | None
    """None: the length is in the data."""

    def __str__(self) -> str:
        return f"{self.element}[{'' if self.length is None else self.length}]"


@dataclass(frozen=True, slots=True)
class Tuple:
    names: tuple[str, ...]
    types: tuple["AbiType", ...]

    def __str__(self) -> str:
        return f"({','.join(map(str, self.types))})"


AbiType: TypeAlias = Plain | Bytes | Array | Tuple


@dataclass(frozen=True, slots=True)
class EventParameter:
    name: str
    """Never empty: `arg0`, `arg1` and so on replace a missing name."""
    type: AbiType
    indexed: bool


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    parameters: tuple[EventParameter, ...]

    @property
    def signature(self) -> str:
        """The text whose hash is topic0."""
        return f"{self.name}({','.join(str(parameter.type) for parameter in self.parameters)})"

    @property
    def indexed(self) -> tuple[EventParameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.indexed)

    @property
    def plain(self) -> tuple[EventParameter, ...]:
        """The parameters that are not indexed, which are in the data."""
        return tuple(parameter for parameter in self.parameters if not parameter.indexed)

    @property
    def topics(self) -> int:
        return 1 + len(self.indexed)


def is_dynamic(abi_type: AbiType) -> bool:
    """Whether the fixed part holds an offset to the value instead of the value."""
    match abi_type:
        case Plain():
            return False
        case Bytes():
            return True
        case Array(element, length):
            return length is None or is_dynamic(element)
        case Tuple(_, types):
            return any(map(is_dynamic, types))


def head_words(abi_type: AbiType) -> int:
    """The number of words in the fixed part."""
    if is_dynamic(abi_type):
        return 1
    match abi_type:
        case Array(element, length):
            return (length or 0) * head_words(element)
        case Tuple(_, types):
            return sum(map(head_words, types))
        case _:
            return 1


def read_event(source: str | Mapping[str, Any]) -> Event:
    return parse_event(source) if isinstance(source, str) else event_of_json(source)


def parse_event(text: str) -> Event:
    """Reads the human-readable form. The word `event` is optional."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"an event signature has at most {MAX_TEXT} characters")
    reader = _SignatureReader(text)
    reader.skip("event")
    name = reader.name("the event's name")
    parameters = list(reader.parameters(depth=0, indexable=True))
    if reader.skip("anonymous"):
        raise ValueError(f"{name} is anonymous: it has no topic to be found by")
    reader.skip(";")
    reader.end()
    return _event(name, parameters)


def event_of_json(item: Mapping[str, Any]) -> Event:
    """Reads an item of a contract's JSON ABI."""
    name = item.get("name")
    if item.get("type", "event") != "event" or not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError('an item of a JSON ABI needs "type": "event" and the event\'s name')
    if item.get("anonymous"):
        raise ValueError(f"{name} is anonymous: it has no topic to be found by")
    return _event(name, [_json_parameter(each, 0) for each in _json_list(item, "inputs")])


def _event(name: str, parameters: Sequence[tuple[str, AbiType, bool]]) -> Event:
    if len(parameters) > MAX_PARAMETERS:
        raise ValueError(f"{name} has more than {MAX_PARAMETERS} parameters")
    named_parameters = [
        (parameter_name or f"arg{position}", kind, indexed)
        for position, (parameter_name, kind, indexed) in enumerate(parameters)
    ]
    _distinct([parameter_name for parameter_name, _, _ in named_parameters], name)
    event = Event(name, tuple(EventParameter(*each) for each in named_parameters))
    if len(event.indexed) > MAX_INDEXED:
        raise ValueError(f"{name} has more than {MAX_INDEXED} indexed parameters")
    if sum(head_words(parameter.type) for parameter in event.plain) > MAX_HEAD_WORDS:
        raise ValueError(f"{name} has more than {MAX_HEAD_WORDS} fixed words of data")
    return event


def _distinct(names: Sequence[str], where: str) -> None:
    """Checks that names differ by more than case, since they become columns."""
    if len({name.lower() for name in names}) != len(names):
        raise ValueError(f"two parameters of {where} have the same name")


_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]{0,127}")
_TOKEN = re.compile(r"\s*([A-Za-z_$][A-Za-z0-9_$]*|[0-9]+|[()\[\],;])")
_SUFFIX = re.compile(r"\[([0-9]{0,9})\]")
_ELEMENTARY = re.compile(r"(uint|int|bytes)([0-9]{1,3})?")


class _SignatureReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        position = 0
        while text[position:].strip():
            token = _TOKEN.match(text, position)
            if token is None:
                raise ValueError(f"{text[position:].strip()[:20]!r} does not belong into an event signature")
            self._tokens.append(token[1])
            position = token.end()
        self._at = 0

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def skip(self, symbol: str) -> bool:
        # An event may be named `event`: the word is a keyword only if a name follows.
        if self._peek() != symbol or (symbol == "event" and self._tokens[self._at + 1 : self._at + 2] == ["("]):
            return False
        self._at += 1
        return True

    def _need(self, token: str) -> None:
        if not self.skip(token):
            raise ValueError(f"{token!r} is missing before {self._peek() or 'the end'!r}")

    def name(self, what: str) -> str:
        token = self._peek()
        if not _NAME.fullmatch(token):
            raise ValueError(f"{what} is missing before {token or 'the end'!r}")
        self._at += 1
        return token

    def end(self) -> None:
        if self._peek():
            raise ValueError(f"{self._peek()!r} follows the end of the signature")

    def parameters(self, *, depth: int, indexable: bool) -> Iterator[tuple[str, AbiType, bool]]:
        self._need("(")
        if self.skip(")"):
            return
        while True:
            abi_type = self._type(depth)
            indexed = self.skip("indexed")
            if indexed and not indexable:
                raise ValueError("only parameters of the event itself can be indexed")
            token = self._peek()
            yield (self.name("a name") if token not in (",", ")") else ""), abi_type, indexed
            if not self.skip(","):
                break
        self._need(")")

    def _type(self, depth: int) -> AbiType:
        if depth > MAX_DEPTH:
            raise ValueError(f"types are nested deeper than {MAX_DEPTH}")
        parsed_type: AbiType
        if self._peek() == "(" or self.skip("tuple"):
            parsed_type = _tuple([(name, kind) for name, kind, _ in self.parameters(depth=depth + 1, indexable=False)])
        else:
            word = self.name("a type")
            parsed_type = _elementary(word)
            if word == "address":
                self.skip("payable")
        while self.skip("["):
            digits = self._peek()
            if digits.isdigit():
                self._at += 1
            self._need("]")
            parsed_type = _array(parsed_type, digits if digits.isdigit() else "")
        return parsed_type


def _elementary(word: str) -> AbiType:
    if word in ("address", "bool"):
        return Plain("address" if word == "address" else "bool", 0)
    if word in ("bytes", "string"):
        return Bytes(word == "string")
    if word == "function":
        return Plain("bytes", 24)
    match = _ELEMENTARY.fullmatch(word)
    if match is None:
        raise ValueError(f"there is no ABI type {word!r} (of contracts write address, of enums uint8)")
    kind, digits = match[1], match[2] or "256"
    size = int(digits)
    if str(size) != digits or not (1 <= size <= 32 if kind == "bytes" else 8 <= size <= 256 and size % 8 == 0):
        raise ValueError(f"there is no ABI type {word!r}")
    return Plain("bytes" if kind == "bytes" else "uint" if kind == "uint" else "int", size)


def _array(element: AbiType, digits: str) -> Array:
    if len(digits) > 9 or digits == "0" * len(digits) != "":
        raise ValueError(f"an array cannot have {digits} elements")
    array = Array(element, int(digits) if digits else None)
    if _depth(array) > MAX_DEPTH:
        raise ValueError(f"types are nested deeper than {MAX_DEPTH}")
    # Dynamic arrays, too: the decoded value has at least that many words.
    if (array.length or 1) * _smallest_words(element) > MAX_HEAD_WORDS:
        raise ValueError(f"{array} has more than {MAX_HEAD_WORDS} fixed words")
    return array


def _smallest_words(abi_type: AbiType) -> int:
    match abi_type:
        case Array(element, length):
            return (length or 1) * _smallest_words(element)
        case Tuple(_, types):
            return sum(map(_smallest_words, types))
        case _:
            return 1


def _depth(abi_type: AbiType) -> int:
    match abi_type:
        case Array(element, _):
            return 1 + _depth(element)
        case Tuple(_, types):
            return 1 + max(map(_depth, types))
        case _:
            return 0


def _tuple(fields: Sequence[tuple[str, AbiType]]) -> Tuple:
    if not fields:
        raise ValueError("a tuple has at least one field")
    names = [name or f"_{position}" for position, (name, _) in enumerate(fields)]
    _distinct(names, "a tuple")
    tuple_type = Tuple(tuple(names), tuple(kind for _, kind in fields))
    if _depth(tuple_type) > MAX_DEPTH:
        raise ValueError(f"types are nested deeper than {MAX_DEPTH}")
    return tuple_type


def _json_list(item: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    items = item.get(key, [])
    if not isinstance(items, list) or len(items) > MAX_PARAMETERS or not all(isinstance(each, dict) for each in items):
        raise ValueError(f'"{key}" of a JSON ABI is a list of at most {MAX_PARAMETERS} maps')
    return items


def _json_parameter(item: Mapping[str, Any], depth: int) -> tuple[str, AbiType, bool]:
    if depth > MAX_DEPTH:
        raise ValueError(f"types are nested deeper than {MAX_DEPTH}")
    name, type_text, indexed = item.get("name", ""), item.get("type"), item.get("indexed", False)
    if not isinstance(name, str) or (name and not _NAME.fullmatch(name)):
        raise ValueError(f"{name!r} is not the name of a parameter")
    if not isinstance(type_text, str) or len(type_text) > MAX_TEXT or not isinstance(indexed, bool):
        raise ValueError('a parameter of a JSON ABI has "name", "type" and "indexed"')
    word, bracket, _ = type_text.partition("[")
    if word == "tuple":
        fields = [_json_parameter(each, depth + 1) for each in _json_list(item, "components")]
        parsed_type: AbiType = _tuple([(field_name, kind) for field_name, kind, _ in fields])
    else:
        parsed_type = _elementary(word)
    position = len(word)
    while bracket and position < len(type_text):
        suffix = _SUFFIX.match(type_text, position)
        if suffix is None:
            raise ValueError(f"there is no ABI type {type_text!r}")
        parsed_type = _array(parsed_type, suffix[1])
        position = suffix.end()
    return name, parsed_type, indexed
