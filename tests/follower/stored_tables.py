"""The tables of live datasets in Postgres, written by attempt after attempt, each of which may fail anywhere."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar
from uuid import uuid4

import msgspec
import pyarrow as pa

from tests.direct.support import direct_table, new_writer
from tests.follower.coverage import RewriteRecord
from tests.follower.memory_store import CrashPoint
from tracelake.catalogue.direct_schemas import table_schema
from tracelake.catalogue.evm_columns import EVM_COLUMNS, EVM_KEYS, EVM_TABLES, EvmTable
from tracelake.ports.direct_tables import WHOLE_TABLE, DirectTableWriter, PendingEvent, RangeReplacement, TableWriter
from tracelake.storage.data_connection import DataConnection
from tracelake.storage.direct_tables import PostgresDirectTables, PostgresTableWriter
from tracelake.storage.output_tables import DirectOutputs, Emit
from tracelake.wire.direct import DirectTable
from tracelake.wire.units import StorageOut, TaskOutput

Fault = Callable[[CrashPoint], None]


class InterruptedConnection(DataConnection):
    """Fails in the middle of a transaction: some of its tables are written."""

    def __init__(self, dsn: str, fault: Fault) -> None:
        super().__init__(dsn)
        self._fault = fault

    def ingest(
        self, table: str, rows: Sequence[pa.RecordBatch], *, schema: str | None = None, temporary: bool = False
    ) -> None:
        super().ingest(table, rows, schema=schema, temporary=temporary)
        self._fault("amid_commit")


class InterruptedWriter(PostgresTableWriter):
    """The real writer, which may lose its process or its database around each call."""

    def __init__(
        self,
        connection: DataConnection,
        tables: Sequence[DirectTable],
        scope: str,
        writer: TableWriter,
        fault: Fault,
        record: RewriteRecord,
    ) -> None:
        super().__init__(connection, tables, scope, writer)
        self._fault = fault
        self._record = record

    def replace(self, change: RangeReplacement) -> list[PendingEvent]:
        self._fault("before_commit")
        pending = super().replace(change)
        self._record.add(change.start, change.end)
        self._fault("after_commit")
        return pending

    def acknowledge(self, events: Sequence[PendingEvent]) -> None:
        self._fault("before_mark")
        super().acknowledge(events)
        self._fault("after_mark")


@dataclass(frozen=True)
class InterruptedTables:
    """The port of direct tables with such writers."""

    dsn: str
    fault: Fault
    record: RewriteRecord

    def open(self, tables: Sequence[DirectTable], scope: str, writer: TableWriter) -> DirectTableWriter:
        self.fault("claim")
        connection = InterruptedConnection(self.dsn, self.fault)
        opened = InterruptedWriter(connection, tables, scope, writer, self.fault, self.record)
        try:
            opened.start()
        except BaseException:
            opened.close()
            raise
        return opened

    def remove_rows(self, tables: Sequence[object], to: int) -> int:
        raise NotImplementedError


@dataclass
class StoredTables:
    """Of one chain, with the outputs of the follower's job."""

    dsn: str
    outputs: dict[str, TaskOutput] = field(init=False)
    declared: dict[EvmTable, DirectTable] = field(init=False)
    record: RewriteRecord = field(default_factory=RewriteRecord)
    claimed: int = 0
    """The newest attempt that has opened the tables."""
    rows_per_removal: ClassVar[int] = 20

    def __post_init__(self) -> None:
        self.declared = {
            name: direct_table(table_schema(EVM_COLUMNS[name], EVM_KEYS[name]), name) for name in EVM_TABLES
        }
        self.outputs = {
            name: TaskOutput(
                output_index=index,
                dataset_uuid=self.declared[name].dataset_uuid,
                dataset_version=uuid4(),
                name=name,
                storage=StorageOut(kind="postgres"),
            )
            for index, name in enumerate(EVM_TABLES)
        }
        self.task_id = new_writer().task_id

    def open(
        self, attempt: int, boundary: int | None, fault: Fault, emit: Emit, others: Sequence[TaskOutput]
    ) -> DirectOutputs:
        """As a worker opens them for an attempt of the follower."""
        declared = [
            (self.outputs[name], msgspec.structs.replace(table, boundary=boundary))
            for name, table in self.declared.items()
        ]
        tables = InterruptedTables(self.dsn, fault, self.record)
        writer = TableWriter(self.task_id, attempt)
        opened = DirectOutputs.open(tables, declared, WHOLE_TABLE, writer, emit, others)
        self.claimed = max(self.claimed, attempt)
        return opened

    @property
    def store(self) -> PostgresDirectTables:
        """Removes rows a few at a time."""
        return PostgresDirectTables(lambda: self.dsn, rows_per_removal=self.rows_per_removal)
