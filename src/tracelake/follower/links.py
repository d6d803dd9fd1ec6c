"""Blocks as the follower compares them: by number, hash and parent."""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa


class ChainLink(NamedTuple):
    """One block, without its content."""

    number: int
    hash: str
    parent_hash: str
    timestamp: int

    def follows(self, other: "ChainLink") -> bool:
        return self.number == other.number + 1 and self.parent_hash == other.hash


def sound_part(links: Sequence[ChainLink]) -> Sequence[ChainLink]:
    """The links below the first gap or broken link; all of them where there is none."""
    for place in range(1, len(links)):
        if not links[place].follows(links[place - 1]):
            return links[:place]
    return links


def links_of(blocks: pa.Table) -> list[ChainLink]:
    """The links of a table `blocks`, in its order."""
    names = ("block_number", "block_hash", "parent_hash", "timestamp")
    return [
        ChainLink(int(number), f"0x{name.hex()}", f"0x{parent.hex()}", int(time))
        for number, name, parent, time in zip(*(blocks[column].to_pylist() for column in names), strict=True)
    ]


class ChainFork(NamedTuple):
    """Where the chosen chain leaves the stored one."""

    parent: ChainLink | None
    """The newest stored block that both have, as far as is known; None: no stored link is on the chosen chain."""
    first: int
    """The lowest block to replace."""
    depth: int
    """How many stored blocks are replaced."""
