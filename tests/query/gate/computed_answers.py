"""More answers of the legitimate corpus: those of many rows, computed by plain Python from the same rows."""

import math
import statistics
from collections import Counter
from datetime import date, datetime, timedelta
from itertools import pairwise, product
from typing import Any

from tests.query.gate.sample_data import TOKENS, blocks, logs, prices, transactions, transfers

_KINDS = ("burn", "mint", "move")
_NAMES = sorted(TOKENS)
_PAIRS = Counter((row["token"], row["kind"]) for row in transfers())
_PRICES = [tuple(row.values()) for row in sorted(prices(), key=lambda row: (row["token"], row["day"]))]
_GAS = [row["gas_used"] for row in blocks()]


def _count(token: str | None, kind: str | None) -> int:
    return sum(n for (t, k), n in _PAIRS.items() if token in (None, t) and kind in (None, k))


def _indexes(token: str, kind: str) -> list[int]:
    return [row["log_index"] for row in transfers() if (row["token"], row["kind"]) == (token, kind)]


def _full_join() -> list[tuple[Any, ...]]:
    left = {(row["block_number"], row["log_index"]) for row in transfers()}
    right = {(row["block_number"], row["log_index"]) for row in logs()}
    rows = [(n, i if (n, i) in left else None, i if (n, i) in right else None) for n, i in left | right]
    return sorted(rows, key=lambda row: [(value is None, value or 0) for value in row])


def _last_seen() -> list[tuple[Any, ...]]:
    rows, last = [], None
    for row in transactions():
        last = row["to_address"] or last
        rows.append((row["block_number"], row["transaction_index"], last))
    return rows


def _sessions(sender: str) -> int:
    times: list[datetime] = [row["moved_at"] for row in transfers() if row["sender"] == sender]
    return 1 + sum(later - earlier > timedelta(hours=4) for earlier, later in pairwise(times))


def _price_at(row: dict[str, Any]) -> float:
    quoted = [p for p in prices() if p["token"] == row["token"] and p["quoted_at"] <= row["moved_at"]]
    usd: float = max(quoted, key=lambda p: p["quoted_at"])["usd"]
    return usd


def _entropy(values: list[str]) -> float:
    return -sum(n / len(values) * math.log2(n / len(values)) for n in Counter(values).values())


