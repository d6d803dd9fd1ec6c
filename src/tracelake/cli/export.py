"""Writes rows to a file: its ending chooses the format, and it appears under its name only when it is whole.

A file is replaced only if that was asked for, and only if it is a regular file. No partial file is left behind. The
file is readable by its owner alone.
"""

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import click
import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tracelake.cli.text import escape_json

_ROWS_AT_ONCE = 10_000


class _ParquetRows:
    def __init__(self, file: pa.NativeFile, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def close(self) -> None:
        self._writer.close()


class _CsvRows:
    """Bytes as 0x..., exact decimals, and JSON for nested values. A null is empty, an empty text is `""`."""

    def __init__(self, file: pa.NativeFile, schema: pa.Schema) -> None:
        self._writer = pa.csv.CSVWriter(file, _textual(schema.empty_table()).schema)

    def write(self, table: pa.Table) -> None:
        for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
            self._writer.write_table(_textual(pa.Table.from_batches([batch])))

    def close(self) -> None:
        self._writer.close()


class _JsonRows:
    """One JSON object per line."""

    def __init__(self, file: pa.NativeFile, schema: pa.Schema) -> None:  # noqa: ARG002 - of one kind with the others
        self._file = file

    def write(self, table: pa.Table) -> None:
        for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
            lines = (msgspec.json.encode(plain(row)).decode() + "\n" for row in batch.to_pylist())
            self._file.write(escape_json("".join(lines)).encode())

    def close(self) -> None:
        pass


_FORMATS: dict[str, type[_ParquetRows | _CsvRows | _JsonRows]] = {
    ".parquet": _ParquetRows,
    ".csv": _CsvRows,
    ".jsonl": _JsonRows,
}


ENDINGS = tuple(_FORMATS)


def check_target(output: Path, *, force: bool, endings: Sequence[str] = ENDINGS) -> None:
    """Raises for a target that cannot be written, before anything is read for it."""
    if output.suffix.lower() not in endings:
        listed = ", ".join(endings)
        raise click.UsageError(f"--output: expected a name that ends in one of {listed}, received {output.name}.")
    if not output.parent.is_dir():
        raise click.ClickException(f"there is no directory {output.parent}: create it first, or name another")
    try:
        status = output.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _refusal(output, error) from None
    if not stat.S_ISREG(status.st_mode):
        raise click.ClickException(f"{output} is not a regular file, and nothing else is replaced: name another")
    if not force:
        raise _exists(output)


def write_rows(pieces: Iterator[pa.Table], output: Path, *, force: bool) -> int:
    """Writes piece by piece, so that memory does not grow with the dataset; returns the number of rows."""
    rows = 0
    with new_file(output, force=force) as path, pa.OSFile(str(path), "wb") as file:
        first = next(pieces, None)
        if first is None:
            raise click.ClickException("the dataset has no files yet, so there is nothing to write")
        with closing(_FORMATS[output.suffix.lower()](file, first.schema)) as writer:
            for table in chain([first], pieces):
                writer.write(table.cast(first.schema))
                rows += table.num_rows
    return rows


@contextmanager
def new_file(output: Path, *, force: bool, endings: Sequence[str] = ENDINGS) -> Iterator[Path]:
    """Yields a file beside the target, which takes its place in the end, or is removed."""
    check_target(output, force=force, endings=endings)
    beside = output.with_name(f".{output.name}.{secrets.token_hex(8)}.part")
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        yield beside
        _put_in_place(beside, output, force=force, endings=endings)
    except OSError as error:
        raise _refusal(output, error) from None
    finally:
        with suppress(OSError):
            beside.unlink()


def _put_in_place(beside: Path, output: Path, *, force: bool, endings: Sequence[str]) -> None:
    if force:
        check_target(output, force=True, endings=endings)
        beside.replace(output)
        return
    try:
        output.hardlink_to(beside)  # unlike a rename it replaces nothing, whoever made the file meanwhile
    except FileExistsError:
        raise _exists(output) from None
    except OSError:  # a file system without links
        check_target(output, force=False, endings=endings)
        beside.replace(output)


def _exists(output: Path) -> click.ClickException:
    return click.ClickException(f"{output} exists: replace it with --force, or name another")


def _refusal(output: Path, error: OSError) -> click.ClickException:
    return click.ClickException(f"{output} cannot be written: {error.strerror or type(error).__name__}")


def _textual(table: pa.Table) -> pa.Table:
    columns = [_textual_column(table.column(number), field.type) for number, field in enumerate(table.schema)]
    return pa.table(columns, names=table.column_names)


def _textual_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    if pa.types.is_decimal(kind):
        return column.cast(pa.string())
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    if any(is_one(kind) for is_one in binary) or pa.types.is_nested(kind):
        return pa.array([_text(value) for value in column.to_pylist()], pa.string())
    return column


def _text(value: Any) -> str | None:
    text = plain(value)
    return text if text is None or isinstance(text, str) else msgspec.json.encode(text).decode()


def plain(value: Any) -> Any:
    """The value as JSON and people read it."""
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
