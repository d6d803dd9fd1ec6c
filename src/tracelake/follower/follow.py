"""The follower: one call of `run_once` compares what is stored with what the nodes say and makes one write at most.

Rules that hold whatever happens in between:

- A write is one call of the store. It begins at a block whose parent is the stored block below it (or at the first
  block of all), and its blocks come from one node and follow one another. So the stored blocks are always a chain.
- A reorganisation goes back to the newest stored block that the chosen node has as well, and replaces everything above
  it in one write, with an invalidation of exactly the announced blocks that changed. Deeper than `max_reorg_depth`,
  nothing is written: `reorg_too_deep`.
- The newest stored block never goes back: a chain that is shorter than the stored one is followed when it has grown to
  its height. So every stored block is announced, none above is, and cursors only grow.
- News are announced by their cursor alone. What changes below has an invalidation, with a revision that no event had
  before: a chain may return to blocks that it had.
- Events are emitted after their rows are durable, in the order of the writes, and again after a crash in between.

Nothing is remembered between two calls that the store and the nodes could not tell again, so a crash at any point costs
at most a repeated read. Blocks that were read ahead are compared with the node again before they are written.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from tracelake.catalogue.context import NonRetryableError
from tracelake.follower.links import ChainLink, sound_part
from tracelake.follower.nodes import ChainNode, ChainRows, NodeHead, WatchedNode, choose_head
from tracelake.follower.read_ahead import ReadAhead
from tracelake.follower.store import HotChainStore, HotStoreUnavailableError
from tracelake.ports.direct_tables import TableExtent
from tracelake.spark.evm.errors import BrokenChainError, RpcError
from tracelake.wire.head_progress import FollowState
from tracelake.wire.units import EventIn, Invalidates, TaskOutput

EMITTED_AT_ONCE = 100
LOOKS = 3
"""How often a node may show another chain in each of its answers before it is taken for one that errs."""
_TARGET_BYTES = 8 * 1024 * 1024
"""Of one write while catching up, by the size of the blocks before."""
_FIRST_BLOCKS = 8
FIRST = "1"
"""The revision of blocks of a live dataset that are new, as of a first commit of files."""


@dataclass(frozen=True, slots=True)
class FollowOptions:
    start: int | None = None
    """The first block of empty tables; None: the head."""
    finality_depth: int = 64
    """Blocks this deep are called final in the reason of an invalidation."""
    max_reorg_depth: int = 64
    batch_blocks: int = 500
    """Blocks of one write while catching up, at most. A reorganisation is one write, however deep."""
    unit_blocks: int | None = None
    """Of live datasets: blocks of a unit of their files. Whole units that are final are sealed."""
    repair_from: int | None = None
    """A reorganisation may change sealed blocks from this one on: files with them are read anew."""


class FollowOutcome(NamedTuple):
    state: FollowState
    head: int | None = None
    """The height of the head that was followed."""
    stored: int | None = None
    """The newest stored block."""
    first: int | None = None
    last: int | None = None
    """What was written."""
    newest: ChainLink | None = None
    """The last block of it."""
    depth: int = 0
    """How many stored blocks another chain replaced, or would have to."""
    error: str = ""

    @property
    def wrote(self) -> bool:
        return self.state in ("appended", "rewritten")

    @property
    def at_once(self) -> bool:
        """Whether there is more to do without waiting for anything."""
        return (self.wrote and self.head != self.last) or self.state == "chain_moved"


class _Fork(NamedTuple):
    """Where the chosen chain leaves the stored one. `parent`: None if not even the lowest stored block is on it."""

    parent: ChainLink | None
    first: int
    depth: int


class RangeOutputs(NamedTuple):
    """Outputs of live datasets that are ranges of blocks, without rows."""

    history: TaskOutput
    """Ranges that no table has: files are made of them from the nodes."""
    final: TaskOutput
    """Ranges that are sealed: files are made of them from the tables."""


@dataclass(eq=False)
class BlockFollower:
    store: HotChainStore
    nodes: Sequence[ChainNode]
    outputs: Mapping[str, TaskOutput]
    """By table. All are written and announced together."""
    options: FollowOptions
    attempt: int
    emit: Callable[[Sequence[EventIn]], None]
    clock: Callable[[], float] = time.monotonic
    ask_all: Callable[[Callable[[WatchedNode], NodeHead | None], Sequence[WatchedNode]], Iterable[NodeHead | None]] = (
        map
    )
    """How nodes are asked for their heads: one after another, or at the same time."""
    ranges: RangeOutputs | None = None
    """Of live datasets, with `unit_blocks`."""
    ahead: Executor | None = None
    """Reads the next blocks during a write, while it catches up; None: nobody does."""
    _extent: TableExtent = field(default=TableExtent(), init=False)
    """What of the tables is sealed; read with the tip."""
    _tip: list[ChainLink] | None = field(default=None, init=False)
    """The newest stored blocks; None: to be read."""
    _watched: list[WatchedNode] = field(init=False)
    _claimed: bool = field(default=False, init=False)
    _bytes_per_block: float = field(default=_TARGET_BYTES / _FIRST_BLOCKS, init=False)
    _moves: int = field(default=0, init=False)
    """How often in a row the chain had moved."""
    _rewrites: int = field(default=0, init=False)
    _read_ahead: ReadAhead = field(init=False)

    def __post_init__(self) -> None:
        self._read_ahead = ReadAhead(self.ahead)
        self._watched = [WatchedNode(node, self.clock) for node in self.nodes]

    @property
    def rest(self) -> float:
        """Seconds until a node may be asked; 0 if one may now."""
        return min((node.rest for node in self._watched), default=0.0)

    @property
    def newest(self) -> ChainLink | None:
        """The newest stored block; None if there is none, or if it has to be looked up."""
        return self._tip[-1] if self._tip else None

    def run_once(self) -> FollowOutcome:
        """Raises StaleFollowerError if another attempt took over, and NonRetryableError if no node can ever be used."""
        try:
            if not self._claimed:
                self.store.claim()
                self._claimed = True
            self._emit_waiting()
            if self._tip is None:
                self._extent = self.store.read_extent() if self.ranges is not None else TableExtent()
                self._tip = self._above_repair(self.store.read_tip(self.options.max_reorg_depth + 1))
            outcome = self._step(self._tip)
            if outcome.wrote:
                self._emit_waiting()
        except HotStoreUnavailableError as error:
            self._tip = None  # the last write may or may not have taken place
            self._claimed = False
            return FollowOutcome("store_unavailable", error=str(error))
        self._moves = self._moves + 1 if outcome.state == "chain_moved" else 0
        return outcome

    @property
    def _has_files(self) -> bool:
        """Whether there are blocks below the tables, or sealed ones, which are files or become files."""
        extent, start = self._extent, self.options.start
        before = extent.table_start is not None and start is not None and start < extent.table_start
        return extent.sealed_to is not None or before

    def _above_repair(self, tip: list[ChainLink]) -> list[ChainLink]:
        """Leaves out sealed blocks of a chain that a repair has left: files have others in their place."""
        sealed = self._extent.sealed_to
        above = [link for link in tip if sealed is not None and link.number > sealed]
        below = tip[: len(tip) - len(above)]
        if not above or not below or above[0].follows(below[-1]) or above[0].number != below[-1].number + 1:
            return tip
        return above

    def _emit_waiting(self) -> None:
        while waiting := self.store.waiting_events(EMITTED_AT_ONCE):
            self.emit([item.event for item in waiting])
            self.store.mark_emitted([item.event_id for item in waiting])

    def _step(self, tip: Sequence[ChainLink]) -> FollowOutcome:
        """If the node that was chosen fails, the next choice is made of the others at once."""
        links = sound_part(tip)
        ready = [node for node in self._watched if node.rest <= 0]
        heads = [head for head in self.ask_all(_ask_head, ready) if head is not None]
        failure: FollowOutcome | None = None
        while choice := choose_head(heads, links[-1] if links else None, self._votes(heads)):
            try:
                outcome = self._approach(tip, links, choice)
                if outcome.state == "chain_moved" and self._moves >= LOOKS:
                    raise BrokenChainError("it shows another chain in each of its answers", host=choice.node.node.label)
                return outcome
            except (RpcError, NonRetryableError) as error:
                choice.node.fail(error)
                failure = failure or FollowOutcome("node_failed", choice.link.number, _number(tip), error=str(error))
                heads = [head for head in heads if head.node.rest <= 0]
        self._check_hope()
        return failure or self._no_node(tip)

    def _votes(self, heads: Sequence[NodeHead]) -> list[ChainLink]:
        """Of the nodes that cannot be asked now."""
        answering = {head.node for head in heads}
        return [node.vote for node in self._watched if node not in answering and node.vote is not None]

    def _no_node(self, tip: Sequence[ChainLink]) -> FollowOutcome:
        errors = [node.error for node in self._watched if node.error is not None]
        return FollowOutcome("no_node", None, _number(tip), error=str(errors[0]) if errors else "there is no node")

    def _check_hope(self) -> None:
        if all(node.is_hopeless for node in self._watched):
            error = self._watched[0].error if self._watched else None
            raise NonRetryableError(f"{getattr(error, 'kind', 'no_rpc_endpoint')}: {error or 'there is no node'}")

    def _approach(self, tip: Sequence[ChainLink], links: Sequence[ChainLink], choice: NodeHead) -> FollowOutcome:
        """`links`: those of the tip that are a chain. Above a gap, everything is read again."""
        head = choice.link
        if not links:
            first = self._first_block(head)
            if head.number < first:
                return FollowOutcome("before_start", head.number)
            return self._write(tip, choice, _Fork(None, first, 0))
        newest = links[-1]
        if head.number > newest.number + 1 or head.follows(newest):
            above_gap = tip[-1].number - newest.number
            outcome = self._write(tip, choice, _Fork(newest, newest.number + 1, above_gap))
            if outcome.state != "chain_moved":
                return outcome
        stored_hash = {link.number: link.hash for link in links}
        if stored_hash.get(head.number) == head.hash:
            return FollowOutcome(
                "at_head" if head.number == newest.number else "nodes_behind", head.number, newest.number
            )
        if head.number < links[0].number:
            return FollowOutcome("nodes_behind", head.number, newest.number)
        return self._reorganise(tip, links, choice)

    def _reorganise(self, tip: Sequence[ChainLink], links: Sequence[ChainLink], choice: NodeHead) -> FollowOutcome:
        head, newest = choice.link, tip[-1]
        fork = self._find_fork(tip, links, choice)
        if fork is None:
            return FollowOutcome("chain_moved", head.number, newest.number)
        most = self.options.max_reorg_depth
        sealed = self._extent.sealed_to
        if fork.depth > most or (sealed is not None and fork.first <= sealed):
            if self.options.repair_from is not None and self._extent.table_start is not None:
                return self._repair(tip, choice, self._extent.table_start - 1 if sealed is None else sealed)
            return FollowOutcome(
                "reorg_too_deep",
                head.number,
                newest.number,
                depth=fork.depth,
                error=f"the nodes have other blocks than the tables from further back than {most} blocks below block"
                f" {newest.number} on ({choice.node.node.label}): nothing was written. {self._remedy(fork)}",
            )
        if head.number < newest.number:
            return FollowOutcome("shorter_chain", head.number, newest.number, depth=fork.depth)
        return self._write(tip, choice, fork)

    def _remedy(self, fork: _Fork) -> str:
        if self.ranges is None:
            return "If the chain is right, raise max_reorg_depth; if not, correct the endpoints"
        return (
            f"If the chain is right, run `trace repair DAG/JOB --from BLOCK` with the first block that changed, at most"
            f" {fork.first}; if not, correct the endpoints"
        )

    def _repair(self, tip: Sequence[ChainLink], choice: NodeHead, sealed: int) -> FollowOutcome:
        """Replaces everything above the seal in one write, and has the files below it read anew from `repair_from` on.
        The block below is one of these files', so nothing is compared with it."""
        newest, depth = tip[-1].number, tip[-1].number - sealed
        if choice.link.number < newest:
            return FollowOutcome("shorter_chain", choice.link.number, newest, depth=depth)
        start, boundary = self._extent.table_start, self._extent.boundary
        if start is not None and sealed > (start - 1 if boundary is None else boundary):
            # Files of sealed rows are being made: those that are read anew must come after them.
            self._tip, self._claimed = None, False
            return FollowOutcome("repair_waits", choice.link.number, newest, depth=depth)
        return self._write(tip, choice, _Fork(None, sealed + 1, depth), repairs=True)

    def _first_block(self, head: ChainLink) -> int:
        """The first block of empty tables. Those of live datasets begin with the unit that is not final yet: what lies
        before it is read into files, in parallel."""
        start = head.number if self.options.start is None else self.options.start
        if self.ranges is None or self.options.unit_blocks is None:
            return start
        final = head.number - self.options.finality_depth
        return max(start, final - final % self.options.unit_blocks)

    def _find_fork(self, tip: Sequence[ChainLink], links: Sequence[ChainLink], choice: NodeHead) -> _Fork | None:
        """Walks back by twice as many blocks each time. None: the node's chain changed meanwhile."""
        newest = tip[-1].number
        below = [link for link in links if link.number <= choice.link.number]
        above: ChainLink | None = choice.link if below[-1].number + 1 >= choice.link.number else None
        count = 1
        while below:
            part, below = below[-count:], below[:-count]
            count *= 2
            node_links = choice.node.node.read_links([link.number for link in part])
            for stored, link in zip(reversed(part), reversed(node_links), strict=True):
                if link.number != stored.number or (above is not None and not (above == link or above.follows(link))):
                    return None
                if link.hash == stored.hash:
                    return _Fork(stored, stored.number + 1, newest - stored.number)
                above = link
        # These are all, also below the tables: the first block is another, too.
        if len(tip) <= self.options.max_reorg_depth and not self._has_files:
            return _Fork(None, links[0].number, newest - links[0].number + 1)
        return _Fork(None, links[0].number, self.options.max_reorg_depth + 1)

    def _write(
        self, tip: Sequence[ChainLink], choice: NodeHead, fork: _Fork, *, repairs: bool = False
    ) -> FollowOutcome:
        """`repairs`: files below the first block are to be read anew."""
        rows = None if fork.depth else self._read_ahead.take(choice, fork.parent)
        if rows is None:
            rows = self._read(choice, fork, min(choice.link.number, fork.first + self._batch(fork.depth) - 1))
        # The node may also have returned to the stored blocks since the fork was found.
        if rows is None or (not repairs and rows.links[0] in tip):
            return FollowOutcome("chain_moved", choice.link.number, _number(tip))
        last = rows.links[-1].number
        self._bytes_per_block = max(1.0, rows.size / len(rows.links))
        if last < choice.link.number:
            self._read_ahead.start(choice.node, last + 1, min(choice.link.number, last + self._batch(0)))
        if self.ranges is None:
            self.store.replace(rows, self._announce(tip, fork, rows))
        else:
            seal = self._next_seal(fork, last)
            events = [
                *self._announce_ranges(tip, fork, rows),
                *self._announce_history(tip, fork, rows, repairs=repairs),
                *self._announce_final(fork, seal),
            ]
            self.store.replace(rows, events, seal=seal)
            start = self._extent.table_start
            self._extent = replace(
                self._extent,
                table_start=fork.first if start is None else start,
                sealed_to=self._extent.sealed_to if seal is None else seal,
            )
        choice.node.deliver()
        lower = [] if repairs else [link for link in tip if link.number < fork.first]
        # Never fewer than before, since the newest block does not go back: a window that is not full is still all.
        self._tip = [*lower, *rows.links][-(self.options.max_reorg_depth + 1) :]
        state: FollowState = "rewritten" if fork.depth else "appended"
        return FollowOutcome(state, choice.link.number, last, fork.first, last, rows.links[-1], fork.depth)

    def _batch(self, depth: int) -> int:
        fitting = max(1, int(_TARGET_BYTES / self._bytes_per_block))
        return max(depth, min(self.options.batch_blocks, fitting))

    def _read(self, choice: NodeHead, fork: _Fork, last: int) -> ChainRows | None:
        """None if what was read does not fit: the chain changed since the node was asked for its head."""
        size = self._batch(0)
        links: list[ChainLink] = []
        parts: list[dict[str, pa.Table]] = []
        for first in range(fork.first, last + 1, size):
            rows = choice.node.node.read_rows(first, min(last, first + size - 1))
            previous = links[-1] if links else fork.parent
            if previous is not None and not rows.links[0].follows(previous):
                return None
            links += rows.links
            parts.append(rows.tables)
        if last == choice.link.number and links[-1].hash != choice.link.hash:
            return None
        tables = {name: pa.concat_tables([part[name] for part in parts]) for name in self.outputs}
        return ChainRows(links, tables)

    def _announce(self, tip: Sequence[ChainLink], fork: _Fork, rows: ChainRows) -> list[EventIn]:
        last = rows.links[-1]
        invalidates, revision = None, ""
        if fork.depth:
            self._rewrites += 1
            invalidates = Invalidates(start=fork.first, end=tip[-1].number, reason=self._reason(tip, fork))
            # It is stored with the rows, so a repeated event has the same one.
            revision = f"{last.hash}.{self.attempt}.{self._rewrites}"
        return [
            EventIn(
                dataset_uuid=output.dataset_uuid,
                dataset_version=output.dataset_version,
                cursor=last.number,
                revision=revision,
                invalidates=invalidates,
            )
            for output in self.outputs.values()
        ]

    def _announce_ranges(self, tip: Sequence[ChainLink], fork: _Fork, rows: ChainRows) -> list[EventIn]:
        """Blocks of live datasets: first what changed, then what is new. Units are what announced blocks first."""
        events, first, last = [], fork.first, rows.links[-1]
        if fork.depth:
            self._rewrites += 1
            replaced = (fork.first, tip[-1].number)
            invalidates = Invalidates(start=replaced[0], end=replaced[1], reason=self._reason(tip, fork))
            revision = self._change_revision(rows)
            events += [_range_event(output, *replaced, revision, invalidates) for output in self.outputs.values()]
            first = replaced[1] + 1
        if first <= last.number:
            events += [_range_event(output, first, last.number, FIRST) for output in self.outputs.values()]
        return events

    def _change_revision(self, rows: ChainRows) -> str:
        return f"{rows.links[-1].hash}.{self.attempt}.{self._rewrites}"

    def _announce_history(
        self, tip: Sequence[ChainLink], fork: _Fork, rows: ChainRows, *, repairs: bool
    ) -> list[EventIn]:
        """What the nodes have before the first block of the tables, and sealed blocks that changed, by whole units."""
        assert self.ranges is not None
        start, repaired, size = self.options.start, self.options.repair_from, self.options.unit_blocks
        if not tip and start is not None and start < fork.first:
            return [_range_event(self.ranges.history, start, fork.first - 1)]
        if not repairs or repaired is None or size is None or repaired >= fork.first:
            return []
        first = max(repaired - repaired % size, self._extent.table_start or 0 if start is None else start)
        if first >= fork.first:
            return []
        return [_range_event(self.ranges.history, first, fork.first - 1, self._change_revision(rows))]

    def _next_seal(self, fork: _Fork, last: int) -> int | None:
        """The end of the last unit that is final with this write; None if no other one is."""
        assert self.options.unit_blocks is not None
        final = last - self.options.finality_depth
        end = (final + 1) // self.options.unit_blocks * self.options.unit_blocks - 1
        sealed = self._sealed(fork)
        return end if end > sealed else None

    def _sealed(self, fork: _Fork) -> int:
        """The last block that is sealed, or the one before the tables."""
        if self._extent.sealed_to is not None:
            return self._extent.sealed_to
        return (fork.first if self._extent.table_start is None else self._extent.table_start) - 1

    def _announce_final(self, fork: _Fork, seal: int | None) -> list[EventIn]:
        if seal is None:
            return []
        assert self.ranges is not None
        assert self.options.unit_blocks is not None
        events, first, size = [], self._sealed(fork) + 1, self.options.unit_blocks
        while first <= seal:
            end = first - first % size + size - 1
            events.append(_range_event(self.ranges.final, first, end))
            first = end + 1
        return events

    def _reason(self, tip: Sequence[ChainLink], fork: _Fork) -> str:
        if len(sound_part(tip)) < len(tip):
            return f"a gap in the stored blocks: {fork.depth} blocks were read again"
        final = fork.depth - self.options.finality_depth
        return f"reorganisation of {fork.depth} blocks" + (f", {final} of them final" if final > 0 else "")


def _range_event(
    output: TaskOutput, start: int, end: int, revision: str = "", invalidates: Invalidates | None = None
) -> EventIn:
    return EventIn(
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        partition_key=f"{start}-{end}",
        start=start,
        end=end,
        revision=revision,
        invalidates=invalidates,
    )


def _number(tip: Sequence[ChainLink]) -> int | None:
    """Of the newest stored block."""
    return tip[-1].number if tip else None


def _ask_head(node: WatchedNode) -> NodeHead | None:
    try:
        return NodeHead(node, node.read_head())
    except (RpcError, NonRetryableError) as error:
        node.fail(error)
        return None
