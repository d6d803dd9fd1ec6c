"""The live chapter of `trace demo`: its plan, what its checks find, and what is printed."""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml

from tests.dag.support import read
from tests.stack.demo_support import quiet
from tests.support.chain import RECORDING, ServedChain, serve_chain
from tracelake.catalogue.evm_columns import EVM_TABLES
from tracelake.demo import live_plan, plan
from tracelake.demo.live import LiveChapter, LiveStory, Reorganisation
from tracelake.demo.live_checks import verify
from tracelake.demo.live_rows import NODE_COLUMNS, BlockContent, LiveContent, LiveNode
from tracelake.demo.live_tables import live_as_json, tell_live
from tracelake.demo.tell import TOKENS
from tracelake.follower.rpc_nodes import RpcChainNode
from tracelake.spark.evm.endpoints import parse_endpoint
from tracelake.spark.evm.node import RpcOptions
from tracelake.wire.head_progress import HeadProgressRow
from tracelake.wire.jobs import BlockRange

EXAMPLE = RECORDING.parents[1] / "live_chain" / "chain.yaml"
TRANSFER = bytes.fromhex("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef")
BLOCKS = 80

# --- the plan


def chosen(first: int, last: int) -> live_plan.LivePlan:
    made = live_plan.plan_live(plan.recorded(BlockRange(start=first, end=last)))
    assert made is not None
    return made


def test_the_chain_grows_to_its_end_and_is_reorganised_on_the_way() -> None:
    made = chosen(0, 3999)
    assert (made.start, made.head, made.tip) == (0, 2399, 3999)
    heads = [made.head, *made.heads_before, *made.heads_after]
    assert heads == sorted(set(heads))
    assert made.fork in heads
    assert heads[-1] == made.tip
    assert len(heads) < 25, "each step is a write and a task"


