"""What a Spark operator works with: its context, the session, its inputs as frames, its outputs as files.

An operator is a function from `SparkWork` to `OperatorResult`, in a file of its own below `spark/operators/`. It uses
the DataFrame API alone, so that it runs the same on one machine, on a cluster and over Spark Connect.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from tracelake.catalogue.context import (
    Batch,
    LiveInput,
    NonRetryableError,
    OperatorContext,
    OperatorResult,
    TableInput,
)
from tracelake.ports import FileTransfer, ObjectMeta
from tracelake.spark.batches import write_batches
from tracelake.spark.input_files import InputFiles
from tracelake.spark.live_columns import LiveColumns
from tracelake.spark.outputs import TaskOutputs
from tracelake.spark.sizes import file_count, file_ranges, is_small, session_for_small, weigh
from tracelake.spark.writer import Spread, Written, write_frame
from tracelake.storage.live_tables import in_files, in_table
from tracelake.storage.snapshots import Snapshot
from tracelake.wire.units import PayloadInput, Unit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ReadFiles: TypeAlias = "Callable[[SparkSession, PayloadInput, Sequence[ObjectMeta], LiveColumns | None], DataFrame]"
HoldTables: TypeAlias = Callable[[Sequence[UUID]], tuple[str, Snapshot]]
OpenFiles: TypeAlias = Callable[[PayloadInput, Sequence[ObjectMeta], LiveColumns | None], InputFiles]
ReadTable: TypeAlias = "Callable[[PayloadInput, TableInput | LiveInput], tuple[DataFrame, int]]"
Source: TypeAlias = list[ObjectMeta] | TableInput | LiveInput


def _no_tables(item: PayloadInput, _table: TableInput | LiveInput) -> "tuple[DataFrame, int]":
    raise NonRetryableError(f"the input {item.name} is a table, and there are none to read here")


def no_snapshot(_tables: Sequence[UUID]) -> tuple[str, Snapshot]:
    raise NonRetryableError("tables cannot be read by Spark tasks themselves here")


def _no_files(item: PayloadInput, _files: Sequence[ObjectMeta], _live: LiveColumns | None) -> InputFiles:
    raise NonRetryableError(f"the input {item.name} cannot be opened here")


@dataclass(slots=True)
class SparkWork(TaskOutputs):
    context: OperatorContext
    session: "SparkSession"
    transfer: FileTransfer
    read_files: ReadFiles
    """The rows of these files that are of the input's unit, with its `where` applied."""
    read_table: ReadTable = _no_tables
    """The rows of the table that are of the input's unit, with its `where` applied; and about how many bytes. Of a live
    dataset: those above its boundary."""
    open_files: OpenFiles = _no_files
    """These files for Spark tasks that read them by themselves."""
    hold_tables: HoldTables = no_snapshot
    """A snapshot of these tables, which is held while the attempt runs, for Spark tasks that join it by themselves; and
    the address of the database."""
    written: dict[int, Written] = field(default_factory=dict)
    """By output: what `write` and `seal_output` have put there."""
    handed_over: dict[int, Written] = field(default_factory=dict)
    """By output: what went to the sinks."""
    tables: set[int] = field(default_factory=set)
    """Inputs that were read and are tables whose units count commits, not blocks."""
    sizes: dict[tuple[int, Unit], int] = field(default_factory=dict)
    """By input and unit: about how many bytes there were to read."""
    sources: dict[tuple[int, Unit], Source] = field(default_factory=dict)
    """By input and unit: what the Dispatcher says it is; asked once."""
    check_rows: "Callable[[SparkWork, int, DataFrame], bool] | None" = None
    """Evaluates the checks of rows for the sinks before anything is published; False: nothing may be."""
    times: tuple[int, int] | None = None
    """Of the first and the last block of the unit, in seconds since 1970, for operators that know them."""

    @property
    def is_time_window(self) -> bool:
        """Whether the unit counts seconds, not blocks."""
        scope = self.context.inputs[0].scope
        return scope is not None and scope.unit_in_seconds

    @property
    def input_bytes(self) -> int | None:
        """About how much there was to read; None before anything was."""
        return sum(self.sizes.values()) if self.sizes else None

    def settle(self, indexes: Collection[int]) -> None:
        """Choose the session whose settings fit what these inputs hold; before any of them is read.

        Tables stay where they are: how large they are is not known yet, and another session cannot see their frames."""
        inputs = [item for item in self.context.inputs if item.input_index in indexes]
        sources = [(item, self._files_or_table(item)) for item in inputs]
        sizes = [weigh(source, *item.positions) if isinstance(source, list) else None for item, source in sources]
        file_sizes = [size for size in sizes if size is not None]
        if sizes and len(file_sizes) == len(sizes) and is_small(sum(file_sizes)):
            self.session = session_for_small(self.session)

    def _source(self, item: PayloadInput) -> Source:
        key = (item.input_index, item.unit)
        if item.scope is not None and item.scope.columns is not None:
            return []  # an empty relation: there is nothing to ask for
        if key not in self.sources:
            self.sources[key] = self.context.files(item)
        return self.sources[key]

    def is_table(self, item: PayloadInput) -> bool:
        """Whether rows of it are in a table that is read by positions. Raises NonRetryableError if by commits."""
        source = self._files_or_table(item)
        if isinstance(source, TableInput) and not source.by_position:
            raise NonRetryableError(f"the input {item.name} is a table that is read by commits, not by blocks")
        return not isinstance(source, list)

    def _files_or_table(self, item: PayloadInput) -> Source:
        """The same; of a live dataset only the files if these have the whole unit."""
        source = self._source(item)
        return source.files if isinstance(source, LiveInput) and in_files(item, source) else source

    def has_no_files(self, item: PayloadInput) -> bool:
        """Whether nothing of it was committed yet."""
        return self._files_or_table(item) == []

    def read(self, input_index: int = 0) -> "DataFrame":
        self.stop_if_canceled()
        return self.read_input(next(item for item in self.context.inputs if item.input_index == input_index))

    def read_input(self, item: PayloadInput) -> "DataFrame":
        """The rows of an input: pinned to its generation, of its unit, with `where` applied."""
        if item.scope is not None and item.scope.columns is not None:
            schema = ", ".join(f"`{name}` {kind}" for name, kind in item.scope.columns.items())
            return self.session.createDataFrame([], schema)
        files = self._source(item)
        if isinstance(files, TableInput):
            if not files.by_position:
                self.tables.add(item.input_index)
            frame, self.sizes[item.input_index, item.unit] = self.read_table(item, files)
            return frame
        if isinstance(files, LiveInput):
            return self._read_live(item, files)
        size = self.sizes[item.input_index, item.unit] = weigh(files, *item.positions)
        frame = self.read_files(self.session, item, files, None)
        return frame.coalesce(1) if is_small(size) else frame

    def _read_live(self, item: PayloadInput, source: LiveInput) -> "DataFrame":
        """The rows of the files, then those of the table; only of one of them where the other has none of the unit."""
        frame, size = None, 0
        if not in_files(item, source):
            frame, size = self.read_table(item, source)
        if frame is None or not in_table(item, source):
            session = self.session if frame is None else frame.sparkSession
            rows = self.read_files(session, item, source.files, LiveColumns.of(source.table.columns))
            size += weigh(source.files, *item.positions)
            frame = rows if frame is None else rows.unionAll(frame)
        self.sizes[item.input_index, item.unit] = size
        return frame.coalesce(1) if is_small(size) else frame

    def open_input(self, item: PayloadInput) -> InputFiles | None:
        """The files of an input, for operators whose Spark tasks read them by themselves; None: it has none yet."""
        files = self._files_or_table(item)
        if not isinstance(files, list):
            raise NonRetryableError(f"the input {item.name} is a table, and this operator reads files")
        if not files:
            return None
        self.sizes[item.input_index, item.unit] = weigh(files, *item.positions)
        source = self._source(item)
        return self.open_files(
            item, files, LiveColumns.of(source.table.columns) if isinstance(source, LiveInput) else None
        )

    def write(
        self,
        frame: "DataFrame",
        output_index: int = 0,
        *,
        order: Sequence[str] = (),
        files: int | None = None,
        unique: Sequence[str] = (),
        row_by_row: bool = False,
    ) -> Written:
        """All rows of the frame as the content of an output, sorted; at least one file, also without rows.

        Without `files` there is one file if little was read, and several, written side by side, if much was. No two
        rows may agree in the columns `unique`. `row_by_row`: each row is made of one row of the one input."""
        self.stop_if_canceled()
        if self.output(output_index).storage.kind == "buffered":
            return self._hand_over(frame, output_index, unique)
        target = self.target(output_index, block_column=None if self.is_time_window else "block_number")
        spread = self.spread(files)
        if row_by_row and not spread.exact and not spread.small:
            spread = replace(spread, in_place=self._in_place())
        report = write_frame(frame, target, *self.blocks, order=order, spread=spread, unique=unique)
        return self.seal_output(output_index, report.files, None)

    def _in_place(self) -> tuple[tuple[int, int], ...]:
        read_inputs = [item for item in self.context.inputs if (item.input_index, item.unit) in self.sources]
        if len(self.sources) > 1 or not read_inputs or self.context.inputs[0].scope is not None:
            return ()
        files = self._files_or_table(read_inputs[0])
        if not isinstance(files, list):
            return ()
        return file_ranges(files, *self.unit.blocks, self.session.sparkContext.defaultParallelism)

    def _hand_over(self, frame: "DataFrame", output_index: int, unique: Sequence[str]) -> Written:
        """To the sinks: published when all of them are there, so that an attempt that fails on the way says nothing."""
        if self.check_rows is None or not any(item.output_index == output_index for item in self.context.checks):
            return self._publish(frame, output_index, unique)
        # Checked and published, the rows are computed once.
        frame = frame.persist()
        try:
            if self.check_rows(self, output_index, frame):
                return self._publish(frame, output_index, unique)
        finally:
            frame.unpersist()
        self.handed_over[output_index] = Written([])
        return self.handed_over[output_index]

    def _publish(self, frame: "DataFrame", output_index: int, unique: Sequence[str]) -> Written:
        output = self.output(output_index)
        assert output.storage.buffer_prefix is not None
        schema = self.context.schema(output)
        files = write_batches(frame, output.storage.buffer_prefix, self.transfer, schema, output.name, unique=unique)
        for file in files:
            self.stop_if_canceled()
            self.context.publish(Batch(output, file.meta.uri, file.rows, file.meta.sha256))
        self.handed_over[output_index] = Written(files)
        return self.handed_over[output_index]

    def spread(self, files: int | None = None) -> Spread:
        """How the rows of a result are laid out."""
        if self.input_bytes is None:  # rows from elsewhere, nobody knows how many
            return Spread(files or 1, exact=files is not None)
        if is_small(self.input_bytes):
            return Spread(files or 1, small=True, exact=files is not None)
        return Spread(files or file_count(self.input_bytes), exact=files is not None)


SparkOperator: TypeAlias = Callable[[SparkWork], OperatorResult]
