"""The formats of files with rows, each by the ending of a file's name.

Text formats hold values as the API writes them: bytes as 0x..., and what JSON cannot hold exactly (decimals, integers
beyond 2^53) as text. No format loses a digit.
"""

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.cli.text import escape_json
from tracelake.client.pinned_rows import cast_piece
from tracelake.query.results import encode_csv, encode_rows

_ROWS_AT_ONCE = 10_000
_ANY_SIZE = 2**62


def write_pieces(pieces: Iterator[pa.Table], ending: str, sink: BinaryIO) -> int:
    """Writes piece by piece, so that memory does not grow with the rows; returns their number.

    The first piece has the columns, and may have no rows. Later ones are cast to its types.
    """
    rows = 0

    def alike() -> Iterator[pa.Table]:
        nonlocal rows
        schema: pa.Schema | None = None
        for piece in pieces:
            schema = schema or piece.schema
            for batch in cast_piece(piece, schema, "--columns").to_batches(max_chunksize=_ROWS_AT_ONCE):
                rows += batch.num_rows
                yield pa.Table.from_batches([batch], schema)
            if piece.num_rows == 0:
                yield schema.empty_table()

    _WRITERS[ending](alike(), sink)
    return rows


def _write_parquet(pieces: Iterator[pa.Table], sink: BinaryIO) -> None:
    first = next(pieces)
    with pq.ParquetWriter(sink, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for piece in pieces:
            writer.write_table(piece)


def _write_arrow(pieces: Iterator[pa.Table], sink: BinaryIO) -> None:
    first = next(pieces)
    with pa.ipc.new_file(sink, first.schema) as writer:
        writer.write_table(first)
        for piece in pieces:
            writer.write_table(piece)


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
        names = unique_names(piece.column_names)
        for row in encode_rows(piece, _ANY_SIZE):
            text = msgspec.json.encode(dict(zip(names, row, strict=True))).decode()
            yield escape_json(text).encode()


def unique_names(names: list[str]) -> list[str]:
    """Columns of one name are told apart by a number: an object has each name once."""
    unique: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in unique:
            candidate, number = f"{name}_{number}", number + 1
        unique.append(candidate)
    return unique


_WRITERS: dict[str, Callable[[Iterator[pa.Table], BinaryIO], None]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".json": _write_array,
    ".jsonl": _write_lines,
    ".arrow": _write_arrow,
    ".feather": _write_arrow,
}
ENDINGS = tuple(_WRITERS)
BINARY_ENDINGS = frozenset({".parquet", ".arrow", ".feather"})


def with_hex(table: pa.Table) -> pa.Table:
    """The table with bytes as text, 0x..., on every level of nested values."""
    columns, fields = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        kind = _hex_type(field.type)
        values = column if kind == field.type else pa.chunked_array([pa.array(_hex(column.to_pylist()), kind)], kind)
        columns.append(values)
        fields.append(field.with_type(kind))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, table.schema.metadata))


def _hex_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_hex_type(kind.value_type)) if _hex_type(kind.value_type) != kind.value_type else kind
    if pa.types.is_map(kind):
        return pa.map_(_hex_type(kind.key_type), _hex_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_hex_type(field.type)) for field in kind])
    return kind


def _hex(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, dict):
        return {name: _hex(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_hex(item) for item in value]
    return tuple(map(_hex, value)) if isinstance(value, tuple) else value