@pytest.mark.parametrize(("first", "last"), [(0, 3999), (100, 199), (7, 46), (0, 999), (1000, 2100)])
def test_a_unit_becomes_a_file_and_what_is_replaced_is_not_final(first: int, last: int) -> None:
    made = chosen(first, last)
    assert made.fork is not None
    assert made.finality > live_plan.DEPTH
    assert first < made.fork - live_plan.DEPTH
    begin = max(first, (made.head - made.finality) // made.unit * made.unit)
    sealed = (last - made.finality + 1) // made.unit * made.unit - 1
    assert sealed > begin, "at least one unit of the table is final at the end"


def test_too_few_blocks_are_not_followed() -> None:
    assert live_plan.plan_live(plan.recorded(BlockRange(start=0, end=38))) is None


def test_a_chain_of_ones_own_is_followed_at_its_head() -> None:
    made = live_plan.plan_live(plan.DemoPlan(1, 0, 9, 50, url="http://node"), head=20_000_000)
    assert made is not None
    assert (made.start, made.head, made.tip, made.rpc) == (19_999_960, 20_000_000, None, "default")
    assert live_plan.plan_live(plan.DemoPlan(1, 0, 9, 50, url="http://node"), head=3) is not None


@pytest.mark.parametrize("head", range(20_000_000, 20_000_010))
def test_a_unit_of_a_chain_of_ones_own_becomes_final_soon(head: int) -> None:
    """Also if blocks came before it was followed."""
    made = live_plan.plan_live(plan.DemoPlan(1, 0, 9, 50, url="http://node"), head=head)
    assert made is not None
    assert made.finality >= live_plan.DEPTH
    for late in range(3):
        final = head + late - made.finality
        table_start = final - final % made.unit  # as the follower begins
        assert table_start > made.start
        assert made.first_final_head(table_start) == head + 2


def test_the_document_is_the_example_for_this_chain() -> None:
    document, shipped = yaml.safe_load(chosen(100, 199).document()), yaml.safe_load(EXAMPLE.read_text())
    chain = document["chains"][0]
    assert (chain["start"], chain["rpc"], chain["unit_blocks"], chain["chain_id"]) == (100, "live", 25, 1337001)
    assert (document["jobs"], document["publish"]) == (shipped["jobs"], shipped["publish"])
    dag = read(EXAMPLE.read_bytes())
    assert {job.name for job in dag.jobs} >= {live_plan.FOLLOWER, "chain_history", "chain_compact", "decode", "flows"}
    published = {*live_plan.LIVE, live_plan.TRANSFERS, live_plan.FLOWS}
    assert published <= {entry.name for entry in dag.publish}


# --- the checks


class Rows(NamedTuple):
    tables: dict[str, pa.Table]
    chain: dict[str, pa.Table]
    flows: list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    with serve_chain(BLOCKS) as chain:
        endpoint = parse_endpoint(chain.url)
        node = RpcChainNode(endpoint, RpcOptions(chain_id=1337001), EVM_TABLES)
        direct = LiveNode(endpoint)
        try:
            tables = dict(node.read_rows(0, BLOCKS - 1).tables)
            chain_rows = asyncio.run(direct.read_rows(0, BLOCKS - 1, 10))
        finally:
            node.close()
            direct.close()
    tables["transfers"] = _decode(tables["logs"])
    return Rows(tables, {name.removeprefix("live_"): table for name, table in chain_rows.items()}, _add_up(tables))


def _decode(logs: pa.Table) -> pa.Table:
    """Transfers of ERC-20 and ERC-721."""
    moved = [row for row in logs.to_pylist() if row["topic0"] == TRANSFER and _is_transfer(row)]
    return pa.table(
        {
            "block_number": [row["block_number"] for row in moved],
            "log_index": [row["log_index"] for row in moved],
            "transaction_hash": [row["transaction_hash"] for row in moved],
            "token": [row["address"] for row in moved],
            "standard": ["erc20" if row["topic3"] is None else "erc721" for row in moved],
            "amount_f64": [float(int.from_bytes(row["data"] or b"\x01", "big")) for row in moved],
        }
    )


def _is_transfer(row: dict[str, Any]) -> bool:
    addresses = [row[name] for name in ("topic1", "topic2")]
    if any(address is None or any(address[:12]) for address in addresses):
        return False
    return len(row["data"]) == (32 if row["topic3"] is None else 0)


def _add_up(tables: dict[str, pa.Table]) -> list[tuple[Any, ...]]:
    times = {row["block_number"]: row["timestamp"] for row in tables["blocks"].to_pylist()}
    flows: dict[tuple[int, bytes, str], list[float]] = {}
    for row in tables["transfers"].to_pylist():
        hour = times[row["block_number"]] // 3600 * 3600
        flows.setdefault((hour, row["token"], row["standard"]), []).append(row["amount_f64"])
    return [(*key, len(amounts), sum(amounts)) for key, amounts in flows.items()]


def verified(rows: Rows, flows: list[tuple[Any, ...]] | None = None, **tables: pa.Table) -> list[bool]:
    made = verify(0, BLOCKS - 1, rows.tables | tables, rows.chain, rows.flows if flows is None else flows)
    return [check.right for check in made]


def without(table: pa.Table, place: int) -> pa.Table:
    return pa.concat_tables([table.slice(0, place), table.slice(place + 1)])


def twice(table: pa.Table, place: int) -> pa.Table:
    return pa.concat_tables([table, table.slice(place, 1)])


def test_what_is_right_is_found_to_be(rows: Rows) -> None:
    assert rows.flows
    assert verified(rows) == [True] * 4


@pytest.mark.parametrize("change", [without, twice])
def test_a_row_that_is_missing_or_there_twice_is_found(rows: Rows, change: Callable[[pa.Table, int], pa.Table]) -> None:
    assert verified(rows, blocks=change(rows.tables["blocks"], 40))[:2] == [False, False]
    assert verified(rows, blocks=change(rows.tables["blocks"], BLOCKS - 1))[0] is False
    assert verified(rows, transactions=change(rows.tables["transactions"], 3))[1] is False
    assert verified(rows, logs=change(rows.tables["logs"], 3))[1] is False
    assert verified(rows, transfers=change(rows.tables["transfers"], 3))[2:] == [False, False]


@pytest.mark.parametrize("name", live_plan.LIVE)
def test_another_value_in_any_column_is_found(name: str, rows: Rows) -> None:
    """As many rows as the node has, and one value of one of them is another."""
    short_name = name.removeprefix("live_")
    table = rows.tables[short_name]
    for column in NODE_COLUMNS[name]:
        values = table[column].to_pylist()
        place = next(place for place, value in enumerate(values) if value is not None)
        value = values[place]
        values[place] = value + 1 if isinstance(value, int) else value + b"\x01"
        changed = pa.array(values, table.schema.field(column).type)
        other = table.set_column(table.schema.get_field_index(column), column, changed)
        assert verified(rows, **{short_name: other})[1] is False, column


def test_a_block_of_another_branch_is_found(rows: Rows) -> None:
    blocks = rows.tables["blocks"]
    hashes = [*blocks["block_hash"].to_pylist()[:-1], b"\x01" * 32]
    place = blocks.schema.get_field_index("block_hash")
    other = blocks.set_column(place, "block_hash", pa.array(hashes, pa.binary()))
    assert verified(rows, blocks=other)[:2] == [True, False], "the node has another one"
    hashes = [b"\x01" * 32, *blocks["block_hash"].to_pylist()[1:]]
    other = blocks.set_column(place, "block_hash", pa.array(hashes, pa.binary()))
    assert verified(rows, blocks=other)[0] is False, "its child names another parent"


def test_a_flow_that_was_not_computed_again_is_found(rows: Rows) -> None:
    first, *others = rows.flows
    assert verified(rows, flows=[(*first[:3], first[3] + 1, first[4]), *others])[3] is False
    assert verified(rows, flows=[(*first[:4], first[4] * 1.01), *others])[3] is False
    assert verified(rows, flows=others)[3] is False
    assert verified(rows, flows=[*rows.flows, (0, b"gone", "erc20", 1, 1.0)])[3] is False


def test_transfers_of_replaced_logs_are_found(rows: Rows) -> None:
    transfers = rows.tables["transfers"]
    place = transfers.schema.get_field_index("log_index")
    moved = transfers.set_column(place, "log_index", pc.add(transfers["log_index"], 1))
    assert verified(rows, transfers=moved)[2] is False


# --- a chain of a person's own


class FollowedTable:
    """Blocks of a table that follows a served chain, in place of LiveDatasetReader. Each look at its newest block, of
    someone who waits for it, lets the table be the chain."""

    def __init__(self, chain: ServedChain, first: int, last: int) -> None:
        self._chain, self._first = chain, first
        self._on_read: list[Callable[[], None]] = []
        self.head = last
        self._blocks: list[BlockContent] = []
        self.follow()

    def after_reads(self, *changes: Callable[[], None]) -> None:
        """One of them after each look at the blocks of the table."""
        self._on_read = list(changes)

    def follow(self) -> None:
        blocks = [self._chain.block(number) for number in range(self._first, self.head + 1)]
        self._blocks = [
            BlockContent(
                one.number,
                one.block["hash"],
                len(one.block["transactions"]),
                sum(len(receipt["logs"]) for receipt in one.receipts),
                {},
            )
            for one in blocks
        ]

    async def find_start(self) -> int:
        return self._first

    async def find_newest(self) -> tuple[int, str]:
        self.follow()
        return self._blocks[-1].number, self._blocks[-1].hash

    async def read_blocks(self, first: int, last: int) -> list[BlockContent]:
        blocks = [block for block in self._blocks if first <= block.number <= last]
        if self._on_read:
            self._on_read.pop(0)()
        return blocks


def watch(chain: ServedChain, table: FollowedTable) -> tuple[LiveStory, str]:
    """The chapter while it watches the head of the chain, from block 50 on."""
    made = live_plan.plan_live(plan.DemoPlan(1, 0, 9, 50, url=chain.url), head=50)
    assert made is not None
    screen, out = quiet(200)
    chapter = object.__new__(LiveChapter)
    chapter._rows, chapter._screen = table, screen  # type: ignore[assignment]
    node, told = LiveNode(parse_endpoint(chain.url)), LiveStory(began=50)
    try:
        asyncio.run(chapter._watch_head(node, made, told))
    finally:
        node.close()
    return told, out.getvalue()


@pytest.fixture
def young_chain() -> Iterator[ServedChain]:
    """Its blocks are new, so that a demo waits for more."""
    with serve_chain(60, head=51) as chain:
        chain.reorganise(1, changed=0, later={1: int(time.time()) - int(chain.block(50).block["timestamp"], 16)})
        yield chain


def grow(chain: ServedChain, table: FollowedTable, head: int) -> None:
    chain.show(head + 1)
    table.head = head


def test_a_reorganisation_of_a_chain_of_ones_own_is_told(young_chain: ServedChain) -> None:
    chain, former = young_chain, [young_chain.block(number).block["hash"] for number in range(47, 51)]
    table = FollowedTable(chain, 30, 50)

    def replace() -> None:
        chain.reorganise(47, later={47: 1})
        grow(chain, table, 58)

    table.after_reads(replace)
    told, text = watch(chain, table)
    change = told.reorganisation
    assert change is not None
    assert [block.hash for block in change.before] == former
    assert [block.hash for block in change.after] == [chain.block(number).block["hash"] for number in range(47, 51)]
    lost = [number for number in range(47, 51) if chain.block(number).block["transactions"]]
    assert sum(one.transactions for one in change.before) >= sum(one.transactions for one in change.after) + len(lost)
    assert "the node replaced its newest 4 blocks, 47 to 50" in text
    assert "the table had the new blocks in their place" in text
    assert "followed the chain to block 58, 8 new blocks" in text


def test_the_deepest_of_several_reorganisations_is_shown_at_the_end(young_chain: ServedChain) -> None:
    chain = young_chain
    table = FollowedTable(chain, 30, 50)

    def replace_last() -> None:
        chain.reorganise(50, later={50: 2})
        grow(chain, table, 58)

    # A look at the blocks before, one at those that replaced them, and one at all of them.
    table.after_reads(lambda: chain.reorganise(45, later={45: 1}), lambda: None, replace_last)
    told, text = watch(chain, table)
    assert "the node replaced its newest 6 blocks, 45 to 50" in text
    assert "the node replaced its newest 1 block, 50 to 50" in text
    assert told.reorganisation is not None
    assert (told.reorganisation.first, told.reorganisation.last) == (45, 50)


def test_a_chain_that_only_grows_has_no_reorganisation(young_chain: ServedChain) -> None:
    table = FollowedTable(young_chain, 30, 50)
    table.after_reads(lambda: grow(young_chain, table, 58))
    told, text = watch(young_chain, table)
    assert told.reorganisation is None
    assert "replaced" not in text


# --- what is printed

TOKEN = next(iter(TOKENS))


def story() -> LiveStory:
    before = [BlockContent(number, f"0x{number:064x}", 3, 4, {TOKEN: 2, "ab" * 20: 1}) for number in (7, 8)]
    after = [BlockContent(number, f"0x{number + 1000:064x}", 2, 2, {TOKEN: 1}) for number in (7, 8)]
    content = LiveContent("live_blocks", 3, 75, 25, 5, 74, pa.table({}))
    return LiveStory(
        first=0,
        began=59,
        last=99,
        seconds=12.34,
        progress=HeadProgressRow(state="at_head", at=datetime.now(UTC), lag_blocks=0, reorgs=1),
        attempts=2,
        tasks=20,
        reorganisation=Reorganisation(before, after, 0.44),
        datasets=[content],
        transfers=7,
        flows=3,
    )


def test_the_end_of_the_chapter() -> None:
    screen, out = quiet(120)
    tell_live(screen.console, story(), TOKENS)
    said = out.getvalue()
    for line in (
        "live_blocks      100        75            25                 74",
        "The follower is 0 blocks behind the head now. It is at attempt 2: its worker was killed on the way.",
        "the node replaced blocks 7 to 8, and 0.4 s later the tables did",
        "7      0x00000000...0007  0x00000000...03ef        3 -> 2  4 -> 2",
        "HUSD                                            4      2",
        "0xababab...abab                                 2      0",
    ):
        assert line in said, said


def test_the_chapter_for_programs() -> None:
    told = live_as_json(story())
    assert told["datasets"]["live_blocks"] == {
        "boundary": 74,
        "files": 3,
        "rows_in_files": 75,
        "rows_in_table": 25,
        "rows_to_remove": 5,
    }
    assert told["reorganisation"]["blocks"][0]["transactions"] == [3, 2]
    assert told["reorganisation"]["transfers"] == [
        {"token": f"0x{TOKEN}", "before": 4, "after": 2},
        {"token": "0x" + "ab" * 20, "before": 2, "after": 0},
    ]
    assert (told["lag_blocks"], told["reorgs"], told["follower_attempts"]) == (0, 1, 2)
