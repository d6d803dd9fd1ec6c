"""Tables of a live dataset with blocks like mainnet's, of any length: some dense blocks, again and again, under numbers
and hashes of their own."""

import hashlib
from contextlib import closing
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.support.dense_chain import CHAIN_ID, DenseChain
from tracelake.catalogue.direct_schemas import table_schema
from tracelake.catalogue.evm_columns import EVM_COLUMNS, EVM_KEYS, EVM_TABLES, EvmTable
from tracelake.model.ids import new_id
from tracelake.ports.direct_tables import WHOLE_TABLE, RangeReplacement, TableWriter
from tracelake.spark.evm.answer_checks import check_blocks, check_receipts
from tracelake.spark.evm.answers import Block, Receipt
from tracelake.spark.evm.calls import answers_of
from tracelake.spark.evm.fetch import make_tables
from tracelake.storage.direct_tables import PostgresDirectTables
from tracelake.wire.direct import DirectTable


def dense_rows(blocks: int) -> dict[str, pa.Table]:
    """The three tables of so many blocks, from 0 on."""
    chain = list(DenseChain(blocks))
    block_answers, receipt_answers = answers_of(Block), answers_of(list[Receipt])
    told_blocks = [{"id": place, "result": block} for place, (block, _) in enumerate(chain)]
    told_receipts = [{"id": place, "result": receipts} for place, (_, receipts) in enumerate(chain)]
    read = [answer.result for answer in block_answers.decode(msgspec.json.encode(told_blocks))]
    of_blocks = [answer.result for answer in receipt_answers.decode(msgspec.json.encode(told_receipts))]
    checked = check_blocks(range(blocks), read, "")
    receipts = [check_receipts(*one, "") for one in zip(range(blocks), checked, of_blocks, strict=True)]
    return make_tables(checked, receipts, EVM_TABLES, CHAIN_ID)


def shift_rows(table: pa.Table, by: int) -> pa.Table:
    """The same rows so many blocks later, in a chain of their own."""
    place = table.schema.get_field_index("block_number")
    moved = pc.add(table["block_number"].cast(pa.int64()), by)
    table = table.set_column(place, "block_number", moved.cast(pa.uint32()))
    if "parent_hash" not in table.schema.names:
        return table
    numbers = moved.to_pylist()
    for name, offset in (("block_hash", 0), ("parent_hash", -1)):
        hashes = [hashlib.sha256(str(number + offset).encode()).digest() for number in numbers]
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(hashes, pa.binary()))
    return table


def make_table(name: EvmTable) -> DirectTable:
    schema = table_schema(EVM_COLUMNS[name], EVM_KEYS[name])
    return DirectTable(dataset_uuid=uuid4(), org_id=uuid4(), org="bench", name=f"{name}_{uuid4().hex}", schema=schema)


def fill_tables(dsn: str, blocks: int, distinct: int) -> tuple[dict[EvmTable, DirectTable], dict[EvmTable, int]]:
    """Tables of this many blocks, all of them sealed, and how many rows each has."""
    rows = dense_rows(min(distinct, blocks))
    tables = {name: make_table(name) for name in EVM_TABLES}
    counts: dict[EvmTable, int] = dict.fromkeys(EVM_TABLES, 0)
    store = PostgresDirectTables(lambda: dsn)
    with closing(store.open(list(tables.values()), WHOLE_TABLE, TableWriter(new_id(), 1))) as writer:
        for start in range(0, blocks, distinct):
            end = min(blocks, start + distinct) - 1
            parts = {name: shift_rows(table, start) for name, table in rows.items()}
            kept = {name: part.filter(pc.field("block_number") <= end) for name, part in parts.items()}
            batches = {tables[name].dataset_uuid: kept[name].to_batches() for name in EVM_TABLES}
            writer.replace(RangeReplacement(start, end, batches, live=True, seal=end))
            for name in EVM_TABLES:
                counts[name] += kept[name].num_rows
    return tables, counts
