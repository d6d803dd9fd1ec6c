"""The demo's tables by one script with cryo and DuckDB, for the Python of their own environment.

One line of JSON in, one out: what to read and where to write, and how long it took, in seconds and in CPU seconds of
this process. An analyst with one machine and one chain would write it so: no retries, no versions, no second reader.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import cryo  # type: ignore[import-not-found,unused-ignore]
import duckdb  # type: ignore[import-not-found,unused-ignore]
import pyarrow as pa

TRANSFER = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
SINGLE = "c3d58168c5ae7397731d063d5bbf3d657854427343f4c083240f7aacaa2d0f62"
BATCH = "4a39dc06d4c0dbc64b70af90fd698a233a518aa5d07e595d983b8c0526c8f7fb"
ADDRESS = slice(12, 32)
WORD = 32

CHECKS = """
SELECT 'gap' AS check, block_number FROM (
    SELECT block_number, block_number - lag(block_number) OVER (ORDER BY block_number) AS step FROM blocks)
    WHERE step <> 1
UNION ALL SELECT 'parent_hash', block_number FROM (
    SELECT block_number, parent_hash, lag(block_hash) OVER (ORDER BY block_number) AS expected FROM blocks)
    WHERE parent_hash <> expected
UNION ALL SELECT 'duplicate_transaction', min(block_number) FROM transactions
    GROUP BY transaction_hash HAVING count(*) > 1
UNION ALL SELECT 'gas_used', b.block_number FROM blocks b LEFT JOIN (
    SELECT block_number, sum(gas_used) AS gas FROM transactions GROUP BY block_number) t USING (block_number)
    WHERE b.gas_used <> coalesce(t.gas, 0)
UNION ALL SELECT 'log_transaction', l.block_number FROM logs l ANTI JOIN transactions t
    ON l.block_number = t.block_number AND l.transaction_hash = t.transaction_hash
UNION ALL SELECT 'log_index', block_number FROM logs GROUP BY block_number
    HAVING min(log_index) <> 0 OR max(log_index) <> count(*) - 1 OR count(DISTINCT log_index) <> count(*)
"""
FLOWS = """
SELECT date_trunc('hour', to_timestamp(b.timestamp)) AS hour, lower(hex(t.token)) AS token, t.standard,
       count(*) AS transfers, count(DISTINCT t.from_address) AS senders, sum(t.amount_f64) AS amount
FROM transfers t JOIN blocks b USING (block_number) GROUP BY ALL ORDER BY hour, token, t.standard
"""
LARGE = """
WITH erc20 AS (SELECT *, block_number // {size} AS unit FROM transfers WHERE standard = 'erc20'),
by_token AS (SELECT *, row_number() OVER (
    PARTITION BY unit, token ORDER BY amount_f64 DESC, block_number, log_index) AS place FROM erc20),
by_sender AS (SELECT *, row_number() OVER (
    PARTITION BY unit, token, from_address ORDER BY amount_f64 DESC, block_number, log_index) AS place FROM erc20
    WHERE hex(from_address) <> repeat('0', 40)),
found AS (SELECT * FROM by_token WHERE place <= 20 UNION ALL SELECT * FROM by_sender WHERE place = 1)
SELECT DISTINCT ON (block_number, log_index) block_number, log_index, transaction_hash AS tx,
       to_timestamp(b.timestamp) AS at, token, from_address AS sender, to_address AS receiver, amount_string AS amount
FROM found JOIN blocks b USING (block_number)
"""


def decode(logs: pa.Table) -> pa.Table:
    """Transfers of all three standards."""
    rows: list[tuple[Any, ...]] = []
    columns = (
        "block_number",
        "log_index",
        "transaction_hash",
        "address",
        "topic0",
        "topic1",
        "topic2",
        "topic3",
        "data",
    )
    for number, index, tx, token, topic0, topic1, topic2, topic3, data in zip(
        *(logs[name].to_pylist() for name in columns), strict=True
    ):
        kind = topic0.hex()
        addresses = (topic1, topic2) if kind == TRANSFER else (topic2, topic3)
        if any(address is None or any(address[:12]) for address in addresses):
            continue  # not an address
        place = (number, index, tx, token)
        if kind == TRANSFER and topic3 is None and len(data) == WORD:
            rows.append((*place, "erc20", topic1[ADDRESS], topic2[ADDRESS], int.from_bytes(data, "big")))
        elif kind == TRANSFER and topic3 is not None and not data:
            rows.append((*place, "erc721", topic1[ADDRESS], topic2[ADDRESS], 1))
        elif kind == SINGLE and len(data) == 2 * WORD:
            rows.append((*place, "erc1155", topic2[ADDRESS], topic3[ADDRESS], int.from_bytes(data[WORD:], "big")))
        elif kind == BATCH:
            words = [int.from_bytes(data[at : at + WORD], "big") for at in range(0, len(data), WORD)]
            start = words[1] // WORD
            if words[words[0] // WORD] != words[start]:
                continue  # not an amount for each id
            rows += [
                (*place, "erc1155", topic2[ADDRESS], topic3[ADDRESS], amount)
                for amount in words[start + 1 : start + 1 + words[start]]
            ]
    names = ("block_number", "log_index", "transaction_hash", "token", "standard", "from_address", "to_address")
    *values, amounts = zip(*rows, strict=True)
    table = pa.table(dict(zip(names, (list(column) for column in values), strict=True)))
    table = table.append_column("amount_string", pa.array([str(amount) for amount in amounts]))
    return table.append_column("amount_f64", pa.array([float(amount) for amount in amounts]))


def make_tables(order: dict[str, Any]) -> dict[str, int]:
    """Rows of each table."""
    directory = Path(order["directory"])
    options = {
        "rpc": order["url"],
        "hex": False,
        "include_columns": ["parent_hash"],
        "compression": ["zstd", "3"],
        "verbose": False,
        "max_concurrent_requests": 10,
        "chunk_size": 4000,
    }
    done = cryo.freeze(
        ["blocks", "transactions", "logs"], blocks=[f"0:{order['blocks']}"], output_dir=str(directory), **options
    )
    if done["n_errored"]:
        raise RuntimeError("cryo did not read everything")
    database = duckdb.connect(str(directory / "tables.duckdb"))
    database.execute("SET threads = 2; SET TimeZone = 'UTC'")
    for name in ("blocks", "transactions", "logs"):
        database.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{directory}/*__{name}__*.parquet')")
    found = database.sql(CHECKS).to_arrow_table()
    topics = [bytes.fromhex(topic) for topic in (TRANSFER, SINGLE, BATCH)]
    query = "SELECT * FROM logs WHERE topic0 IN (?, ?, ?) ORDER BY block_number, log_index"
    logs = database.sql(query, params=topics).to_arrow_table()
    database.register("transfers", decode(logs))
    rows = {"findings": found.num_rows}
    tables = {"transfers": "SELECT * FROM transfers", "hourly_flows": FLOWS, "large_transfers": LARGE}
    for name, query in tables.items():
        path = directory / f"{name}.parquet"
        database.execute(f"COPY ({query.format(size=order['size'])}) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
        rows[name] = database.execute(f"SELECT count(*) FROM '{path}'").fetchall()[0][0]
    database.close()
    return rows


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # cryo talks
    for line in sys.stdin:
        order = json.loads(line)
        began, began_own = time.perf_counter(), time.process_time()
        rows = make_tables(order)
        seconds, own = time.perf_counter() - began, time.process_time() - began_own
        answers.write(json.dumps({"seconds": seconds, "cpu": own, "rows": rows}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
