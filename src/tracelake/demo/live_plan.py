"""The plan of the live chapter: where a chain is followed from, how it grows meanwhile, and where it changes its mind.

The recorded chain is shown up to a head below its end, and then grows to it; on the way its newest blocks are replaced
by others. A chain of the person's own is followed at its real head, and grows by itself.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tracelake.demo.plan import DemoPlan
from tracelake.example_files import find_example

DAG = "live_chain"
FOLLOWER, DECODER = "chain_head", "decode"
BLOCKS, TRANSACTIONS, LOGS = LIVE = ("live_blocks", "live_transactions", "live_logs")
"""The live datasets: files up to a boundary, a table above it."""
TRANSFERS, FLOWS = "live_transfers", "live_flows"
DEPTH = 12
"""How many blocks are replaced."""

_LEAST_BLOCKS = 40
_MANY_BLOCKS = 1000
_STEPS = 16
_OWN_BLOCKS, _OWN_UNIT, _OWN_FINALITY = 40, 10, 12
"""Of a chain of the person's own: blocks below its head, blocks of a unit, and the least depth of final blocks."""
_OWN_NEW_BLOCKS = 2
"""So many blocks after the plan a unit becomes final, so that it is seen how rows of the table become files."""


@dataclass(frozen=True, slots=True)
class LivePlan:
    chain_id: int
    start: int
    head: int
    """The newest block when the chapter begins."""
    unit: int
    """Blocks of a unit of files."""
    finality: int
    rpc: str
    tip: int | None = None
    """The last block that the chain grows to; None: it grows by itself."""
    fork: int | None = None
    """The head at which the newest blocks are replaced."""

    def document(self) -> bytes:
        """The DAG as it is shipped, for this chain, with units of this size."""
        text = find_example("live_chain/chain.yaml").read_text()
        text = _replaced(text, r"chain_id: \d+", f"chain_id: {self.chain_id}")
        text = _replaced(text, r"unit_blocks: \d+", f"unit_blocks: {self.unit}")
        lines = (
            f"start: {self.start}",
            f"rpc: {self.rpc}",
            f"finality_depth_blocks: {self.finality}",
            # Blocks of the recording come in seconds, though their times are minutes apart.
            "poll_max_seconds: 1",
        )
        return _replaced(text, r"start: \d+", "\n    ".join(lines)).encode()

    def first_final_head(self, table_start: int) -> int:
        """The head at which the first unit of the tables is final. They begin at this block."""
        return (table_start // self.unit + 1) * self.unit - 1 + self.finality

    @property
    def heads_before(self) -> Iterator[int]:
        """The heads up to the fork, in order."""
        return self._steps(self.head, self.fork or self.head)

    @property
    def heads_after(self) -> Iterator[int]:
        return self._steps(self.fork or self.head, self.tip or self.head)

    def _steps(self, first: int, last: int) -> Iterator[int]:
        size = max(1, ((self.tip or self.head) - self.head) // _STEPS)
        yield from range(first + size, last, size)
        if last > first:
            yield last


def plan_live(plan: DemoPlan, head: int | None = None) -> LivePlan | None:
    """`head`: the newest block of a chain of the person's own. None if there are too few blocks to show anything."""
    if head is not None:
        start = max(0, head - _OWN_BLOCKS)
        finality = _OWN_FINALITY + (head + _OWN_NEW_BLOCKS + 1 - _OWN_FINALITY) % _OWN_UNIT
        return LivePlan(plan.chain_id, start, head, _OWN_UNIT, finality, "default")
    if plan.blocks < _LEAST_BLOCKS:
        return None
    return LivePlan(
        plan.chain_id,
        plan.first,
        head=plan.first + plan.blocks * 3 // 5 - 1,
        unit=plan.unit // 2,
        finality=64 if plan.blocks >= _MANY_BLOCKS else DEPTH + 4,
        rpc="live",
        tip=plan.last,
        fork=plan.first + plan.blocks * 31 // 40,
    )


def _replaced(text: str, pattern: str, by: str) -> str:
    changed, times = re.subn(pattern, by, text)
    assert times == 1, pattern
    return changed
