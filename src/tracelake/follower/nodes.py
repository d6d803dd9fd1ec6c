"""What the follower needs of nodes, and which of their heads it follows.

Nodes are asked for their newest block one by one. Two nodes agree if they have the same block at the height of the
lower one: a node that is merely behind contradicts nobody. Of the heads that no other node continues, the one with the
most nodes that agree with it wins; among equals the longest, where the one that continues what is stored is given
`STAY_BLOCKS` more. A node that fails for a moment keeps its vote for a while: otherwise a fork of few nodes would win
whenever the others do not answer.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from tracelake.catalogue.context import NonRetryableError
from tracelake.follower.links import ChainLink
from tracelake.spark.evm.errors import RpcError

STAY_BLOCKS = 2
"""Without it, two nodes on different forks would have the tables rewritten with every block."""
FIRST_REST_SECONDS, LONGEST_REST_SECONDS = 0.25, 30.0
VOTE_SECONDS = 60.0


class ChainRows(NamedTuple):
    """Consecutive blocks of one node, checked, as tables."""

    links: Sequence[ChainLink]
    tables: dict[str, pa.Table]

    @property
    def size(self) -> int:
        return sum(table.nbytes for table in self.tables.values())


class ChainNode(Protocol):
    """One endpoint. Every method raises RpcError, or NonRetryableError for what waiting does not change."""

    @property
    def label(self) -> str: ...

    def read_head(self) -> ChainLink: ...

    def read_links(self, numbers: Sequence[int]) -> list[ChainLink]:
        """Blocks at these heights; all of them or an error."""
        ...

    def read_rows(self, first: int, last: int) -> ChainRows:
        """Blocks of one piece, with receipts of these very blocks."""
        ...


class NodeHead(NamedTuple):
    node: "WatchedNode"
    link: ChainLink


class WatchedNode:
    """A node, and how it did. One that fails rests, longer each time, until it has delivered blocks again."""

    def __init__(self, node: ChainNode, clock: Callable[[], float]) -> None:
        self.node = node
        self.error: Exception | None = None
        """What it failed with last, since it last delivered."""
        self._clock = clock
        self._failures = 0
        self._rests_until = float("-inf")
        self._head: ChainLink | None = None
        self._seen_at = float("-inf")

    def read_head(self) -> ChainLink:
        self._head = self.node.read_head()
        self._seen_at = self._clock()
        return self._head

    @property
    def vote(self) -> ChainLink | None:
        """The head that it showed, while that is not too long ago."""
        return self._head if self._clock() - self._seen_at < VOTE_SECONDS else None

    @property
    def rest(self) -> float:
        """Seconds until it is asked again."""
        return max(0.0, self._rests_until - self._clock())

    @property
    def is_hopeless(self) -> bool:
        """Whether it failed with what no waiting changes."""
        return isinstance(self.error, NonRetryableError)

    def fail(self, error: Exception) -> None:
        self.error = error
        pause = min(LONGEST_REST_SECONDS, FIRST_REST_SECONDS * 2 ** min(20, self._failures))
        self._failures += 1
        self._rests_until = self._clock() + pause

    def deliver(self) -> None:
        self.error = None
        self._failures = 0


class _Candidate(NamedTuple):
    head: NodeHead
    blocks: dict[int, str]
    """Hashes by number, at the heights of everybody's heads."""

    def agrees_with(self, other: "_Candidate") -> bool:
        height = min(self.head.link.number, other.head.link.number)
        return self.blocks[height] == other.blocks[height]

    def has(self, link: ChainLink) -> bool:
        return self.blocks.get(link.number) == link.hash


def choose_head(
    heads: Sequence[NodeHead], stored: ChainLink | None, votes: Sequence[ChainLink] = ()
) -> NodeHead | None:
    """The head to follow. None if no node is left, since they failed when asked for more (and are marked so), or if the
    rest would replace stored blocks against as many votes.

    `votes`: heads of nodes that cannot be asked now."""
    if not votes and len({head.link.hash for head in heads}) <= 1:
        return heads[0] if heads else None
    others = (*votes, *((stored,) if stored is not None else ()))
    heights = {head.link.number for head in heads} | {link.number for link in others}
    candidates = [candidate for head in heads if (candidate := _ask_heights(head, heights)) is not None]

    def support(candidate: _Candidate) -> int:
        agreeing = sum(candidate.agrees_with(other) for other in candidates)
        return agreeing + sum(candidate.has(vote) for vote in votes)

    def continues(candidate: _Candidate) -> bool:
        return stored is not None and candidate.has(stored)

    def rank(candidate: _Candidate) -> tuple[int, int]:
        return support(candidate), candidate.head.link.number + (STAY_BLOCKS if continues(candidate) else 0)

    def is_passed(candidate: _Candidate) -> bool:
        number = candidate.head.link.number
        return any(other.head.link.number > number and candidate.agrees_with(other) for other in candidates)

    best = max((candidate for candidate in candidates if not is_passed(candidate)), key=rank, default=None)
    if best is None:
        return None
    against = sum(vote.number <= best.head.link.number and not best.has(vote) for vote in votes)
    return None if against >= support(best) and not continues(best) else best.head


def _ask_heights(head: NodeHead, heights: Collection[int]) -> _Candidate | None:
    lower = sorted(height for height in heights if height < head.link.number)
    try:
        links = head.node.node.read_links(lower) if lower else []
    except (RpcError, NonRetryableError) as error:
        head.node.fail(error)
        return None
    return _Candidate(head, {link.number: link.hash for link in (*links, head.link)})