COMPUTED: dict[str, list[tuple[Any, ...]]] = {
    "aggregates-rollup": [
        *((token, kind, _count(token, kind)) for token in _NAMES for kind in (*_KINDS, None)),
        (None, None, 24),
    ],
    "aggregates-cube_with_grouping": [
        *((token, kind, 0, _count(token, kind)) for token, kind in product(_NAMES, _KINDS)),
        *((token, None, 1, _count(token, None)) for token in _NAMES),
        *((None, kind, 2, _count(None, kind)) for kind in _KINDS),
        (None, None, 3, 24),
    ],
    "aggregates-grouping_sets": [
        *((token, None, _count(token, None)) for token in _NAMES),
        *((None, kind, _count(None, kind)) for kind in _KINDS),
        (None, None, 24),
    ],
    "aggregates-standard_deviation": [(round(statistics.pstdev(_GAS), 3), round(statistics.variance(_GAS), 3))],
    "aggregates-product_and_entropy": [
        (math.prod(row["base_fee"] for row in blocks()), round(_entropy([row["author"] for row in blocks()]), 4))
    ],
    "approximate-approx_count_distinct": [(True,)],
    "approximate-approx_quantile": [(True,)],
    "approximate-approx_quantile_of_a_list": [(2,)],
    "approximate-mad_and_skewness": [(statistics.median(abs(gas - statistics.median(_GAS)) for gas in _GAS), 0.0)],
    "ctes-recursive_dates": [(date(2026, 3, day),) for day in range(1, 6)],
    "ctes-recursion_using_a_key": [(node, 2 * (node - 1)) for node in range(1, 6)],
    "dates-age": [(timedelta(days=4),)],
    "dates-current_date": [(True, True)],
    "joins-right_join": [
        (row["block_number"], index)
        for row in blocks()
        for index in [
            t["log_index"] for t in transfers() if (t["block_number"], t["kind"]) == (row["block_number"], "mint")
        ]
        or [None]
    ],
    "joins-full_join": _full_join(),
    "joins-asof_left_join": [(row["log_index"], row["token"], _price_at(row)) for row in transfers()],
    "joins-natural_join": [
        (
            sum(
                (t["block_number"], t["transaction_index"]) == (log["block_number"], log["transaction_index"])
                for t, log in product(transactions(), logs())
            ),
        )
    ],
    "joins-positional_join": [
        (number, row["token"]) for number, row in zip((1, 2, 3), sorted(prices(), key=lambda p: p["usd"]), strict=False)
    ],
    "joins-join_by_a_range": [(row["log_index"], row["moved_at"].date()) for row in transfers()],
    "lists_and_structs-unnest_with_ordinality": sorted(
        pair for row in logs() if row["block_number"] == 2 for pair in zip(row["topics"], range(1, 9), strict=False)
    ),
    "lists_and_structs-whole_row_as_a_struct": [
        (dict(zip(("token", "quoted_at", "day", "usd", "symbol"), _PRICES[0], strict=True)),)
    ],
    "pivots-pivot_with_two_aggregates": [
        (kind, *(value for token in ("HUSD", "GOLD") for value in (_count(token, kind), max(_indexes(token, kind)))))
        for kind in _KINDS
    ],
    "pivots-pivot_clause": [
        (token, *(sum(_indexes(token, kind)) for kind in ("move", "mint", "burn"))) for token in _NAMES
    ],
    "pivots-pivot_in_a_subquery": [(token, _count(token, "mint")) for token in _NAMES],
    "pivots-pivot_in_a_CTE": [
        (
            day,
            *(max(p["usd"] for p in prices() if (p["day"], p["token"]) == (day, token)) for token in ("HUSD", "ACME")),
        )
        for day in sorted({row["day"] for row in prices()})
    ],
    "pivots-unpivot_clause": [
        (row["block_number"], name, row[name]) for row in blocks() for name in ("base_fee", "gas_used")
    ],
    "pivots-unpivot_with_nulls": [(2 * len(transactions()),)],
    "sets_and_values-except_all": [
        (token,)
        for token, n in sorted(
            (Counter(t["token"] for t in transfers()) - Counter(p["token"] for p in prices())).items()
        )
        for _ in range(n)
    ],
    "sets_and_values-FROM_alone": _PRICES,
    "sets_and_values-TABLE": [tuple(row.values()) for row in prices()],
    "sets_and_values-star_exclude": [
        tuple(value for name, value in row.items() if name not in ("extra", "block_hash")) for row in blocks()
    ],
    "sets_and_values-star_replace": [tuple((row | {"gas_used": row["block_number"]}).values()) for row in blocks()],
    "sets_and_values-star_rename": _PRICES,
    "sets_and_values-columns_by_a_lambda": sorted((t["gas_used"], t["gas_price"]) for t in transactions())[:2],
    "sets_and_values-qualified_star": [(*row, 0) for row in _PRICES if row[0] == "HUSD"],
    "sets_and_values-sample": [(True,)],
    "sets_and_values-order_by_all": sorted((row["token"], row["usd"]) for row in prices()),
    "text_and_regex-quoted_alias": [(min(row["author"] for row in blocks()),)],
    "windows-range_frame_over_time": [(index, min(index, 3) + 1) for index in range(24)],
    "windows-ignore_nulls": _last_seen(),
    "windows-sessions": [(f"0xs{number}", _sessions(f"0xs{number}")) for number in range(4)],
    "windows-distinct_aggregate_over_a_window": [
        (index, len({row["token"] for row in transfers()[: index + 1]})) for index in range(24)
    ],
}
