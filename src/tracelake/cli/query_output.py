"""Whole results in the formats of files: the ending of a file's name chooses one.

Values are those of the API: what JSON cannot hold exactly is text. Results that do not fit into a reply are downloaded,
so that a file always has all rows.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.cli.export import new_file
from tracelake.cli.text import escape_json
from tracelake.client.query import QueryResult, download
from tracelake.query.results import encode_csv, encode_rows
from tracelake.wire.query import ResultFormat

_ROWS_AT_ONCE = 10_000
_ANY_SIZE = 2**62


def wire_format(ending: str) -> ResultFormat:
    """What to ask the service for: others than Parquet are made of Arrow."""
    return "parquet" if ending == ".parquet" else "arrow"


def save_result(result: QueryResult, output: Path, *, force: bool) -> None:
    ending = output.suffix.lower()
    with new_file(output, force=force, endings=ENDINGS) as path, path.open("wb") as file:
        write_result(result, ending, file)


def write_result(result: QueryResult, ending: str, sink: BinaryIO) -> None:
    """`result` is in the format that `wire_format` names."""
    if ending != ".parquet":
        _WRITERS[ending](_read(result), sink)
    elif result.reply.truncated:
        download(result.reply, sink)
    else:
        sink.write(result.body)


def _read(result: QueryResult) -> Iterator[pa.Table]:
    """The rows in pieces, the first of which may have none."""
    if not result.reply.truncated:
        with pa.ipc.open_stream(result.body) as reader:
            yield reader.read_all()
        return
    with tempfile.TemporaryFile(prefix="trace-query-") as file:
        download(result.reply, file)
        file.seek(0)
        content = pq.ParquetFile(file)
        yield content.schema_arrow.empty_table()
        for batch in content.iter_batches(_ROWS_AT_ONCE):
            yield pa.Table.from_batches([batch])


def _write_arrow(pieces: Iterator[pa.Table], sink: BinaryIO) -> None:
    first = next(pieces)
    with pa.ipc.new_file(sink, first.schema) as writer:
        writer.write_table(first)
        for piece in pieces:
            writer.write_table(piece.cast(first.schema))


def _write_csv(pieces: Iterator[pa.Table], sink: BinaryIO) -> None:
    heading = b""
    for piece in pieces:
        text = encode_csv(piece)
        if not heading:
            heading = encode_csv(piece.slice(0, 0))
            sink.write(heading)
        sink.write(text[len(heading) :])


def _write_lines(pieces: Iterator[pa.Table], sink: BinaryIO) -> None:
    for row in _objects(pieces):
        sink.write(row + b"\n")


def _write_array(pieces: Iterator[pa.Table], sink: BinaryIO) -> None:
    separator = b"[\n"
    for row in _objects(pieces):
        sink.write(separator + row)
        separator = b",\n"
    sink.write(b"\n]\n" if separator == b",\n" else b"[]\n")


def _objects(pieces: Iterator[pa.Table]) -> Iterator[bytes]:
    for piece in pieces:
        names = _unique(piece.column_names)
        for row in encode_rows(piece, _ANY_SIZE):
            text = msgspec.json.encode(dict(zip(names, row, strict=True))).decode()
            yield escape_json(text).encode()


def _unique(names: list[str]) -> list[str]:
    """Columns of one name are told apart by a number: an object has each name once."""
    unique: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in unique:
            candidate, number = f"{name}_{number}", number + 1
        unique.append(candidate)
    return unique


_WRITERS: dict[str, Callable[[Iterator[pa.Table], BinaryIO], None]] = {
    ".csv": _write_csv,
    ".json": _write_array,
    ".jsonl": _write_lines,
    ".arrow": _write_arrow,
}
ENDINGS = (".parquet", *_WRITERS)
