"""The direct outputs of one attempt: rows and events go to the tables in one transaction, and the events on to the
Dispatcher after it.

Whatever the crash: rows that are committed have their events in the table of events, and the next attempt announces
them. An event that is announced twice has the same key, since attempts of one task are one producer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from uuid import UUID

import msgspec
import pyarrow as pa

from tracelake.catalogue.context import NonRetryableError
from tracelake.ports.direct_tables import (
    DirectTables,
    DirectTableWriter,
    PendingEvent,
    RangeReplacement,
    RangeSealedError,
    RowsRefusedError,
    TableExtent,
    TableWriter,
    WriteFencedError,
)
from tracelake.wire.direct import DirectTable
from tracelake.wire.units import EventIn, TaskOutput

Emit = Callable[[Sequence[EventIn]], None]


class DirectOutputs:
    """Opened for a scope; events of a predecessor are announced before it is returned. Used by one thread at a time."""

    def __init__(
        self, writer: DirectTableWriter, outputs: Sequence[TaskOutput], emit: Emit, others: Sequence[TaskOutput] = ()
    ) -> None:
        """`others`: outputs without a table, whose events a write may announce too."""
        self._writer = writer
        self._outputs = {output.output_index: output for output in outputs}
        self._versions = {output.dataset_uuid: output.dataset_version for output in (*outputs, *others)}
        self._emit = emit
        self._boundaries: dict[int, int | None] = {}
        """By output: where the files of a live dataset ended when its table was opened."""

    @classmethod
    def open(
        cls,
        tables: DirectTables,
        declared: Sequence[tuple[TaskOutput, DirectTable]],
        scope: str,
        writer: TableWriter,
        emit: Emit,
        others: Sequence[TaskOutput] = (),
    ) -> "DirectOutputs":
        with _for_operators():
            opened = tables.open([table for _, table in declared], scope, writer)
        outputs = cls(opened, [output for output, _ in declared], emit, others)
        outputs._boundaries = {output.output_index: table.boundary for output, table in declared}
        try:
            outputs._announce(opened.pending)
        except BaseException:
            outputs.close()
            raise
        return outputs

    def read_newest(self, output_index: int, columns: Sequence[str], limit: int) -> pa.Table:
        with _for_operators():
            return self._writer.read_newest(self._dataset(output_index), columns, limit)

    def replace(
        self,
        start: int,
        end: int,
        rows: Mapping[int, Sequence[pa.RecordBatch]],
        events: Sequence[EventIn] = (),
        *,
        above: bool = False,
        live: bool = False,
        seal: int | None = None,
        marks: Mapping[int, Mapping[int, bytes]] = MappingProxyType({}),
        permit_id: int | None = None,
    ) -> None:
        by_dataset = {self._dataset(index): batches for index, batches in rows.items()}
        marked = {self._dataset(index): by_position for index, by_position in marks.items()}
        if foreign := [event for event in events if event.dataset_uuid not in self._versions]:
            raise NonRetryableError(
                f"an event is of the dataset {foreign[0].dataset_uuid}, which is no output of the job"
            )
        with _for_operators():
            pending = self._writer.replace(
                RangeReplacement(start, end, by_dataset, events, above, live, seal, marked, permit_id)
            )
        self._announce(pending)

    def read_extent(self, output_index: int) -> TableExtent:
        with _for_operators():
            extent = self._writer.read_extent(self._dataset(output_index))
        return replace(extent, boundary=self._boundaries.get(output_index))

    def read_marks(self, output_index: int) -> dict[int, bytes]:
        with _for_operators():
            return self._writer.read_marks(self._dataset(output_index))

    def close(self) -> None:
        self._writer.close()

    def _announce(self, pending: Sequence[PendingEvent]) -> None:
        # A predecessor may have left an event of an output that this version lacks. It stays for one that has it.
        pending = [item for item in pending if item.event.dataset_uuid in self._versions]
        if not pending:
            return
        # What a predecessor of another version wrote is in the same table, and of this generation by now.
        self._emit(
            [
                msgspec.structs.replace(item.event, dataset_version=self._versions[item.event.dataset_uuid])
                for item in pending
            ]
        )
        with _for_operators():
            self._writer.acknowledge(pending)

    def _dataset(self, output_index: int) -> UUID:
        output = self._outputs.get(output_index)
        if output is None:
            raise NonRetryableError(f"output {output_index} of the job is not a table that it writes directly")
        return output.dataset_uuid


@contextmanager
def _for_operators() -> Iterator[None]:
    """Another attempt of a task that was replaced, or with rows that do not fit, would end in the same way."""
    try:
        yield
    except (RangeSealedError, RowsRefusedError, WriteFencedError) as error:
        raise NonRetryableError(str(error)) from error
