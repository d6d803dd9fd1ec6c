"""From the moment a block is shown until its rows and its event are durable, against a loop that only polls and reads
the block."""

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.follower.announcing_node import AnnouncingNode

from benchmarks.support.follow_source import SECONDS, MovedChain, RunningFollower, bare_node

POLL_SECONDS = 0.05
"""The shortest that the operator allows, so that its own part is seen."""
RARE_SECONDS = 15.0


@dataclass
class Latency:
    dsn: str
    chain: MovedChain
    next_block: int
    """The chain shows those before it."""
    blocks: int
    """Of one reading."""
    values: dict[str, list[float]] = field(default_factory=dict)
    """By subject, seconds of each block."""
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def read_polled(self) -> None:
        with self._following(self.chain.url, POLL_SECONDS) as heard:
            self._show_blocks("polled", heard)

    def read_announced(self) -> None:
        """A look without an announcement would come after seconds."""
        with (
            AnnouncingNode().serving() as announcer,
            self._following(f"{self.chain.url},{announcer.url}", RARE_SECONDS) as heard,
        ):
            announcer.wait_subscribed()
            self._show_blocks("announced", heard, announcer.announce)

    def read_bare(self) -> None:
        """As simple as it gets: asks for the head, reads a block that is new, and waits."""
        heard: queue.SimpleQueue[int] = queue.SimpleQueue()
        stop = threading.Event()
        newest = self.next_block - 1

        def poll() -> None:
            node, known = bare_node(self.chain.url), newest
            try:
                while not stop.wait(POLL_SECONDS):
                    head = node.read_head()
                    if head.number > known:
                        node.read_rows(known + 1, head.number)
                        known = head.number
                        heard.put(known)
            finally:
                node.close()

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            self._show_blocks("bare", heard)
        finally:
            stop.set()
            thread.join(SECONDS)

    @contextmanager
    def _following(self, url: str, longest: float) -> Iterator[queue.SimpleQueue[int]]:
        """The follower with tables that begin at the head, from its first write on."""
        heard: queue.SimpleQueue[int] = queue.SimpleQueue()
        times = {"poll_min_seconds": POLL_SECONDS, "poll_max_seconds": longest}
        with RunningFollower(self.dsn, url, heard.put, start=self.next_block - 1, **times):
            assert heard.get(timeout=SECONDS) == self.next_block - 1
            yield heard

    def _show_blocks(
        self, subject: str, heard: queue.SimpleQueue[int], announce: Callable[[str], None] | None = None
    ) -> None:
        values = self.values.setdefault(subject, [])
        for number in range(self.next_block, self.next_block + self.blocks):
            time.sleep(self.chance.uniform(2, 3) * POLL_SECONDS)  # at any point between two looks
            shown = time.perf_counter()
            self.chain.show(number)
            if announce is not None:
                announce(self.chain.hash_of(number))
            while (told := heard.get(timeout=SECONDS)) != number:
                assert told >= 0, "the follower failed"
            values.append(time.perf_counter() - shown)
        self.next_block += self.blocks
