"""From records to columns of typed values, a batch at a time; what does not fit is rejected with its reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from tracelake.catalogue.feeds.columns import FeedColumn
from tracelake.catalogue.feeds.mapping import BLOCK, FeedConfig
from tracelake.catalogue.feeds.paths import MISSING
from tracelake.feeds.documents import FeedDocument, FeedRecord, JsonNumber, encode_json, kind_of_json
from tracelake.feeds.errors import BadRowError, FeedError
from tracelake.feeds.values import ParseValue, parser_of
from tracelake.model.dag import Column, ColumnType
from tracelake.rows.values import kind_of

BATCH_ROWS = 10_000
MAX_RECORD = 4_000
"""Characters of a rejected record that are kept."""
REJECTS = (
    Column(name="origin", type=ColumnType.TEXT, nullable=False),
    Column(name="row", type=ColumnType.INT64, nullable=False),
    Column(name="column", type=ColumnType.TEXT),
    Column(name="reason", type=ColumnType.TEXT, nullable=False),
    Column(name="record", type=ColumnType.TEXT),
)
"""The columns of the second output."""


FindMisfits: TypeAlias = Callable[[pa.RecordBatch], Mapping[int, BadRowError]]


class RowOutput(Protocol):
    def write(self, batch: pa.RecordBatch) -> None: ...


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([pa.field(column.name, kind_of(column).arrow) for column in columns])


@dataclass(eq=False)
class _Buffer:
    """Rows on their way to an output."""

    schema: pa.Schema
    output: RowOutput
    select: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch
    """Chooses the rows that are written."""
    rows: int = 0
    waiting: list[list[Any]] = field(default_factory=list)

    def add(self, values: list[Any]) -> None:
        self.waiting.append(values)
        self.rows += 1
        if len(self.waiting) >= BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        if self.waiting:
            arrays = [
                pa.array(values, kind.type)
                for values, kind in zip(zip(*self.waiting, strict=True), self.schema, strict=True)
            ]
            batch = self.select(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
            self.rows -= len(self.waiting) - batch.num_rows
            if batch.num_rows:
                self.output.write(batch)
            self.waiting.clear()


class RowMapper:
    """Maps the documents of one task, in their order."""

    def __init__(
        self,
        config: FeedConfig,
        output: RowOutput,
        rejects: RowOutput | None,
        *,
        blocks: tuple[int, int] | None = None,
        final: bool = False,
        find_misfits: FindMisfits | None = None,
    ) -> None:
        """`blocks`: the unit, which `block_number` has to lie in, if rows go to files. `final`: a bad row would be bad
        again in another attempt. `find_misfits`: finds rows that the dataset cannot hold; they are rejected too."""
        self._config = config
        self._columns: list[tuple[FeedColumn, ParseValue]] = [(item, parser_of(item)) for item in config.feed_columns()]
        self._find_misfits = find_misfits
        self._origins: list[tuple[str, int, Any]] = []
        """Of the rows that wait, if some of them may be rejected."""
        self._rows = _Buffer(
            arrow_schema(tuple(item.column for item, _ in self._columns)), output, self._reject_misfits
        )
        self._rejects = None if rejects is None else _Buffer(arrow_schema(REJECTS), rejects)
        self._blocks = blocks
        self._final = final
        self._count = 0

    @property
    def rows(self) -> int:
        return self._rows.rows

    @property
    def rejected(self) -> int:
        return 0 if self._rejects is None else self._rejects.rows

    def add(self, document: FeedDocument, origin: str, specials: Mapping[str, str]) -> int:
        """Returns how many records the document has. Raises FeedError, and BadDocumentError at its place."""
        number = 0
        for record in document.records:
            number += 1
            self._count += 1
            if self._count > self._config.max_rows:
                limit = self._config.max_rows
                raise FeedError(f"more than {limit:,} rows: ask for less, or raise `max_rows`", final=True)
            try:
                values = self._map(record, specials)
            except BadRowError as error:
                self.reject(origin, record.row, error, record.value)
                continue
            if self._find_misfits is not None:
                self._origins.append((origin, record.row, record.value))
            self._rows.add(values)
        return number

    def reject(self, origin: str, row: int, error: BadRowError, record: Any) -> None:
        """Raises FeedError if the job has no output for rejected rows."""
        if self._rejects is None:
            place = f"{origin}, row {row}" if row else origin
            hint = "correct `columns`, or set `outputs: 2` to keep such rows apart"
            raise FeedError(f"{place}: {error}; {hint}", final=self._final)
        self._rejects.add([origin, row, error.column, error.reason, _shown(record)])

    def finish(self) -> None:
        self._rows.flush()
        if self._rejects is not None:
            self._rejects.flush()

    def _reject_misfits(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the batch that the dataset can hold."""
        if self._find_misfits is None:
            return batch
        misfits = self._find_misfits(batch)
        for index, error in misfits.items():
            origin, row, record = self._origins[index]
            self.reject(origin, row, error, record)
        self._origins.clear()
        return batch.filter(pa.array([index not in misfits for index in range(batch.num_rows)])) if misfits else batch

    def _map(self, record: FeedRecord, specials: Mapping[str, str]) -> list[Any]:
        if record.problem is not None:
            raise BadRowError(record.problem)
        values = []
        for item, parse in self._columns:
            value = _find(item, record, specials)
            try:
                values.append(self._convert(item, parse, value))
            except BadRowError as error:
                raise BadRowError(error.reason, item.name) from None
            except ValueError as error:  # of the sinks' own parsers
                raise BadRowError(f"{error}, received {kind_of_json(value)}", item.name) from None
        return values

    def _convert(self, item: FeedColumn, parse: ParseValue, value: Any) -> Any:
        nullable = item.column.nullable
        if value == "" and self._config.format == "csv" and not item.path.special:
            if nullable:
                return None
            if item.column.type is not ColumnType.TEXT:
                raise BadRowError("is empty; set `nullable: true` if it may be")
        if value is MISSING or value is None:
            if nullable:
                return None
            text = "is null" if value is None else "is missing"
            raise BadRowError(f"{text}; set `nullable: true` if it may be")
        result = parse(value)
        if self._blocks is not None and item.name.lower() == BLOCK:
            first, last = self._blocks
            if not first <= result <= last:
                raise BadRowError(f"{result} is not in the unit, {first} to {last}")
        return result


def _find(item: FeedColumn, record: FeedRecord, specials: Mapping[str, str]) -> Any:
    path = item.path
    if not path.special:
        return path.find(record.document if path.root else record.value)
    if path.special == "row":
        return JsonNumber(record.row)
    if path.special == "key":
        return MISSING if record.key is None else record.key
    if path.special == "record":
        return record.value
    return specials.get(path.special, MISSING)


def _shown(record: Any) -> str | None:
    if record is None:
        return None
    try:
        text = record if isinstance(record, str) else encode_json(record)
    except BadRowError:
        text = ascii(record)
    return text.replace("\0", "\\0").encode("utf-8", "replace").decode()[:MAX_RECORD]
