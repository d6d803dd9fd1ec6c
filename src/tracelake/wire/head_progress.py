"""How far the follower of a chain is: told with heartbeats, stored with its source, shown by `/v1/sources`."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta

from tracelake.wire.base import Cursor, Reply, Request

FollowState = Literal[
    "appended",
    "rewritten",
    "at_head",
    "nodes_behind",
    "shorter_chain",
    "before_start",
    "chain_moved",
    "node_failed",
    "no_node",
    "store_unavailable",
    "reorg_too_deep",
    "repair_waits",
]
"""How the last look of a follower ended. Only the first two wrote something; all others heal by looking again."""

Depth = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class HeadProgress(Request, frozen=True, kw_only=True, omit_defaults=True):
    """What a follower says of itself. Counts are those of its attempt."""

    state: FollowState
    head: Cursor | None = None
    """The newest block of the nodes."""
    stored: Cursor | None = None
    """The newest block of the tables."""
    stored_time: Cursor | None = None
    """Its time, in seconds since 1970."""
    announced: bool = False
    """A subscription announces new blocks; else nodes are polled."""
    reorgs: Cursor = 0
    last_reorg_depth: Depth = 0
    max_reorg_depth: Depth = 0


class HeadProgressRow(Reply, frozen=True, kw_only=True):
    """The progress of an always_on source that follows the head of a chain, as it was told last."""

    state: FollowState
    at: datetime
    """When it was told."""
    head: int | None = None
    stored: int | None = None
    lag_blocks: int | None = None
    """From the newest stored block to the head, as it was told."""
    lag_seconds: float | None = None
    """The age of the newest stored block now."""
    announced: bool = False
    """A subscription announces new blocks; else nodes are polled."""
    reorgs: int = 0
    """Reorganisations that were written, by all attempts."""
    last_reorg_depth: int = 0
    max_reorg_depth: int = 0
