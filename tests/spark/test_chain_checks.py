"""The checks of whole columns find what a slow walk through rows finds, in any chain however broken."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.spark import chain_checks

FIRST, LAST = 2, 4
Row = dict[str, Any]
HASHES = st.sampled_from([b"a", b"b", None])
SMALL = st.one_of(st.integers(0, 3), st.none())
BLOCK_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "block_number": st.integers(FIRST - 1, LAST + 1),
            "block_hash": HASHES,
            "parent_hash": HASHES,
            "timestamp": SMALL,
            "gas_used": SMALL,
            "transaction_count": SMALL,
            "log_count": SMALL,
        }
    ),
    max_size=10,
)
TRANSACTION_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "block_number": st.integers(FIRST, LAST),
            "transaction_index": st.integers(0, 2),
            "transaction_hash": HASHES,
            "gas_used": SMALL,
        }
    ),
    max_size=6,
)
LOG_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "block_number": st.integers(FIRST, LAST),
            "log_index": st.integers(0, 2),
            "transaction_index": st.integers(0, 2),
            "transaction_hash": HASHES,
        }
    ),
    max_size=6,
)
NUMBER, BYTES = pa.uint64(), pa.binary()


def _table(rows: list[Row], columns: tuple[str, ...]) -> pa.Table:
    names = ("block_number", *columns)
    return pa.Table.from_pylist(
        rows, pa.schema([(name, BYTES if name.endswith("_hash") else NUMBER) for name in names])
    )


def _hex(value: bytes | None) -> str:
    return "nothing" if value is None else "0x" + value.hex()


def _extremes(rows: list[Row], name: str) -> tuple[Any, Any]:
    """The lowest and the highest value; nulls are no values."""
    values = [row[name] for row in rows if row[name] is not None]
    return (min(values), max(values)) if values else (None, None)


def _expected(blocks: list[Row], transactions: list[Row], logs: list[Row]) -> list[tuple[Any, ...]]:
    by_number = {n: [row for row in blocks if row["block_number"] == n] for n in range(FIRST - 1, LAST + 2)}
    findings: list[tuple[Any, ...]] = []
    before = FIRST - 1
    for number in range(FIRST, LAST + 2):
        here, inside = by_number[number], number <= LAST
        if (here or not inside) and number - before > 1:
            findings.append(("gap", before + 1, str(number - before - 1), "0"))
        if inside and len(here) > 1:
            findings.append(("duplicate_block", number, "1", str(len(here))))
        if here and by_number[number - 1]:
            parents, hashes = _extremes(here, "parent_hash"), _extremes(by_number[number - 1], "block_hash")
            if any(parent != block for parent in parents for block in hashes):
                parent, block = (parents[0], hashes[0]) if parents[0] != hashes[0] else (parents[1], hashes[1])
                findings.append(("parent_hash", number if inside else LAST, _hex(block), _hex(parent)))
            oldest, newest = _extremes(here, "timestamp")[0], _extremes(by_number[number - 1], "timestamp")[1]
            if inside and oldest is not None and newest is not None and oldest < newest:
                findings.append(("timestamp", number, f"at least {newest}", str(oldest)))
        if inside:
            findings += _of_content(number, here, transactions, logs)
        before = number if here else before
    return findings + _of_hashes(transactions, logs)


def _of_content(number: int, blocks: list[Row], transactions: list[Row], logs: list[Row]) -> list[tuple[Any, ...]]:
    findings: list[tuple[Any, ...]] = []
    declared = []
    for one, rows in (("transaction", transactions), ("log", logs)):
        places = [row[f"{one}_index"] for row in rows if row["block_number"] == number]
        if places and sorted(places) != list(range(len(places))):
            actual = f"{min(places)} to {max(places)}, {len(set(places))} of them"
            findings.append((f"{one}_index", number, f"0 to {len(places) - 1}", actual))
        if places and not blocks:
            findings.append((f"{one}_block", number, "0", str(len(places))))
        declared.append((f"{one}_count", len(places)))
    declared.append(("gas_used", sum(row["gas_used"] or 0 for row in transactions if row["block_number"] == number)))
    for column, total in declared:
        low, high = _extremes(blocks, column)
        if blocks and (low != total or high != total):
            findings.append((column, number, str((high if low == total else low) or 0), str(total)))
    return findings


def _of_hashes(transactions: list[Row], logs: list[Row]) -> list[tuple[Any, ...]]:
    findings: list[tuple[Any, ...]] = []
    for value, count in Counter(row["transaction_hash"] for row in transactions).items():
        if count > 1:
            at = min(row["block_number"] for row in transactions if row["transaction_hash"] == value)
            findings.append(("duplicate_transaction", at, "1", str(count)))
    places = [tuple(row[name] for name in ("block_number", "transaction_index", "transaction_hash")) for row in logs]
    known = {
        tuple(row[name] for name in ("block_number", "transaction_index", "transaction_hash")) for row in transactions
    }
    for number, count in Counter(place[0] for place in places if place not in known).items():
        findings.append(("log_transaction", number, "0", str(count)))
    return findings


@given(BLOCK_ROWS, TRANSACTION_ROWS, LOG_ROWS)
def test_any_chain(blocks: list[Row], transactions: list[Row], logs: list[Row]) -> None:
    transaction_table = _table(transactions, chain_checks.TRANSACTION_COLUMNS)
    sums = chain_checks.sum_by_block(transaction_table, _table(logs, chain_checks.LOG_COLUMNS))
    sums = pa.concat_tables([sums, chain_checks.find_repeats(transaction_table)])
    block_table = _table(blocks, chain_checks.BLOCK_COLUMNS)
    tables = ("transactions", "logs", "gas")
    table = chain_checks.find_in_blocks(block_table, sums, FIRST, LAST, tables=tables)
    rows = [(row["check"], row["block_number"], row["expected"], row["found"]) for row in table.to_pylist()]
    assert sorted(rows) == sorted(_expected(blocks, transactions, logs))
    assert rows == sorted(rows, key=lambda row: (row[1], row[0]))


@pytest.mark.parametrize("which", ["block_hash", "parent_hash"])
def test_of_two_blocks_with_one_number_each_must_fit(which: str) -> None:
    rows: list[Row] = [
        {"block_number": FIRST, "block_hash": b"a", "parent_hash": b"x"},
        {"block_number": FIRST + 1, "block_hash": b"b", "parent_hash": b"a"},
    ]
    rows.append(rows[0 if which == "block_hash" else 1] | {which: b"z"})
    columns = ("block_hash", "parent_hash")
    sums = chain_checks.sum_by_block(None, None)
    table = chain_checks.find_in_blocks(_table(rows, columns), sums, FIRST, FIRST + 1, tables=())
    assert ("parent_hash", FIRST + 1) in [(row["check"], row["block_number"]) for row in table.to_pylist()]


@pytest.mark.parametrize(("gas", "found"), [(2**63 - 1, str(2**63 - 1)), (2**63, "0"), (2**64 - 1, "0")])
def test_numbers_that_are_too_large_are_found_wrong(gas: int, found: str) -> None:
    blocks = _table([{"block_number": FIRST, "gas_used": 1}], ("gas_used",))
    transactions = _table(
        [{"block_number": FIRST, "transaction_index": 0, "gas_used": gas}], ("transaction_index", "gas_used")
    )
    sums = chain_checks.sum_by_block(transactions, None)
    table = chain_checks.find_in_blocks(blocks, sums, FIRST, FIRST, tables=("transactions", "gas"))
    assert [(row["check"], row["found"]) for row in table.to_pylist()] == [("gas_used", found)]


def test_sums_do_not_wrap_around() -> None:
    blocks = _table([{"block_number": FIRST, "gas_used": 0}], ("gas_used",))
    rows = [{"block_number": FIRST, "transaction_index": n, "gas_used": 2**63 - 1} for n in range(3)]
    sums = chain_checks.sum_by_block(_table(rows, ("transaction_index", "gas_used")), None)
    assert sums["gas"].to_pylist() == [None]
    table = chain_checks.find_in_blocks(blocks, sums, FIRST, FIRST, tables=("transactions",))
    assert table.num_rows == 0
