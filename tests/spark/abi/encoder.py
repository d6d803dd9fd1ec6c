"""An encoder of the contract ABI, written from its definition and by nothing of the package; and types to try it on."""

from typing import Any

from hypothesis import strategies as st

from tracelake.catalogue.abi import AbiType, Array, Bytes, Plain, Tuple


def moving(abi_type: AbiType) -> bool:
    if isinstance(abi_type, Bytes):
        return True
    if isinstance(abi_type, Array):
        return abi_type.length is None or moving(abi_type.element)
    return isinstance(abi_type, Tuple) and any(moving(each) for each in abi_type.types)


def _parts(types: list[AbiType], values: list[Any]) -> bytes:
    bodies = [encode(kind, value) for kind, value in zip(types, values, strict=True)]
    at = sum(32 if moving(kind) else len(body) for kind, body in zip(types, bodies, strict=True))
    heads, tails = b"", b""
    for kind, body in zip(types, bodies, strict=True):
        if moving(kind):
            heads += (at + len(tails)).to_bytes(32, "big")
            tails += body
        else:
            heads += body
    return heads + tails


def encode_all(types: list[AbiType], values: list[Any]) -> bytes:
    return _parts(types, values)


def encode(abi_type: AbiType, value: Any) -> bytes:
    match abi_type:
        case Plain("bytes", _):
            return bytes(value).ljust(32, b"\0")
        case Plain("address", _):
            return bytes(value).rjust(32, b"\0")
        case Plain():
            return (int(value) % 2**256).to_bytes(32, "big")
        case Bytes(text):
            raw: bytes = value.encode() if text else value
            return len(raw).to_bytes(32, "big") + raw + bytes(-len(raw) % 32)
        case Array(element, length):
            body = _parts([element] * len(value), value)
            return body if length is not None else len(value).to_bytes(32, "big") + body
        case Tuple(_, types):
            return _parts(list(types), list(value))


PLAIN = st.one_of(
    st.builds(Plain, st.sampled_from(["uint", "int"]), st.integers(1, 32).map(lambda each: 8 * each)),
    st.builds(Plain, st.just("bytes"), st.integers(1, 32)),
    st.sampled_from([Plain("address", 0), Plain("bool", 0)]),
)


def _grown(inner: st.SearchStrategy[AbiType]) -> st.SearchStrategy[AbiType]:
    arrays = st.builds(Array, inner, st.none() | st.integers(1, 3))
    tuples = st.lists(inner, min_size=1, max_size=3).map(
        lambda types: Tuple(tuple(f"_{number}" for number in range(len(types))), tuple(types))
    )
    return arrays | tuples


TYPES: st.SearchStrategy[AbiType] = st.recursive(PLAIN | st.builds(Bytes, st.booleans()), _grown, max_leaves=5)


def values_of(abi_type: AbiType) -> st.SearchStrategy[Any]:
    match abi_type:
        case Plain("bool", _):
            return st.booleans()
        case Plain("address", _):
            return st.binary(min_size=20, max_size=20)
        case Plain("bytes", size):
            return st.binary(min_size=size, max_size=size)
        case Plain("int", size):
            return st.integers(-(2 ** (size - 1)), 2 ** (size - 1) - 1)
        case Plain(_, size):
            return st.integers(0, 2**size - 1)
        case Bytes(text):
            return st.text(max_size=70) if text else st.binary(max_size=70)
        case Array(element, length):
            low, high = (0, 3) if length is None else (length, length)
            return st.lists(values_of(element), min_size=low, max_size=high)
        case Tuple(_, types):
            return st.tuples(*map(values_of, types))


@st.composite
def typed_values(draw: st.DrawFn, types: st.SearchStrategy[AbiType] = TYPES) -> tuple[list[AbiType], list[Any]]:
    found = draw(st.lists(types, min_size=1, max_size=4))
    return found, [draw(values_of(each)) for each in found]
