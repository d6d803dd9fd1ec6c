"""Values of results: what every reader of JSON holds exactly, and the same values in the other formats."""

import csv
import io
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from tracelake.query.results import encode_csv, encode_parquet, encode_rows, format_date, format_timestamp

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


def test_times_that_python_does_not_have() -> None:
    """The engine has years of six digits, infinity, nanoseconds and 24:00."""
    largest = 2**63 - 1
    moments = pa.array([largest, -largest, 568_971_820_800_000_000, -63_517_824_000_000_000, None], pa.int64())
    days = pa.array([2**31 - 1, -(2**31 - 1), 6_585_395, -735_525, None], pa.int32())
    table = pa.table(
        {
            "moment": moments.cast(pa.timestamp("us", "UTC")),
            "nested": pa.array([[value] for value in moments.to_pylist()], pa.list_(pa.int64())).cast(
                pa.list_(pa.timestamp("us"))
            ),
            "day": days.cast(pa.date32()),
            "time": pa.array([0, 86_399_999_999_999, 43_200_000_000_001, 1, None], pa.int64()).cast(pa.time64("ns")),
        }
    )
    assert encode_rows(table, 10_000) == [
        ["infinity", ["infinity"], "infinity", "00:00:00.000000000"],
        ["-infinity", ["-infinity"], "-infinity", "23:59:59.999999999"],
        ["+020000-01-01T00:00:00Z", ["+020000-01-01T00:00:00"], "+020000-03-14", "12:00:00.000000001"],
        ["-000043-03-15T00:00:00Z", ["-000043-03-15T00:00:00"], "-000044-03-15", "00:00:00.000000001"],
        [None, [None], None, None],
    ]


@given(st.datetimes())
def test_times_are_written_as_python_writes_them(moment: datetime) -> None:
    microseconds = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    assert format_timestamp(microseconds, 10**6) == moment.isoformat()
    assert format_date((moment.date() - date(1970, 1, 1)).days) == moment.date().isoformat()


_NESTED = pa.struct(
    [
        ("list", pa.list_(pa.int64())),
        ("pair", pa.list_(pa.date32(), 2)),
        ("map", pa.map_(pa.string(), pa.list_(pa.binary()))),
    ]
)
_NESTED_ROWS = st.lists(
    st.none()
    | st.fixed_dictionaries(
        {
            "list": st.none() | st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=3),
            "pair": st.none() | st.lists(st.none() | st.dates(), min_size=2, max_size=2),
            "map": st.none()
            | st.dictionaries(st.text(max_size=2), st.none() | st.lists(st.binary(max_size=2), max_size=2), max_size=3),
        }
    ),
    min_size=1,
    max_size=6,
)


@given(_NESTED_ROWS, st.integers(0, 3))
def test_nested_values_are_whole_in_every_slice(rows: list[dict[str, Any] | None], start: int) -> None:
    def expected(value: Any) -> Any:
        if isinstance(value, dict):
            return [[key, expected(item)] for key, item in value.items()]
        if isinstance(value, list):
            return [expected(item) for item in value]
        if isinstance(value, bytes):
            return "0x" + value.hex()
        if isinstance(value, int):
            return value if abs(value) < 2**53 else str(value)
        return value.isoformat() if isinstance(value, date) else value

    plain = [row and {**row, "map": row["map"] and list(row["map"].items())} for row in rows]
    table = pa.table({"value": pa.array(plain, _NESTED)}).slice(start)
    whole = [[row and {name: expected(value) for name, value in row.items()}] for row in rows]
    assert [[row[0] and {**row[0], "map": row[0]["map"]}] for row in encode_rows(table, 10**6)] == whole[start:]
