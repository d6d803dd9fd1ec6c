"""The relations of one query: names, columns, and the rows of each that the caller may read.

Resolved once per query: the generations that the Dispatcher named at its start are read to its end.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import UUID

from tracelake.errors import TraceError
from tracelake.model.dag import ColumnType
from tracelake.query.control import ControlPlane
from tracelake.query.engine.requests import EngineColumn, FileFormat, Relation
from tracelake.query.files import QueryFiles
from tracelake.query.parts import Columns
from tracelake.query.pruning import BLOCK
from tracelake.storage.nested_values import nested_sql_type
from tracelake.wire.query import InputRelation, InputSelection, QueriedDataset, ReadableRelation
from tracelake.wire.task_calls import TableColumn
from tracelake.wire.units import Scalar

_WORD = re.compile(r"\w+")
_MOST_SCHEMAS = 20_000
_DESCRIBE_SECONDS = 20.0
UNKNOWN_COLUMNS: Columns = {"_": "BOOLEAN"}
"""Of relations that the query does not name: they are only suggested."""

_TYPES = {
    ColumnType.BOOL: "BOOLEAN",
    ColumnType.INT16: "SMALLINT",
    ColumnType.INT32: "INTEGER",
    ColumnType.INT64: "BIGINT",
    ColumnType.INT256: "BIGNUM",
    ColumnType.UINT256: "BIGNUM",
    ColumnType.FLOAT64: "DOUBLE",
    ColumnType.TEXT: "VARCHAR",
    ColumnType.BYTES: "BLOB",
    ColumnType.TIMESTAMP: "TIMESTAMP WITH TIME ZONE",
    ColumnType.DATE: "DATE",
    ColumnType.JSON: "VARCHAR",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRelation:
    """A relation whose generation is fixed."""

    source: ReadableRelation
    selections: tuple[InputSelection, ...] = ()
    """Of a task's input; empty: all rows."""

    @property
    def is_table(self) -> bool:
        """All of its rows, or the newest of them, are in a table."""
        return self.source.storage != "s3"

    @property
    def has_files(self) -> bool:
        return self.source.storage in ("s3", "live")

    @property
    def is_live(self) -> bool:
        """Files up to a boundary, and a table above it. Its columns are those of the table."""
        return self.source.storage == "live"

    @property
    def is_system(self) -> bool:
        """No dataset: this service asks the Dispatcher for its rows."""
        return self.source.storage == "system"

    @property
    def table_columns(self) -> tuple[TableColumn, ...]:
        return tuple(self.source.columns or ())

    @property
    def dataset(self) -> QueriedDataset:
        source = self.source
        return QueriedDataset(
            name=source.name, dataset_uuid=source.dataset_uuid, dataset_version=source.dataset_version
        )


def bind_relations(sources: Sequence[ReadableRelation | InputRelation]) -> dict[str, BoundRelation]:
    return {
        source.name: BoundRelation(
            source=source, selections=tuple(source.selections) if isinstance(source, InputRelation) else ()
        )
        for source in sources
    }


class SchemaReader(Protocol):
    async def describe(self, path: Path, seconds: float) -> Columns: ...


class SchemaDirectory:
    """Columns of relations. The engine reads those of files, once per generation: all files of one have the same. A
    relation with a table has those that its document declares, also for its files."""

    def __init__(self, control: ControlPlane, files: QueryFiles, reader: SchemaReader) -> None:
        self._control = control
        self._files = files
        self._reader = reader
        self._columns: OrderedDict[tuple[UUID, UUID], Columns] = OrderedDict()

    def known(self, relation: BoundRelation) -> Columns | None:
        if relation.is_table or relation.is_system:
            return {column.name: sql_type(column) for column in relation.table_columns} or None
        key = (relation.source.dataset_uuid, relation.source.dataset_version)
        columns = self._columns.get(key)
        if columns is not None:
            self._columns.move_to_end(key)
        return columns

    async def read(
        self, relation: BoundRelation, directory: Path, slot: AbstractAsyncContextManager[None]
    ) -> Columns | None:
        """None if nothing of the generation was committed. `directory` is the query's own; `slot` is held while an
        engine works, and not while a file is fetched."""
        if relation.is_table:
            return None
        files = (await self._control.files(relation.source)).files
        if not files:
            return None
        (path,) = await self._files.link(files[:1], directory)
        async with slot:
            columns = await self._reader.describe(path, _DESCRIBE_SECONDS)
        self._columns[relation.source.dataset_uuid, relation.source.dataset_version] = columns
        if len(self._columns) > _MOST_SCHEMAS:
            self._columns.popitem(last=False)
        return columns


