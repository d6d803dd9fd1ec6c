"""The follower's store in memory, which checks every write and fails where it is told to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa

from tests.follower.coverage import RewriteRecord
from tracelake.follower.links import ChainLink
from tracelake.follower.nodes import ChainRows
from tracelake.follower.store import StaleFollowerError, WaitingEvent
from tracelake.ports.direct_tables import TableExtent
from tracelake.wire.units import EventIn

CrashPoint = Literal[
    "claim", "read", "before_commit", "amid_commit", "after_commit", "waiting", "before_mark", "after_mark"
]
Row = tuple[Any, ...]
Rows = dict[str, dict[int, list[Row]]]
"""By table and block."""


class CrashError(BaseException):
    """The process is gone."""


@dataclass
class MemoryTables:
    """What is durable, shared by the stores of all attempts."""

    rows: Rows = field(default_factory=lambda: {"blocks": {}, "transactions": {}, "logs": {}})
    links: dict[int, ChainLink] = field(default_factory=dict)
    waiting: list[WaitingEvent] = field(default_factory=list)
    fence: int = 0
    recorded: int = 0
    keys: set[tuple[UUID, int | str | None, str]] = field(default_factory=set)
    """Of all events so far."""
    record: RewriteRecord = field(default_factory=RewriteRecord)
    extent: TableExtent = field(default=TableExtent())
    marks: dict[int, str] = field(default_factory=dict)
    boundary: int | None = None
    """Where the files of live datasets end."""

    @property
    def rewrites(self) -> list[int]:
        """How many blocks each rewrite removed."""
        return self.record.depths

    def content(self, number: int) -> dict[str, list[Row]]:
        return {table: rows.get(number, []) for table, rows in self.rows.items()}


class MemoryStore:
    def __init__(
        self,
        tables: MemoryTables,
        attempt: int,
        fault: Callable[[CrashPoint], None] = lambda _point: None,
        *,
        live: bool = False,
    ) -> None:
        self._live = live
        self._tables = tables
        self._attempt = attempt
        self._fault = fault

    def claim(self) -> None:
        self._fault("claim")
        self._check_fence()

    def read_tip(self, count: int) -> list[ChainLink]:
        self._fault("read")
        return [self._tables.links[number] for number in sorted(self._tables.links)[-count:]]

    def read_extent(self) -> TableExtent:
        self._fault("read")
        return replace(self._tables.extent, boundary=self._tables.boundary)

    def read_marks(self) -> dict[int, str]:
        self._fault("read")
        return dict(self._tables.marks)

    def replace(
        self,
        rows: ChainRows,
        events: Sequence[EventIn],
        *,
        seal: int | None = None,
        marks: Mapping[int, str] = MappingProxyType({}),
        permit_id: int | None = None,
    ) -> None:
        self._fault("before_commit")
        self._check_fence()
        durable = self._tables
        links = links_of(rows.tables["blocks"])
        assert links == rows.links
        first_block = links[0].number
        before = {number: link for number, link in durable.links.items() if number >= first_block}
        sealed = durable.extent.sealed_to
        assert sealed is None or first_block > sealed, "sealed rows never change"
        self._check_write(first_block, before, links, events)
        if self._live:
            start = durable.extent.table_start
            durable.extent = replace(
                durable.extent,
                table_start=first_block if start is None else start,
                sealed_to=sealed if seal is None else seal,
                permit_id=durable.extent.permit_id if permit_id is None else permit_id,
            )
            durable.marks |= marks
        for number in before:
            del durable.links[number]
        durable.links.update({link.number: link for link in links})
        for name, table in rows.tables.items():
            kept = {number: old for number, old in durable.rows[name].items() if number < first_block}
            place = table.column_names.index("block_number")
            for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                kept.setdefault(row[place], []).append(row)
            durable.rows[name] = kept
        for event in events:
            durable.recorded += 1
            durable.waiting.append(WaitingEvent(durable.recorded, event))
        durable.record.add(first_block, links[-1].number)
        self._fault("after_commit")

    def waiting_events(self, limit: int) -> list[WaitingEvent]:
        self._fault("waiting")
        return self._tables.waiting[:limit]

    def mark_emitted(self, event_ids: Sequence[int]) -> None:
        self._fault("before_mark")
        emitted = set(event_ids)
        self._tables.waiting = [item for item in self._tables.waiting if item.event_id not in emitted]
        self._fault("after_mark")

    def _check_fence(self) -> None:
        if self._attempt < self._tables.fence:
            raise StaleFollowerError(f"attempt {self._tables.fence} writes")
        self._tables.fence = self._attempt

    def _check_write(
        self, first: int, before: dict[int, ChainLink], links: list[ChainLink], events: Sequence[EventIn]
    ) -> None:
        """The rules of a write: a chain without a gap, announced with exactly what changed."""
        below = self._tables.links.get(first - 1)
        assert links[0].number == first
        extent = self._tables.extent
        repairs = self._live and first == (extent.table_start if extent.sealed_to is None else extent.sealed_to + 1)
        assert below is None or repairs or links[0].follows(below)
        assert below is not None or not any(number < first for number in self._tables.links)
        assert all(after.follows(link) for link, after in pairwise(links))
        after_by_number = {link.number: link for link in links}
        changed = {number for number, link in before.items() if link != after_by_number[number]}
        invalid_numbers: set[int] = set()
        for event in events:
            position = event.partition_key if self._live else event.cursor
            assert self._live or event.cursor == links[-1].number
            key = (event.dataset_uuid, position, event.revision)
            assert key not in self._tables.keys, "it would be taken for a repeated event"
            self._tables.keys.add(key)
            invalid = event.invalidates
            numbers = set() if invalid is None else set(range(invalid.start, invalid.end + 1))
            invalid_numbers |= numbers
            assert self._live or numbers == changed
        # A repair replaces everything above the seal, also what is the same.
        assert changed <= invalid_numbers <= set(before)
        assert invalid_numbers == changed or repairs


def links_of(blocks: pa.Table) -> list[ChainLink]:
    names = ("block_number", "block_hash", "parent_hash", "timestamp")
    return [
        ChainLink(number, "0x" + name.hex(), "0x" + parent.hex(), time)
        for number, name, parent, time in zip(*(blocks[column].to_pylist() for column in names), strict=True)
    ]
