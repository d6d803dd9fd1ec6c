"""integrity_check finds what was done to a chain, and nothing in one that was left alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.spark.chain_tables import chain_tables
from tests.spark.support import Bench
from tracelake.catalogue.context import LiveInput, NonRetryableError, TableInput
from tracelake.ports import ObjectMeta
from tracelake.spark.operators import integrity_check
from tracelake.spark.operators.integrity_check import run
from tracelake.wire.units import PayloadInput, Unit

FIRST, LAST = 100, 199
Tables = dict[str, pa.Table]
NAMES = ("blocks", "transactions", "logs")


@pytest.fixture(scope="module")
def chain() -> Tables:
    """With blocks before and after the range."""
    return {name: chain_tables(250)[name] for name in NAMES}


class Checker:
    """Checks the range in any number of chains."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.said: list[str] = []
        self.requests: list[tuple[int, Unit]] = []
        """Inputs and units whose files the last check asked for."""

    def check(
        self, tables: Tables, fail_on: str = "never", *, neighbours: bool = True, ignore: tuple[str, ...] = ()
    ) -> list[dict[str, Any]]:
        """`neighbours`: whether blocks before and after the range are there to be read."""
        self.bench.inputs.clear()
        self.bench.outputs[:] = ["findings"]
        for name, table in tables.items():
            self.bench.add_input(name, table)
        unit = Unit(partition_key=f"{FIRST}-{LAST}", start=FIRST, end=LAST)
        self.bench.attempts += 1  # a prefix is written once
        config = {"fail_on": fail_on, "ignore": list(ignore)}
        work = self.bench.work("integrity_check", config, unit, self.bench.attempts, {})
        work.context = replace(work.context, progress=self.said.append)
        files = work.context.files
        self.requests = []

        def ask(item: PayloadInput) -> list[ObjectMeta] | TableInput | LiveInput:
            self.requests.append((item.input_index, item.unit))
            return files(item) if neighbours or item.unit.start == FIRST else []

        work.context = replace(work.context, files=ask)
        self.bench.last = work
        run(work)
        rows: list[dict[str, Any]] = self.bench.table().to_pylist()
        return rows


@pytest.fixture(params=["small", "large"])
def checker(bench: Bench, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Checker:
    """A unit that is checked by one Spark task, and one that is summed up by several."""
    monkeypatch.setattr(integrity_check, "is_small", lambda _size: request.param == "small")
    return Checker(bench)


def _names(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["check"], row["block_number"]) for row in rows]


def _without(table: pa.Table, condition: pc.Expression) -> pa.Table:
    return table.filter(~condition)


def _changed(table: pa.Table, block: int, column: str, change: Callable[[Any], Any]) -> pa.Table:
    rows = table.to_pylist()
    for row in rows:
        if row["block_number"] == block:
            row[column] = change(row[column])
            break
    return pa.Table.from_pylist(rows, table.schema)


def _with_transactions(tables: Tables, least: int, *, logs: int = 0) -> int:
    """A block of the range that has so many."""
    for number in range(FIRST + 1, LAST):
        here = pc.field("block_number") == number
        if tables["transactions"].filter(here).num_rows >= least and tables["logs"].filter(here).num_rows >= logs:
            return number
    raise AssertionError


def test_a_chain_that_is_whole(checker: Checker, chain: Tables) -> None:
    assert checker.check(chain, "warning") == []
    assert checker.said == []
    assert len(checker.requests) == len(set(checker.requests)) == 5, "three inputs, and the blocks around the unit"


def test_checks_that_are_not_true_of_a_chain_are_left_out(checker: Checker, chain: Tables) -> None:
    """Others still find what they look for."""
    number = _log_block(chain)
    tables = {**chain, "logs": _changed(chain["logs"], number, "log_index", lambda _: 7777)}
    tables["blocks"] = _changed(chain["blocks"], number, "gas_used", lambda gas: gas + 1)
    assert _names(checker.check(tables)) == [("gas_used", number), ("log_index", number)]
    assert _names(checker.check(tables, ignore=("log_index",))) == [("gas_used", number)]
    assert checker.check(tables, "error", ignore=("log_index", "gas_used")) == []


