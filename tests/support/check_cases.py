"""Checks of a few rows and what is to be said of them, by whoever evaluates them: Spark, or the process of a feed."""

from collections.abc import Sequence
from typing import Any

from tracelake.model.dag import CheckKind, OutputCheck

K = CheckKind

# check, offending rows (None: it cannot be evaluated), a part of the message
CASES: list[tuple[dict[str, Any], int | None, str]] = [
    ({"kind": K.NOT_NULL, "columns": ("n",)}, 1, "n is null in 1 of 4 rows"),
    ({"kind": K.NOT_NULL, "columns": ("n", "t")}, 1, "n, t have a null"),
    ({"kind": K.NOT_NULL, "columns": ("nope",)}, None, "no column nope; it has n, t, f"),
    ({"kind": K.UNIQUE, "columns": ("n",)}, 2, "2 of 4 rows have the same n"),
    ({"kind": K.UNIQUE, "columns": ("n", "t")}, 0, ""),
    ({"kind": K.UNIQUE, "columns": ("b",)}, 0, ""),
    ({"kind": K.UNIQUE, "columns": ("m",)}, 0, ""),
    ({"kind": K.ACCEPTED_VALUES, "columns": ("t",), "values": ("a", "b", "c")}, 0, ""),
    ({"kind": K.ACCEPTED_VALUES, "columns": ("t",), "values": ("a", "it's; DROP TABLE x --", '"`')}, 2, "none of [a,"),
    ({"kind": K.ACCEPTED_VALUES, "columns": ("n",), "values": (1, "2")}, 0, ""),
    ({"kind": K.ACCEPTED_VALUES, "columns": ("n",), "values": (1, "9" * 60)}, 2, "n is none of"),
    ({"kind": K.ACCEPTED_VALUES, "columns": ("n",), "values": ("one",)}, None, "write a number"),
    ({"kind": K.ACCEPTED_VALUES, "columns": ("b",), "values": ("0x00ff", "0x", "0xAB")}, 0, ""),
    ({"kind": K.ACCEPTED_VALUES, "columns": ("b",), "values": ("0x00ff",)}, 2, "b is none of"),
    ({"kind": K.ACCEPTED_VALUES, "columns": ("flag",), "values": (True,)}, 1, "flag is none of"),
    ({"kind": K.ACCEPTED_VALUES, "columns": ("day",), "values": ("2024-01-01", "2024-06-01")}, 1, "day"),
    ({"kind": K.ACCEPTED_VALUES, "columns": ("at",), "values": ("2024-01-01T01:00:00+01:00",)}, 2, "at"),
    ({"kind": K.ACCEPTED_VALUES, "columns": ("f",), "values": (1.5, -1)}, 1, "f is none of"),
    ({"kind": K.ACCEPTED_VALUES, "columns": ("m",), "values": ("x",)}, None, "cannot be evaluated"),
    ({"kind": K.RANGE, "columns": ("n",), "min": 1, "max": 2}, 0, ""),
    ({"kind": K.RANGE, "columns": ("n",), "min": 1.5}, 1, "n is not at least 1.5 in 1 of 4 rows"),
    ({"kind": K.RANGE, "columns": ("f",), "min": -10}, 1, "f is not at least -10"),  # NaN
    ({"kind": K.RANGE, "columns": ("f",), "min": -10, "max": 10}, 1, "f is not -10 to 10"),
    ({"kind": K.RANGE, "columns": ("d",), "min": 0}, 1, "d is not at least 0"),
    ({"kind": K.RANGE, "columns": ("d",), "max": "99999999999999999999999999999999999.98"}, 1, "d is not at most"),
    ({"kind": K.RANGE, "columns": ("d",), "max": "9" * 70}, 0, ""),
    ({"kind": K.RANGE, "columns": ("day",), "min": "2024-01-01", "max": "2024-12-31"}, 1, "day is not 2024-01-01 to"),
    ({"kind": K.RANGE, "columns": ("at",), "max": "2024-06-01T12:00:00"}, 1, "at is not at most"),
    ({"kind": K.RANGE, "columns": ("t",), "min": "a"}, None, "is string"),
    ({"kind": K.ROW_COUNT, "min": 1, "max": 4}, 0, ""),
    ({"kind": K.ROW_COUNT, "min": 5}, 4, "the unit has 4 rows, expected at least 5"),
    ({"kind": K.ROW_COUNT, "max": 3}, 4, "the unit has 4 rows, expected at most 3"),
    ({"kind": K.SQL, "query": "SELECT t, n FROM output WHERE n = 2"}, 2, "the query returns 2 rows"),
    ({"kind": K.SQL, "query": "SELECT * FROM output WHERE t = 'zz'"}, 0, ""),
    ({"kind": K.SQL, "query": "SELECT n FROM output WHERE 1 / (n - 2) > 0"}, None, "DIVIDE_BY_ZERO"),
    ({"kind": K.SQL, "query": "SELECT nope FROM output"}, None, "cannot be evaluated"),
    ({"kind": K.SQL, "query": "SELECT n FROM elsewhere"}, None, "cannot be evaluated"),
    ({"kind": K.SQL, "query": "SELECT n FROM output WHERE n > ${end}"}, 0, ""),
]


def make_checks(cases: Sequence[dict[str, Any]]) -> list[OutputCheck]:
    return [OutputCheck(name=f"check_{number}", **case) for number, case in enumerate(cases)]
