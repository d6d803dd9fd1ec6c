"""The live chapter: a chain is followed to its head while it grows, through a reorganisation, into tables and files.

The DAG is deployed with the other one, so its history is read while that works. Then the chain grows. Before and after
its newest blocks are replaced, their rows are read. At the end, when nothing is left to do, everything is read and
compared.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tracelake.cli.text import clean, count, unit_text
from tracelake.client.paging import collect
from tracelake.client.query import QueryClient
from tracelake.client.stack import LocalStack
from tracelake.client.user import UserClient
from tracelake.demo import DemoError
from tracelake.demo.chain.app import LIVE_PATH
from tracelake.demo.checks import Check
from tracelake.demo.live_checks import verify
from tracelake.demo.live_plan import (
    BLOCKS,
    DAG,
    DECODER,
    DEPTH,
    FLOWS,
    FOLLOWER,
    LIVE,
    LOGS,
    TRANSACTIONS,
    TRANSFERS,
    LivePlan,
    plan_live,
)
from tracelake.demo.live_rows import NODE_COLUMNS, BlockContent, LiveContent, LiveDatasetReader, LiveNode
from tracelake.demo.plan import DemoPlan
from tracelake.demo.recorded_chain import NAME as CHAIN
from tracelake.demo.screen import DemoScreen
from tracelake.errors import TraceError
from tracelake.settings.home import Home, write_private
from tracelake.spark.evm.endpoints import parse_endpoint
from tracelake.stack.kept_ports import read_ports
from tracelake.wire import routes
from tracelake.wire.head_progress import HeadProgressRow
from tracelake.wire.query import QueryRequest
from tracelake.wire.tasks import TaskRow

_LOOK_SECONDS = 0.2
_SETTLE_SECONDS = 0.5
_STEP_SECONDS = 0.25
_PATIENCE_SECONDS = 180.0
_MOST_TASKS = 50_000
_OWN_BLOCKS, _OWN_SECONDS = 3, 60.0
"""A chain of the person's own is followed until so many new blocks have come and a unit of the tables is final, for
this long at most."""
_MOST_PAUSES = 3
_ANY_BLOCK = 2**62
"""Above all blocks of a chain."""
_PAUSED = {"source_paused", "upstream"}
"""Why a dataset is not fresh whose source is paused, and nothing else."""
_STOPPED_SECONDS = 300.0
"""A chain whose newest block is older than this is not waited for."""
_TRANSFER_COLUMNS = ("block_number", "log_index", "transaction_hash", "token", "standard", "amount_f64")
_FLOW_COLUMNS = "extract(epoch FROM hour)::bigint AS hour, token, standard, transfers, amount"


@dataclass(frozen=True, slots=True)
class Reorganisation:
    """What a reorganisation changed in the tables."""

    before: list[BlockContent]
    after: list[BlockContent]
    seconds: float
    """From the moment when the node had the new blocks until the tables had them."""

    @property
    def first(self) -> int:
        return self.before[0].number

    @property
    def last(self) -> int:
        return self.before[-1].number

    def count_transfers(self) -> list[tuple[str, int, int]]:
        """By token: transfers in these blocks before and after."""
        before, after = (_transfers(blocks) for blocks in (self.before, self.after))
        return [(token, before.get(token, 0), after.get(token, 0)) for token in sorted(before.keys() | after.keys())]


@dataclass(slots=True)
class LiveStory:
    """What happened in the live chapter."""

    first: int = 0
    began: int = 0
    """The head when it began."""
    last: int = 0
    seconds: float = 0.0
    """From the first new block until nothing was left to do."""
    progress: HeadProgressRow | None = None
    attempts: int = 0
    """Of the follower: more than one if its worker was killed."""
    tasks: int = 0
    reorganisation: Reorganisation | None = None
    datasets: list[LiveContent] = field(default_factory=list)
    transfers: int = 0
    flows: int = 0
    checks: list[Check] = field(default_factory=list)


class LiveChapter:
    def __init__(self, stack: LocalStack, client: UserClient, plan: DemoPlan, screen: DemoScreen) -> None:
        self._stack = stack
        self._client = client
        self._demo_plan = plan
        self._screen = screen
        self._rows = LiveDatasetReader(stack, client)
        self._home = Home(Path(stack.home))
        self._node: LiveNode | None = None
        self._plan: LivePlan | None = None

    async def begin(self) -> None:
        """Deploys the DAG. Its history is read, and its follower waits at the head of the chain."""
        if self._demo_plan.url is not None:
            self._node = LiveNode(parse_endpoint(self._demo_plan.url))
            self._plan = plan_live(self._demo_plan, (await self._node.read_head())[0])
        else:
            self._plan = plan_live(self._demo_plan)
            await self._open_recording()
        if self._plan is None:
            return
        await self._client.call(routes.DEPLOY, self._plan.document(), dag=DAG, activate=True)
        place = f"block {self._plan.head:,}"
        self._screen.say(
            f"deployed the DAG {DAG}, which follows the chain live from block {self._plan.start:,}; "
            f"its head is at {place}"
        )

    def close(self) -> None:
        if self._node is not None:
            self._node.close()

    async def run(self) -> LiveStory | None:
        """None if there were too few blocks for it."""
        if self._plan is None or self._node is None:
            return None
        plan, node = self._plan, self._node
        began = time.monotonic()
        story = LiveStory(first=plan.start, began=plan.head)
        await self._until_stored(node)
        if plan.tip is None:
            await self._watch_head(node, plan, story)
        else:
            await self._grow(node, plan, story)
        story.last = await self._settle(node, is_growing=plan.tip is None)
        story.seconds = time.monotonic() - began
        await self._collect(node, story)
        if plan.tip is None:
            await self._client.call(routes.RESUME_SOURCE, dag=DAG, job=FOLLOWER)
        return story

    # -- the chain

    async def _open_recording(self) -> None:
        """The same chain once more, with a head that can be moved; workers know it as the endpoint `live`."""
        if self._plan is None:
            return
        port = read_ports(self._home.ports_file)[CHAIN]
        url = f"http://127.0.0.1:{port}{LIVE_PATH}"
        write_private(self._home.rpc_file, f'live = "{url}"\n')
        self._node = LiveNode(parse_endpoint(url))
        await self._node.order("demo_setHead", self._plan.head)

    async def _grow(self, node: LiveNode, plan: LivePlan, story: LiveStory) -> None:
        for head in plan.heads_before:
            await node.order("demo_setHead", head)
            await asyncio.sleep(_STEP_SECONDS)
        seconds = await self._until_stored(node)
        assert plan.fork is not None
        self._screen.say(f"live: the chain grew to block {plan.fork:,}; {seconds:.1f} s later it was in the table")
        first = plan.fork - DEPTH + 1
        before = await self._rows.read_blocks(first, plan.fork)
        await node.order("demo_reorg", DEPTH)
        self._screen.say(f"live: the node replaced its newest {DEPTH} blocks, {first:,} to {plan.fork:,}", "red")
        seconds = await self._until_stored(node)
        after = await self._rows.read_blocks(first, plan.fork)
        story.reorganisation = Reorganisation(before, after, seconds)
        self._screen.say(f"live: {seconds:.1f} s later the table had the new blocks in their place", "green")
        for head in plan.heads_after:
            await node.order("demo_setHead", head)
            await asyncio.sleep(_STEP_SECONDS)
        seconds = await self._until_stored(node)
        self._screen.say(
            f"live: the chain grew to its end, block {plan.tip:,}; {seconds:.1f} s later it was in the table"
        )

    async def _watch_head(self, node: LiveNode, plan: LivePlan, story: LiveStory) -> None:
        until = time.monotonic() + _OWN_SECONDS
        table_start = await self._rows.find_start()
        enough = max(story.began + _OWN_BLOCKS, plan.first_final_head(table_start))
        former = await self._rows.read_blocks(table_start, _ANY_BLOCK)
        self._screen.say(f"live: watches the chain grow from block {former[-1].number:,} on")
        while True:
            number, _, block_time = await node.read_head()
            former = await self._tell_replaced(node, former, story)
            if number >= enough or time.monotonic() > until:
                break
            if time.time() - block_time > _STOPPED_SECONDS:
                self._screen.say(
                    f"live: block {number:,} is old; this chain makes no blocks now, so none is waited for"
                )
                break
            await asyncio.sleep(1.0)
        seconds = await self._until_stored(node)
        await self._tell_replaced(node, former, story)
        new = count(number - story.began, "new block")
        self._screen.say(
            f"live: followed the chain to block {number:,}, {new}; {seconds:.1f} s later it was in the table"
        )

    async def _tell_replaced(self, node: LiveNode, former: list[BlockContent], story: LiveStory) -> list[BlockContent]:
        """Waits for the new blocks if the node has replaced some that the table had. Returns the blocks of the table.
        The story keeps the deepest reorganisation."""
        before = await _find_replaced(node, former)
        if before:
            first, last = before[0].number, before[-1].number
            blocks = f"its newest {count(len(before), 'block')}, {first:,} to {last:,}"
            self._screen.say(f"live: the node replaced {blocks}", "red")
            seconds = await self._until_stored(node)
            change = Reorganisation(before, await self._rows.read_blocks(first, last), seconds)
            if story.reorganisation is None or len(before) > len(story.reorganisation.before):
                story.reorganisation = change
            self._screen.say(f"live: {seconds:.1f} s later the table had the new blocks in their place", "green")
        return await self._rows.read_blocks(former[0].number, _ANY_BLOCK)

    # -- waiting

    async def _until_stored(self, node: LiveNode) -> float:
        """The seconds until the newest block of the table was that of the node."""

        async def is_stored() -> bool:
            number, block_hash, _ = await node.read_head()
            return await self._rows.find_newest() == (number, block_hash)

        return await self._until(is_stored, "the newest block is not in the table")

    async def _settle(self, node: LiveNode, *, is_growing: bool) -> int:
        """Waits until nothing is left to do, and returns the newest block of which that is true. A chain that grows by
        itself is no longer followed then, so that everything can be compared; blocks that came until the worker heard
        of that are in the tables, and nobody has read them."""
        for _ in range(_MOST_PAUSES):
            if is_growing:
                await self._client.call(routes.PAUSE_SOURCE, dag=DAG, job=FOLLOWER)
            await self._until_quiet()
            last = max(_last_block(task) for task in await self._tasks() if task.job == DECODER)
            (stored,) = await self._rows.read_blocks(last, last)
            if stored.hash == await node.read_hash(last):
                return last
            # It was replaced meanwhile: the follower has to see that.
            await self._client.call(routes.RESUME_SOURCE, dag=DAG, job=FOLLOWER)
            await self._until_stored(node)
        raise DemoError("the node replaces its newest blocks again and again")

    async def _until_quiet(self) -> None:
        quiet = 0

        async def is_quiet() -> bool:
            nonlocal quiet
            quiet = quiet + 1 if await self._is_settled() else 0
            return quiet > 1

        await self._until(is_quiet, "tasks of the live chain are open", _SETTLE_SECONDS)

    async def _is_settled(self) -> bool:
        for task in await self._tasks():
            if task.job == FOLLOWER:
                continue
            if task.status in ("Queued", "Running") or task.next_retry_at is not None:
                return False
            if task.status in ("Failed", "Canceled"):
                reason = clean(task.error or "")
                raise DemoError(f"{task.job} {unit_text(task.unit, task.window)} failed (no retries left): {reason}")
        reply = await self._client.call(routes.EXPLAIN_DATASET, name=FLOWS)
        return reply.state == "fine" or {reason.code for reason in reply.reasons} == _PAUSED

    async def _tasks(self) -> list[TaskRow]:
        return (await collect(self._client, routes.LIST_TASKS, "tasks", limit=_MOST_TASKS, dag=DAG)).tasks

    async def _until(
        self, condition: Callable[[], Awaitable[bool]], problem: str, look_seconds: float = _LOOK_SECONDS
    ) -> float:
        """The seconds until it was true."""
        began = time.monotonic()
        while True:
            try:
                if await condition():
                    return time.monotonic() - began
            except TraceError as error:
                if not error.retryable:
                    raise
            if time.monotonic() - began > _PATIENCE_SECONDS:
                raise DemoError(f"after {_PATIENCE_SECONDS:.0f} s, {problem}")
            await asyncio.sleep(look_seconds)

    # -- the end

    async def _collect(self, node: LiveNode, story: LiveStory) -> None:
        sources = (await self._client.call(routes.LIST_SOURCES)).sources
        follower = next(source for source in sources if (source.dag, source.job) == (DAG, FOLLOWER))
        story.progress, story.attempts = follower.progress, follower.attempt
        story.tasks = len(await self._tasks())
        log_blocks = 500 if self._demo_plan.url is None else 1
        chain, story.datasets, transfers = await asyncio.gather(
            node.read_rows(story.first, story.last, log_blocks),
            self._read_datasets(),
            self._rows.read_files(TRANSFERS, _TRANSFER_COLUMNS),
        )
        flows = [
            (row["hour"], row["token"], row["standard"], row["transfers"], row["amount"])
            for row in await self._rows.read_table(FLOWS, _FLOW_COLUMNS)
        ]
        story.transfers, story.flows = transfers.num_rows, len(flows)
        names = {BLOCKS: "blocks", TRANSACTIONS: "transactions", LOGS: "logs"}
        tables = {names[content.name]: _up_to(content.rows, story.last) for content in story.datasets}
        rows = [table.num_rows for table in tables.values()]
        tables["transfers"] = transfers
        chain = {names[name]: table for name, table in chain.items()}
        story.checks = await asyncio.to_thread(verify, story.first, story.last, tables, chain, flows)
        story.checks += await self._ask_query_service(story.last, rows)

    async def _read_datasets(self) -> list[LiveContent]:
        return [await self._rows.read_live(name, NODE_COLUMNS[name]) for name in LIVE]

    async def _ask_query_service(self, last: int, expected: list[int]) -> list[Check]:
        """A query sees files and table as one relation."""
        if self._stack.query_url is None:
            return []
        within = f"WHERE block_number <= {last}"
        counts = ", ".join(f"(SELECT count(*) FROM {name} {within})" for name in LIVE)  # noqa: S608 - names of ours
        client = QueryClient(self._stack)
        try:
            reply = await client.run(QueryRequest(sql=f"SELECT {counts}"))
        finally:
            await client.close()
        rows = f"{expected[0]:,} blocks, {expected[1]:,} transactions and {expected[2]:,} logs"
        return [Check(f"live: a query counts the same {rows}", list(reply.rows[0]) == expected)]


def _up_to(rows: pa.Table, last: int) -> pa.Table:
    return rows.filter(pc.less_equal(rows["block_number"], last))


async def _find_replaced(node: LiveNode, blocks: list[BlockContent]) -> list[BlockContent]:
    """Those that the node had before and has no more: the last of them. A chain that is still shorter replaces blocks
    above its head, too, if it replaces any below."""
    head, _, _ = await node.read_head()
    first = None
    for block in reversed([block for block in blocks if block.number <= head]):
        if await node.read_hash(block.number) == block.hash:
            break
        first = block.number
    return [] if first is None else [block for block in blocks if block.number >= first]


def _last_block(task: TaskRow) -> int:
    last = None if task.unit is None else task.unit.blocks[1]
    return -1 if last is None else last


def _transfers(blocks: list[BlockContent]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for block in blocks:
        for token, number in block.transfers.items():
            totals[token] = totals.get(token, 0) + number
    return totals
