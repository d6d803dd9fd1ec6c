"""Checks of the live chapter: what is stored is compared with the node row by row, and what was computed is
computed once more.

DuckDB computes over rows that were read by other means than those of tasks and queries.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from tracelake.demo.checks import Check

_SAME = 1e-9
"""Sums of doubles depend on the order in which they are added up."""

_LINKS = """
    SELECT count(*), count(DISTINCT block_number), min(block_number), max(block_number),
           count(*) FILTER (parent_hash <> previous OR block_number <> before + 1)
    FROM (SELECT *, lag(block_hash) OVER w AS previous, lag(block_number) OVER w AS before
          FROM blocks WINDOW w AS (ORDER BY block_number))"""

_DIFFERENCES = """
    SELECT count(*) FROM (
      (SELECT {columns} FROM {name} EXCEPT ALL SELECT {columns} FROM node_{name}) UNION ALL
      (SELECT {columns} FROM node_{name} EXCEPT ALL SELECT {columns} FROM {name}))"""

_TRANSFERS = """
    WITH moved AS (
      SELECT block_number, log_index, transaction_hash FROM logs
      WHERE topic0 = unhex('ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef')
        AND starts_with(hex(topic1), repeat('0', 24)) AND starts_with(hex(topic2), repeat('0', 24))
        AND CASE WHEN topic3 IS NULL THEN octet_length(data) = 32 ELSE octet_length(data) = 0 END),
    decoded AS (
      SELECT block_number, log_index, transaction_hash FROM transfers WHERE standard IN ('erc20', 'erc721'))
    SELECT (SELECT count(*) FROM decoded), (SELECT count(*) FROM (
      (SELECT * FROM moved EXCEPT ALL SELECT * FROM decoded) UNION ALL
      (SELECT * FROM decoded EXCEPT ALL SELECT * FROM moved)))"""

_FLOWS = """
    SELECT b.timestamp // 3600 * 3600 AS hour, t.token, t.standard, count(*), sum(t.amount_f64)
    FROM transfers t JOIN blocks b USING (block_number) GROUP BY ALL ORDER BY 1, 2, 3"""


def verify(
    first: int,
    last: int,
    tables: Mapping[str, pa.Table],
    chain: Mapping[str, pa.Table],
    flows: Sequence[tuple[int, bytes, str, int, float]],
) -> list[Check]:
    """`tables`: blocks, transactions, logs and transfers; `chain`: the first three as the node has them, whose columns
    are compared. `flows`: hour, token, standard, transfers, amount."""
    with duckdb.connect(config={"threads": 1}) as database:
        for name, table in {**tables, **{f"node_{name}": table for name, table in chain.items()}}.items():
            database.register(name, table)
        count, distinct, least, most, broken = _one(database, _LINKS)
        whole = (count, distinct, least, most, broken) == (last - first + 1, last - first + 1, first, last, 0)
        differences = sum(_count_differences(database, name, table) for name, table in chain.items())
        moved, strays = _one(database, _TRANSFERS)
        expected = database.execute(_FLOWS).fetchall()
    transactions, logs = (chain[name].num_rows for name in ("transactions", "logs"))
    return [
        Check(f"live: each block from {first:,} to {last:,} is there once, and is the child of the one before", whole),
        Check(
            f"live: read from the node by itself, hashes, {transactions:,} transactions and {logs:,} logs are the same",
            differences == 0 and chain["blocks"].num_rows == last - first + 1,
        ),
        Check(f"live: the {moved:,} transfers of ERC-20 and ERC-721 are those of the logs", strays == 0),
        Check(f"live: recomputed by DuckDB, the {len(expected):,} flows of hours are the same", _same(flows, expected)),
    ]


def _same(flows: Sequence[tuple[Any, ...]], expected: Sequence[tuple[Any, ...]]) -> bool:
    return len(flows) == len(expected) and all(
        (*one[:4],) == (*other[:4],) and abs(one[4] - other[4]) <= _SAME * max(abs(one[4]), abs(other[4]))
        for one, other in zip(sorted(flows), expected, strict=True)
    )


def _one(database: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    (row,) = database.execute(sql).fetchall()
    return tuple(row)


def _count_differences(database: duckdb.DuckDBPyConnection, name: str, chain: pa.Table) -> int:
    """Rows that only the table or only the node has."""
    columns = ", ".join(chain.column_names)
    (differences,) = _one(database, _DIFFERENCES.format(name=name, columns=columns))
    return int(differences)
