"""From the relations that a query names to local files with every row that it can need, and no row twice.

Files are listed first, then tables are read, all in one snapshot. So rows that leave the table of a live dataset in
between are noticed (`storage/live_rows.py`), and everything is looked up again.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tracelake.errors import TraceError
from tracelake.query import check_results
from tracelake.query.broker import TableBroker, TableFile, TableRead
from tracelake.query.control import ControlPlane, ListedFiles
from tracelake.query.files import QueryFiles, make_inputs
from tracelake.query.parts import Columns, GateResult
from tracelake.query.pruning import block_range
from tracelake.query.relations import BoundRelation, LocalRelation, select_rows
from tracelake.wire.content import LOOKS, MOVED

BlockRange = tuple[int, int] | None
"""The first and the last block; None: all."""


class ReadingRun(Protocol):
    """A query as its reading needs it."""

    bytes_read: int

    @property
    def org(self) -> str: ...
    @property
    def inputs(self) -> Path: ...
    @property
    def seconds_left(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundInputs:
    """What was found at one moment."""

    files: dict[str, ListedFiles]
    size: int
    """Of the files."""
    rows: dict[str, TableFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationReader:
    control: ControlPlane
    files: QueryFiles
    broker: TableBroker
    max_input_bytes: int

    async def read(
        self, run: ReadingRun, used: Mapping[str, BoundRelation], columns: Mapping[str, Columns], checked: GateResult
    ) -> dict[str, LocalRelation]:
        """Everything that the query reads, as local files; nothing is fetched of a query that would read too much."""
        make_inputs(run.inputs)
        look = await self._look_up(run, used, checked)
        rows = look.rows
        if check_results.NAME in used:
            rows[check_results.NAME] = await check_results.write_check_results(
                self.control,
                run.org,
                run.inputs / "tables" / f"{check_results.NAME}.arrow",
                checked.columns[check_results.NAME],
                checked.filters.get(check_results.NAME, ()),
                self.max_input_bytes - look.size - sum(file.size for file in rows.values()),
            )
        run.bytes_read = look.size + sum(file.size for file in rows.values())
        local = {
            name: LocalRelation(files=(file.path,), is_table=True, columns=columns[name])
            for name, file in rows.items()
            if name not in look.files
        }
        for name, listed in look.files.items():
            paths = await self.files.link(listed.files, run.inputs / "files")
            table = (rows[name].path,) if name in rows else ()
            local[name] = select_rows(used[name], paths, columns[name], table)
        return local

    async def _look_up(self, run: ReadingRun, used: Mapping[str, BoundRelation], checked: GateResult) -> _FoundInputs:
        for number in range(1, LOOKS + 1):
            try:
                return await self._look_once(run, used, checked)
            except TraceError as error:
                if error.code != MOVED or number == LOOKS:
                    raise
        raise AssertionError("unreachable")

    async def _look_once(self, run: ReadingRun, used: Mapping[str, BoundRelation], checked: GateResult) -> _FoundInputs:
        blocks = {
            name: block_range(tuple(checked.filters.get(name, ())), relation.selections)
            for name, relation in used.items()
        }
        names = [name for name, relation in used.items() if relation.has_files]
        lists = await asyncio.gather(*(self._list_files(used[name], blocks[name]) for name in names))
        files = dict(zip(names, lists, strict=True))
        size = sum(file.size for listed in lists for file in listed.files)
        if size > self.max_input_bytes:
            raise self._too_large(size)
        run.bytes_read = size
        tables = {
            name: TableRead(
                dataset_uuid=relation.source.dataset_uuid,
                columns=relation.table_columns,
                needed=checked.columns[name],
                filters=tuple(checked.filters.get(name, ())),
                selections=relation.selections,
                is_live=relation.is_live,
                boundary=files[name].boundary if relation.is_live else None,
            )
            for name, relation in used.items()
            if relation.is_table
            and not relation.is_system
            and not (relation.is_live and _ends_in_files(blocks[name], files[name].boundary))
        }
        rows = await self.broker.read(
            tables,
            run.inputs / "tables",
            max_bytes=self.max_input_bytes - size,
            seconds=run.seconds_left,
        )
        return _FoundInputs(files=files, size=size, rows=rows)

    async def _list_files(self, relation: BoundRelation, blocks: BlockRange) -> ListedFiles:
        if blocks is not None and blocks[0] > blocks[1]:
            return ListedFiles(files=[])
        return await self.control.files(relation.source, blocks)

    def _too_large(self, size: int) -> TraceError:
        limit = self.max_input_bytes
        return TraceError(
            "query_too_large",
            f"The query would read {size:,} bytes after pruning; an interactive query reads at most {limit:,}. Narrow"
            " the range of block_number, or submit it in Spark SQL with `mode: batch` (`trace query --batch`).",
            input_bytes=size,
            limit_bytes=limit,
            suggestion="mode: batch",
        )


def _ends_in_files(blocks: BlockRange, boundary: int | None) -> bool:
    """Whether the query needs no row of the table: its blocks end at or before the boundary, or there are none."""
    if blocks is None:
        return False
    first, last = blocks
    return first > last or (boundary is not None and last <= boundary)
