"""Where a chain leaves sealed blocks.

These are in files, which a follower does not read. Their hashes are stored at the ends of units and before the first
block of the tables (marks). Files are read again by whole units, so this is as exact as needed.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tracelake.follower.links import ChainLink
from tracelake.follower.nodes import ChainNode


class CommonMark(NamedTuple):
    newest: ChainLink | None
    """The newest marked block that the node has as well; None: it has none of them."""
    lowest_other: int | None
    """The lowest marked block that it does not have."""


def find_common_mark(marks: Mapping[int, str], node: ChainNode) -> CommonMark:
    """Searches by halves: a chain that has a block also has all blocks below it."""
    numbers = sorted(marks)
    newest: ChainLink | None = None
    low, high = 0, len(numbers)  # marks below `low` are on the chain of the node, those from `high` on are not
    while low < high:
        middle = (low + high) // 2
        (link,) = node.read_links([numbers[middle]])
        if link.hash == marks[link.number]:
            newest, low = link, middle + 1
        else:
            high = middle
    return CommonMark(newest, numbers[low] if low < len(numbers) else None)


def read_marks_again(numbers: Iterable[int], node: ChainNode) -> dict[int, str]:
    """From below, so that the newest one, which the next block names as its parent, vouches for the others."""
    return {link.number: link.hash for link in node.read_links(sorted(numbers))}
