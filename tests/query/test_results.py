"""Values of results: what every reader of JSON holds exactly, and the same values in the other formats."""

import csv
import io
from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.query.results import encode_csv, encode_parquet, encode_rows

MOMENT = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
TABLE = pa.table(
    {
        "small": pa.array([1, None], pa.int64()),
        "wide": pa.array([2**53, -(2**63)], pa.int64()),
        "decimal": pa.array([Decimal("123456789012345678901234567890.50"), Decimal("0.00")], pa.decimal128(38, 2)),
        "float": pa.array([0.5, float("nan")], pa.float64()),
        "bytes": pa.array([b"\x00\xff", b""], pa.binary()),
        "moment": pa.array([MOMENT, None], pa.timestamp("us", "UTC")),
        "exact": pa.array([1_772_368_200_123_456_789, None], pa.int64()).cast(pa.timestamp("ns", "UTC")),
        "day": pa.array([date(2026, 3, 1), None], pa.date32()),
        "list": pa.array([[2**60, None], []], pa.list_(pa.int64())),
        "struct": pa.array([{"a": b"\x01"}, None], pa.struct([("a", pa.binary())])),
        "text": pa.array(["a, \"b\"\n'c'", ""], pa.string()),
    }
)
ROWS = [
    [
        1, "9007199254740992", "123456789012345678901234567890.50", 0.5, "0x00ff", "2026-03-01T12:30:00.123456Z",
        "2026-03-01T12:30:00.123456789Z", "2026-03-01", ["1152921504606846976", None], {"a": "0x01"},
        "a, \"b\"\n'c'",
    ],
    [None, "-9223372036854775808", "0.00", "NaN", "0x", None, None, None, [], None, ""],
]  # fmt: skip


def test_json_holds_every_value_exactly() -> None:
    rows = encode_rows(TABLE, 10_000)
    assert rows == ROWS
    assert msgspec.json.decode(msgspec.json.encode(rows)) == ROWS


def test_a_result_without_columns_has_its_rows() -> None:
    assert encode_rows(TABLE.select([]), 100) == [[], []]


def test_json_ends_before_a_row_that_is_too_much() -> None:
    assert encode_rows(TABLE, len(msgspec.json.encode(ROWS[0])) + 1) == ROWS[:1]
    assert encode_rows(TABLE, 10) == []


def test_parquet_has_the_types() -> None:
    assert pq.read_table(io.BytesIO(encode_parquet(TABLE))).column("decimal").equals(TABLE.column("decimal"))


def test_csv_has_the_texts_of_json_and_tells_null_from_empty() -> None:
    text = encode_csv(TABLE).decode()
    header, first, second = csv.reader(io.StringIO(text))
    assert header == TABLE.column_names
    assert first[1:3] == ["9007199254740992", "123456789012345678901234567890.50"]
    assert first[8:10] == ['["1152921504606846976",null]', '{"a":"0x01"}']
    assert first[-1] == "a, \"b\"\n'c'"
    assert second[0] == ""
