"""Checks what functions published: the same is computed here from the decoded transfers, and must be equal."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tracelake.demo.function_runs import FunctionStory, PublishedTable
from tracelake.demo.plan import DemoPlan

_PERCENT = 50
"""The share of a token that its whales have sent; `config` of the function has the same."""
_TITLES = {
    "whales": "the {rows:,} whales are those of the transfers, by exact amounts",
    "mint_alerts": "each of {rows:,} mints has its alert, with the exact amount",
    "token_totals": "the {rows:,} totals of tokens are those of the transfers",
}


@dataclass(frozen=True, slots=True)
class Check:
    said: str
    right: bool


def verify_functions(
    plan: DemoPlan, story: FunctionStory, transfers: pa.Table, tables: Mapping[str, PublishedTable]
) -> list[Check]:
    if story.problem is not None:
        return []
    rows = transfers.to_pylist()
    computations = {"whales": compute_whales, "mint_alerts": compute_mints, "token_totals": compute_totals}
    checks = []
    for function in story.functions:
        expected = sorted(computations[function.dataset](plan, rows))
        actual = sorted(tuple(row[name] for name in COLUMNS[function.dataset]) for row in tables[function.dataset].rows)
        title = f"{_TITLES[function.dataset].format(rows=len(expected))} ({function.title})"
        checks.append(Check(title, actual == expected))
    refused = sum(attempt.refused for attempt in story.attempts)
    return [
        *checks,
        Check(f"the hostile function got nothing: {refused} attempts were refused", _all_refused(story)),
        Check(
            f"its memory has a limit, too; the runner went on, and ran {story.runs_afterwards} functions after it",
            story.memory_end.startswith("memory") and story.runner_restarts == 0,
        ),
    ]


def _all_refused(story: FunctionStory) -> bool:
    return bool(story.attempts) and all(attempt.refused for attempt in story.attempts)


COLUMNS = {
    "whales": ("first_block", "token", "place", "address", "amount"),
    "mint_alerts": ("block_number", "tx", "token", "receivers", "amount"),
    "token_totals": ("first_block", "token", "standard", "transfers", "senders", "receivers", "share"),
}


def compute_whales(plan: DemoPlan, transfers: Iterable[Mapping[str, Any]]) -> Iterable[tuple[Any, ...]]:
    volumes: dict[tuple[int, bytes], Counter[bytes]] = {}
    for row in transfers:
        if row["standard"] == "erc20" and any(row["from_address"]):
            senders = volumes.setdefault((plan.unit_start(row["block_number"]), row["token"]), Counter())
            senders[row["from_address"]] += int(row["amount_string"])
    for (first_block, token), senders in volumes.items():
        total, before = sum(senders.values()), 0
        largest = sorted(senders, key=lambda address: (-senders[address], address))
        for place, address in enumerate(largest, start=1):
            if before * 100 < _PERCENT * total:
                yield first_block, token, place, address, str(senders[address])
            before += senders[address]


def compute_mints(_plan: DemoPlan, transfers: Iterable[Mapping[str, Any]]) -> Iterable[tuple[Any, ...]]:
    mints: dict[tuple[int, bytes, bytes], list[tuple[bytes, int]]] = {}
    for row in transfers:
        if row["standard"] == "erc20" and not any(row["from_address"]):
            key = (row["block_number"], row["transaction_hash"], row["token"])
            mints.setdefault(key, []).append((row["to_address"], int(row["amount_string"])))
    for key, receipts in mints.items():
        yield (*key, len({receiver for receiver, _ in receipts}), str(sum(amount for _, amount in receipts)))


def compute_totals(plan: DemoPlan, transfers: Iterable[Mapping[str, Any]]) -> Iterable[tuple[Any, ...]]:
    tokens: dict[tuple[int, bytes, str], list[tuple[bytes, bytes]]] = {}
    all_transfers: Counter[int] = Counter()
    for row in transfers:
        first_block = plan.unit_start(row["block_number"])
        all_transfers[first_block] += 1
        tokens.setdefault((first_block, row["token"], row["standard"]), []).append(
            (row["from_address"], row["to_address"])
        )
    for key, pairs in tokens.items():
        senders, receivers = ({pair[side] for pair in pairs} for side in (0, 1))
        yield *key, len(pairs), len(senders), len(receivers), len(pairs) / all_transfers[key[0]]
