"""The files of an input as a Spark task reads them by itself, with pyarrow.

For operators that are vectorised: a small unit is then one Spark task without a scan, an exchange or code to compile.
A large one is several such tasks, each with a range of blocks.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracelake.catalogue.context import NonRetryableError
from tracelake.ports import FileTransfer, ObjectMeta
from tracelake.spark.live_columns import LiveColumns
from tracelake.wire.units import Scalar

BLOCK = "block_number"
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Can be pickled."""

    name: str
    schema: pa.Schema
    """Of every file."""
    files: tuple[ObjectMeta, ...]
    paths: tuple[Path, ...] | None
    """On one machine: where the files are. Otherwise each reader downloads what it needs."""
    transfer: FileTransfer
    first: int
    last: int
    """Blocks of the input's unit; the last before the first: no row at all, and the files only tell the columns."""
    where: dict[str, Scalar | list[Scalar]]
    live: LiveColumns | None = None
    """Of a live dataset, whose files may lack some of its columns."""

    def read(self, columns: Sequence[str], first: int | None = None, last: int | None = None) -> pa.Table:
        """The rows of the unit, or of these blocks of it, with `where` applied; of the columns, those that the files
        have."""
        names = [name for name in self.schema.names if name in {*columns, *self.where, BLOCK}]
        schema = pa.schema([self.schema.field(name) for name in names])
        tables = [schema.empty_table()]
        low, high = self.first if first is None else first, self.last if last is None else last
        condition = (pc.field(BLOCK) >= low) & (pc.field(BLOCK) <= high)
        for number, file in enumerate(self.files if self.first <= self.last else ()):
            with self._local(number, file) as path:
                present = names if self.live is None else {*pq.read_schema(path).names}
                columns_there = [name for name in names if name in present]
                # Without threads: Spark gives a task one core.
                rows = pq.read_table(path, columns=columns_there, filters=condition, use_threads=False)
                tables.append(rows if self.live is None else fill_columns(rows, schema))
        table = pa.concat_tables(tables)
        for name, value in self.where.items():
            table = table.filter(_matches(table[name], value))
        return table.select([name for name in names if name in {*columns, BLOCK}])

    @contextmanager
    def _local(self, number: int, file: ObjectMeta) -> Iterator[Path]:
        if self.paths is not None:
            yield self.paths[number]
            return
        with downloaded(self.transfer, file) as path:
            check_columns(self.name, (self.files[0], self.schema), (file, pq.read_schema(path)), self.live)
            yield path


def check_columns(
    name: str, one: tuple[ObjectMeta, pa.Schema], other: tuple[ObjectMeta, pa.Schema], live: LiveColumns | None
) -> None:
    """That the second of two files of an input has the columns of the first, in whatever order; or, of a live dataset,
    those of its table, as far as it has them."""
    if live is not None:
        live.check(name, other[1])
        return
    columns = [{field.name: str(field.type) for field in schema} for _, schema in (one, other)]
    if columns[0] == columns[1]:
        return
    files = [meta.uri.rsplit("/", 1)[1] for meta, _ in (one, other)]
    column = next(column for column in {**columns[0], **columns[1]} if columns[0].get(column) != columns[1].get(column))
    differences = " and ".join(
        f"{has.get(column, 'missing')} in {file}" for has, file in zip(columns, files, strict=True)
    )
    raise NonRetryableError(
        f"the files of {name} differ: the column {column} is {differences}. Trigger the job that writes {name} again"
        " for the blocks of the older one, or deploy it with bootstrap: {reset_outputs: true}"
    )


def fill_columns(rows: Rows, schema: pa.Schema) -> Rows:
    """Rows with the columns and types of the schema; null in the columns that they lack."""
    present = {*rows.schema.names}
    columns = [
        rows.column(field.name).cast(field.type) if field.name in present else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return type(rows).from_arrays(columns, schema=schema)


@contextmanager
def downloaded(transfer: FileTransfer, meta: ObjectMeta, scratch: Path | None = None) -> Iterator[Path]:
    """The file, whole, without a name in any directory: a process that is killed while it reads leaves nothing."""
    with ExitStack() as stack:
        with tempfile.TemporaryDirectory(prefix="trace-read-", dir=scratch) as directory:
            path = Path(directory, "file.parquet")
            transfer.download(meta, path)
            file = stack.enter_context(path.open("rb"))
        yield Path(f"/proc/self/fd/{file.fileno()}")


def _matches(column: pa.ChunkedArray, value: Scalar | list[Scalar]) -> pa.ChunkedArray:
    """True or false for each row, never null."""
    values = value if isinstance(value, list) else [value]
    binary = pa.types.is_binary(column.type)
    literals = [to_literal(item, binary=binary) for item in values if item is not None]
    try:
        value_set = pa.array(literals, column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        raise NonRetryableError(f"`where` compares a column of {column.type} with {literals!r}") from None
    condition = pc.is_in(column, value_set=value_set)
    return condition if len(literals) == len(values) else pc.or_(condition, pc.is_null(column))


def to_literal(value: Scalar, *, binary: bool) -> Any:
    """Hashes and addresses are written as people know them: 0x..."""
    if binary and isinstance(value, str):
        try:
            return bytes.fromhex(value.removeprefix("0x"))
        except ValueError:
            raise NonRetryableError(f"`where` compares bytes with {value!r}; write them as 0x...") from None
    return value
