"""All rows of a live dataset, each once: its files, and the rows of its table above their boundary.

The files are listed first and then the rows of the table are read, all of one moment, into an unnamed file. If rows
have moved to newer files in between, both steps are repeated. Only then are files fetched: a transaction in Postgres
data is as short as the table, and whatever moves later is in neither part's way.

Columns have the types of the table, and values are exact: a file whose value does not fit is refused.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import IO, Generic, Protocol, TypeVar

import pyarrow as pa

from tracelake.client.errors import ClientError
from tracelake.client.pinned_rows import SpooledRows
from tracelake.errors import TraceError
from tracelake.wire.content import LOOKS, MOVED, LiveRows
from tracelake.wire.task_calls import TableColumn

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class LiveFiles(Generic[F]):
    """The files of a live dataset at one moment, in the order of their positions."""

    files: Sequence[F]
    boundary: int | None


class LiveSource(Protocol[F]):
    """Where a live dataset is read: the stores of the stack, or the public API."""

    def list_files(self) -> LiveFiles[F]: ...

    def read_files(self, files: Sequence[F], names: list[str]) -> Generator[pa.Table, None, None]:
        """One table per file, with those of the columns that the file has."""
        ...

    def store_rows(self, columns: Sequence[TableColumn], rows: LiveRows, head: int | None, file: IO[bytes]) -> None:
        """Writes rows of the table to the file, as an Arrow stream: the newest first if `head` limits them, else in the
        order of their positions. Raises `boundary_moved` if some are in newer files."""
        ...


class PinnedLive(Generic[F]):
    """The rows of a live dataset at one moment. With `head` the newest rows come first, at least so many if there are;
    without it all rows, in the order of their positions. `blocks` limits rows of the table; files come whole."""

    def __init__(
        self,
        source: LiveSource[F],
        columns: Sequence[TableColumn],
        blocks: tuple[int | None, int | None],
        head: int | None,
    ) -> None:
        self._source, self._head = source, head
        self._names = [column.name for column in columns]
        self.files: Sequence[F] = ()
        self.boundary: int | None = None

        def look_up(spool: IO[bytes]) -> None:
            listed = _look_up(source, columns, blocks, head, spool)
            self.files, self.boundary = listed.files, listed.boundary

        self.rows = SpooledRows(look_up)
        """Those of the table."""

    def pieces(self) -> Generator[pa.Table, None, None]:
        """First an empty table with the columns."""
        with closing(self.rows.pieces()) as rows:
            first = next(rows)
            schema = first.schema
            yield first
            if self._head is None:
                for piece in self._source.read_files(self.files, self._names):
                    yield fit(piece, schema)
            yield from rows
            if self._head is not None:  # whoever has enough rows asks for no more, and no file is fetched
                for piece in self._source.read_files(self.files[::-1], self._names):
                    yield fit(piece, schema).take(pa.array(range(piece.num_rows - 1, -1, -1), pa.int64()))

    def close(self) -> None:
        self.rows.close()


def read_live(
    source: LiveSource[F], columns: Sequence[TableColumn], blocks: tuple[int | None, int | None], head: int | None
) -> Generator[pa.Table, None, None]:
    """The pieces of a `PinnedLive`, read once."""
    with closing(PinnedLive(source, columns, blocks, head)) as pinned:
        yield from pinned.pieces()


def _look_up(
    source: LiveSource[F],
    columns: Sequence[TableColumn],
    blocks: tuple[int | None, int | None],
    head: int | None,
    spool: IO[bytes],
) -> LiveFiles[F]:
    for number in range(1, LOOKS + 1):
        listed = source.list_files()
        rows = LiveRows(boundary=listed.boundary, start=blocks[0], end=blocks[1])
        spool.seek(0)
        spool.truncate()
        try:
            source.store_rows(columns, rows, head, spool)
        except TraceError as error:
            if error.code != MOVED or number == LOOKS:
                raise
        else:
            return listed
    raise AssertionError("unreachable")


def fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows of a file with the types of the table; what the file lacks is null. Exactly, or not at all."""
    columns = [
        _cast(table.column(field.name), field) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    rounds = pa.types.is_floating(values.type) and not pa.types.is_floating(field.type)
    try:
        if not rounds:
            return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    raise ClientError(
        "column_type_mismatch",
        f"a file of the dataset has the column {field.name} as {values.type}, and a value of it does not fit"
        f" {field.type}, which the table has",
    )
