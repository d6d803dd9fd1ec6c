"""Rows that a client has read or queried, for the libraries that people work with."""

import importlib
from collections.abc import Iterator
from contextlib import closing
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracelake.client.errors import ClientError
from tracelake.client.pinned_rows import PinnedRows, cast_piece

if TYPE_CHECKING:
    import duckdb
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl

_BATCH_ROWS = 65_536


class ResultRows:
    """The rows of one moment: every method sees the same ones, however often it is called.

    Files of a dataset are downloaded whenever the rows are used, one at a time. So `batches()` and a loop over the rows
    need little memory, whatever the size of the dataset; the methods `to_...` hold all rows. Keep what they return.
    """

    def __init__(self, pinned: PinnedRows, limit: int | None = None) -> None:
        self._pinned = pinned
        self._limit = limit
        self._schema: pa.Schema | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types, as Arrow names them."""
        if self._schema is None:
            with closing(self._pinned.pieces()) as pieces:
                first = next(pieces, None)
            self._schema = pa.schema([]) if first is None else first.schema.remove_metadata()
        return self._schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in order, as Arrow record batches that all have the columns of `schema`."""
        rest = self._limit
        with closing(self._pinned.pieces()) as pieces:
            for piece in pieces:
                if self._schema is None:
                    self._schema = piece.schema.remove_metadata()
                rows = cast_piece(piece, self._schema, "columns=[...]")
                if rest is not None:
                    rows = rows.slice(0, rest)
                    rest -= rows.num_rows
                yield from (batch for batch in rows.to_batches(max_chunksize=_BATCH_ROWS) if batch.num_rows)
                if rest == 0:
                    return

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """One dict per row, with Python values: bytes, Decimal, datetime."""
        for batch in self.batches():
            yield from batch.to_pylist()

    def reader(self) -> pa.RecordBatchReader:
        """A stream of the batches, to be read once: DuckDB, Polars and Arrow take it as it is."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def to_arrow(self) -> pa.Table:
        batches = list(self.batches())
        return pa.Table.from_batches(batches, self.schema)

    def to_polars(self) -> "pl.DataFrame":
        """Needs polars."""
        polars = _library("polars")
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow())
        return frame

    def to_pandas(self) -> "pd.DataFrame":
        """Needs pandas. Decimals stay exact: a column of them holds `decimal.Decimal`."""
        _library("pandas")
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_duckdb(self, connection: "duckdb.DuckDBPyConnection | None" = None) -> "duckdb.DuckDBPyRelation":
        """A relation of this connection, or of DuckDB's default one. Needs duckdb."""
        duckdb_module = _library("duckdb")
        relation: duckdb.DuckDBPyRelation = (connection or duckdb_module).from_arrow(self.to_arrow())
        return relation

    def close(self) -> None:
        """Frees the temporary file of rows that came from a table or a query; otherwise it goes with this object."""
        self._pinned.close()

    def __enter__(self) -> "ResultRows":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        columns = "not read yet" if self._schema is None else ", ".join(self._schema.names)
        return f"<ResultRows: {columns}>"


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ClientError(
            "library_missing", f"this needs {name}, which is not installed: pip install {name}", library=name
        ) from None
