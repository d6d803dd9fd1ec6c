"""Live datasets of the recorded chain: rows in tables, as a follower writes them, and in files like `evm_ingest`'s."""

from collections.abc import Mapping, Sequence
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
from tests.spark.evm.support import expected, pool_of
from tests.spark.support import BUCKET, DirectoryTransfer
from tests.support.chain import recorded, serve_chain
from tracelake.catalogue.context import LiveInput, TableInput
from tracelake.catalogue.direct_schemas import table_schema
from tracelake.catalogue.evm_columns import EVM_KEYS, EVM_TABLES, EvmTable, evm_columns
from tracelake.demo.chain.packing import Json
from tracelake.demo.chain.recording import RecordedBlock
from tracelake.ports import ObjectMeta
from tracelake.ports.direct_tables import WHOLE_TABLE, RangeReplacement
from tracelake.spark.evm.fetch import fetch
from tracelake.spark.evm.read_options import ReadOptions
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


@lru_cache(maxsize=1)
def nested_rows() -> dict[str, pa.Table]:
    """The same blocks with columns of lists (`nested_blocks`)."""
    with serve_chain(nested_blocks(BLOCKS)) as chain, closing(pool_of(chain)) as pool:
        return fetch(pool, range(BLOCKS), EVM_TABLES, None, ReadOptions.of(NESTED)).tables


def cut_rows(name: str, first: int, last: int, rows: Mapping[str, pa.Table] | None = None) -> pa.Table:
    table = (chain_rows() if rows is None else rows)[name]
    number = pc.field("block_number")
    return table.filter((number >= first) & (number <= last))


NESTED: dict[str, tuple[str, ...]] = {
    "blocks": ("withdrawals",),
    "transactions": ("access_list", "blob_versioned_hashes", "authorization_list"),
    "logs": (),
}
"""The optional columns of lists."""


def make_table(name: EvmTable, optional: Sequence[str] = ()) -> DirectTable:
    return direct_table(table_schema(evm_columns(name, optional), EVM_KEYS[name]), name)


def plain_tables() -> dict[str, DirectTable]:
    return {name: make_table(name) for name in EVM_TABLES}


def nested_tables() -> dict[str, DirectTable]:
    return {name: make_table(name, NESTED[name]) for name in EVM_TABLES}


def nested_blocks(count: int) -> list[RecordedBlock]:
    """Recorded blocks with withdrawals, access lists, blobs and delegations of all shapes: none, empty, many; with the
    smallest and the largest numbers."""
    return [
        RecordedBlock(number=one.number, block=_with_lists(one.block), receipts=one.receipts) for one in recorded(count)
    ]


def _with_lists(block: Json) -> Json:
    number = int(block["number"], 16)
    withdrawal = {"index": "0x0", "validatorIndex": hex(2**64 - 1), "address": _word(number, 20), "amount": "0x7"}
    changed = {**block, "withdrawals": [withdrawal | {"index": hex(place)} for place in range(number % 4)]}
    if number % 5 == 4:
        del changed["withdrawals"]
    transactions = [_with_own_lists(sent, number + place) for place, sent in enumerate(block["transactions"])]
    return changed | {"transactions": transactions}


def _with_own_lists(sent: Json, seed: int) -> Json:
    keys = [_word(seed + place, 32) for place in range(seed % 3)]
    entry = {"address": _word(seed, 20), "storageKeys": keys}
    delegation = {
        "chainId": "0x1",
        "address": _word(seed, 20),
        "nonce": hex(2**63 - 1),
        "r": "0x1",
        "s": _word(seed, 32),
    }
    if seed % 2:
        delegation["yParity"] = "0x1"
    lists = {
        "accessList": [entry, {"address": _word(seed, 20)}][: seed % 3],
        "blobVersionedHashes": keys,
        "authorizationList": [delegation] * (seed % 3),
    }
    return sent | {name: value for place, (name, value) in enumerate(lists.items()) if seed % 4 != place}


def _word(seed: int, size: int) -> str:
    return "0x" + bytes((seed + place) % 256 for place in range(size)).hex()


@dataclass
class LiveChain:
    dsn: str
    objects: DirectoryTransfer
    scratch: Path
    tables: dict[str, DirectTable] = field(default_factory=plain_tables)
    rows: Mapping[str, pa.Table] = field(default_factory=chain_rows)
    """Of the whole chain."""

    @property
    def store(self) -> PostgresDirectTables:
        return PostgresDirectTables(lambda: self.dsn)

    def write(self, first: int, last: int, *, seal: int | None = None, names: Sequence[str] = EVM_TABLES) -> None:
        rows = {self.tables[name].dataset_uuid: cut_rows(name, first, last, self.rows).to_batches() for name in names}
        with closing(self.store.open(list(self.tables.values()), WHOLE_TABLE, new_writer())) as writer:
            writer.replace(RangeReplacement(first, last, rows, above=True, live=True, seal=seal))

    def add_file(self, name: str, first: int, last: int, rows: pa.Table | None = None) -> ObjectMeta:
        path = self.scratch / f"{uuid4()}.parquet"
        pq.write_table(cut_rows(name, first, last, self.rows) if rows is None else rows, path)
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