def test_blocks_alone(checker: Checker, chain: Tables) -> None:
    assert checker.check({"blocks": chain["blocks"]}) == []


def test_blocks_and_logs(checker: Checker, chain: Tables) -> None:
    """Which input is which is known by its columns."""
    logs = _without(chain["logs"], (pc.field("block_number") == _log_block(chain)) & (pc.field("log_index") == 0))
    assert _names(checker.check({"blocks": chain["blocks"], "logs": logs})) == [("log_index", _log_block(chain))]


def _log_block(chain: Tables) -> int:
    return _with_transactions(chain, 2, logs=2)


def test_gaps(checker: Checker, chain: Tables) -> None:
    number = pc.field("block_number")
    blocks = _without(chain["blocks"], number.isin([100, 101, 120, 198, 199]))
    rows = checker.check({"blocks": blocks})
    assert [(row["check"], row["block_number"], row["expected"]) for row in rows] == [
        ("gap", 100, "2"),
        ("gap", 120, "1"),
        ("gap", 198, "2"),
    ]
    assert rows[0] == {
        "check": "gap",
        "block_number": 100,
        "severity": "error",
        "expected": "2",
        "found": "0",
        "detail": "blocks 100 to 101 are missing",
    }


def test_nothing_at_all(checker: Checker, chain: Tables) -> None:
    rows = checker.check({name: table.slice(0, 0) for name, table in chain.items()})
    assert [(row["check"], row["block_number"], row["expected"]) for row in rows] == [("gap", 100, "100")]


def test_what_is_there_twice(checker: Checker, chain: Tables) -> None:
    block = _log_block(chain)
    here = pc.field("block_number") == block
    twice = {
        "blocks": pa.concat_tables([chain["blocks"], chain["blocks"].filter(here)]),
        "transactions": pa.concat_tables([chain["transactions"], chain["transactions"].filter(here).slice(0, 1)]),
        "logs": pa.concat_tables([chain["logs"], chain["logs"].filter(here).slice(1, 1)]),
    }
    assert _names(checker.check(twice)) == [
        ("duplicate_block", block),
        ("duplicate_transaction", block),
        ("gas_used", block),
        ("log_index", block),
        ("transaction_index", block),
    ]


def test_another_parent(checker: Checker, chain: Tables) -> None:
    blocks = _changed(chain["blocks"], 150, "parent_hash", lambda _: bytes(32))
    (row,) = checker.check({"blocks": blocks})
    expected = "0x" + chain["blocks"]["block_hash"][149].as_py().hex()
    assert (row["check"], row["block_number"], row["severity"]) == ("parent_hash", 150, "error")
    assert (row["expected"], row["found"]) == (expected, "0x" + "00" * 32)


def test_the_block_before_the_range(checker: Checker, chain: Tables) -> None:
    blocks = _changed(chain["blocks"], FIRST - 1, "block_hash", lambda _: b"\x01" * 32)
    assert _names(checker.check({"blocks": blocks})) == [("parent_hash", FIRST)]
    assert checker.check({"blocks": blocks}, neighbours=False) == []
    text = "block {} is not there yet: what joins it to this unit is not looked at"
    assert checker.said == [text.format(99), text.format(200)]


def test_the_block_after_the_range(checker: Checker, chain: Tables) -> None:
    """Its unit may have been checked before this one was there. Of the block itself nothing else is looked at."""
    odd = _changed(chain["blocks"], LAST + 1, "parent_hash", lambda _: b"\x01" * 32)
    odd = _changed(odd, LAST + 1, "timestamp", lambda _: 1)
    odd = pa.concat_tables([odd, odd.filter(pc.field("block_number") == LAST + 1)])
    (row,) = checker.check(chain | {"blocks": odd})
    assert (row["check"], row["block_number"], row["detail"]) == (
        "parent_hash",
        LAST,
        "the block after it has another parent",
    )
    assert row["expected"] == "0x" + chain["blocks"]["block_hash"][LAST].as_py().hex()
    last_missing = _without(chain["blocks"], pc.field("block_number") == LAST)
    assert _names(checker.check({"blocks": last_missing})) == [("gap", LAST)]


