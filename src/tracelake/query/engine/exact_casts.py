"""Which conversions of DuckDB keep every value exactly as it is, or fail.

A file and a table of the same rows may have different types of a column: Parquet has unsigned integers, Postgres none.
A query sees one type. DuckDB also converts where that rounds, such as integers to DOUBLE or decimals to fewer places.
"""

import re

_INTEGERS = frozenset(
    {
        "TINYINT",
        "SMALLINT",
        "INTEGER",
        "BIGINT",
        "HUGEINT",
        "UTINYINT",
        "USMALLINT",
        "UINTEGER",
        "UBIGINT",
        "UHUGEINT",
    }
)
_TIMESTAMP = "TIMESTAMP WITH TIME ZONE"
_OTHERS = frozenset(
    {
        ("FLOAT", "DOUBLE"),
        ("JSON", "VARCHAR"),
        ("VARCHAR", "BIGNUM"),  # of digits alone, which whoever casts has to check
        ("TIMESTAMP", _TIMESTAMP),
        ("TIMESTAMP_MS", _TIMESTAMP),
        ("TIMESTAMP_S", _TIMESTAMP),
    }
)
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def is_exact(source: str, target: str) -> bool:
    """Whether a cast from one type to the other changes no value that it accepts."""
    if source == target or (source, target) in _OTHERS:
        return True
    source_places, target_places = _places(source), _places(target)
    if source_places is None:
        return False
    if target == "BIGNUM":
        return source in _INTEGERS
    return target_places is not None and target_places >= source_places


def _places(type_name: str) -> int | None:
    """Decimal places of a type of exact numbers; None for other types."""
    if type_name in _INTEGERS:
        return 0
    match = _DECIMAL.fullmatch(type_name)
    return int(match[2]) if match else None
