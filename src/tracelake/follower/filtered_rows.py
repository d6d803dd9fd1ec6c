"""Blocks of one node with only the logs that a filter takes.

Headers of all blocks are read, since the follower compares blocks by their hashes, and logs by eth_getLogs. Near the
head of the node they are asked for by the hash of each block: a chain that changes in between, or a backend that is
behind, has no such block and says so, where a query by numbers would be answered with other logs, or with none. Further
down they are asked for by ranges, of sizes that the node takes; then the last header of the range must be the same as
before, and logs must name the blocks whose headers were read.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tracelake.follower.links import ChainLink, links_of
from tracelake.follower.nodes import ChainRows
from tracelake.spark.evm.answers import FilteredLog
from tracelake.spark.evm.calls import CallSet
from tracelake.spark.evm.columns import BadHexError
from tracelake.spark.evm.errors import (
    AnswerError,
    BrokenChainError,
    ForeignReceiptsError,
    MissingAnswerError,
    ValueTooLargeError,
)
from tracelake.spark.evm.fetch import fetch
from tracelake.spark.evm.log_fetch import (
    GET_LOGS,
    LOG_ANSWERS,
    check_range,
    fetch_logs,
    filtered_logs_table,
    order_logs,
)
from tracelake.spark.evm.node import ProgressDeadline, RpcNode
from tracelake.spark.evm.node_pool import RpcPool
from tracelake.spark.evm.read_options import ReadOptions
from tracelake.spark.evm.tables import schema_of

NEAR_HEAD_BLOCKS = 32
"""Further behind, a backend is taken to have the block."""
_INTERNAL = ("block_hash",)
"""The optional column that logs are read with, to compare it with the headers."""


def read_filtered_rows(
    pool: RpcPool,
    first: int,
    last: int,
    options: ReadOptions,
    head: int | None,
    stop: threading.Event | None = None,
) -> ChainRows:
    """`pool`: of one node. `head`: its newest block, as far as it is known."""
    blocks = fetch(pool, range(first, last + 1), ("blocks",), stop, options).tables["blocks"]
    links = links_of(blocks)
    near = first if head is None else max(first, head - NEAR_HEAD_BLOCKS + 1)
    by_range = [link for link in links if link.number < near]
    by_hash = [link for link in links if link.number >= near]
    host = pool.nodes[0].label
    reading = replace(options, columns=(("logs", _INTERNAL),))
    parts = []
    if by_range:
        parts.append(_read_range(pool, by_range, reading, host, stop))
    if by_hash:
        parts.append(_read_blocks(pool, by_hash, reading, stop))
    logs = pa.concat_tables(parts)
    _check_blocks(logs, links, host)
    return ChainRows(links, {"blocks": blocks, "logs": _with_columns(logs, links, options.optional("logs"))})


def _read_range(
    pool: RpcPool, links: Sequence[ChainLink], reading: ReadOptions, host: str, stop: threading.Event | None
) -> pa.Table:
    stretch = fetch_logs(pool, range(links[0].number, links[-1].number + 1), ("logs",), stop, reading)
    if stretch.last_hash.lower() != links[-1].hash:
        raise BrokenChainError(f"block {links[-1].number} is another than before its logs were read", host=host)
    return stretch.tables["logs"]


def _read_blocks(
    pool: RpcPool, links: Sequence[ChainLink], reading: ReadOptions, stop: threading.Event | None
) -> pa.Table:
    log_filter = reading.filter
    assert log_filter is not None

    def read(node: RpcNode, deadline: ProgressDeadline) -> pa.Table:
        calls = CallSet([(GET_LOGS, log_filter.params_of_block(link.hash)) for link in links])
        node.complete(calls, LOG_ANSWERS, deadline)
        logs: list[FilteredLog] = []
        for link, answer in zip(links, calls.results, strict=True):
            if answer is None:
                raise MissingAnswerError(f"null for the logs of block {link.number}", host=node.label)
            check_range((link.number, link.number), answer, log_filter, node.label)
            logs += answer
        try:
            return filtered_logs_table(
                order_logs(logs, reading.rules, node.label), pool.options.chain_id, {}, reading.optional("logs")
            )
        except (BadHexError, ValueTooLargeError) as error:
            raise AnswerError(
                f"logs of blocks {links[0].number} to {links[-1].number}: {error}", host=node.label
            ) from None

    return pool.run(read, stop)


def _check_blocks(logs: pa.Table, links: Sequence[ChainLink], host: str) -> None:
    """Logs are of the very blocks whose headers were read."""
    hashes = {link.number: bytes.fromhex(link.hash[2:]) for link in links}
    for number, name in zip(logs["block_number"].to_pylist(), logs["block_hash"].to_pylist(), strict=True):
        if hashes[number] != name:
            raise ForeignReceiptsError(f"logs of block {number} are of another block with that number", host=host)


def _with_columns(logs: pa.Table, links: Sequence[ChainLink], optional: Sequence[str]) -> pa.Table:
    """The usual columns, and these optional ones."""
    schema = schema_of("logs", optional)
    times = {link.number: link.timestamp for link in links}

    def column(name: str) -> pa.Array | pa.ChunkedArray:
        if name == "timestamp":
            return pa.array([times[number] for number in logs["block_number"].to_pylist()], schema.field(name).type)
        if name == "n_data_bytes":
            sizes = np.array([len(data) for data in logs["data"].to_pylist()], np.int64)
            return pa.array(sizes).cast(schema.field(name).type)
        return logs[name]

    return pa.Table.from_arrays([column(name) for name in schema.names], schema=schema)
