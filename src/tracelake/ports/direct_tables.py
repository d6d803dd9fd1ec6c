"""Tables that a trusted operator writes itself, under a fence.

One write replaces the rows of a range of positions in several tables and stores the events that announce it, all in one
transaction. A fence for each table and scope holds the newest writer: the newest attempt of the newest task. The same
transaction checks and raises it, so that a stale attempt cannot write after its successor has started.

Events stay stored until they are acknowledged. Whoever opens the tables next gets those that its predecessor had not
acknowledged, and announces them before anything else. An event may so be announced twice, with the same key if the task
is the same one.

The table of a live dataset also has an extent. A write may seal positions: rows at or below the seal never change, so
they can be copied to files and, once these are committed, removed. Above the seal only the fenced writer writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from tracelake.errors import TraceError
from tracelake.wire.direct import DirectTable
from tracelake.wire.units import EventIn

if TYPE_CHECKING:
    import pyarrow as pa

WHOLE_TABLE = "*"
"""The scope of a writer that writes all of its tables."""
MAX_SCOPE_BYTES = 512


class WriteFencedError(TraceError):
    """A newer attempt, or a newer task of the same scope, has the fence; nothing was written."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__("write_fenced", message)


class RowsRefusedError(TraceError):
    """The rows do not fit the table or the range; nothing was written."""

    def __init__(self, message: str) -> None:
        super().__init__("rows_refused", message)


class RangeSealedError(TraceError):
    """The write begins at or below a sealed position; nothing was written."""

    def __init__(self, message: str) -> None:
        super().__init__("range_sealed", message)


@dataclass(frozen=True, slots=True)
class TableExtent:
    """The positions of a table of a live dataset; all None if none was written yet."""

    table_start: int | None = None
    """The first one that was ever written."""
    sealed_to: int | None = None
    """Rows at or below it never change again."""
    removed_to: int | None = None
    """Rows at or below it were removed; they are in files."""
    boundary: int | None = None
    """Rows at or below it were in files when the tables were opened."""
    permit_id: int | None = None
    """That of the last write which had one."""


@dataclass(frozen=True, slots=True)
class TableWriter:
    """Who writes. Ids of tasks are ordered by the time of their creation, so of two the higher one is newer."""

    task_id: UUID
    attempt: int


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """An event of committed rows that may not have been announced yet."""

    event_id: int
    event: EventIn


@dataclass(frozen=True, slots=True)
class RangeReplacement:
    """One write: what the rows of these positions are from now on."""

    start: int
    end: int
    """Both included. Every row is in the range."""
    rows: "Mapping[UUID, Sequence[pa.RecordBatch]]"
    """The new rows by dataset. A table with no rows here loses those of the range; one that is not here keeps them."""
    events: Sequence[EventIn] = field(default=())
    """Each is of a dataset in `rows`, or of one that is not among the open tables: an output of events alone."""
    above: bool = False
    """Everything above `end` goes too: a chain was cut off here."""
    live: bool = False
    """The tables are those of live datasets: the first write records where each of them begins."""
    seal: int | None = None
    """At most `end`: from now on rows of the tables in `rows` at or below it are final. Implies `live`. A seal that
    is lower than that of the table, or lies before the table, changes nothing."""
    marks: Mapping[UUID, Mapping[int, bytes]] = field(default_factory=dict)
    """By dataset and position: what is kept of it when its rows are gone. Of tables of live datasets in `rows`."""
    permit_id: int | None = None
    """What a person permitted, which is used up by this write. Of live datasets."""


class DirectTableWriter(Protocol):
    """Tables that are open for one attempt. Used by one thread at a time.

    Every call but `close` raises WriteFencedError once the attempt is stale, and StoreUnavailableError if the database
    does not answer: whether a write was committed is then unknown, and the same write may be repeated."""

    @property
    def pending(self) -> Sequence[PendingEvent]:
        """What was not acknowledged when the tables were opened, oldest first."""
        ...

    def read_newest(self, dataset_uuid: UUID, columns: Sequence[str], limit: int) -> "pa.Table":
        """The rows of this scope with the highest positions, highest first; under `Schema.newest_wins` those that are
        shown: of each key the newest."""
        ...

    def replace(self, change: RangeReplacement) -> list[PendingEvent]:
        """Commits the rows, their events and the seal, or nothing; returns the events, which the caller announces and
        then acknowledges. Raises RowsRefusedError if the rows do not fit, and RangeSealedError if the range begins at
        or below the seal of a table: so a repeated write that seals part of its own range fails if it was committed.

        Events get the positions of the write that they announce, and the time of each if a table of the write has one
        row with a `timestamp` for each position; those that invalidate a range get the times that its rows had."""
        ...

    def read_extent(self, dataset_uuid: UUID) -> TableExtent: ...

    def read_marks(self, dataset_uuid: UUID) -> dict[int, bytes]:
        """Those of all writes; of a position the newest."""
        ...

    def acknowledge(self, events: Sequence[PendingEvent]) -> None:
        """Forgets events that were announced. Repeating it changes nothing, and a stale attempt may do it too."""
        ...

    def close(self) -> None: ...


class DirectTables(Protocol):
    def open(self, tables: Sequence[DirectTable], scope: str, writer: TableWriter) -> DirectTableWriter:
        """Creates or alters the tables as declared, and raises their fences: from now on every earlier writer of the
        scope is stale. Waits for a write of one that is in flight. Raises as the writer does."""
        ...

    def remove_rows(self, tables: Sequence[UUID], to: int) -> int:
        """Removes the rows at or below a position from these tables, whatever their scope, and returns how many these
        were. The caller knows that files with these rows are committed. No fence is needed, since nobody writes sealed
        rows: raises RowsRefusedError if a table is not sealed up to there. Repeating it changes nothing. A part at a
        time, so that nobody waits for it long: if it ends early, the extents tell what is gone."""
        ...


class OutputTables(Protocol):
    """The direct outputs of an attempt, as its operator sees them. Events are announced after their commit, and those
    that a predecessor left behind before anything else."""

    def read_newest(self, output_index: int, columns: Sequence[str], limit: int) -> "pa.Table":
        """The rows with the highest positions, highest first."""
        ...

    def replace(
        self,
        start: int,
        end: int,
        rows: "Mapping[int, Sequence[pa.RecordBatch]]",
        events: Sequence[EventIn] = (),
        *,
        above: bool = False,
        live: bool = False,
        seal: int | None = None,
        marks: Mapping[int, Mapping[int, bytes]] = MappingProxyType({}),
        permit_id: int | None = None,
    ) -> None:
        """Replaces the rows of these positions in the outputs that `rows` names by index, and announces the events,
        also those of outputs without a table; returns when all is durable. Marks are by index, too. See
        RangeReplacement."""
        ...

    def read_extent(self, output_index: int) -> TableExtent:
        """Of the table of a live dataset: where it begins, and what of it is sealed and removed."""
        ...

    def read_marks(self, output_index: int) -> dict[int, bytes]: ...

    def close(self) -> None: ...
