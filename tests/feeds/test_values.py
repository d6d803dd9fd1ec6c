"""From records to values: exactly, or not at all."""

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.catalogue.feeds.columns import read_columns
from tracelake.catalogue.http_fetch import HttpFetchConfig
from tracelake.feeds.documents import BadDocumentError, decode_text, encode_json, parse_json, read_document
from tracelake.feeds.errors import BadRowError
from tracelake.feeds.values import parser_of


def parse(kind: str, text: str, unit: str | None = None) -> Any:
    """The value of a JSON text as a column of this type."""
    spec = {"type": kind} if unit is None else {"type": kind, "unit": unit}
    (column,) = read_columns({"x": spec}, (), csv=False)
    return parser_of(column)(parse_json(text))


@given(st.integers(-(2**300), 2**300))
def test_whole_numbers_are_exact_or_refused(number: int) -> None:
    for kind, least, most in (
        ("int16", -(2**15), 2**15 - 1),
        ("int32", -(2**31), 2**31 - 1),
        ("int64", -(2**63), 2**63 - 1),
        ("int256", -(2**255), 2**255 - 1),
        ("uint256", 0, 2**256 - 1),
    ):
        for text in (str(number), f'"{number}"'):
            if least <= number <= most:
                assert int(parse(kind, text)) == number
            else:
                with pytest.raises(ValueError, match=r"does not fit|whole number"):
                    parse(kind, text)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=18, min_value=-(10**19), max_value=10**19))
def test_decimals_are_exact(number: Decimal) -> None:
    assert parse("decimal(38,18)", f"{number:f}") == parse("decimal(38,18)", f'"{number:f}"') == number
    assert parse("decimal(38,18)", f"{number:E}".replace("E+", "e")) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats(number: float) -> None:
    assert parse("float64", json.dumps(number)) == parse("float64", f'"{number!r}"') == number


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)))
def test_times_since_1970(moment: datetime) -> None:
    moment = moment.replace(tzinfo=UTC)
    micros = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    exact = Decimal(micros)
    assert parse("timestamp", str(micros), "micros") == moment
    assert parse("timestamp", f"{exact.scaleb(-3):f}", "millis") == moment
    assert parse("timestamp", f'"{exact.scaleb(-6):f}"', "seconds") == moment
    assert parse("timestamp", f'"{moment.isoformat()}"') == moment


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("bool", "true", True),
        ("bool", '"false"', False),
        ("text", '"a\\u00e4\\ud83d\\ude00"', "aä😀"),
        ("text(3)", '"abc"', "abc"),
        ("bytes", '"0x00fF"', b"\x00\xff"),
        ("date", '"2026-01-31"', date(2026, 1, 31)),
        ("json", '{"a": [1.10, 1e400, "\\u00e4", {}]}', '{"a":[1.10,1e400,"ä",{}]}'),
        ("float64", "1e-400", 0.0),
        ("uint256", '"0"', "0"),
    ],
)
def test_values(kind: str, text: str, value: Any) -> None:
    assert parse(kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(
            ("int64", text)
            for text in ("1.0", "1e3", '"1.0"', '" 1"', '"1 "', '"+1"', '"01"', '"1_0"', '"0x1"', '"\u0661"', '""')
        ),
        *(("int64", text) for text in ("true", "null", "[]", "{}", "9223372036854775808", "1" * 5000)),
        *(("uint256", text) for text in ("-1", f'"{2**256}"', "1" * 5000, '"1.0"')),
        *(
            ("float64", text)
            for text in ('"NaN"', '"Infinity"', '"1,5"', '"0x1p3"', "true", "1e999", '"1e999"', '"."', '"1."')
        ),
        *(("decimal(4,2)", text) for text in ("123.4", "1.234", '"NaN"', '"1e10"', '"1_0"', "true", '"null"')),
        *(("bool", text) for text in ("1", "0", '"True"', '"yes"', '""', "null")),
        *(("text", text) for text in ("1", "true", "{}", '"a\\u0000"', '"\\ud800"', '"\\udc00x"')),
        *(("text(2)", text) for text in ('"abc"',)),
        *(("bytes", text) for text in ('"00"', '"0x0"', '"0xzz"', '"0x 00"', "0")),
        *(("bytes(1)", text) for text in ('"0x0000"',)),
        *(
            ("timestamp", text)
            for text in ('"2026-01-31"', '"2026-01-31T12:00:00"', '"2026-13-01T00:00:00Z"', "1700000000")
        ),
        *(("date", text) for text in ('"2026-02-30"', '"31.01.2026"', "20260131")),
        *(("json", text) for text in ("[]", '"{}"', "1", '{"a":"\\u0000"}', '{"a":"\\ud800"}')),
    ],
)
def test_what_does_not_fit(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        parse(kind, text)
    assert len(str(error.value)) < 250
    assert not isinstance(error.value, BadDocumentError)


@pytest.mark.parametrize(
    ("text", "unit"), [("1e9", "seconds"), ("1.1234567", "seconds"), ("0.5", "micros"), ("9" * 19, "seconds")]
)
def test_what_is_no_time(text: str, unit: str) -> None:
    with pytest.raises(BadRowError):
        parse("timestamp", text, unit)


# --- documents


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' twice"),
        ('[{"b": {"c": 1, "c": 1}}]', "the key 'c' twice"),
        ("[NaN]", "NaN is not a number"),
        ("[-Infinity]", "-Infinity is not a number"),
        ("[1,]", "not JSON"),
        ("[1] x", "not JSON"),
        ("", "not JSON"),
        ("{'a': 1}", "not JSON"),
        ("[01]", "not JSON"),
        ("[" * 100_000, "nested deeper"),
        ("[" * 65 + "]" * 65, "nested deeper"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested deeper"),
    ],
)
def test_what_is_no_json(text: str, reason: str) -> None:
    with pytest.raises(BadDocumentError, match=reason):
        parse_json(text)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8")),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=4)
        ),
        max_leaves=20,
    )
)
def test_json_is_written_as_it_was_read(value: Any) -> None:
    text = json.dumps(value)
    assert json.loads(encode_json(parse_json(text))) == value


