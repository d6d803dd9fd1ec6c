"""What the reader of batches takes, what it refuses, and what it says then."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sink.support import EVERY, PLAIN, lines
from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.rows.reader import MAX_KEY_BYTES, BadBatchError, BatchReader

ORG = uuid4()
READER = BatchReader(EVERY)
FIRST = {"key": "a", "number": 1}


def read(data: bytes, reader: BatchReader = READER, record_count: int | None = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = reader.read(data, publish_seq=7, org_id=ORG, record_count=record_count).to_pylist()
    return rows


def refusal(data: bytes, reader: BatchReader = READER, record_count: int | None = None) -> BadBatchError:
    with pytest.raises(BadBatchError) as refused:
        read(data, reader, record_count)
    return refused.value


def test_every_type() -> None:
    row = FIRST | {
        "flag": True,
        "small": -(2**15),
        "large": 2**63 - 1,
        "signed": str(-(2**255)),
        "unsigned": 2**256 - 1,
        "ratio": 1,
        "amount": "12345678901234.567890",
        "class": "high",
        "data": "0x00fF",
        "at": "2026-01-31T12:00:00.123456000+02:00",
        "day": "2026-02-28",
        "more": {"a": [1, {"b": None}]},
    }
    (found,) = read(lines([row]), record_count=1)
    assert found == {
        "_publish_seq": 7,
        "_line": 1,
        "key": "a",
        "number": 1,
        "flag": True,
        "small": -(2**15),
        "large": 2**63 - 1,
        "signed": str(-(2**255)),
        "unsigned": str(2**256 - 1),
        "ratio": 1.0,
        "amount": Decimal("12345678901234.567890"),
        "class": "high",
        "data": b"\x00\xff",
        "at": datetime(2026, 1, 31, 10, 0, 0, 123456, tzinfo=UTC),
        "day": date(2026, 2, 28),
        "more": json.dumps(row["more"]),
    }


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1E+5", "100000"),
        ("-0", "0"),
        ("0e1000000", "0"),
        ("0e-1000000", "0"),
        ("1." + "0" * 60, "1"),
        ("-99999999999999.999999", "-99999999999999.999999"),
    ],
)
def test_decimals_are_what_they_say_however_they_are_written(text: str, amount: str) -> None:
    (found,) = read(lines([FIRST | {"amount": text}]))
    assert found["amount"] == Decimal(amount)


def test_what_may_be_null_may_be_missing() -> None:
    given_null = {column.name: None for column in EVERY.columns if column.nullable} | FIRST
    one, two = read(lines([FIRST, given_null]))
    assert {**one, "_line": 2} == two
    assert [name for name, value in one.items() if value is not None] == ["_publish_seq", "_line", "key", "number"]


def test_lines_are_counted_from_one_and_the_last_may_end_or_not() -> None:
    data = lines([FIRST, FIRST])
    assert [row["_line"] for row in read(data)] == [1, 2]
    assert read(data) == read(data[:-1]) == read(data.replace(b"\n", b"\r\n"))
    assert read(b"") == []
    assert read(b"", record_count=0) == []


BAD = [
    ({"unsigned": 2**256}, "unsigned: does not fit uint256"),
    ({"unsigned": -1}, "unsigned: does not fit uint256"),
    ({"unsigned": "1e3"}, "unsigned: is not a whole number in decimal digits"),
    ({"unsigned": 1.5}, "unsigned: is a number with a fraction instead of uint256"),
    ({"signed": 2**255}, "signed: does not fit int256"),
    ({"number": 2**31}, "number: does not fit int32"),
    ({"number": 1.0}, "number: is a number with a fraction instead of int32"),
    ({"number": "1"}, "number: is text instead of int32"),
    ({"number": None}, "number: must not be null"),
    ({"small": -(2**15) - 1}, "small: does not fit int16"),
    ({"large": 2**63}, "large: "),
    ({"flag": 1}, "flag: is a whole number instead of bool"),
    ({"amount": "0.0000001"}, "amount: has more than 6 digits after the point"),
    ({"amount": "100000000000000"}, "amount: has more than 14 digits before the point"),
    ({"amount": "NaN"}, "amount: is not a number in decimal digits"),
    ({"amount": "-Infinity"}, "amount: is not a number in decimal digits"),
    *(
        ({"amount": text}, "amount: is not a number in decimal digits")
        for text in ("1_0", " 1", "1 ", "+1", "01", ".5", "5.", "\u0663", "", '"1"', True, [1], {"a": 1})
    ),
    ({"amount": "1e" + "9" * 30}, "amount: does not fit decimal(20,6)"),
    ({"amount": "1e-" + "9" * 30}, "amount: does not fit decimal(20,6)"),
    ({"amount": "1e400"}, "amount: has more than 14 digits before the point"),
    ({"amount": "-1e1000000"}, "amount: has more than 14 digits before the point"),
    ({"amount": "1e-1000000"}, "amount: has more than 6 digits after the point"),
    ({"amount": "x"}, "amount: "),
    ({"class": "middle"}, "class: 'middle' is not one of low, high"),
    ({"key": "x" * 101}, "key: is longer than 100 characters"),
    ({"key": "a\x00b"}, "key: holds a zero character"),
    ({"data": "00"}, "data: is not hexadecimal text"),
    ({"data": "0x0"}, "data: is not hexadecimal text"),
    ({"data": "0x00 00"}, "data: is not hexadecimal text"),
    ({"data": "0x" + "00" * 33}, "data: is longer than 32 bytes"),
    ({"at": "2026-01-31T12:00:00"}, "at: is not a time with a zone"),
    ({"at": "2026-01-31T12:00:00.1234567Z"}, "at: is not a time with a zone"),
    ({"at": "2026-02-30T12:00:00Z"}, "at: is not a valid time"),
    ({"at": "0001-01-01T00:00:00+01:00"}, "at: is not a valid time"),
    ({"at": "9999-12-31T23:59:59.5-01:00"}, "at: is not a valid time"),
    ({"at": 1700000000}, "at: is a whole number instead of timestamp"),
    ({"day": "2026-02-30"}, "day: is not a valid date"),
    ({"day": "20260228"}, "day: is not a date like"),
    ({"more": [1]}, "more: is not a JSON object"),
    ({"more": "x"}, "more: is not a JSON object"),
    ({"more": {"a": "\x00"}}, "more: holds a zero character"),
    ({"more": {"\x00": 1}}, "more: holds a zero character"),
    ({"other": 1}, "other: is not a column of the schema"),
    ({"org_id": str(uuid4())}, "org_id: is not the org of the publisher"),
]


@pytest.mark.parametrize(("change", "reason"), BAD, ids=range(len(BAD)))
def test_one_bad_row_refuses_the_batch_and_is_named(change: dict[str, Any], reason: str) -> None:
    bad = refusal(lines([FIRST, FIRST | change, FIRST]))
    assert (bad.code, bad.line) == ("row_invalid", 2)
    assert bad.reason.startswith(reason)
    assert bad.excerpt == json.dumps(FIRST | change)[:1000]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "the line is empty"),
        (b"{", "the line is not JSON"),
        (b'{"key": "a", "number": NaN}', "the line is not JSON"),
        (b'{"key": "a", "number": 1} {}', "the line is not JSON (trailing characters"),
        (b'{"key": "\xff", "number": 1}', "the line is not UTF-8"),
        (b"[1]", "the line is a list, not an object"),
        (b'{"key": "a"}', "number: required column is missing"),
        (b'{"key": "a", "number": 1, "more": ' + b'{"a":' * 65 + b"1" + b"}" * 66, "more: is nested deeper than 64"),
        (b'{"key": "a", "number": 1, "more": ' + b'{"a":' * 9000 + b"1" + b"}" * 9001, ""),
        (b'{"key": "a", "number": 1, "ratio": 1e999}', "ratio: Number out of range"),
        (b'{"key": "a", "number": 1, "more": {"a": "\\ud800"}}', ""),
    ],
)
def test_lines_that_are_none(line: bytes, reason: str) -> None:
    bad = refusal(lines([FIRST]) + line + b"\n" + lines([FIRST]))
    assert (bad.code, bad.line) == ("row_invalid", 2)
    assert bad.reason.startswith(reason)


def test_the_first_bad_line_is_the_one_that_is_told() -> None:
    unconvertible, unreadable = FIRST | {"unsigned": "x"}, FIRST | {"number": "x"}
    assert refusal(lines([FIRST, unconvertible, unreadable])).line == 2
    assert refusal(lines([FIRST, unreadable, unconvertible])).line == 2
    assert refusal(lines([unconvertible, FIRST | {"org_id": "x"}])).reason.startswith("unsigned")
    assert refusal(lines([FIRST | {"org_id": "x"}, unconvertible])).reason.startswith("org_id")


def test_a_row_may_say_whose_it_is() -> None:
    assert "org_id" not in read(lines([FIRST | {"org_id": str(ORG)}]))[0]


def test_another_number_of_records() -> None:
    for count in (0, 1, 3):
        bad = refusal(lines([FIRST, FIRST]), record_count=count)
        assert (bad.code, bad.line) == ("record_count_wrong", None)


def test_a_key_that_no_index_holds() -> None:
    schema = Schema(columns=(Column(name="key", type=ColumnType.TEXT, nullable=False),), unique=("key",))
    reader = BatchReader(schema)
    assert len(read(lines([{"key": "x" * MAX_KEY_BYTES}] * 3), reader)) == 3
    bad = refusal(lines([{"key": "x"}, {"key": "x" * (MAX_KEY_BYTES + 1)}]), reader)
    assert (bad.line, bad.reason) == (2, f"key: longer than {MAX_KEY_BYTES} bytes, which no index holds")


def test_a_line_of_ten_megabytes() -> None:
    schema = Schema(columns=(*PLAIN.columns, Column(name="text", type=ColumnType.TEXT)), unique=PLAIN.unique)
    (row,) = read(lines([{"key": 1, "text": "x" * 10_000_000}]), BatchReader(schema))
    assert len(row["text"]) == 10_000_000
    assert len(refusal(lines([{"key": 1, "other": "x" * 10_000_000}])).excerpt) == 1000


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_anything_is_rows_or_a_refusal(data: bytes) -> None:
    try:
        found = READER.read(data, publish_seq=1, org_id=ORG, record_count=None).num_rows
    except BadBatchError as bad:
        found = bad.line or 0
        bad.excerpt.encode()
    assert found <= data.count(b"\n") + 1


@given(
    st.lists(
        st.fixed_dictionaries(
            {"key": st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20),
             "number": st.integers(-(2**31), 2**31 - 1)},
            optional={
                "signed": st.integers(-(2**255), 2**255 - 1),
                "ratio": st.floats(allow_nan=False, allow_infinity=False),
                "amount": st.decimals(-(10**14) + 1, 10**14 - 1, places=6).map(str),
                "data": st.binary(max_size=32).map(lambda data: "0x" + data.hex()),
                "at": st.datetimes(timezones=st.just(UTC)).map(lambda time: time.isoformat()),
                "more": st.dictionaries(st.text("ab", max_size=3), st.integers() | st.text("xyz"), max_size=3),
            },
        ),
        max_size=5,
    )
)  # fmt: skip
def test_good_rows_come_out_as_they_went_in(rows: list[dict[str, Any]]) -> None:
    found = read(lines(rows), record_count=len(rows))
    for row, out in zip(rows, found, strict=True):
        assert (out["key"], out["number"]) == (row["key"], row["number"])
        assert out["signed"] == (str(row["signed"]) if "signed" in row else None)
        assert out["ratio"] == row.get("ratio")
        assert out["amount"] == (Decimal(row["amount"]) if "amount" in row else None)
        assert out["data"] == (bytes.fromhex(row["data"][2:]) if "data" in row else None)
        assert out["at"] == (datetime.fromisoformat(row["at"]) if "at" in row else None)
        assert out["more"] == (json.dumps(row["more"]) if "more" in row else None)
