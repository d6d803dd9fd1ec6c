"""What a follower may do, and what it writes besides its tables."""

from dataclasses import dataclass
from typing import NamedTuple

from tracelake.wire.units import TaskOutput


@dataclass(frozen=True, slots=True)
class RepairPermit:
    """A person's permission to follow one reorganisation of sealed blocks."""

    permit_id: int
    """The write of the repair stores it, so that no attempt uses the same permission twice."""
    deadline: float
    """By the follower's clock."""
    from_block: int | None = None
    """Files from this block on are read again; None: from the first one that changed."""


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
    repair: RepairPermit | None = None
    """One reorganisation may change sealed blocks: files with them are read anew."""

    @property
    def window(self) -> int:
        """How far below the newest stored block links are compared one by one. Ends of units are sealed in it."""
        return self.max_reorg_depth if self.unit_blocks is None else max(self.max_reorg_depth, self.finality_depth)

    def first_of_unit(self, number: int) -> int:
        """The first block of the unit of files that a block is in."""
        return number - number % (self.unit_blocks or 1)


class RangeOutputs(NamedTuple):
    """Outputs of live datasets that are ranges of blocks, without rows."""

    history: TaskOutput
    """Ranges that no table has: files are made of them from the nodes."""
    final: TaskOutput
    """Ranges that are sealed: files are made of them from the tables."""
