"""The strict reader of a batch: JSON lines to Arrow, or the first invalid line and why.

All rows pass this reader: before our own operators publish them, and in whichever way a sink loads them. One invalid
line refuses the whole batch. A line may hold the declared columns and nothing else, except `org_id`, which must be the
org of the publisher.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa

from tracelake.model.dag import Schema
from tracelake.rows.error_text import explain
from tracelake.rows.values import ColumnKind, kind_of

MAX_KEY_BYTES = 2000
"""The largest key of an index; Postgres limits an entry to a third of a page."""
_EXCERPT = 1000


class BadBatchError(Exception):
    """A batch that can never be committed as it is. `line` counts from 1; None if no single line is to blame."""

    def __init__(self, code: str, reason: str, line: int | None = None, excerpt: str = "") -> None:
        where = "" if line is None else f"line {line}: "
        super().__init__(where + reason)
        self.code = code
        self.reason = reason
        self.line = line
        self.excerpt = excerpt
        """The beginning of the line."""


@dataclass(frozen=True, slots=True)
class _Wrong:
    row: int
    order: int
    reason: str


class BatchReader:
    """Reads batches of one schema; it keeps nothing of what it has read."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.kinds = [kind_of(column) for column in schema.columns]
        names = [f"c{index}" for index in range(len(self.kinds))]
        # Names of columns may be Python keywords, so the fields have names of their own.
        fields = [_field(name, kind) for name, kind in zip(names, self.kinds, strict=True)]
        self._row = msgspec.defstruct(
            "Row",
            [*sorted(fields, key=len), ("org_id", str | None, None)],
            forbid_unknown_fields=True,
            gc=False,
            rename={name: kind.column.name for name, kind in zip(names, self.kinds, strict=True)},
        )
        self._names = names
        self._decoder = msgspec.json.Decoder(self._row)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The schema of the rows that `read` returns: their origin, then their columns."""
        hidden = [pa.field("_publish_seq", pa.int64()), pa.field("_line", pa.int32())]
        return pa.schema(hidden + [pa.field(kind.column.name, kind.arrow) for kind in self.kinds])

    def read(self, data: bytes, *, publish_seq: int, org_id: UUID | None, record_count: int | None) -> pa.RecordBatch:
        """Returns all rows of a batch, or raises `BadBatchError`. Without `org_id`, the org of rows is not checked."""
        lines = data.split(b"\n")
        if lines[-1] == b"":
            lines.pop()
        if record_count is not None and record_count != len(lines):
            reason = f"expected {record_count} records as published, received {len(lines)}"
            raise BadBatchError("record_count_wrong", reason)
        rows, wrong = self._decode(lines)
        columns: list[pa.Array] = []
        for order, (name, kind) in enumerate(zip(self._names, self.kinds, strict=True)):
            column_values = _column(list(map(attrgetter(name), rows)), kind, order)
            if isinstance(column_values, _Wrong):
                wrong.append(column_values)
            else:
                columns.append(column_values)
        if org_id is not None:
            wrong += self._lies(rows, org_id)
        if not wrong:
            wrong += self._too_long(columns)
        if wrong:
            first = min(wrong, key=lambda item: (item.row, item.order))
            excerpt = lines[first.row][:_EXCERPT].decode("utf-8", "backslashreplace").replace("\x00", "\\x00")
            raise BadBatchError("row_invalid", first.reason, first.row + 1, excerpt)
        sequence = pa.array(np.full(len(rows), publish_seq, np.int64))
        numbers = pa.array(np.arange(1, len(rows) + 1, dtype=np.int32))
        return pa.RecordBatch.from_arrays([sequence, numbers, *columns], schema=self.arrow)

    def _decode(self, lines: Sequence[bytes]) -> tuple[list[Any], list[_Wrong]]:
        """The rows before the first invalid line, and what is wrong with that line."""
        rows: list[Any] = []
        decode = self._decoder.decode
        try:
            for line in lines:
                rows.append(decode(line))  # noqa: PERF401 - rows before an invalid one are kept
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return rows, [_Wrong(len(rows), -1, self._explain(error, lines[len(rows)]))]
        return rows, []

    def _explain(self, error: Exception, line: bytes) -> str:
        if not line.strip():
            return "the line is empty"
        if isinstance(error, UnicodeDecodeError):
            return "the line is not UTF-8"
        if isinstance(error, RecursionError):
            return "the line is nested too deep"
        if not isinstance(error, msgspec.ValidationError):
            return f"the line is not JSON ({str(error).removeprefix('JSON is malformed: ')})"
        return explain(str(error), {column.name: column for column in self.schema.columns})

    def _lies(self, rows: Sequence[Any], org_id: UUID) -> list[_Wrong]:
        own = {None, str(org_id)}
        org_ids = list(map(attrgetter("org_id"), rows))
        if set(org_ids) <= own:
            return []
        index = next(index for index, org in enumerate(org_ids) if org not in own)
        return [_Wrong(index, len(self.kinds), "org_id: is not the org of the publisher; leave it out")]

    def _too_long(self, columns: Sequence[pa.Array]) -> list[_Wrong]:
        """Keys that are too long for an index. Only text and bytes can be that long."""
        places = {kind.column.name: index for index, kind in enumerate(self.kinds)}
        wrong = []
        for names in (self.schema.unique, *self.schema.indexes):
            sized = [
                columns[places[name]]
                for name in names
                if pa.types.is_string(columns[places[name]].type) or pa.types.is_binary(columns[places[name]].type)
            ]
            if not any(column.nbytes > MAX_KEY_BYTES for column in sized):
                continue
            lengths = [_lengths(column) for column in sized]
            for index, parts in enumerate(zip(*lengths, strict=True)):
                if sum(parts) > MAX_KEY_BYTES:
                    what = f"{', '.join(names)}: longer than {MAX_KEY_BYTES} bytes, which no index holds"
                    wrong.append(_Wrong(index, len(self.kinds) + 1, what))
                    break
        return wrong


def _field(name: str, kind: ColumnKind) -> tuple[Any, ...]:
    if not kind.column.nullable:
        return (name, kind.json)
    if kind.json is msgspec.Raw:  # includes null
        return (name, msgspec.Raw, msgspec.Raw(b"null"))
    return (name, kind.json | None, None)


def _lengths(column: pa.Array) -> list[int]:
    import pyarrow.compute as pc

    lengths: list[int] = pc.fill_null(pc.binary_length(column), 0).to_pylist()
    return lengths


def _column(values: list[Any], kind: ColumnKind, order: int) -> pa.Array | _Wrong:
    """The values as an Arrow array, or the first value that the column cannot hold."""
    if kind.convert is None:
        return pa.array(values, kind.arrow)
    if kind.whole is not None and (array := _whole(values, kind.whole)) is not None:
        return array
    convert = kind.convert
    try:
        converted = [None if value is None else convert(value) for value in values]
    except ValueError:
        return _first_wrong(values, convert, kind.column.name, order)
    return pa.array(converted, kind.arrow)


def _whole(values: list[Any], read: Callable[[Sequence[Any]], pa.Array | None]) -> pa.Array | None:
    if None not in values:
        return read(values) if values else None
    present = [value for value in values if value is not None]
    array = read(present) if present else None
    if array is None:
        return None
    mask = np.array([value is not None for value in values])
    return array.take(pa.array(np.cumsum(mask) - 1, pa.int64(), mask=~mask))


def _first_wrong(values: Sequence[Any], convert: Callable[[Any], Any], name: str, order: int) -> _Wrong:
    for index, value in enumerate(values):
        try:
            if value is not None:
                convert(value)
        except ValueError as error:
            return _Wrong(index, order, f"{name}: {error}")
    raise AssertionError(f"{name}: every value is valid alone, but not all together")