def sql_type(column: TableColumn) -> str:
    if column.type is ColumnType.DECIMAL:
        return f"DECIMAL({column.precision or 38},{column.scale or 0})"
    if column.nested is not None:
        return nested_sql_type(column.nested)
    return _TYPES[column.type]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRelation:
    """The rows of a relation on this machine: files, of which ranges of blocks and the rows that `where` selects."""

    files: tuple[Path, ...]
    is_table: bool
    columns: Columns
    is_live: bool = False
    rows: tuple[Path, ...] = ()
    """Of a live dataset, the rows of its table."""
    blocks: tuple[tuple[int, int], ...] | None = None
    where: dict[str, Scalar | list[Scalar]] | None = None

    def to_relation(self) -> Relation:
        # The columns of files are what the files have; without a file there is nobody to say it.
        columns = to_columns(self.columns) if self.is_table or self.is_live or not self.files else ()
        return Relation(
            files=tuple(str(path) for path in self.files),
            format=FileFormat.ARROW if self.is_table else FileFormat.PARQUET,
            columns=columns,
            blocks=self.blocks if self.files else None,
            where=self.where if self.files else None,
            live=self.is_live,
            rows=tuple(str(path) for path in self.rows),
        )


def select_rows(
    relation: BoundRelation, files: Sequence[Path], columns: Columns, rows: tuple[Path, ...] = ()
) -> LocalRelation:
    """A relation of files, with the rows of a task's units alone if it is one of its inputs. `rows` are those of its
    table, which were selected when they were read."""
    where = relation.selections[0].where if relation.selections else None
    for field in where or {}:
        if field not in columns:
            raise TraceError("query_failed", "`where` of an input names a column that the dataset does not have.")
    ranges = merge_ranges([selection.unit.blocks for selection in relation.selections]) if BLOCK in columns else None
    return LocalRelation(
        files=tuple(files),
        is_table=False,
        columns=columns,
        blocks=None if ranges is None else tuple(ranges),
        where=where,
        is_live=relation.is_live,
        rows=rows,
    )


def merge_ranges(ranges: Sequence[tuple[int | None, int | None]]) -> list[tuple[int, int]] | None:
    """The same blocks in as few ranges as possible; None: all blocks."""
    bounded = sorted((start, end) for start, end in ranges if start is not None and end is not None)
    if len(bounded) != len(ranges) or not bounded:
        return None
    merged = [bounded[0]]
    for start, end in bounded[1:]:
        first, last = merged[-1]
        if start <= last + 1:
            merged[-1] = (first, max(last, end))
        else:
            merged.append((start, end))
    return merged


def to_columns(columns: Columns) -> tuple[EngineColumn, ...]:
    try:
        return tuple(EngineColumn(name, kind) for name, kind in columns.items())
    except ValueError as error:
        raise TraceError("query_failed", "A dataset has a column of a type that queries do not know.") from error


def named_in(sql: str, relations: Mapping[str, BoundRelation]) -> set[str]:
    """Relations that the query can name: names of datasets are words, and one that is no word of the text is in no
    identifier of it."""
    words = set(_WORD.findall(sql.lower()))
    return {name for name in relations if name.lower() in words}
