"""The next blocks of a node, read while those before them are being written.

What was read ahead is used only if it continues what was written, and if the node that gave it, asked anew, still has
its last block: then it still has all of them. Otherwise it is dropped and read again. So a write has no older blocks
than one that was read after its head.
"""

from concurrent.futures import Executor, Future
from typing import NamedTuple

from tracelake.follower.links import ChainLink
from tracelake.follower.nodes import ChainRows, NodeHead, WatchedNode
from tracelake.model.log_attribution import carry_key


class _AheadReading(NamedTuple):
    node: WatchedNode
    first: int
    rows: Future[ChainRows]


class ReadAhead:
    """`executor`: None, and nothing is read ahead."""

    def __init__(self, executor: Executor | None) -> None:
        self._executor = executor
        self._reading: _AheadReading | None = None

    def start(self, node: WatchedNode, first: int, last: int) -> None:
        """Not if blocks that nobody took are still being read: that is a node that does not answer."""
        if self._executor is None or (self._reading is not None and not self._reading.rows.done()):
            return
        self._reading = _AheadReading(node, first, self._executor.submit(carry_key(node.node.read_rows), first, last))

    def take(self, choice: NodeHead, parent: ChainLink | None) -> ChainRows | None:
        """The blocks after `parent`, or None if they have to be read. Raises as the node does."""
        reading = self._reading
        if reading is None or parent is None or reading.node is not choice.node or reading.first != parent.number + 1:
            return None
        self._reading = None
        rows = reading.rows.result()
        last = rows.links[-1]
        if last.number > choice.link.number or not rows.links[0].follows(parent):
            return None
        is_head = last.number == choice.link.number
        node_link = choice.link if is_head else choice.node.node.read_links([last.number])[0]
        return rows if node_link.hash == last.hash else None