def records(data: bytes, **config: Any) -> list[tuple[Any, str | None]]:
    read = HttpFetchConfig(url="https://a.example/", column_map={"x": {"path": "[0]", "type": "text"}}, **config)
    return [(record.value, record.problem) for record in read_document(data, read).records]


def test_the_mark_of_the_byte_order_is_no_text() -> None:
    assert records(b'\xef\xbb\xbf["a"]') == [("a", None)]
    assert records("\ufeffa,b\n1,2\n".encode(), format="csv", header=False) == [(["a", "b"], None), (["1", "2"], None)]
    assert records('["ä"]'.encode("utf-16"), encoding="utf-16") == [("ä", None)]
    assert decode_text("ä€".encode("cp1252"), "windows-1252") == "ä€"


@pytest.mark.parametrize(
    ("data", "encoding"), [(b'["\xff"]', "utf-8"), (b'["\xed\xa0\x80"]', "utf-8"), (b"[\x00\x00", "utf-16")]
)
def test_bytes_of_another_encoding(data: bytes, encoding: str) -> None:
    with pytest.raises(BadDocumentError, match=f"it is not {encoding}"):
        records(data, encoding=encoding)


def test_lines_of_json() -> None:
    assert records(b'{"a":1}\r\n\n[2]\n{"a":\n', format="jsonl") == [
        ({"a": "1"}, None),
        (["2"], None),
        ('{"a":', "it is not JSON: Expecting value at line 1, column 6"),
    ]


def test_quotes_and_widths_of_csv() -> None:
    text = b'name,"a ""b"""\r\n"x,\r\ny",\n\n1\n1,2,3\n'
    assert records(text, format="csv", header=False)[1:] == [
        (["x,\r\ny", ""], None),
        (["1"], "expected 2 fields, received 1"),
        (["1", "2", "3"], "expected 2 fields, received 3"),
    ]
    assert records(b"a;b\n1;2", format="csv", delimiter=";", header=False) == [(["a", "b"], None), (["1", "2"], None)]


@pytest.mark.parametrize("data", [b'a,b\n"x', b'a,b\n"x"y,1', b"a,a\n1,2", b"", b"a\n\x00"])
def test_what_is_no_csv(data: bytes) -> None:
    config = HttpFetchConfig(url="https://a.example/", column_map={"a": "text"}, format="csv")
    with pytest.raises(BadDocumentError):
        list(read_document(data, config).records)


@pytest.mark.parametrize(
    ("rows", "text", "count"),
    [
        ("$", '{"a": 1}', 1),
        ("$", "[]", 0),
        ("data", '{"data": [1, 2]}', 2),
        ("data.*", '{"data": {"a": 1, "b": 2}}', 2),
        ('["a.b"][1]', '{"a.b": [0, [7, 8, 9]]}', 3),
    ],
)
def test_where_records_are(rows: str, text: str, count: int) -> None:
    assert len(records(text.encode(), rows=rows)) == count


@pytest.mark.parametrize(
    ("rows", "text", "reason"),
    [
        ("data", "{}", "nothing at `rows: "),
        ("data", '{"data": {}}', "expected a list"),
        ("data.*", '{"data": []}', "expected an object"),
        ("data", '{"data": null}', "received null"),
        ("$", '"x"', "received the text 'x'"),
    ],
)
def test_where_no_records_are(rows: str, text: str, reason: str) -> None:
    with pytest.raises(BadDocumentError, match=reason):
        records(text.encode(), rows=rows)


def test_nothing_overflows_quietly() -> None:
    assert math.isfinite(parse("float64", "1.7976931348623157e308"))
