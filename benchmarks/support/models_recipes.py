"""The recipes of `examples/recipes` for the recorded chain, and each of them as one query in DuckDB.

A query makes all units of a dataset at once, as a full refresh does. It shares nothing with the recipe. Its first
column is the first second (or block) of the unit; the others are the columns of the dataset. It also has the window at
the end of the chain that is not over yet, which a recipe leaves out. The benchmark of models times the queries, and the
system test of the recipes compares every unit with them.
"""

import json
from pathlib import Path

import duckdb

DIRECTORY = Path(__file__).parents[2] / "examples" / "recipes"
RECIPES = (
    "chain",
    "hourly_flows",
    "active_addresses",
    "top_holders",
    "new_addresses",
    "pool_volume",
    "moving_average",
    "retention",
    "priced_volume",
)
"""In the order in which they are deployed."""
CHAIN_TABLES = ("blocks", "transfers", "logs")
LAST_BLOCK = 3_999
UNIT = 700
"""Blocks of a unit of the chain: no window begins or ends with one."""
PRICES_PATH = "/daily"
PRICES_URL = "https://prices.example.com/v1/daily"

HUSD, GRN = "5fbdb2315678afecb367f032d93f642f64180aa3", "e7f1725e7734ce288f8367e1bb143e90bb3f0512"
_SWAP = "d78ad95fa46c994b6551d0da85fc275fe613ce37657fb8d5e3d130840159d822"
_SUPPLY = "9d624b01705090e0c402c84f2bdef9c498399a009cee9a4e08ab004bae447121"
PRICES = {
    "2026-03-02": (("0.9991", 6), ("1.25", 18)),
    "2026-03-03": (("1.0004", 6), ("1.5", 18)),
    "2026-03-04": (("0.95", 6), ("0.75", 18)),
}
"""By day: of both tokens, the price in dollars and the decimals."""


def recipe(name: str) -> str:
    return (DIRECTORY / f"{name}.yaml").read_text(encoding="utf-8")


def fit_recipe(name: str, prices_url: str, unit: int = UNIT) -> str:
    """The recipe for the recorded chain: units that fit no window, and prices of a local server."""
    replacements = {
        "chain": ("config: {size: 1000}", f"config: {{size: {unit}}}"),
        "priced_volume": (PRICES_URL, prices_url),
    }
    text = recipe(name)
    if name not in replacements:
        return text
    assert text.count(replacements[name][0]) == 1
    return text.replace(*replacements[name])


def prices_replies() -> dict[str, str]:
    """The bodies of the prices API, by the target of the request."""
    return {
        f"{PRICES_PATH}?date={day}": json.dumps(
            {
                "prices": [
                    {"token": token, "decimals": decimals, "usd": usd}
                    for token, (usd, decimals) in zip((HUSD, GRN), prices, strict=True)
                ]
            }
        )
        for day, prices in PRICES.items()
    }


def prepare_connection(connection: duckdb.DuckDBPyConnection) -> None:
    """What the queries need besides the tables of the chain."""
    # Midnight before a moment, both in seconds.
    connection.execute("CREATE MACRO midnight(seconds) AS seconds // 86400 * 86400")
    connection.execute("CREATE MACRO date_of(seconds) AS DATE '1970-01-01' + (seconds // 86400)::INT")
    # The i-th word of the data of a log, as a number; none of the chain's is larger.
    connection.execute("""
        CREATE MACRO word(data, i) AS ('0x' || hex(data)[(64 * i + 33)::BIGINT:(64 * i + 64)::BIGINT])::HUGEINT""")
    connection.execute("CREATE TABLE prices (day DATE, token TEXT, usd DECIMAL(20, 6), decimals INT)")
    for day, prices in PRICES.items():
        for token, (usd, decimals) in zip((HUSD, GRN), prices, strict=True):
            connection.execute("INSERT INTO prices VALUES (?, ?, ?, ?)", [day, token, usd, decimals])


_MOVES = "transfers t JOIN blocks b USING (block_number)"
_DAYS = "(SELECT DISTINCT midnight(timestamp) AS unit_start FROM blocks) d"
_BERLIN = "'Europe/Berlin'"


def moving_average(seconds: int) -> str:
    """The query of the recipe for windows of so many seconds: an average over seven of them, the last one included, or
    as many as there are since the first transfer that the window reads."""
    return f"""
        WITH moved AS (
            SELECT lower(hex(t.token)) AS token, b.timestamp // {seconds} * {seconds} AS moment FROM {_MOVES}),
        units AS (
            SELECT unnest(range(min(timestamp) // {seconds} * {seconds}, max(timestamp) + 1, {seconds})) AS unit_start
            FROM blocks),
        counts AS (
            SELECT unit_start, token, count(*) AS transfers, min(moment) AS first
            FROM units JOIN moved ON moment BETWEEN unit_start - 6 * {seconds} AND unit_start
            GROUP BY unit_start, token)
        SELECT unit_start, token, transfers / days AS transfers_per_day, days
        FROM counts JOIN (
            SELECT unit_start, 1 + (unit_start - min(first)) // {seconds} AS days FROM counts GROUP BY unit_start)
        USING (unit_start)"""


