"""ABI-encoded bytes to Python values, one log at a time, for what has no fixed size.

The bytes come from anybody. Whatever they say, the work and the memory are bounded by their own length: each byte of
the data pays for one byte that is read, so an encoding whose parts lie on top of each other is refused.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from tracelake.catalogue.abi import AbiType, Array, Bytes, Plain, Tuple, head_words, is_dynamic

WORD = 32
OVERLAP = "parts of the data lie on top of each other"


class UndecodableError(Exception):
    """The bytes are no value of the type. `reason` is one of a few words, `detail` is for people."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def decode_values(types: Sequence[AbiType], data: bytes) -> list[Any]:
    """Numbers as int, bytes and addresses as bytes, text as str, arrays as list, tuples as tuple."""
    if not any(map(is_dynamic, types)):
        expected = WORD * sum(map(head_words, types))
        if len(data) != expected:
            raise UndecodableError("data_length", f"{len(data)} bytes of data, not {expected}")
    return _ValueReader(data).sequence(types, 0)


class _ValueReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._budget = len(data)

    def _pay(self, size: int) -> None:
        if size > self._budget:
            raise UndecodableError("overlap", OVERLAP)
        self._budget -= size

    def _word(self, at: int) -> bytes:
        if at + WORD > len(self._data):
            raise UndecodableError("data_length", f"the data ends at byte {len(self._data)}, before a word at {at}")
        self._pay(WORD)
        return self._data[at : at + WORD]

    def sequence(self, types: Sequence[AbiType], base: int) -> list[Any]:
        values, at = [], base
        for abi_type in types:
            if is_dynamic(abi_type):
                values.append(self._value(abi_type, self._target(at, base)))
                at += WORD
            else:
                values.append(self._value(abi_type, at))
                at += WORD * head_words(abi_type)
        return values

    def _target(self, at: int, base: int) -> int:
        offset = int.from_bytes(self._word(at), "big")
        if base + offset > len(self._data):
            raise UndecodableError("offset", f"an offset points to {_short(base + offset)}, behind the data")
        return base + offset

    def _length(self, at: int, each: int) -> int:
        length = int.from_bytes(self._word(at), "big")
        if length * each > len(self._data) - at - WORD:
            raise UndecodableError("length", f"a length of {_short(length)} is more than the data holds")
        if length * each > self._budget:
            raise UndecodableError("overlap", OVERLAP)
        return length

    def _value(self, abi_type: AbiType, at: int) -> Any:
        match abi_type:
            case Plain():
                return plain_value(abi_type, self._word(at))
            case Bytes(text):
                length = self._length(at, 1)
                self._pay(length)
                content = self._data[at + WORD : at + WORD + length]
                return _text(content) if text else content
            case Array(element, None):
                length = self._length(at, WORD * head_words(element))
                return self.sequence([element] * length, at + WORD)
            case Array(element, length):
                assert length is not None
                return self.sequence([element] * length, at)
            case Tuple(_, types):
                return tuple(self.sequence(types, at))


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UndecodableError("utf8", "a string is not UTF-8") from None


def plain_value(abi_type: Plain, word: bytes) -> Any:
    match abi_type:
        case Plain("address", _):
            if any(word[:12]):
                raise UndecodableError("address_padding", "an address has more than 20 bytes")
            return word[12:]
        case Plain("bool", _):
            if word[:31] != bytes(31) or word[31] > 1:
                raise UndecodableError("bool_value", "a bool is neither 0 nor 1")
            return word[31] == 1
        case Plain("bytes", size):
            if any(word[size:]):
                raise UndecodableError("bytes_padding", f"a bytes{size} has more than {size} bytes")
            return word[:size]
        case Plain(kind, size):
            signed = kind == "int"
            number = int.from_bytes(word, "big", signed=signed)
            lowest, highest = (-(1 << size - 1), (1 << size - 1) - 1) if signed else (0, (1 << size) - 1)
            if not lowest <= number <= highest:
                raise UndecodableError("int_padding", f"a number is none of {abi_type}")
            return number


def array_span(data: bytes, head: int) -> tuple[int, int]:
    """Where the words of a `uint256[]` lie whose offset is word `head` of the data: first byte, and how many words."""
    size = len(data)
    at = int.from_bytes(data[WORD * head : WORD * head + WORD], "big")
    if at > size:
        raise UndecodableError("offset", f"an offset points to {_short(at)}, behind the data")
    if at + WORD > size:
        raise UndecodableError("data_length", f"the data ends at byte {size}, before a word at {at}")
    length = int.from_bytes(data[at : at + WORD], "big")
    if length * WORD > size - at - WORD:
        raise UndecodableError("length", f"a length of {_short(length)} is more than the data holds")
    return at + WORD, length


def _short(number: int) -> str:
    return str(number) if number < 10**20 else f"{number:#x}"


def column_value(abi_type: AbiType, value: Any) -> Any:
    """As the column of the type holds it (`catalogue.decode.spark_type`)."""
    match abi_type:
        case Plain("uint", 64):
            return Decimal(value)
        case Plain("uint" | "int", size) if size > 64:
            return str(value)
        case Array(element, _):
            return [column_value(element, each) for each in value]
        case Tuple(names, types):
            return {name: column_value(kind, each) for name, kind, each in zip(names, types, value, strict=True)}
        case _:
            return value
