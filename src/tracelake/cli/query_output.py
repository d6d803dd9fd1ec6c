"""Whole results in the formats of files: the ending of a file's name chooses one.

Values are those of the API: what JSON cannot hold exactly is text. Results that do not fit into a reply are downloaded,
so that a file always has all rows.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.cli.export import new_file
from tracelake.cli.row_formats import write_pieces
from tracelake.client.query import QueryResult, download
from tracelake.wire.query import ResultFormat

_ROWS_AT_ONCE = 10_000


def wire_format(ending: str) -> ResultFormat:
    """What to ask the service for: others than Parquet are made of Arrow."""
    return "parquet" if ending == ".parquet" else "arrow"


def save_result(result: QueryResult, output: Path, *, force: bool) -> None:
    ending = output.suffix.lower()
    with new_file(output, force=force) as path, path.open("wb") as file:
        write_result(result, ending, file)


def write_result(result: QueryResult, ending: str, sink: BinaryIO) -> None:
    """`result` is in the format that `wire_format` names."""
    if ending != ".parquet":
        write_pieces(_read(result), ending, sink)
    elif result.reply.truncated:
        download(result.reply, sink, result.source)
    else:
        sink.write(result.body)


def _read(result: QueryResult) -> Iterator[pa.Table]:
    """The rows in pieces, the first of which may have none."""
    if not result.reply.truncated:
        with pa.ipc.open_stream(result.body) as reader:
            yield reader.read_all()
        return
    with tempfile.TemporaryFile(prefix="trace-query-") as file:
        download(result.reply, file, result.source)
        file.seek(0)
        content = pq.ParquetFile(file)
        yield content.schema_arrow.empty_table()
        for batch in content.iter_batches(_ROWS_AT_ONCE):
            yield pa.Table.from_batches([batch])
