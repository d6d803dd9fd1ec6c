"""Live datasets of the recorded chain: rows in tables, as a follower writes them, and in files like `evm_ingest`'s."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.direct.support import direct_table, new_writer
from tests.spark.evm.support import expected
from tests.spark.support import BUCKET, DirectoryTransfer
from tests.support.chain import recorded
from tracelake.catalogue.context import LiveInput, TableInput
from tracelake.catalogue.direct_schemas import table_schema
from tracelake.catalogue.evm_columns import EVM_COLUMNS, EVM_KEYS, EVM_TABLES, EvmTable
from tracelake.ports import ObjectMeta
from tracelake.ports.direct_tables import WHOLE_TABLE, RangeReplacement
from tracelake.spark.evm.tables import SCHEMAS
from tracelake.storage.direct_tables import PostgresDirectTables
from tracelake.wire.direct import DirectTable
from tracelake.wire.task_calls import TableColumn
from tracelake.wire.units import PayloadInput, ReadScope, Unit

BLOCKS = 120


@lru_cache(maxsize=1)
def chain_rows() -> dict[str, pa.Table]:
    """The three tables of the first blocks, with the columns of the files."""
    rows = expected(recorded(BLOCKS))
    return {name: pa.Table.from_pylist(rows[name], SCHEMAS[name]) for name in EVM_TABLES}


def cut_rows(name: str, first: int, last: int) -> pa.Table:
    table = chain_rows()[name]
    number = pc.field("block_number")
    return table.filter((number >= first) & (number <= last))


def make_table(name: EvmTable) -> DirectTable:
    return direct_table(table_schema(EVM_COLUMNS[name], EVM_KEYS[name]), name)


@dataclass
class LiveChain:
    dsn: str
    objects: DirectoryTransfer
    scratch: Path
    tables: dict[str, DirectTable] = field(default_factory=lambda: {name: make_table(name) for name in EVM_TABLES})

    @property
    def store(self) -> PostgresDirectTables:
        return PostgresDirectTables(lambda: self.dsn)

    def write(self, first: int, last: int, *, seal: int | None = None, names: Sequence[str] = EVM_TABLES) -> None:
        rows = {self.tables[name].dataset_uuid: cut_rows(name, first, last).to_batches() for name in names}
        with closing(self.store.open(list(self.tables.values()), WHOLE_TABLE, new_writer())) as writer:
            writer.replace(RangeReplacement(first, last, rows, above=True, live=True, seal=seal))

    def add_file(self, name: str, first: int, last: int, rows: pa.Table | None = None) -> ObjectMeta:
        path = self.scratch / f"{uuid4()}.parquet"
        pq.write_table(cut_rows(name, first, last) if rows is None else rows, path)
        return self.objects.upload(path, f"{BUCKET}{name}/{uuid4()}/{name}_{first}_{last}.parquet")

    def columns(self, name: str) -> tuple[TableColumn, ...]:
        return msgspec.convert(self.tables[name].schema.columns, tuple[TableColumn, ...], from_attributes=True)

    def source(self, name: str, files: Sequence[ObjectMeta], boundary: int | None) -> LiveInput:
        return LiveInput(list(files), TableInput(self.columns(name), by_position=True), boundary)

    def item(self, name: str, first: int, last: int, scope: ReadScope | None = None, index: int = 0) -> PayloadInput:
        return PayloadInput(
            input_index=index,
            dataset_uuid=self.tables[name].dataset_uuid,
            dataset_version=uuid4(),
            name=name,
            unit=Unit(partition_key=f"{first}-{last}", start=first, end=last),
            revision="",
            where=None,
            scope=scope,
        )
