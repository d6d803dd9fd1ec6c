"""Rows in files: every format holds random tables exactly, whatever their values; and text for people and programs."""

import csv
import io
import json
import random
import string
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.cli.row_formats import ENDINGS, with_hex, write_pieces
from tracelake.client.errors import ClientError

KINDS: dict[str, tuple[pa.DataType, "st.SearchStrategy[Any]"]] = {
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "wide": (
        pa.decimal256(76, 0),
        st.integers(-(10**76) + 1, 10**76 - 1).map(Decimal),
    ),
    "decimal": (pa.decimal128(38, 9), st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}e-9"))),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "text": (pa.string(), st.text(max_size=20)),
    "bytes": (pa.binary(), st.binary(max_size=32)),
    "hash": (pa.binary(4), st.binary(min_size=4, max_size=4)),
    "flag": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), st.dates()),
    "time": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "list": (pa.list_(pa.binary()), st.lists(st.binary(max_size=4), max_size=3)),
    "struct": (
        pa.struct([("a", pa.decimal128(38, 0)), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal), "b": st.text(max_size=5)}),
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> list[pa.Table]:
    """A table in pieces."""
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5, unique=True))
    rows = draw(st.integers(0, 6))
    columns = {}
    for name in names:
        kind, values = KINDS[name]
        items = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[name] = pa.array(items, kind)
    table = pa.table(columns)
    cut = draw(st.integers(0, rows))
    return [table.slice(0, cut), table.slice(cut)]


def written(pieces: list[pa.Table], ending: str) -> bytes:
    sink = io.BytesIO()
    assert write_pieces(iter(pieces), ending, sink) == sum(piece.num_rows for piece in pieces)
    return sink.getvalue()


def read_back(name: str, value: Any) -> Any:
    """The value that a text stands for, by the type of its column."""
    if value is None:
        return None
    if name == "list":
        return [bytes.fromhex(item[2:]) for item in (json.loads(value) if isinstance(value, str) else value)]
    if name == "struct":
        pair = json.loads(value) if isinstance(value, str) else value
        return {"a": Decimal(pair["a"]), "b": pair["b"]}
    readers: dict[str, Any] = {
        "int64": int, "uint64": int, "wide": Decimal, "decimal": Decimal, "double": float,
        "text": str, "bytes": lambda text: bytes.fromhex(text[2:]), "hash": lambda text: bytes.fromhex(text[2:]),
        "flag": lambda text: text in (True, "true"), "day": date.fromisoformat, "time": datetime.fromisoformat,
    }  # fmt: skip
    return readers[name](value)


@given(tables())
def test_binary_formats_hold_the_table(pieces: list[pa.Table]) -> None:
    table = pa.concat_tables(pieces)
    parquet = pq.read_table(io.BytesIO(written(pieces, ".parquet")))
    assert parquet.to_pylist() == table.to_pylist()
    for ending in (".arrow", ".feather"):
        with pa.ipc.open_file(io.BytesIO(written(pieces, ending))) as reader:
            assert reader.read_all() == table


@given(tables())
def test_json_holds_every_digit(pieces: list[pa.Table]) -> None:
    table = pa.concat_tables(pieces)
    lines = [json.loads(line) for line in written(pieces, ".jsonl").splitlines()]
    array = json.loads(written(pieces, ".json"))
    assert lines == array
    for name in table.column_names:
        assert [read_back(name, row[name]) for row in array] == table[name].to_pylist()


@given(tables())
def test_csv_holds_every_digit_and_tells_null_from_empty(pieces: list[pa.Table]) -> None:
    table = pa.concat_tables(pieces)
    heading, *rows = parse_csv(written(pieces, ".csv").decode())
    assert heading == table.column_names
    assert len(rows) == table.num_rows
    for place, name in enumerate(table.column_names):
        assert [read_back(name, row[place]) for row in rows] == table[name].to_pylist()


def parse_csv(text: str) -> list[list[str | None]]:
    """By hand, because Python's reader does not tell an empty field from an empty text."""
    rows: list[list[str | None]] = [[]]
    place = 0
    while place < len(text):
        if text[place] == '"':
            end = place + 1
            while text[end] != '"' or text[end : end + 2] == '""':
                end += 2 if text[end] == '"' else 1
            rows[-1].append(text[place + 1 : end].replace('""', '"'))
            place = end + 1
        else:
            end = min(position for position in (text.find(",", place), text.find("\n", place)) if position >= 0)
            rows[-1].append(text[place:end] or None)
            place = end
        if text[place] == "\n":
            rows.append([])
        place += 1
        if text[place - 1] == "," and text[place] == "\n":
            rows[-1].append(None)
            rows.append([])
            place += 1
    return rows[:-1]


def test_python_reads_the_csv() -> None:
    letters = "".join(random.Random(1).choices(string.printable, k=2000))
    table = pa.table({"a, b": [letters, '"', "x"], "n": [1, None, 3]})
    rows = list(csv.reader(io.StringIO(written([table], ".csv").decode(), newline="")))
    assert rows == [["a, b", "n"], [letters, "1"], ['"', ""], ["x", "3"]]


def test_numbers_that_are_none() -> None:
    table = pa.table({"x": [float("nan"), float("inf"), -0.0]})
    assert written([table], ".jsonl") == b'{"x":"NaN"}\n{"x":"Infinity"}\n{"x":-0.0}\n'
    assert written([table], ".csv") == b"x\nNaN\nInfinity\n-0.0\n"


def test_json_has_no_control_characters() -> None:
    text = written([pa.table({"x": ["\x1b[2J\x9b\u202e"]})], ".json").decode()
    assert json.loads(text) == [{"x": "\x1b[2J\x9b\u202e"}]
    assert text.isascii()
    assert text.replace("\n", "").isprintable()


def test_hex_is_text_on_every_level() -> None:
    kind = pa.struct([("a", pa.list_(pa.binary()))])
    table = pa.table(
        {
            "n": [1, 2],
            "hash": pa.array([b"\x01\x02", None], pa.binary(2)),
            "nested": pa.array([{"a": [b"\x03", None]}, None], kind),
        }
    )
    shown = with_hex(table)
    assert shown.to_pylist() == [
        {"n": 1, "hash": "0x0102", "nested": {"a": ["0x03", None]}},
        {"n": 2, "hash": None, "nested": None},
    ]
    assert shown.schema.field("n").type == pa.int64()
    assert with_hex(table.slice(0, 0)).schema == shown.schema


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_with_other_columns_are_refused(ending: str) -> None:
    pieces = [pa.table({"a": [1]}), pa.table({"b": [1]})]
    with pytest.raises(ClientError, match="expected a as in the first file, received b"):
        written(pieces, ending)
