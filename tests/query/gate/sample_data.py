"""Small rows for the relations of the corpora: 10 blocks, 20 transactions, 20 logs, 24 transfers, 9 prices.

Everything follows from the number of a row, so answers can be worked out by hand or by `answers`.
"""

import json
import sqlite3
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb

from tests.query.gate.corpus import RELATIONS
from tracelake.query.gate.duckdb_parser import quote_name

START = datetime(2026, 3, 1, 12)
TOKENS = ("HUSD", "ACME", "GOLD")
Row = dict[str, Any]


def blocks() -> list[Row]:
    return [
        {
            "block_number": number,
            "block_hash": f"0x{number:064x}",
            "author": f"0x{'abc'[number % 3]}{number % 3}",
            "gas_used": 1_000 * number,
            "base_fee": 7 + number % 4,
            "mined_at": START + timedelta(hours=6 * number),
            "extra": f'{{"client": {{"name": "node{number % 2}", "major": {number}}}, "tags": ["a", "t{number}"]}}',
        }
        for number in range(1, 11)
    ]


def transactions() -> list[Row]:
    return [
        {
            "block_number": number // 2 + 1,
            "transaction_index": number % 2,
            "transaction_hash": f"0x{number:064x}",
            "from_address": f"0xs{number % 4}",
            "to_address": None if number % 7 == 0 else f"0xr{number % 5}",
            "value": Decimal(10**30 + number),
            "gas_used": 21_000 + 10 * number,
            "gas_price": 5 + number % 3,
            "success": number % 6 != 0,
            "input": bytes([number, 255 - number]),
        }
        for number in range(20)
    ]


def logs() -> list[Row]:
    return [
        {
            "block_number": number // 2 + 1,
            "transaction_index": number % 2,
            "log_index": number % 2,
            "address": f"0xc{number % 3}",
            "topics": [f"0xt{number % 2}", *(f"0xp{index}" for index in range(number % 4))],
            "data": bytes(range(number)),
            "decoded": f'{{"event": "{"Transfer" if number % 2 else "Approval"}", "args": [{number}, {number * 2}]}}',
        }
        for number in range(20)
    ]


def transfers() -> list[Row]:
    return [
        {
            "block_number": number % 10 + 1,
            "log_index": number,
            "token": TOKENS[number % 3],
            "sender": f"0xs{number % 4}",
            "receiver": f"0xr{number % 5}",
            "amount": 2**200 + number * 10**18,
            "kind": ("move", "mint", "move", "burn")[number % 4],
            "moved_at": START + timedelta(hours=number),
            "meta": {"fee": number / 4, "route": [f"hop{index}" for index in range(number % 3)]},
        }
        for number in range(24)
    ]


def prices() -> list[Row]:
    return [
        {
            "token": token,
            "quoted_at": START + timedelta(hours=10 * step),
            "day": date(2026, 3, 1) + timedelta(days=step),
            "usd": 1.0 + index + step / 10,
            "symbol": token[:2].lower(),
        }
        for index, token in enumerate(TOKENS)
        for step in range(3)
    ]


ROWS = {"blocks": blocks, "transactions": transactions, "logs": logs, "transfers": transfers, "prices": prices}


def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:")
    for name, columns in RELATIONS.items():
        declared = ", ".join(f"{quote_name(column)} {kind}" for column, kind in columns.items())
        connection.execute(f"CREATE TABLE {name} ({declared})")
        rows = ROWS[name]()
        places = ", ".join(f"CAST(? AS {kind})" for kind in columns.values())
        for row in rows:
            values = [str(value) if columns[key] == "BIGNUM" else value for key, value in row.items()]
            connection.execute(f"INSERT INTO {name} VALUES ({places})", values)
    return connection


def sqlite_database() -> sqlite3.Connection:
    """The same rows in another engine."""
    connection = sqlite3.connect(":memory:")
    for name, columns in RELATIONS.items():
        connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
        for row in ROWS[name]():
            values = [_plain(value) for value in row.values()]
            connection.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(values))})", values)
    connection.execute("PRAGMA case_sensitive_like = on")
    return connection


def _plain(value: object) -> object:
    is_plain = isinstance(value, bool | float | bytes | None) or (isinstance(value, int) and value < 2**63)
    return value if is_plain else str(value)


def comparable_rows(rows: list[Any]) -> list[list[Any]]:
    return [[_cell(value) for value in row] for row in rows]


def _cell(value: object) -> object:
    """Engines differ in the types of numbers, of booleans and of JSON."""
    if isinstance(value, str):
        try:
            number = json.loads(value)
        except ValueError:
            return value
        return _cell(number) if isinstance(number, int) else value
    if isinstance(value, Decimal):
        return _cell(int(value)) if value == int(value) else round(float(value), 9)
    if isinstance(value, int) and abs(value) >= 2**53:
        return str(value)
    return round(float(value), 9) if isinstance(value, int | float) else value
