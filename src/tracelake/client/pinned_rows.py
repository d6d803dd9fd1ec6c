"""Rows of one moment that can be read several times, piece by piece.

What is pinned does not change: files by their names and hashes, rows of a table or of a query by a temporary file that
has no name. Files of a dataset are downloaded whenever they are read, one at a time, so that neither memory nor the
disk grows with the dataset.
"""

import io
import os
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, Any, Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.client.errors import ClientError
from tracelake.wire.content import COUNT_KEY

F = TypeVar("F")
_ROWS_AT_ONCE = 10_000


class PinnedRows(Protocol):
    def pieces(self) -> Generator[pa.Table, None, None]:
        """All rows, from the first one on; the first piece has the columns, and may have no rows."""
        ...

    def close(self) -> None: ...


class PinnedFiles(Generic[F]):
    """Files of a dataset, each of which `download` fetches to a path. `rows` is how many they have, if it was asked
    for and is known."""

    def __init__(
        self, download: Callable[[F, Path], None], files: Sequence[F], names: list[str] | None, rows: int | None = None
    ) -> None:
        self._download, self._files, self._names, self._rows = download, files, names, rows

    def pieces(self) -> Generator[pa.Table, None, None]:
        return with_count(read_downloads(self._download, self._files, self._names), self._rows)

    def close(self) -> None:
        pass


class _Spool:
    """A temporary file without a name, which `store` has filled; it is gone when it is closed."""

    def __init__(self, store: Callable[[IO[bytes]], object]) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="trace-read-")  # noqa: SIM115 - closed by close()
        try:
            store(self._file)
            self._file.flush()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> "_SpoolReader":
        return _SpoolReader(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class SpooledRows(_Spool):
    """Rows that arrive as an Arrow stream."""

    def pieces(self) -> Generator[pa.Table, None, None]:
        with pa.ipc.open_stream(self._open()) as stream:
            yield stream.schema.empty_table()
            for batch in stream:
                yield pa.Table.from_batches([batch])


class SpooledParquet(_Spool):
    """Rows that arrive as a Parquet file."""

    def pieces(self) -> Generator[pa.Table, None, None]:
        with pq.ParquetFile(self._open()) as content:
            yield content.schema_arrow.empty_table()
            for batch in content.iter_batches(_ROWS_AT_ONCE):
                yield pa.Table.from_batches([batch])


class HeldRows:
    """A table in memory."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def pieces(self) -> Generator[pa.Table, None, None]:
        yield self._table

    def close(self) -> None:
        pass


def read_downloads(
    download: Callable[[F, Path], None], files: Sequence[F], names: list[str] | None, *, lacking: bool = False
) -> Generator[pa.Table, None, None]:
    """One table per file. `lacking`: a file may lack some of these columns."""
    with tempfile.TemporaryDirectory(prefix="trace-read-") as directory:
        path = Path(directory, "file.parquet")
        for file in files:
            download(file, path)
            with pq.ParquetFile(path) as parquet:
                present = parquet.schema_arrow.names
                if not lacking:
                    check_columns(names, present)
                yield parquet.read(columns=None if names is None else [name for name in names if name in present])


def with_count(pieces: Generator[pa.Table, None, None], rows: int | None) -> Generator[pa.Table, None, None]:
    """The pieces, with the number of all rows in the metadata of their columns if it is known (`COUNT_KEY`)."""
    with closing(pieces):
        for piece in pieces:
            if rows is None:
                yield piece
            else:
                yield piece.replace_schema_metadata({**(piece.schema.metadata or {}), COUNT_KEY: str(rows).encode()})


def check_columns(names: list[str] | None, columns: Sequence[str]) -> None:
    """Raises `column_not_found`, which names the columns that there are."""
    if missing := [name for name in names or () if name not in columns]:
        raise ClientError(
            "column_not_found",
            f"there is no column {', '.join(missing)}; there are {', '.join(columns)}",
            missing=missing,
            columns=list(columns),
        )


class _SpoolReader(io.RawIOBase):
    """A file read from its beginning, by a position of its own: several may read it at once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count = os.preadv(self._descriptor, [buffer], self._position)
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: os.fstat(self._descriptor).st_size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


def cast_piece(piece: pa.Table, schema: pa.Schema, option: str) -> pa.Table:
    """The piece with the columns of the first one; `option` is how the caller names columns."""
    try:
        return piece.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        raise ClientError(
            "column_type_mismatch",
            f"the files have different columns: expected {', '.join(schema.names)} as in the first file, received"
            f" {', '.join(piece.column_names)}. Name those that all have: {option}",
        ) from None
