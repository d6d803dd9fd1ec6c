"""The follower: one call of `run_once` compares what is stored with what the nodes say and makes one write at most.

Rules that hold whatever happens in between:

- A write is one call of the store. It begins at a block whose parent is the stored block below it (or at the first
  block of all), and its blocks come from one node and follow one another. So the stored blocks are always a chain.
- A reorganisation goes back to the newest stored block that the chosen node has as well, and replaces everything above
  it in one write, with an invalidation of exactly the announced blocks that changed. Deeper than `max_reorg_depth`,
  nothing is written: `reorg_too_deep`.
- Sealed blocks of live datasets are in files. A reorganisation of them needs a person's permission, which is good for
  one write. Which files changed is found by their stored hashes (`sealed_chain`).
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
from tracelake.follower.announcements import WriteAnnouncer, next_seal, unit_ends
from tracelake.follower.deep_forks import DeepFork
from tracelake.follower.links import ChainFork, ChainLink, sound_part
from tracelake.follower.nodes import ChainNode, ChainRows, NodeHead, WatchedNode, choose_head
from tracelake.follower.options import FollowOptions, RangeOutputs, RepairPermit
from tracelake.follower.read_ahead import ReadAhead
from tracelake.follower.sealed_chain import find_common_mark, read_marks_again
from tracelake.follower.store import HotChainStore, HotStoreUnavailableError
from tracelake.ports.direct_tables import TableExtent
from tracelake.spark.evm.errors import BrokenChainError, RpcError
from tracelake.wire.head_progress import FollowState
from tracelake.wire.units import EventIn, TaskOutput

EMITTED_AT_ONCE = 100
LOOKS = 3
"""How often a node may show another chain in each of its answers before it is taken for one that errs."""
_TARGET_BYTES = 8 * 1024 * 1024
"""Of one write while catching up, by the size of the blocks before."""
_FIRST_BLOCKS = 8


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
    _announcer: WriteAnnouncer = field(init=False)
    _read_ahead: ReadAhead = field(init=False)

    def __post_init__(self) -> None:
        self._read_ahead = ReadAhead(self.ahead)
        self._announcer = WriteAnnouncer(self.outputs, self.options, self.attempt, self.ranges)
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
                self._tip = self._above_repair(self.store.read_tip(self.options.window + 1))
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
    def _first_file(self) -> int:
        """The first block of a live dataset: of the files below the tables, or of the tables."""
        start = self._extent.table_start or 0
        return start if self.options.start is None else min(start, self.options.start)

    @property
    def _files_to(self) -> int:
        """The last block that is in files, or will be without a change."""
        sealed, start = self._extent.sealed_to, self._extent.table_start
        return sealed if sealed is not None else (start or 0) - 1

    @property
    def _permit(self) -> RepairPermit | None:
        """The permission of a repair, if it is neither used nor too old."""
        permit = self.options.repair
        if permit is None or permit.permit_id == self._extent.permit_id or self.clock() >= permit.deadline:
            return None
        return permit

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
            return self._write(tip, choice, ChainFork(None, first, 0))
        newest = links[-1]
        if head.number > newest.number + 1 or head.follows(newest):
            above_gap = tip[-1].number - newest.number
            outcome = self._write(tip, choice, ChainFork(newest, newest.number + 1, above_gap))
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
        deep = self._look_below(fork, newest.number, choice)
        fork = deep.fork
        if deep.reaches_files or fork.depth > self.options.max_reorg_depth:
            permit = self._permit
            refusal = "" if permit is None else deep.refuse(permit, self.options)
            if permit is not None and not refusal:
                return self._repair(tip, choice, deep, permit)
            return FollowOutcome(
                "reorg_too_deep",
                head.number,
                newest.number,
                depth=fork.depth,
                error=f"the nodes have other blocks than those stored, {deep.describe(self.options, newest.number)}"
                f" ({choice.node.node.label}): nothing was written. {refusal or deep.advise()}",
            )
        if head.number < newest.number:
            return FollowOutcome("shorter_chain", head.number, newest.number, depth=fork.depth)
        return self._write(tip, choice, fork)

    def _look_below(self, fork: ChainFork, newest: int, choice: NodeHead) -> DeepFork:
        """Finds a fork below the links that were compared, as far as hashes are stored."""
        start = self._extent.table_start
        if start is None:
            return DeepFork(fork, True, None, -1)
        first_file, files_to = self._first_file, self._files_to
        if fork.parent is not None or fork.depth <= self.options.window:
            return DeepFork(fork, True, first_file, files_to)
        numbers = range(min(fork.first, choice.link.number + 1))
        marks = {number: mark for number, mark in self.store.read_marks().items() if number in numbers}
        common = find_common_mark(marks, choice.node.node)
        lowest = fork.first if common.lowest_other is None else common.lowest_other
        if common.newest is not None:
            first, is_known = common.newest.number + 1, True
        elif self.options.first_of_unit(lowest) <= first_file or first_file > files_to:
            first, is_known = first_file, True
        else:
            first, is_known = min(lowest, files_to), False
        return DeepFork(ChainFork(common.newest, first, newest - first + 1), is_known, first_file, files_to)

    def _repair(
        self, tip: Sequence[ChainLink], choice: NodeHead, deep: DeepFork, permit: RepairPermit
    ) -> FollowOutcome:
        """Replaces everything above the seal in one write, and has the files below it read anew by whole units. If no
        file changed, it is a reorganisation that is deeper than others."""
        newest = tip[-1].number
        if choice.link.number < newest:
            return FollowOutcome("shorter_chain", choice.link.number, newest, depth=deep.fork.depth)
        if not deep.reaches_files:
            return self._write(tip, choice, deep.fork, permit=permit)
        start, boundary = self._extent.table_start, self._extent.boundary
        fork = ChainFork(None, deep.files_to + 1, newest - deep.files_to)
        if start is not None and deep.files_to > (start - 1 if boundary is None else boundary):
            # Files of sealed rows are being made: those that are read anew must come after them.
            self._tip, self._claimed = None, False
            return FollowOutcome("repair_waits", choice.link.number, newest, depth=fork.depth)
        changed_from = deep.first_to_read(permit, self.options)
        return self._write(tip, choice, fork, permit=permit, changed_from=changed_from)

    def _first_block(self, head: ChainLink) -> int:
        """The first block of empty tables. Those of live datasets begin with the unit that is not final yet: what lies
        before it is read into files, in parallel."""
        start = head.number if self.options.start is None else self.options.start
        if self.ranges is None or self.options.unit_blocks is None:
            return start
        final = head.number - self.options.finality_depth
        return max(start, final - final % self.options.unit_blocks)

    def _find_fork(self, tip: Sequence[ChainLink], links: Sequence[ChainLink], choice: NodeHead) -> ChainFork | None:
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
                    return ChainFork(stored, stored.number + 1, newest - stored.number)
                above = link
        # These are all, also below the tables: the first block is another, too.
        has_files = self._extent.table_start is not None and self._files_to >= self._first_file
        if len(tip) <= self.options.window and not has_files:
            return ChainFork(None, links[0].number, newest - links[0].number + 1)
        return ChainFork(None, links[0].number, self.options.window + 1)

    def _write(
        self,
        tip: Sequence[ChainLink],
        choice: NodeHead,
        fork: ChainFork,
        *,
        permit: RepairPermit | None = None,
        changed_from: int | None = None,
    ) -> FollowOutcome:
        """`permit`: what allows the write. `changed_from`: files from this block on are to be read anew."""
        repairs = changed_from is not None
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
        lower = [] if repairs else [link for link in tip if link.number < fork.first]
        seal = None if self.ranges is None else next_seal(self.options, self._extent, fork.first, last)
        events = self._announcer.announce(tip, fork, rows, self._extent, seal=seal, changed_from=changed_from)
        if self.ranges is None:
            self.store.replace(rows, events)
        else:
            marks = self._make_marks([*lower, *rows.links], fork.first, seal)
            if changed_from is not None:
                changed = self._read_changed_marks(choice, changed_from, fork.first - 1)
                if changed[fork.first - 1] != rows.links[0].parent_hash:
                    return FollowOutcome("chain_moved", choice.link.number, _number(tip))
                marks |= changed
            permit_id = None if permit is None else permit.permit_id
            self.store.replace(rows, events, seal=seal, marks=marks, permit_id=permit_id)
            start = self._extent.table_start
            self._extent = replace(
                self._extent,
                table_start=fork.first if start is None else start,
                sealed_to=self._extent.sealed_to if seal is None else seal,
                permit_id=self._extent.permit_id if permit_id is None else permit_id,
            )
        choice.node.deliver()
        # Never fewer than before, since the newest block does not go back: a window that is not full is still all.
        self._tip = [*lower, *rows.links][-(self.options.window + 1) :]
        state: FollowState = "rewritten" if fork.depth else "appended"
        return FollowOutcome(state, choice.link.number, last, fork.first, last, rows.links[-1], fork.depth)

    def _make_marks(self, links: Sequence[ChainLink], first: int, seal: int | None) -> dict[int, str]:
        """Of the units that are sealed now, and of the block before the tables. Where a link is not at hand, a mark is
        missing, and a repair has more files read anew."""
        marks: dict[int, str] = {}
        if self._extent.table_start is None and links[0].number == first > 0:
            marks[first - 1] = links[0].parent_hash
        if seal is not None:
            assert self.options.unit_blocks is not None
            ends = unit_ends(self.options.unit_blocks, 0, seal)
            marks |= {link.number: link.hash for link in links if link.number in ends}
        return marks

    def _read_changed_marks(self, choice: NodeHead, first: int, last: int) -> dict[int, str]:
        """They are read after the rows that follow them, and compared with these."""
        numbers = {number for number in self.store.read_marks() if first <= number <= last}
        return read_marks_again({*numbers, last}, choice.node.node)

    def _batch(self, depth: int) -> int:
        fitting = max(1, int(_TARGET_BYTES / self._bytes_per_block))
        return max(depth, min(self.options.batch_blocks, fitting))

    def _read(self, choice: NodeHead, fork: ChainFork, last: int) -> ChainRows | None:
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


def _number(tip: Sequence[ChainLink]) -> int | None:
    """Of the newest stored block."""
    return tip[-1].number if tip else None


def _ask_head(node: WatchedNode) -> NodeHead | None:
    try:
        return NodeHead(node, node.read_head())
    except (RpcError, NonRetryableError) as error:
        node.fail(error)
        return None
