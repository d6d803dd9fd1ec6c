"""Rows for the benchmark of queries, the same every time, and the queries that are asked of them.

`transfers_small` and `transfers_large` have files of equal ranges of blocks, as operators write them: one per unit.
`transfers_split` has the rows of `transfers_small` in very many files. `labels` and the table `notes` are joined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

ROWS_PER_BLOCK = 50
HOLDERS = 20_000
TOKENS = 40

_TRANSFERS = """
    SELECT i // {per_block} AS block_number, CAST(i % {per_block} AS INTEGER) AS log_index,
           'TOKEN' || CAST(hash(i) % {tokens} AS VARCHAR) AS token,
           CAST(hash(i * 7 + 1) % {holders} AS INTEGER) AS holder,
           CAST(hash(i * 13 + 5) % 1000000000000 AS BIGINT) AS amount
    FROM range({first}, {last}) t(i)"""
_LABELS = """
    SELECT i AS block_number, CAST(i AS INTEGER) AS holder, 'label ' || CAST(i % 100 AS VARCHAR) AS label
    FROM range({holders}) t(i)"""


@dataclass(frozen=True, slots=True)
class DataUnit:
    """A range of blocks and its files."""

    start: int
    end: int
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class SampleDataset:
    name: str
    units: tuple[DataUnit, ...]

    @property
    def files(self) -> list[Path]:
        return [file for unit in self.units for file in unit.files]


def write_transfers(directory: Path, name: str, rows: int, units: int, files: int | None = None) -> SampleDataset:
    """Equal units with a file each, or one unit with all files."""
    blocks = rows // ROWS_PER_BLOCK // (files or units)
    folder = directory / name
    folder.mkdir(parents=True)

    def write(connection: duckdb.DuckDBPyConnection, number: int) -> Path:
        first = number * blocks * ROWS_PER_BLOCK
        path = folder / f"{number:05}.parquet"
        _copy(
            connection,
            _TRANSFERS.format(
                per_block=ROWS_PER_BLOCK,
                tokens=TOKENS,
                holders=HOLDERS,
                first=first,
                last=first + blocks * ROWS_PER_BLOCK,
            ),
            path,
        )
        return path

    with duckdb.connect(":memory:", config={"threads": "2"}) as connection:
        paths = [write(connection, number) for number in range(files or units)]
    if files is not None:
        return SampleDataset(name, (DataUnit(0, files * blocks - 1, tuple(paths)),))
    return SampleDataset(
        name, tuple(DataUnit(n * blocks, (n + 1) * blocks - 1, (path,)) for n, path in enumerate(paths))
    )


def write_labels(directory: Path) -> SampleDataset:
    path = directory / "labels.parquet"
    with duckdb.connect(":memory:") as connection:
        _copy(connection, _LABELS.format(holders=HOLDERS), path)
    return SampleDataset("labels", (DataUnit(0, HOLDERS - 1, (path,)),))


def _copy(connection: duckdb.DuckDBPyConnection, query: str, path: Path) -> None:
    connection.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)").fetchall()


def query_text(kind: str, relation: str, rows: int) -> str:
    middle = rows // ROWS_PER_BLOCK // 2
    texts = {
        "point": f"SELECT * FROM {relation} WHERE block_number = {middle} AND log_index = 7",
        "group": f"SELECT token, count(*) AS n, sum(amount) AS total FROM {relation} GROUP BY 1 ORDER BY 1",
        "join": f"SELECT l.label, count(*) AS n, sum(t.amount) AS total FROM {relation} t JOIN labels l USING (holder)"
        " GROUP BY 1 ORDER BY 3 DESC LIMIT 20",
        "window": "SELECT * FROM (SELECT token, part, total,"
        " sum(total) OVER (PARTITION BY token ORDER BY part) AS so_far,"
        " row_number() OVER (PARTITION BY token ORDER BY total DESC) AS place"
        f" FROM (SELECT token, block_number // 100 AS part, sum(amount) AS total FROM {relation} GROUP BY 1, 2))"
        " WHERE place <= 3 ORDER BY token, place",
    }
    return texts[kind]


class BareDuckDb:
    """DuckDB without any of it: a connection and views for each query, in this process."""

    def __init__(self, datasets: Sequence[SampleDataset], threads: int) -> None:
        self._views = {
            item.name: f"read_parquet([{', '.join(repr(str(path)) for path in item.files)}])" for item in datasets
        }
        self._threads = threads

    def connect(self, sql: str) -> duckdb.DuckDBPyConnection:
        """With a view of each relation that the query names."""
        connection = duckdb.connect(":memory:", config={"threads": str(self._threads)})
        for name, source in self._views.items():
            if name in sql:
                connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {source}")
        return connection

    def rows(self, sql: str) -> list[list[object]]:
        with self.connect(sql) as connection:
            return [list(row) for row in connection.execute(sql).fetchall()]

    def count_arrow_rows(self, sql: str) -> int:
        with self.connect(sql) as connection:
            rows: int = connection.sql(sql).to_arrow_table().num_rows
            return rows

    def join_table(self, sql: str, tables: Mapping[str, object]) -> list[list[object]]:
        """With Arrow tables that were read elsewhere."""
        with self.connect(sql) as connection:
            for name, table in tables.items():
                connection.register(name, table)
            return [list(row) for row in connection.execute(sql).fetchall()]
