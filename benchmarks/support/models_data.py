"""Transfers for the benchmark of models: units of blocks over whole days, and DuckDB that makes every model anew.

A day has 36 units of 200 blocks, as a chain with a block every 12 seconds has them.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import duckdb

SECONDS_PER_BLOCK = 12
BLOCKS = 200
UNITS_PER_DAY = 36
DAY = 86_400
HOLDERS = 5_000
TOKENS = 40

_TRANSFERS = """
    SELECT {first_block} + i * {blocks} // {rows} AS block_number,
           ({first_block} + i * {blocks} // {rows}) * {seconds} AS timestamp,
           'TOKEN' || CAST(hash(i + {salt}) % {tokens} AS VARCHAR) AS token,
           CAST(hash(i * 7 + {salt}) % {holders} AS BIGINT) AS holder,
           CAST(hash(i * 13 + {salt}) % 1000000 AS BIGINT) - 500000 AS amount
    FROM range({rows}) t(i)"""

# What the jobs of `models_stack` compute, all days at once.
_MODELS = {
    "flows": """SELECT timestamp // 86400 AS day, token, count(*) AS transfers, sum(amount) AS volume
                FROM transfers GROUP BY ALL""",
    "balances": """SELECT day, holder, balance FROM (
                       SELECT d.day, h.holder, sum(m.amount) OVER days AS balance, count(m.amount) OVER days AS moves
                       FROM (SELECT DISTINCT timestamp // 86400 AS day FROM transfers) d
                       CROSS JOIN (SELECT DISTINCT holder FROM transfers) h
                       LEFT JOIN (SELECT timestamp // 86400 AS day, holder, sum(amount) AS amount
                                  FROM transfers GROUP BY ALL) m ON m.day = d.day AND m.holder = h.holder
                       WINDOW days AS (PARTITION BY h.holder ORDER BY d.day))
                   WHERE moves > 0""",
    "averages": """SELECT day, token, sum(transfers) OVER (
                       PARTITION BY token ORDER BY day RANGE BETWEEN 6 PRECEDING AND CURRENT ROW) / 7 AS per_day
                   FROM (SELECT timestamp // 86400 AS day, token, count(*) AS transfers FROM transfers GROUP BY ALL)""",
    "newcomers": """SELECT min(timestamp) // 86400 AS day, holder FROM transfers GROUP BY holder""",
}


@dataclass(frozen=True, slots=True)
class UnitFile:
    """A unit of blocks and its rows."""

    number: int
    path: Path

    @property
    def blocks(self) -> tuple[int, int]:
        return self.number * BLOCKS, (self.number + 1) * BLOCKS - 1

    @property
    def times(self) -> tuple[int, int]:
        first, last = self.blocks
        return first * SECONDS_PER_BLOCK, last * SECONDS_PER_BLOCK


def write_unit(
    connection: duckdb.DuckDBPyConnection, directory: Path, number: int, rows: int, revision: int = 0
) -> UnitFile:
    """Writes the unit; another revision of it has other rows."""
    path = directory / f"{number:06}.parquet"
    query = _TRANSFERS.format(
        first_block=number * BLOCKS,
        blocks=BLOCKS,
        rows=rows,
        seconds=SECONDS_PER_BLOCK,
        salt=(number + revision * 1_000_000) * rows,
        tokens=TOKENS,
        holders=HOLDERS,
    )
    connection.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)").fetchall()
    return UnitFile(number, path)


class FullRefresh:
    """DuckDB makes models anew from all Parquet files, as a scheduled script does: files in, files out."""

    def __init__(self, inputs: Path, outputs: Path) -> None:
        self._inputs, self._outputs = inputs, outputs
        self._connection = duckdb.connect(":memory:", config={"threads": "2"})

    def seconds(self, *models: str) -> float:
        started = time.perf_counter()
        source = f"SELECT * FROM read_parquet('{self._inputs}/*.parquet')"
        self._connection.execute(f"CREATE OR REPLACE VIEW transfers AS {source}")
        for model in models:
            path = self._outputs / f"{model}.parquet"
            self._connection.execute(f"COPY ({_MODELS[model]}) TO '{path}' (FORMAT parquet)").fetchall()
        return time.perf_counter() - started

    def rows(self, model: str, day: int) -> int:
        """Rows of one day, as the last refresh wrote them."""
        path = self._outputs / f"{model}.parquet"
        row = self._connection.execute(f"SELECT count(*) FROM '{path}' WHERE day = {day}").fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self._connection.close()
