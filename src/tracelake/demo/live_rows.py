"""Rows of the live chapter, read where they are: in files, in tables of Postgres data, and at the node."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa

from tracelake.adapters.s3.access import WORKING, S3Access, read_access
from tracelake.client.stack import LocalStack
from tracelake.client.user import UserClient
from tracelake.db.migrate import Connection
from tracelake.demo import DemoError
from tracelake.demo.live_plan import BLOCKS, LOGS, TRANSACTIONS
from tracelake.model.buffered import quoted, table_name
from tracelake.settings.home import Home
from tracelake.spark.evm.calls import Call, answers_of, quantity
from tracelake.spark.evm.endpoints import RpcEndpoint
from tracelake.spark.evm.errors import RpcError
from tracelake.spark.evm.node import ProgressDeadline, RpcNode, RpcOptions
from tracelake.stack.dataset_rows import find_files, read_files
from tracelake.stack.provision import connected
from tracelake.wire import routes
from tracelake.wire.platform import DatasetFilesRequest

_TRANSFER = bytes.fromhex("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef")
_BATCH = 20
_PATIENCE_SECONDS = 30.0
_NUMBERS = frozenset({"block_number", "timestamp", "transaction_index", "nonce", "log_index"})
"""Columns that are numbers; all others are bytes."""
NODE_COLUMNS = {
    BLOCKS: ("block_number", "block_hash", "parent_hash", "timestamp"),
    TRANSACTIONS: (
        *("block_number", "transaction_index", "transaction_hash", "nonce", "from_address", "to_address"),
        *("value_binary", "input"),
    ),
    LOGS: (
        *("block_number", "transaction_index", "log_index", "transaction_hash", "address"),
        *("topic0", "topic1", "topic2", "topic3", "data"),
    ),
}
"""The columns that are compared with the node. The others come from receipts, or the hash of their row holds them."""
_MOST_LOG_BLOCKS = 500
_START = "SELECT table_start FROM table_extents WHERE dataset_uuid = $1"


@dataclass(frozen=True, slots=True)
class LiveContent:
    """A live dataset at one moment."""

    name: str
    files: int
    in_files: int
    in_table: int
    """Rows of the table that readers take: those above the boundary."""
    waiting: int
    """Rows of the table that are in files as well, and are removed with the next unit."""
    boundary: int | None
    rows: pa.Table
    """What a reader gets: rows of the files, then of the table."""


@dataclass(frozen=True, slots=True)
class BlockContent:
    """What the table has of one block."""

    number: int
    hash: str
    transactions: int
    logs: int
    transfers: Mapping[str, int]
    """ERC-20 and ERC-721 transfers by token."""


class LiveDatasetReader:
    def __init__(self, stack: LocalStack, client: UserClient) -> None:
        self._stack = stack
        self._client = client
        self._uuids: dict[str, UUID] = {}

    async def find_newest(self) -> tuple[int, str] | None:
        """The newest block of the table, and its hash."""
        async with self.data() as data:
            statement = f"SELECT block_number, encode(block_hash, 'hex') FROM {await self._table(BLOCKS)}"  # noqa: S608
            row = await data.fetchrow(f"{statement} ORDER BY block_number DESC LIMIT 1")
        return None if row is None else (row[0], f"0x{row[1]}")

    async def find_start(self) -> int:
        """The first block that was written to the tables."""
        async with self.data() as data:
            start: int = await data.fetchval(_START, await self._uuid(BLOCKS))
        return start

    async def read_blocks(self, first: int, last: int) -> list[BlockContent]:
        """From the table, which has all blocks that may still change."""
        blocks, transactions, logs = [await self._table(name) for name in (BLOCKS, TRANSACTIONS, LOGS)]
        within = "WHERE block_number BETWEEN $1 AND $2"
        async with self.data() as data, data.transaction(isolation="repeatable_read"):
            hashes = await data.fetch(
                f"SELECT block_number, block_hash FROM {blocks} {within} ORDER BY 1",  # noqa: S608 - names of ours
                first,
                last,
            )
            counts = await data.fetch(
                f"SELECT block_number, count(*) FROM {transactions} {within} GROUP BY 1",  # noqa: S608
                first,
                last,
            )
            moved = await data.fetch(
                f"SELECT block_number, address, topic0 FROM {logs} {within}",  # noqa: S608
                first,
                last,
            )
        transaction_counts: dict[int, int] = {row[0]: row[1] for row in counts}
        contents = []
        for number, block_hash in hashes:
            of_block = [row for row in moved if row["block_number"] == number]
            transfers: dict[str, int] = {}
            for row in of_block:
                if row["topic0"] == _TRANSFER:
                    token = row["address"].hex()
                    transfers[token] = transfers.get(token, 0) + 1
            count = transaction_counts.get(number, 0)
            contents.append(BlockContent(number, f"0x{block_hash.hex()}", count, len(of_block), transfers))
        return contents

    async def read_live(self, name: str, columns: Sequence[str]) -> LiveContent:
        reply, files = await find_files(self._stack, DatasetFilesRequest(dataset_uuid=await self._uuid(name)))
        parts = await asyncio.to_thread(lambda: list(read_files(self._access, files, list(columns), WORKING)))
        select_list = ", ".join(quoted(column) for column in columns)
        table = await self._table(name)
        async with self.data() as data, data.transaction(isolation="repeatable_read"):
            above = "WHERE $1::bigint IS NULL OR block_number > $1"
            records = await data.fetch(f"SELECT {select_list} FROM {table} {above}", reply.boundary)  # noqa: S608
            total: int = await data.fetchval(f"SELECT count(*) FROM {table}")  # noqa: S608
        schema = _schema(columns)
        stored = pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])
        rows = pa.table({column: _values(column, records) for column in columns}, schema=schema)
        return LiveContent(
            name,
            files=len(files),
            in_files=stored.num_rows,
            in_table=len(records),
            waiting=total - len(records),
            boundary=reply.boundary,
            rows=pa.concat_tables([stored, rows]),
        )

    async def read_files(self, name: str, columns: Sequence[str]) -> pa.Table:
        _, files = await find_files(self._stack, DatasetFilesRequest(dataset_uuid=await self._uuid(name)))
        parts = await asyncio.to_thread(lambda: list(read_files(self._access, files, list(columns), WORKING)))
        return pa.concat_tables(parts)

    async def read_table(self, name: str, select: str) -> list[dict[str, Any]]:
        async with self.data() as data:
            return [dict(row) for row in await data.fetch(f"SELECT {select} FROM {await self._table(name)}")]  # noqa: S608

    def data(self) -> "AbstractAsyncContextManager[Connection]":
        return connected(Path(self._stack.data_dsn_file).read_text().strip())

    @cached_property
    def _access(self) -> S3Access:
        return read_access(Home(Path(self._stack.home)).object_store_file)

    async def _table(self, name: str) -> str:
        return quoted(table_name(await self._uuid(name)))

    async def _uuid(self, name: str) -> UUID:
        if name not in self._uuids:
            reply = await self._client.call(routes.LIST_DATASETS)
            self._uuids |= {row.name: row.dataset_uuid for row in reply.datasets}
        return self._uuids[name]


def _schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([(column, pa.int64() if column in _NUMBERS else pa.binary()) for column in columns])


def _values(column: str, records: Sequence[Any]) -> list[Any]:
    """Of a table: a number may be a decimal there."""
    values = [record[column] for record in records]
    return [None if value is None else int(value) for value in values] if column in _NUMBERS else values


class _NodeHeader(msgspec.Struct, rename="camel", gc=False):
    number: str
    hash: str
    timestamp: str


class _NodeTransaction(msgspec.Struct, rename="camel", gc=False):
    hash: str
    transaction_index: str
    nonce: str
    value: str
    input: str
    sender: str = msgspec.field(name="from")
    to: str | None = None


class _NodeBlock(msgspec.Struct, rename="camel", gc=False):
    number: str
    hash: str
    parent_hash: str
    timestamp: str
    transactions: list[_NodeTransaction]


class _NodeLog(msgspec.Struct, rename="camel", gc=False):
    block_number: str
    transaction_index: str
    log_index: str
    transaction_hash: str
    address: str
    topics: list[str]
    data: str


_headers = answers_of(_NodeHeader)
_blocks = answers_of(_NodeBlock)
_logs = answers_of(list[_NodeLog])
_done = answers_of(bool)


class LiveNode:
    """The node that is followed, asked directly: what comes of it is compared with what it says."""

    def __init__(self, endpoint: RpcEndpoint) -> None:
        self._endpoint = endpoint
        self._node = RpcNode(endpoint, RpcOptions(chain_id=0, batch_size=_BATCH))

    def close(self) -> None:
        self._node.close()

    async def order(self, method: str, number: int) -> None:
        """Only the recorded chain takes orders."""
        await self._ask([(method, [number])], _done)

    async def read_head(self) -> tuple[int, str, int]:
        """The number, hash and time of the newest block."""
        (header,) = await self._ask([("eth_getBlockByNumber", ["latest", False])], _headers)
        return self._number(header.number), header.hash, self._number(header.timestamp)

    async def read_hash(self, number: int) -> str | None:
        """None if the node has no such block now."""
        (header,) = await self._answers([("eth_getBlockByNumber", [hex(number), False])], _headers)
        return None if header is None else str(header.hash)

    async def read_rows(self, first: int, last: int, log_blocks: int = _MOST_LOG_BLOCKS) -> dict[str, pa.Table]:
        """Rows of blocks, transactions and logs, with the columns of NODE_COLUMNS. They are made here from the answers
        of the node, by none of the code of operators. `log_blocks`: of how many blocks logs are asked for at once."""
        blocks = await self._ask(
            [("eth_getBlockByNumber", [hex(number), True]) for number in range(first, last + 1)], _blocks
        )
        ranges = [
            {"fromBlock": hex(start), "toBlock": hex(min(last, start + log_blocks - 1))}
            for start in range(first, last + 1, log_blocks)
        ]
        logs = [log for log_range in ranges for log in (await self._ask([("eth_getLogs", [log_range])], _logs))[0]]
        return await asyncio.to_thread(self._tables, blocks, logs)

    def _tables(self, blocks: Sequence[_NodeBlock], logs: Sequence[_NodeLog]) -> dict[str, pa.Table]:
        rows: dict[str, list[tuple[Any, ...]]] = {
            BLOCKS: [
                (self._number(one.number), _bytes(one.hash), _bytes(one.parent_hash), self._number(one.timestamp))
                for one in blocks
            ],
            TRANSACTIONS: [
                (
                    *(self._number(block.number), self._number(one.transaction_index), _bytes(one.hash)),
                    *(self._number(one.nonce), _bytes(one.sender), None if one.to is None else _bytes(one.to)),
                    *(self._number(one.value).to_bytes(32, "big"), _bytes(one.input)),
                )
                for block in blocks
                for one in block.transactions
            ],
            LOGS: [
                (
                    *(self._number(one.block_number), self._number(one.transaction_index)),
                    *(self._number(one.log_index), _bytes(one.transaction_hash), _bytes(one.address)),
                    *[*map(_bytes, one.topics), None, None, None, None][:4],
                    _bytes(one.data),
                )
                for one in logs
            ],
        }
        return {name: _table(NODE_COLUMNS[name], rows[name]) for name in rows}

    def _number(self, text: str) -> int:
        return quantity(text, self._endpoint.label)

    async def _ask(self, calls: Sequence[Call], decoder: Any) -> list[Any]:
        answers = await self._answers(calls, decoder)
        if None in answers:
            raise DemoError(f"the node {self._endpoint.label} lacks a block that it had")
        return answers

    async def _answers(self, calls: Sequence[Call], decoder: Any) -> list[Any]:
        try:
            return await asyncio.to_thread(self._node.ask, calls, decoder, ProgressDeadline(_PATIENCE_SECONDS))
        except RpcError as error:
            raise DemoError(f"the node {self._endpoint.label} cannot be asked: {error}") from None


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def _table(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    values = zip(*rows, strict=True) if rows else ((),) * len(columns)
    return pa.table(dict(zip(columns, map(list, values), strict=True)), schema=_schema(columns))
