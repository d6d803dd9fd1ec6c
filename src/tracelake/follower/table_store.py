"""The follower's store on tables that the task writes directly (`ports/direct_tables.py`).

The port keeps the fence and the events: opening the tables fences earlier attempts and announces what they left behind,
and a write announces its own events after the commit. So nothing ever waits here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from tracelake.catalogue.context import NonRetryableError
from tracelake.errors import StoreUnavailableError
from tracelake.follower.links import ChainLink, links_of
from tracelake.follower.nodes import ChainRows
from tracelake.follower.store import (
    HotStoreRefusedError,
    HotStoreUnavailableError,
    StaleFollowerError,
    WaitingEvent,
)
from tracelake.ports.direct_tables import OutputTables, TableExtent, WriteFencedError
from tracelake.wire.units import EventIn, TaskOutput

_LINK_COLUMNS = ("block_number", "block_hash", "parent_hash", "timestamp")


class TableChainStore:
    """`outputs`: by table, with `blocks` among them. `open_tables` is called again after the database was away: only
    then it is certain which events wait."""

    def __init__(
        self, open_tables: Callable[[], OutputTables], outputs: Mapping[str, TaskOutput], *, live: bool = False
    ) -> None:
        """`live`: the tables are those of live datasets."""
        self._open_tables = open_tables
        self._live = live
        self._indexes = {table: output.output_index for table, output in outputs.items()}
        self._tables: OutputTables | None = None

    def claim(self) -> None:
        self.close()
        with _errors():
            self._tables = self._open_tables()

    def read_tip(self, count: int) -> list[ChainLink]:
        with _errors():
            newest = self._opened().read_newest(self._indexes["blocks"], _LINK_COLUMNS, count)
        return links_of(newest)[::-1]

    def read_extent(self) -> TableExtent:
        with _errors():
            return self._opened().read_extent(self._indexes["blocks"])

    def read_marks(self) -> dict[int, str]:
        with _errors():
            marks = self._opened().read_marks(self._indexes["blocks"])
        return {number: f"0x{mark.hex()}" for number, mark in marks.items()}

    def replace(
        self,
        rows: ChainRows,
        events: Sequence[EventIn],
        *,
        seal: int | None = None,
        marks: Mapping[int, str] = MappingProxyType({}),
        permit_id: int | None = None,
    ) -> None:
        marked = {self._indexes["blocks"]: {number: bytes.fromhex(mark[2:]) for number, mark in marks.items()}}
        batches = {index: rows.tables[table].to_batches() for table, index in self._indexes.items()}
        first, last = rows.links[0].number, rows.links[-1].number
        with _errors():
            self._opened().replace(
                first,
                last,
                batches,
                events,
                above=True,
                live=self._live,
                seal=seal,
                marks=marked,
                permit_id=permit_id,
            )

    def waiting_events(self, limit: int) -> list[WaitingEvent]:  # noqa: ARG002
        return []

    def mark_emitted(self, event_ids: Sequence[int]) -> None:
        pass

    def close(self) -> None:
        if self._tables is not None:
            self._tables.close()
            self._tables = None

    def _opened(self) -> OutputTables:
        assert self._tables is not None, "claimed before anything else"
        return self._tables


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except StoreUnavailableError as error:
        raise HotStoreUnavailableError(str(error)) from error
    except NonRetryableError as error:
        kind = StaleFollowerError if isinstance(error.__cause__, WriteFencedError) else HotStoreRefusedError
        raise kind(str(error)) from error
