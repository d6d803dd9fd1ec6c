"""What is wrong with a range of a chain, found in Arrow tables: whole columns at a time, without Spark.

Transactions and logs are summed up by block (`sum_by_block`), in as many parts as wanted. One walk through the blocks
in their order (`find_in_blocks`) compares each with the block before it and with its sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ERROR, WARNING = "error", "warning"
FINDINGS = pa.schema(
    [
        ("check", pa.string()),
        ("block_number", pa.int64()),
        ("severity", pa.string()),
        ("expected", pa.string()),
        ("found", pa.string()),
        ("detail", pa.string()),
    ]
)
ORDER = ("block_number", "check")
BLOCK_COLUMNS = ("block_hash", "parent_hash", "timestamp", "gas_used", "transaction_count", "log_count")
TRANSACTION_COLUMNS = ("transaction_index", "transaction_hash", "gas_used")
LOG_COLUMNS = ("log_index", "transaction_index", "transaction_hash")
_KINDS = (("transactions", "transaction"), ("logs", "log"))
_SUMS = [f"{word}{kind}" for kind, _ in _KINDS for word in ("", "different_", "lowest_", "highest_")]
SUMS = pa.schema(
    [(name, pa.int64()) for name in ("number", *_SUMS, "gas", "strays", "repeats")] + [("hash", pa.binary())]
)
"""A row for each block with transactions or logs, and for each transaction hash that repeats (`repeats`, `hash`)."""
_INT64_MAX = 2**63 - 1
Values: TypeAlias = pa.Array


@dataclass(slots=True)
class Findings:
    """Rows of `FINDINGS`, in any order."""

    rows: list[tuple[str, int, str, str | None, str | None, str]] = field(default_factory=list)

    def add(self, check: str, at: int, expected: object, actual: object, detail: str, severity: str = ERROR) -> None:
        first, second = (None if value is None else str(value) for value in (expected, actual))
        self.rows.append((check, at, severity, first, second, detail))

    def table(self) -> pa.Table:
        """Sorted by block and check."""
        columns = [list(column) for column in zip(*self.rows, strict=True)] or [[] for _ in FINDINGS]
        table = pa.table(
            [pa.array(column, kind.type) for column, kind in zip(columns, FINDINGS, strict=True)], FINDINGS
        )
        return table.sort_by([(name, "ascending") for name in ORDER])


def sum_by_block(transactions: pa.Table | None, logs: pa.Table | None) -> pa.Table:
    """Sums of all blocks in these tables."""
    by_block: dict[int, dict[str, Any]] = {}
    if transactions is not None:
        gas = {"gas": _to_int64(transactions["gas_used"])} if "gas_used" in transactions.column_names else {}
        _add_sums(by_block, transactions, "transaction_index", "transactions", gas)
    if logs is not None:
        _add_sums(by_block, logs, "log_index", "logs", {})
    if transactions is not None and logs is not None and {*LOG_COLUMNS} <= {*logs.column_names}:
        for number, count in _count_strays(transactions, logs):
            by_block[number]["strays"] = count
    rows = [{"number": number, **by_block[number]} for number in sorted(by_block)]
    return pa.Table.from_pylist(rows, SUMS)


def find_repeats(transactions: pa.Table) -> pa.Table:
    """Hashes that occur more than once, each with the first block that it is in."""
    hashes = pa.table({"hash": transactions["transaction_hash"], "number": _to_int64(transactions["block_number"])})
    counts = hashes.group_by("hash", use_threads=False).aggregate([([], "count_all"), ("number", "min")])
    repeats = counts.filter(pc.greater(counts["count_all"], 1))
    rows = [
        {"number": row["number_min"], "repeats": row["count_all"], "hash": row["hash"]} for row in repeats.to_pylist()
    ]
    return pa.Table.from_pylist(rows, SUMS)


def _add_sums(
    by_block: dict[int, dict[str, Any]], table: pa.Table, index: str, kind: str, more: dict[str, pa.Array]
) -> None:
    columns = {"number": _to_int64(table["block_number"]), "place": _to_int64(table[index]), **more}
    aggregates: list[Any] = [([], "count_all"), ("place", "count_distinct"), ("place", "min"), ("place", "max")]
    if "gas" in columns and (pc.max(columns["gas"]).as_py() or 0) * table.num_rows > _INT64_MAX:
        columns["gas"] = columns["gas"].cast(pa.decimal128(38, 0))  # a sum of int64 would wrap around
    sums = pa.table(columns).group_by("number", use_threads=False)
    totals = sums.aggregate([*aggregates, *((name, "sum") for name in more)])
    for row in totals.to_pylist():
        block = by_block.setdefault(row["number"], {})
        block[kind], block[f"different_{kind}"] = row["count_all"], row["place_count_distinct"]
        block[f"lowest_{kind}"], block[f"highest_{kind}"] = row["place_min"], row["place_max"]
        if "gas" in columns:
            total = row["gas_sum"]
            block["gas"] = None if total is None or int(total) > _INT64_MAX else int(total)


def _count_strays(transactions: pa.Table, logs: pa.Table) -> list[tuple[int, int]]:
    """For each block the number of its logs whose transaction is not there."""

    def places(table: pa.Table) -> pa.Table:
        return pa.table(
            {
                "number": _to_int64(table["block_number"]),
                "index": pc.fill_null(_to_int64(table["transaction_index"]), -1),
                "hash": pc.fill_null(table["transaction_hash"].cast(pa.binary()), b""),
            }
        )

    keys = ["number", "index", "hash"]
    existing_places = places(transactions).group_by(keys, use_threads=False).aggregate([])
    strays = places(logs).join(existing_places, keys, join_type="left anti", use_threads=False)
    counts = strays.group_by("number", use_threads=False).aggregate([([], "count_all")])
    return list(zip(counts["number"].to_pylist(), counts["count_all"].to_pylist(), strict=True))


def find_in_blocks(blocks: pa.Table, sums: pa.Table, first: int, last: int, *, tables: Sequence[str]) -> pa.Table:
    """All findings of the unit. `blocks` may have the block before it and the block after it, which are looked at for
    what joins them to the unit. `tables`: which of transactions and logs, and of their columns, were summed up."""
    repeats = sums.filter(pc.is_valid(sums["repeats"]))
    walk = _Walk.begin(blocks, sums.filter(pc.is_null(sums["repeats"])), first, last)
    walk.check_order()
    if {"block_hash", "parent_hash"} <= {*blocks.column_names}:
        walk.check_parents()
    if "timestamp" in blocks.column_names:
        walk.check_timestamps()
    for kind, one in _KINDS:
        if kind in tables:
            walk.check_indexes(kind, one)
            if f"{one}_count" in blocks.column_names:
                walk.check_declared(f"{one}_count", f"{one}_count", kind)
    if "gas" in tables and "gas_used" in blocks.column_names:
        walk.check_declared("gas_used", "gas_used", "gas")
    walk.check_strays()
    for row in repeats.to_pylist():
        walk.findings.add("duplicate_transaction", row["number"], 1, row["repeats"], _hex(row["hash"]))
    return walk.findings.table()


@dataclass(slots=True)
class _Walk:
    """A row for each number that anything is known of, in order: the block before the unit is the first row, the
    block after it the last."""

    number: np.ndarray[Any, np.dtype[np.int64]]
    columns: dict[str, Values]
    count: np.ndarray[Any, np.dtype[np.int64]]
    """Blocks with this number."""
    before: np.ndarray[Any, np.dtype[np.int64]]
    """For each row, the row of the last block before it that is there. The first row has none."""
    findings: Findings = field(default_factory=Findings)

    @classmethod
    def begin(cls, blocks: pa.Table, sums: pa.Table, first: int, last: int) -> "_Walk":
        totals = _total_blocks(blocks)
        ends = np.array([first - 1, last + 1])
        number = np.unique(np.concatenate([totals["number"].to_numpy(), sums["number"].to_numpy(), ends]))
        columns = _align(totals, number) | _align(sums, number)
        count = pc.fill_null(columns["blocks"], 0).to_numpy(zero_copy_only=False)
        rows = np.arange(len(number))
        is_known = (count > 0) | (rows == 0)
        latest = np.maximum.accumulate(np.where(is_known, rows, 0))
        return cls(number, columns, count, np.concatenate([[0], latest[:-1]]))

    def _is_inside(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        rows = np.arange(len(self.number))
        inside: np.ndarray[Any, np.dtype[np.bool_]] = (rows > 0) & (rows < len(rows) - 1)
        return inside

    def _follows(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Rows whose block is there, and so is the block with the number before."""
        adjacent: np.ndarray[Any, np.dtype[np.bool_]] = self.number[self.before] == self.number - 1
        present: np.ndarray[Any, np.dtype[np.bool_]] = (self.count > 0) & (self.count[self.before] > 0)
        return present & adjacent

    def _previous(self, name: str) -> Values:
        return self.columns[name].take(pa.array(self.before))

    def check_order(self) -> None:
        numbers, before = self.number, self.number[self.before]
        end = len(numbers) - 1
        present = self.count > 0
        present[0], present[end] = False, True
        for row in np.flatnonzero(present & (numbers - before > 1)).tolist():
            first, last = int(before[row]) + 1, int(numbers[row]) - 1
            self.findings.add("gap", first, last - first + 1, 0, f"blocks {first} to {last} are missing")
        for row in np.flatnonzero((self.count > 1) & self._is_inside()).tolist():
            number, count = int(numbers[row]), int(self.count[row])
            self.findings.add("duplicate_block", number, 1, count, "the block is there more than once")

    def check_parents(self) -> None:
        """Of two blocks with one number, what is shown is a pair that does not fit."""
        parents = [self.columns[f"{which}_parent_hash"] for which in ("min", "max")]
        hashes = [self._previous(f"{which}_block_hash") for which in ("min", "max")]
        broken = np.zeros(len(self.number), bool)
        for parent in parents:
            for block in hashes:
                broken |= ~_same(parent, block)
        for row in np.flatnonzero(self._follows() & broken).tolist():
            parent, block = parents[0][row].as_py(), hashes[0][row].as_py()
            if parent == block:
                parent, block = parents[1][row].as_py(), hashes[1][row].as_py()
            is_after = row == len(self.number) - 1
            at = int(self.number[row]) - (1 if is_after else 0)
            detail = "the block after it has another parent" if is_after else "the parent is not the block before"
            self.findings.add("parent_hash", at, _hex(block), _hex(parent), detail)

    def check_timestamps(self) -> None:
        times, previous = self.columns["min_timestamp"], self._previous("max_timestamp")
        earlier = _true(pc.less(times, previous))
        for row in np.flatnonzero(self._follows() & earlier & self._is_inside()).tolist():
            self.findings.add(
                "timestamp",
                int(self.number[row]),
                f"at least {previous[row].as_py()}",
                times[row].as_py(),
                "the block is older than the one before",
                WARNING,
            )

    def check_indexes(self, kind: str, one: str) -> None:
        """From 0 on, each once; of a block that is there."""
        names = ("", "different_", "lowest_", "highest_")
        n, different, lowest, highest = (self.columns[f"{word}{kind}"] for word in names)
        right = _true(pc.equal(lowest, 0)) & _true(pc.equal(highest, pc.subtract(n, 1))) & _true(pc.equal(different, n))
        some = _true(pc.greater(n, 0))
        for row in np.flatnonzero(some & ~right).tolist():
            low, high = lowest[row].as_py(), highest[row].as_py()
            actual = None if low is None else f"{low} to {high}, {different[row].as_py()} of them"
            detail = f"{kind} are missing or there more than once"
            self.findings.add(f"{one}_index", int(self.number[row]), f"0 to {n[row].as_py() - 1}", actual, detail)
        for row in np.flatnonzero(some & (self.count == 0)).tolist():
            detail = f"{kind} of a block that is not there"
            self.findings.add(f"{one}_block", int(self.number[row]), 0, n[row].as_py(), detail)

    def check_declared(self, check: str, column: str, total: str) -> None:
        """What a block says of its content against the sum of it."""
        sums = pc.fill_null(self.columns[total], 0)
        lowest, highest = self.columns[f"min_{column}"], self.columns[f"max_{column}"]
        right = _true(pc.equal(lowest, sums)) & _true(pc.equal(highest, sums))
        for row in np.flatnonzero((self.count > 0) & ~right & self._is_inside()).tolist():
            actual = sums[row].as_py()
            declared = highest[row].as_py() if lowest[row].as_py() == actual else lowest[row].as_py()
            self.findings.add(check, int(self.number[row]), declared or 0, actual, f"the block says {column}")

    def check_strays(self) -> None:
        strays = self.columns["strays"]
        for row in np.flatnonzero(_true(pc.greater(strays, 0))).tolist():
            detail = "logs of a transaction that is not there"
            self.findings.add("log_transaction", int(self.number[row]), 0, strays[row].as_py(), detail)


