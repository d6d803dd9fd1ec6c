"""Reading a stretch of blocks from one node: asked for in batches, checked, and made into tables.

All of a stretch comes from the same node, so that receipts and blocks are of one mind. What a node has answered is kept
while the stretch is read: after a failed request, or when a block is late, the same node is asked for the rest only. An
answer that fails a check discards what that node has answered. A value that its column cannot hold is believed when all
nodes say it.
"""

import threading
from collections.abc import Collection, Sequence
from typing import cast

import pyarrow as pa

from tracelake.spark.evm.answer_checks import check_blocks
from tracelake.spark.evm.answers import Block, BlockHeader
from tracelake.spark.evm.block_times import first_time
from tracelake.spark.evm.calls import CallSet
from tracelake.spark.evm.columns import BadHexError
from tracelake.spark.evm.errors import (
    AnswerError,
    MissingAnswerError,
    ValueTooLargeError,
)
from tracelake.spark.evm.node import ProgressDeadline, RpcNode
from tracelake.spark.evm.node_pool import RpcPool
from tracelake.spark.evm.packed import (
    AnyBlock,
    AnyReceipts,
    PackedBlock,
    pack_receipts,
)
from tracelake.spark.evm.read_options import USUAL, ReadOptions, decoders_of
from tracelake.spark.evm.receipt_reading import ReceiptReading
from tracelake.spark.evm.root_checks import check_block_roots
from tracelake.spark.evm.tables import blocks_table, logs_table, transactions_table
from tracelake.spark.evm.traces_reading import PlacedTraces, TraceReading
from tracelake.spark.evm.traces_table import traces_table

_MOST_READINGS = 4


class Stretch:
    """Consecutive blocks of one node, with what is needed to join them to the next."""

    __slots__ = ("first_parent", "first_time", "last_hash", "last_time", "numbers", "tables")

    def __init__(
        self, numbers: Sequence[int], blocks: Sequence[Block | BlockHeader | PackedBlock], tables: dict[str, pa.Table]
    ) -> None:
        self.numbers = numbers
        self.first_parent = blocks[0].parent_hash
        self.last_hash = blocks[-1].hash
        self.first_time = first_time(int(block.timestamp, 16) for block in blocks[:2])
        self.last_time = int(blocks[-1].timestamp, 16)
        self.tables = tables


def fetch(
    pool: RpcPool,
    numbers: Sequence[int],
    tables: Collection[str],
    stop: threading.Event | None = None,
    options: ReadOptions = USUAL,
) -> Stretch:
    """Consecutive blocks, of which only what the tables need is asked for. `stop`: nobody wants them any more."""
    too_large: set[RpcNode] = set()
    readings: dict[RpcNode, _Reading] = {}

    def read(node: RpcNode, deadline: ProgressDeadline) -> Stretch:
        reading = readings.pop(node, None) or _Reading(node, numbers, tables, options)
        readings[node] = reading
        if len(readings) > _MOST_READINGS:
            del readings[next(iter(readings))]
        try:
            reading.complete(deadline)
            chain_id = pool.options.chain_id
            chunk_tables = make_tables(reading.blocks, reading.receipts, tables, chain_id, options, reading.traces)
        except MissingAnswerError:
            raise  # what is missing is asked for again, and the rest stays
        except AnswerError:
            del readings[node]
            raise
        except BadHexError as error:
            del readings[node]
            raise AnswerError(f"blocks {numbers[0]} to {numbers[-1]}: {error}", host=node.label) from None
        except ValueTooLargeError as error:
            del readings[node]
            too_large.add(node)
            if all(one in too_large or one.refused is not None for one in pool.nodes):
                raise
            raise AnswerError(f"blocks {numbers[0]} to {numbers[-1]}: {error}", host=node.label) from None
        return Stretch(numbers, reading.blocks, chunk_tables)

    return pool.run(read, stop)


class _Reading:
    """What one node has answered of a stretch so far."""

    def __init__(self, node: RpcNode, numbers: Sequence[int], tables: Collection[str], options: ReadOptions) -> None:
        self.blocks: list[AnyBlock] = []
        self.receipts: list[AnyReceipts] = []
        self._node = node
        self._decoders = decoders_of(options)
        self._numbers = numbers
        self._with_receipts = "transactions" in tables or "logs" in tables
        # Receipts alone do not say all that their hashes cover.
        self._full = self._with_receipts if options.verify_roots else "transactions" in tables
        self._block_calls = CallSet([("eth_getBlockByNumber", [hex(number), self._full]) for number in numbers])
        self._options = options
        self._receipts: ReceiptReading | None = None
        self.traces: list[PlacedTraces] = []
        self._with_traces = "traces" in tables
        self._traces: TraceReading | None = None

    def complete(self, deadline: ProgressDeadline) -> None:
        """Asks for what is missing, and checks all of it."""
        if not self.blocks:
            decoder = self._decoders.blocks if self._full else self._decoders.headers
            self._node.complete(self._block_calls, decoder, deadline)
            try:
                self.blocks = check_blocks(self._numbers, self._block_calls.results, self._node.label)
            except MissingAnswerError:
                self._block_calls.reopen_nulls()
                raise
            if self._options.verify_roots:
                self._check_roots()
        if self._with_traces:
            if self._traces is None:
                partial = self._options.rules.drop_phantoms
                self._traces = TraceReading(self._node, self._numbers, list(self.blocks), partial=partial)
            self._traces.complete(deadline)
            self.traces = self._traces.traces
        if self._with_receipts:
            if self._receipts is None:
                self._receipts = ReceiptReading(self._node, self._numbers, self.blocks, self._options)
            self._receipts.complete(deadline)
            self.blocks, self.receipts = self._receipts.blocks, self._receipts.receipts

    def _check_roots(self) -> None:
        for number, block in zip(self._numbers, self.blocks, strict=True):
            check_block_roots(number, block, self._node.label, self._options.fields, full=self._full)


def make_tables(
    blocks: Sequence[AnyBlock],
    receipts: Sequence[AnyReceipts],
    tables: Collection[str],
    chain_id: int,
    options: ReadOptions = USUAL,
    traces: Sequence[PlacedTraces] = (),
) -> dict[str, pa.Table]:
    """`traces`: of each block, if they are among the tables."""
    results = {}
    packed = pack_receipts(receipts, options.fields)
    if "blocks" in tables:
        results["blocks"] = blocks_table(blocks, chain_id, options.optional("blocks"))
    if "transactions" in tables:
        full = cast("Sequence[Block | PackedBlock]", blocks)
        results["transactions"] = transactions_table(full, packed, chain_id, options.optional("transactions"))
    if "logs" in tables:
        transaction_hashes = results["transactions"]["transaction_hash"] if "transactions" in results else None
        results["logs"] = logs_table(blocks, packed, chain_id, transaction_hashes, options.optional("logs"))
    if "traces" in tables:
        results["traces"] = traces_table(blocks, traces, chain_id, options.optional("traces"))
    return results
