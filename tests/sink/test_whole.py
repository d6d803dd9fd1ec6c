"""Columns read at once are what they are value by value; whatever needs a second look is left to that."""

from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sink.support import EVERY, lines
from tracelake.model.dag import Column, ColumnType
from tracelake.rows.reader import BatchReader
from tracelake.rows.values import ColumnKind, kind_of

TIMES = kind_of(Column(name="at", type=ColumnType.TIMESTAMP))
BYTES = kind_of(Column(name="data", type=ColumnType.BYTES, max_length=4))
UNSIGNED = kind_of(Column(name="value", type=ColumnType.UINT256))
SIGNED = kind_of(Column(name="value", type=ColumnType.INT256))

USUAL = {
    TIMES: ["2026-01-31T12:00:00Z", "1999-12-31T23:59:59Z"],
    BYTES: ["0x00ff", "0xABcd"],
    UNSIGNED: ["0", "1", "9" * 76],
    SIGNED: ["0", "10", "9" * 76],
}
ODD: dict[ColumnKind, list[Any]] = {
    TIMES: [
        "2026-02-29T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T23:59:60Z",
        "2026-01-31T12:00:00z",
        "2026-01-31 12:00:00Z",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00.5Z",
        "2026-01-31T12:00:00.123456Z",
        "2026-01-31T12:00:00.1234567Z",
        "2026-01-31T12:00:00+00:00",
        "0000-01-31T12:00:00Z",
        "0001-01-01T00:00:00Z",
        "\uff12026-01-31T12:00:00Z",
        "2026-01-31T12:00:0 Z",
        "2026-01-31T12:00+00:00",
        "2026-01-31T12:00:00+0030",
        "2026-01-31T12:00:00.+1Z",
    ],
    BYTES: [
        "0x",
        "0x0",
        "00ff",
        "0X00ff",
        "0x00 f",
        "0x 0ff ",
        "0xzz00",
        "0x00  ",
        "0x0011223344",
        "0x\uff10\uff10ff",
    ],
    UNSIGNED: [
        "",
        "00",
        "01",
        "-1",
        "+1",
        " 1",
        "1 ",
        "1e3",
        "1_0",
        "\u0663",
        "9" * 77,
        str(2**256 - 1),
        str(2**256),
        7,
    ],
    SIGNED: ["-1", "-0", str(-(2**255)), str(2**255), "9" * 77, -7, 2**300],
}
KINDS = [TIMES, BYTES, UNSIGNED, SIGNED]


def one_by_one(kind: ColumnKind, values: list[Any]) -> pa.Array | None:
    """What the values are, or None if one of them cannot be taken."""
    assert kind.convert is not None
    try:
        return pa.array([kind.convert(value) for value in values], kind.arrow)
    except ValueError:
        return None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.column.type))
def test_the_usual_spelling_is_read_at_once(kind: ColumnKind) -> None:
    assert kind.whole is not None
    assert kind.whole(USUAL[kind]) == one_by_one(kind, USUAL[kind])
    fraction = ["2026-01-31T12:00:00.5Z", "2026-01-31T12:00:01.9Z"]
    assert kind is not TIMES or kind.whole(fraction) == one_by_one(kind, fraction)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(kind, value) for kind in KINDS for value in ODD[kind]],
    ids=lambda item: item.column.type if isinstance(item, ColumnKind) else ascii(item)[:30],
)
def test_what_is_spelt_oddly(kind: ColumnKind, value: Any) -> None:
    assert kind.whole is not None
    found = kind.whole([value])
    assert found is None or found == one_by_one(kind, [value])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.column.type))
@given(data=st.data())
def test_nothing_is_read_at_once_that_would_be_something_else(kind: ColumnKind, data: st.DataObject) -> None:
    known: list[Any] = [*USUAL[kind], *ODD[kind]]
    texts = st.text(alphabet="0123456789abcdefxTZ:-. +", max_size=24)
    values = data.draw(st.lists(st.sampled_from(known) | st.sampled_from(known).flatmap(_near) | texts, min_size=1))
    assert kind.whole is not None
    found = kind.whole(values)
    assert found is None or found == one_by_one(kind, values)


def test_nulls_stay_where_they_are() -> None:
    rows: list[dict[str, Any]] = [{"key": "k", "number": number} for number in range(5)]
    rows[1] |= {"at": "2026-01-31T12:00:00Z", "data": "0x01", "unsigned": "1"}
    rows[3] |= {"at": "2026-01-31T12:00:01Z", "data": "0x02", "unsigned": "2"}
    reader = BatchReader(EVERY)
    found = reader.read(lines(rows), publish_seq=1, org_id=UUID(int=1), record_count=5)
    assert found["data"].to_pylist() == [None, b"\x01", None, b"\x02", None]
    assert found["unsigned"].to_pylist() == [None, "1", None, "2", None]
    assert [at and at.second for at in found["at"].to_pylist()] == [None, 0, None, 1, None]


def _near(known: Any) -> st.SearchStrategy[Any]:
    """The same with one other character."""
    if not isinstance(known, str) or not known:
        return st.just(known)
    return st.tuples(st.integers(0, len(known) - 1), st.sampled_from("09aZ -.x\u0663")).map(
        lambda change: known[: change[0]] + change[1] + known[change[0] + 1 :]
    )
