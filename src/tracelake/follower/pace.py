"""How long to wait for the next block: by the times of the blocks before, within bounds.

A node is asked four times in the time of a block, so a block is seen a quarter of that time late at most. When a block
is overdue the looks get rarer: the chain, or every node, has stopped. While blocks are announced as they come, a look
without an announcement is only a precaution, and takes place after one and a half times the time of a block.
"""

from tracelake.follower.links import ChainLink

_LOOKS_PER_BLOCK = 4
_ANNOUNCED_BLOCKS = 1.5
_KNOWN_WRITES = 32
_PATIENCE = 3
"""After so many times of a block without one, looks get rarer."""
_SLOWER = 1.5
_UNKNOWN_SECONDS = 1.0
"""Between looks, while no two blocks are known."""


class PollPace:
    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest = shortest
        self._longest = longest
        self._links: list[ChainLink] = []
        self._waited = 0.0
        self._extra = 1.0

    def observe(self, newest: ChainLink) -> None:
        """A write ended with this block."""
        self._links = [*self._links, newest][-_KNOWN_WRITES:]
        self._waited, self._extra = 0.0, 1.0

    @property
    def block_seconds(self) -> float | None:
        """The time from one block to the next, as far as it is known."""
        if len(self._links) < 2:
            return None
        first, last = self._links[0], self._links[-1]
        if last.number <= first.number or last.timestamp < first.timestamp:
            return None
        return (last.timestamp - first.timestamp) / (last.number - first.number)

    def next_wait(self, *, announced: bool = False) -> float:
        """Seconds until the next look. Each call counts as one. `announced`: the next block will be."""
        block_seconds = self.block_seconds
        blocks = _ANNOUNCED_BLOCKS if announced else 1 / _LOOKS_PER_BLOCK
        usual = _UNKNOWN_SECONDS if block_seconds is None else block_seconds * blocks
        wait = min(self._longest, max(self._shortest, usual * self._extra))
        self._waited += wait
        expected = _UNKNOWN_SECONDS if block_seconds is None else block_seconds
        if self._waited > _PATIENCE * max(expected, self._shortest):
            self._extra = min(self._extra * _SLOWER, 1e6)
        return wait