QUERIES = {
    "hourly_token_flows": f"""
        SELECT b.timestamp // 3600 * 3600 AS unit_start, to_timestamp(b.timestamp // 3600 * 3600) AS hour,
               lower(hex(t.token)) AS token, count(*) AS transfers, count(DISTINCT t.from_address) AS senders,
               sum(t.amount_f64) AS amount
        FROM {_MOVES} GROUP BY ALL""",
    "active_addresses": f"""
        SELECT epoch(date_trunc('day', local_time) AT TIME ZONE {_BERLIN})::BIGINT AS unit_start, token,
               count(DISTINCT address) AS addresses
        FROM (SELECT to_timestamp(b.timestamp) AT TIME ZONE {_BERLIN} AS local_time, lower(hex(t.token)) AS token,
                     unnest([t.from_address, t.to_address]) AS address FROM {_MOVES})
        WHERE hex(address) <> repeat('0', 40) GROUP BY ALL""",
    "top_holders": f"""
        WITH changes AS (
            SELECT midnight(b.timestamp) AS day, unnest([t.from_address, t.to_address]) AS holder,
                   unnest([-t.amount_string::HUGEINT, t.amount_string::HUGEINT]) AS amount
            FROM {_MOVES} WHERE lower(hex(t.token)) = '{HUSD}'),
        changes_of_days AS (SELECT day, holder, sum(amount) AS amount FROM changes GROUP BY ALL),
        balances AS (
            SELECT d.unit_start, lower(hex(c.holder)) AS holder, sum(c.amount) AS balance
            FROM {_DAYS} JOIN changes_of_days c ON c.day <= d.unit_start
            WHERE hex(c.holder) <> repeat('0', 40) GROUP BY ALL)
        SELECT unit_start, row_number() OVER (PARTITION BY unit_start ORDER BY balance DESC, holder) AS place, holder,
               balance
        FROM balances QUALIFY place <= 10""",
    "new_addresses": """
        SELECT min(block_number) // 1000 * 1000 AS unit_start, lower(hex(address)) AS address,
               min(block_number) AS first_block
        FROM (SELECT unnest([from_address, to_address]) AS address, block_number FROM transfers) GROUP BY address""",
    "pool_volume": f"""
        WITH pools AS (
            SELECT address, min(block_number) AS since FROM logs
            WHERE lower(hex(topic0)) = '{_SUPPLY}' GROUP BY address)
        SELECT midnight(b.timestamp) AS unit_start, lower(hex(address)) AS pool, count(*) AS swaps,
               sum(word(data, 0) + word(data, 2)) AS volume0, sum(word(data, 1) + word(data, 3)) AS volume1
        FROM logs JOIN blocks b USING (block_number) JOIN pools USING (address)
        WHERE lower(hex(topic0)) = '{_SWAP}' AND block_number >= since GROUP BY ALL""",
    "moving_average": moving_average(86_400),
    "retention": f"""
        WITH sent AS (
            SELECT DISTINCT t.from_address AS address, midnight(b.timestamp) AS day
            FROM {_MOVES} WHERE t.standard = 'erc721'),
        cohorts AS (SELECT address, min(day) AS cohort FROM sent GROUP BY address)
        SELECT d.unit_start, date_of(c.cohort) AS cohort, date_of(d.unit_start) AS day, count(*) AS addresses,
               count(s.address) AS active
        FROM {_DAYS} JOIN cohorts c ON c.cohort <= d.unit_start
        LEFT JOIN sent s ON s.address = c.address AND s.day = d.unit_start
        GROUP BY ALL""",
    "priced_volume": f"""
        SELECT v.unit_start, token, usd, v.amount / pow(10, decimals) AS amount,
               v.amount / pow(10, decimals) * usd::DOUBLE AS value_usd
        FROM (SELECT midnight(b.timestamp) AS unit_start, lower(hex(t.token)) AS token,
                     sum(t.amount_string::HUGEINT)::DOUBLE AS amount
              FROM {_MOVES} WHERE lower(hex(t.token)) IN ('{HUSD}', '{GRN}') GROUP BY ALL) v
        JOIN prices USING (token) WHERE prices.day = date_of(v.unit_start)""",
}
"""By dataset."""