def _total_blocks(blocks: pa.Table) -> pa.Table:
    """A row for each number: how many blocks have it, and the lowest and highest of their values."""
    names = [name for name in BLOCK_COLUMNS if name in blocks.column_names]
    columns = {"number": _to_int64(blocks["block_number"])}
    for name in names:
        columns[name] = blocks[name].cast(pa.binary()) if name.endswith("_hash") else _to_int64(blocks[name])
    functions: list[Any] = [(name, of) for name in names for of in ("min", "max")]
    totals = pa.table(columns).group_by("number", use_threads=False).aggregate([([], "count_all"), *functions])
    renamed = {f"{name}_{of}": f"{of}_{name}" for name in names for of in ("min", "max")} | {"count_all": "blocks"}
    return totals.rename_columns([renamed.get(name, name) for name in totals.column_names])


def _align(table: pa.Table, number: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Values]:
    """The columns with a row for each number; null where the table has none."""
    table = table.sort_by("number")
    numbers = table["number"].to_numpy()
    rows = np.searchsorted(numbers, number)
    missing = rows == len(numbers)
    rows[missing] = 0
    if len(numbers):
        missing |= numbers[rows] != number
    indices = pa.array(rows, mask=missing)
    return {name: table[name].combine_chunks().take(indices) for name in table.column_names if name != "number"}


def _to_int64(column: pa.ChunkedArray) -> pa.Array:
    """As numbers that can be added up quickly. What is too large for that becomes null, and so is found wrong."""
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], column.type)
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        return pa.array([_to_int(value) for value in values.to_pylist()], pa.int64())


def _to_int(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) <= _INT64_MAX else None


def _same(one: Values, other: Values) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Equal, or both null."""
    both_null: np.ndarray[Any, np.dtype[np.bool_]] = _true(pc.and_(pc.is_null(one), pc.is_null(other)))
    return _true(pc.equal(one, other)) | both_null


def _true(condition: Values) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Null is false."""
    flags: np.ndarray[Any, np.dtype[np.bool_]] = pc.fill_null(condition, False).to_numpy(zero_copy_only=False)
    return flags


def _hex(value: bytes | None) -> str:
    return "nothing" if value is None else f"0x{value.hex()}"