def test_time_goes_forward(checker: Checker, chain: Tables) -> None:
    blocks = _changed(chain["blocks"], 150, "timestamp", lambda _: 1)
    (row,) = checker.check({"blocks": blocks}, "error")
    assert (row["check"], row["block_number"], row["severity"]) == ("timestamp", 150, "warning")
    with pytest.raises(NonRetryableError, match=r"0 errors, 1 warnings\. timestamp at block 150"):
        checker.check({"blocks": blocks}, "warning")


def test_missing_transactions_are_seen_by_their_gas(checker: Checker, chain: Tables) -> None:
    block = _with_transactions(chain, 2)
    here = pc.field("block_number") == block
    last = chain["transactions"].filter(here).num_rows - 1
    left = _without(chain["transactions"], here & (pc.field("transaction_index") == last))
    (row,) = checker.check({"blocks": chain["blocks"], "transactions": left})
    gas = chain["blocks"]["gas_used"][block].as_py()
    missing = chain["transactions"].filter(here)["gas_used"][last].as_py()
    assert (row["check"], row["block_number"]) == ("gas_used", block)
    assert (row["expected"], row["found"]) == (str(gas), str(gas - missing))
    none = _without(chain["transactions"], here)
    assert _names(checker.check({"blocks": chain["blocks"], "transactions": none})) == [("gas_used", block)]


def test_counts_that_the_blocks_say(checker: Checker, chain: Tables) -> None:
    block = _log_block(chain)

    def counted(name: str) -> pa.Array:
        found = chain[name].to_pylist()
        numbers = [row["block_number"] for row in found]
        return pa.array([numbers.count(number) for number in range(250)], pa.uint32())

    blocks = chain["blocks"].append_column("transaction_count", counted("transactions"))
    blocks = blocks.append_column("log_count", counted("logs"))
    assert checker.check({**chain, "blocks": blocks}) == []
    wrong = _changed(_changed(blocks, block, "log_count", lambda n: n + 1), block, "transaction_count", lambda n: n + 2)
    assert _names(checker.check({**chain, "blocks": wrong})) == [("log_count", block), ("transaction_count", block)]


def test_what_belongs_to_nothing(checker: Checker, chain: Tables) -> None:
    block = _log_block(chain)
    here = pc.field("block_number") == block
    rows = checker.check({**chain, "blocks": _without(chain["blocks"], here)})
    assert _names(rows) == [("gap", block), ("log_block", block), ("transaction_block", block)]
    other = _changed(chain["logs"], block, "transaction_hash", lambda _: bytes(32))
    (row,) = checker.check({**chain, "logs": other})
    assert (row["check"], row["block_number"], row["found"]) == ("log_transaction", block, "1")


def test_the_task_fails_for_good_and_says_why(checker: Checker, chain: Tables) -> None:
    blocks = _without(chain["blocks"], pc.field("block_number").isin(list(range(101, 200, 10))))
    with pytest.raises(NonRetryableError) as caught:
        checker.check({"blocks": blocks}, "error")
    said = str(caught.value)
    assert said.startswith(
        "blocks 100 to 199 do not hold together: 10 errors, 0 warnings."
        " gap at block 101 (expected 1, found 0): blocks 101 to 101 are missing; gap at block 111"
    )
    assert said.endswith("; and 5 more. All of them: run the check with `fail_on: never`.")
    assert "_SUCCESS" not in checker.bench.names(), "nothing that anybody would take for a result"


def test_inputs_in_the_wrong_order(checker: Checker, chain: Tables) -> None:
    tables = {"blocks": chain["blocks"], "other": chain["blocks"]}
    with pytest.raises(NonRetryableError, match="inputs: blocks, transactions, logs"):
        checker.check(tables)
