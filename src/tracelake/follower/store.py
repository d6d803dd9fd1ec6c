"""What the follower needs of the tables it writes: a narrow port of its own.

One transaction of the store replaces every row from a block on, in all tables, and records the events that announce it.
So a crash leaves either the state before a write or the one after it, with its events waiting. A store is opened for
one attempt: `claim` fences attempts before it, and from then on their writes fail with `StaleFollowerError`. It comes
before the first look at the stored blocks, so that nothing changes between that look and the first write.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from tracelake.follower.links import ChainLink
from tracelake.follower.nodes import ChainRows
from tracelake.ports.direct_tables import TableExtent
from tracelake.wire.units import EventIn


class StaleFollowerError(Exception):
    """Another attempt writes these tables: whatever this one has not written yet, it never will."""


class HotStoreRefusedError(Exception):
    """The store refuses the write, and would refuse it again: a column of the table does not take the values."""


class HotStoreUnavailableError(Exception):
    """The store did not answer. Whether the write took place is unknown: look again before the next one."""


class WaitingEvent(NamedTuple):
    event_id: int
    event: EventIn


class HotChainStore(Protocol):
    def claim(self) -> None:
        """Fences every earlier attempt. It is called again after the store was away."""
        ...

    def read_tip(self, count: int) -> list[ChainLink]:
        """The newest stored blocks, from below. Fewer than asked for: these are all."""
        ...

    def read_extent(self) -> TableExtent:
        """What of the tables is sealed and removed, if they are those of live datasets."""
        ...

    def read_marks(self) -> dict[int, str]:
        """Hashes of blocks of a live dataset that outlive their rows, by number."""
        ...

    def replace(
        self,
        rows: ChainRows,
        events: Sequence[EventIn],
        *,
        seal: int | None = None,
        marks: Mapping[int, str] = MappingProxyType({}),
        permit_id: int | None = None,
    ) -> None:
        """Removes all rows of the first of these blocks and above, adds these, and records the events. From then on
        rows up to `seal` do not change. Marks are added, or replaced; the extent has the last `permit_id`."""
        ...

    def waiting_events(self, limit: int) -> list[WaitingEvent]:
        """Recorded and not marked as emitted, in the order of the writes."""
        ...

    def mark_emitted(self, event_ids: Sequence[int]) -> None: ...
