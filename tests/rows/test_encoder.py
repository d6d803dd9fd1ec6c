"""What a value becomes in JSON is the same at every depth; checked on random types and values against a plain model."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake.rows.encoder import UnwritableError, encode

Sample = tuple[pa.DataType, Any, Any]
"""A type, a value of it, and what it is in JSON."""

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(lambda value: value.replace(tzinfo=UTC))
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.string(), TEXT),
    (pa.binary(), st.binary(max_size=5)),
    (pa.decimal128(38, 18), st.decimals(-(10**19), 10**19, places=18)),
    (pa.timestamp("us", "UTC"), TIMES),
    (pa.date32(), st.dates(date(1970, 1, 1), date(2100, 1, 1))),
]


def model(value: Any) -> Any:
    match value:
        case bytes():
            return "0x" + value.hex()
        case Decimal():
            return f"{value:.18f}"
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
    return value


def key_model(value: Any) -> str:
    written = model(value)
    return written if isinstance(written, str) else msgspec.json.encode(written).decode()


def scalars() -> st.SearchStrategy[Sample]:
    floats = st.floats(allow_nan=False, allow_infinity=False).map(lambda value: (pa.float64(), value, value))
    return floats | st.sampled_from(SCALARS).flatmap(
        lambda pair: (st.none() | pair[1]).map(lambda value: (pair[0], value, model(value)))
    )


def lists(inner: st.SearchStrategy[Sample]) -> st.SearchStrategy[Sample]:
    return inner.map(lambda item: (pa.list_(item[0]), [item[1], None], [item[2], None]))


def structs(inner: st.SearchStrategy[Sample]) -> st.SearchStrategy[Sample]:
    def struct(items: list[Sample]) -> Sample:
        names = [f"f{index}" for index in range(len(items))]
        kind = pa.struct([(name, item[0]) for name, item in zip(names, items, strict=True)])
        given = {name: item[1] for name, item in zip(names, items, strict=True)}
        return kind, given, {name: item[2] for name, item in zip(names, items, strict=True)}

    return st.lists(inner, min_size=1, max_size=3).map(struct)


def maps(inner: st.SearchStrategy[Sample]) -> st.SearchStrategy[Sample]:
    def mapped(drawn: tuple[tuple[pa.DataType, Any], Sample]) -> Sample:
        (key_type, key), (kind, value, written) = drawn
        return pa.map_(key_type, kind), [(key, value)], {key_model(key): written}

    keys = st.sampled_from(SCALARS).flatmap(lambda pair: pair[1].map(lambda value: (pair[0], value)))
    return st.tuples(keys, inner).map(mapped)


SAMPLES = st.recursive(scalars(), lambda inner: lists(inner) | structs(inner) | maps(inner), max_leaves=6)


@settings(max_examples=300, deadline=None)
@given(SAMPLES)
def test_a_value_of_any_shape(sample: Sample) -> None:
    kind, value, written = sample
    data = encode(pa.record_batch([pa.array([value, None], kind)], names=["x"]))
    assert [msgspec.json.decode(line) for line in data.splitlines()] == [{"x": written}, {"x": None}]


@settings(max_examples=100, deadline=None)
@given(SAMPLES, st.sampled_from([float("nan"), float("inf"), float("-inf")]))
def test_a_number_that_is_not_finite_is_refused_wherever_it_is(sample: Sample, bad: float) -> None:
    kind, value, _ = sample
    column = pa.array([{"a": value, "b": [bad]}], pa.struct([("a", kind), ("b", pa.list_(pa.float64()))]))
    with pytest.raises(UnwritableError, match="`x` holds a number that is not finite"):
        encode(pa.record_batch([column], names=["x"]))


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (pa.list_(pa.timestamp("us")), [datetime(2026, 1, 31)], "is a time without a zone"),
        (pa.map_(pa.list_(pa.int64()), pa.int64()), [([1], 2)], "holds a map whose keys are list"),
        (pa.map_(pa.string(), pa.int64()), [("a", 1), ("a", 2)], "holds a map with two keys 'a'"),
        (pa.list_(pa.duration("us")), [1], "which JSON does not have"),
    ],
    ids=str,
)
def test_what_json_does_not_have(kind: pa.DataType, value: Any, reason: str) -> None:
    with pytest.raises(UnwritableError, match=reason):
        encode(pa.record_batch([pa.array([value], kind)], names=["x"]))
    nested = pa.array([{"a": value}], pa.struct([("a", kind)]))
    with pytest.raises(UnwritableError, match=reason):
        encode(pa.record_batch([nested], names=["x"]))
