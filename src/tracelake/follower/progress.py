"""How far a follower is: what it says of itself after each look."""

from tracelake.follower.follow import FollowOutcome
from tracelake.follower.links import ChainLink
from tracelake.wire.head_progress import HeadProgress


class ProgressRecord:
    """What is known since the attempt began. What a look does not tell stays as it was."""

    def __init__(self) -> None:
        self._head: int | None = None
        self._newest: ChainLink | None = None
        self._reorgs = 0
        self._last_depth = 0
        self._max_depth = 0

    def observe(self, outcome: FollowOutcome, newest: ChainLink | None, *, announced: bool) -> HeadProgress:
        """`newest`: the newest stored block, if it is known."""
        self._head = self._head if outcome.head is None else outcome.head
        self._newest = newest or self._newest
        if outcome.state == "rewritten":
            self._reorgs += 1
            self._last_depth = outcome.depth
            self._max_depth = max(self._max_depth, outcome.depth)
        return HeadProgress(
            state=outcome.state,
            head=self._head,
            stored=None if self._newest is None else self._newest.number,
            stored_time=None if self._newest is None else self._newest.timestamp,
            announced=announced,
            reorgs=self._reorgs,
            last_reorg_depth=self._last_depth,
            max_reorg_depth=self._max_depth,
        )
