"""Checks of the live chapter: what is stored is compared with the node, and what was computed is computed once more.

DuckDB computes over rows that were read by other means than those of tasks and queries.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from tracelake.demo.checks import Check
from tracelake.demo.live_rows import ChainBlock

_SAME = 1e-9
"""Sums of doubles depend on the order in which they are added up."""

_LINKS = """
    SELECT count(*), count(DISTINCT block_number), min(block_number), max(block_number),
           count(*) FILTER (parent_hash <> previous OR block_number <> before + 1)
    FROM (SELECT *, lag(block_hash) OVER w AS previous, lag(block_number) OVER w AS before
          FROM blocks WINDOW w AS (ORDER BY block_number))"""

_DIFFERENCES = """
    WITH stored AS (
      SELECT b.block_number AS number, b.block_hash AS hash, b.parent_hash, coalesce(t.n, 0) AS transactions,
             coalesce(l.n, 0) AS logs
      FROM blocks b
      LEFT JOIN (SELECT block_number, count(*) AS n FROM transactions GROUP BY 1) t USING (block_number)
      LEFT JOIN (SELECT block_number, count(*) AS n FROM logs GROUP BY 1) l USING (block_number))
    SELECT count(*) FROM (
      (SELECT * FROM stored EXCEPT ALL SELECT * FROM chain) UNION ALL
      (SELECT * FROM chain EXCEPT ALL SELECT * FROM stored))"""

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
    chain: Sequence[ChainBlock],
    flows: Sequence[tuple[int, bytes, str, int, float]],
) -> list[Check]:
    """`tables`: blocks, transactions, logs and transfers. `flows`: hour, token, standard, transfers, amount."""
    with duckdb.connect(config={"threads": 1}) as database:
        for name, table in {**tables, "chain": _chain_table(chain)}.items():
            database.register(name, table)
        count, distinct, least, most, broken = _one(database, _LINKS)
        whole = (count, distinct, least, most, broken) == (last - first + 1, last - first + 1, first, last, 0)
        (differences,) = _one(database, _DIFFERENCES)
        moved, strays = _one(database, _TRANSFERS)
        expected = database.execute(_FLOWS).fetchall()
    transactions, logs = (sum(getattr(block, name) for block in chain) for name in ("transactions", "logs"))
    return [
        Check(f"live: each block from {first:,} to {last:,} is there once, and is the child of the one before", whole),
        Check(
            f"live: read from the node by itself, hashes, {transactions:,} transactions and {logs:,} logs are the same",
            differences == 0 and len(chain) == last - first + 1,
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


def _chain_table(chain: Sequence[ChainBlock]) -> pa.Table:
    return pa.table(
        {
            "number": pa.array([block.number for block in chain], pa.int64()),
            "hash": pa.array([block.hash for block in chain], pa.binary()),
            "parent_hash": pa.array([block.parent_hash for block in chain], pa.binary()),
            "transactions": pa.array([block.transactions for block in chain], pa.int64()),
            "logs": pa.array([block.logs for block in chain], pa.int64()),
        }
    )
