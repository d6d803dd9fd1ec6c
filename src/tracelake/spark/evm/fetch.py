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

from tracelake.spark.evm.answer_checks import check_blocks, check_receipts
from tracelake.spark.evm.answers import Block, BlockHeader, Receipt
from tracelake.spark.evm.calls import CallSet, PackingDecoder, answers_of
from tracelake.spark.evm.columns import BadHexError
from tracelake.spark.evm.errors import (
    AnswerError,
    MissingAnswerError,
    NoSuchMethodError,
    TooLargeError,
    ValueTooLargeError,
)
from tracelake.spark.evm.node import ProgressDeadline, RpcNode
from tracelake.spark.evm.node_pool import RpcPool
from tracelake.spark.evm.packed import (
    AnyBlock,
    AnyReceipts,
    PackedBlock,
    count_transactions,
    hashes_of,
    pack_receipts,
    pack_regular_block,
    pack_regular_receipts,
)
from tracelake.spark.evm.tables import blocks_table, logs_table, transactions_table

_RECEIPTS = "eth_getBlockReceipts"
_MOST_READINGS = 4
_blocks = PackingDecoder(Block, pack_regular_block)
_headers = answers_of(BlockHeader)
_block_receipts = PackingDecoder(list[Receipt], pack_regular_receipts)
_receipts = answers_of(Receipt)


class Stretch:
    """Consecutive blocks of one node, with what is needed to join them to the next."""

    __slots__ = ("first_parent", "first_time", "last_hash", "last_time", "numbers", "tables")

    def __init__(
        self, numbers: Sequence[int], blocks: Sequence[Block | BlockHeader | PackedBlock], tables: dict[str, pa.Table]
    ) -> None:
        self.numbers = numbers
        self.first_parent = blocks[0].parent_hash
        self.last_hash = blocks[-1].hash
        self.first_time = int(blocks[0].timestamp, 16)
        self.last_time = int(blocks[-1].timestamp, 16)
        self.tables = tables


def fetch(
    pool: RpcPool, numbers: Sequence[int], tables: Collection[str], stop: threading.Event | None = None
) -> Stretch:
    """Consecutive blocks, of which only what the tables need is asked for. `stop`: nobody wants them any more."""
    too_large: set[RpcNode] = set()
    readings: dict[RpcNode, _Reading] = {}

    def read(node: RpcNode, deadline: ProgressDeadline) -> Stretch:
        reading = readings.pop(node, None) or _Reading(node, numbers, tables)
        readings[node] = reading
        if len(readings) > _MOST_READINGS:
            del readings[next(iter(readings))]
        try:
            reading.complete(deadline)
            chunk_tables = make_tables(reading.blocks, reading.receipts, tables, pool.options.chain_id)
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

    def __init__(self, node: RpcNode, numbers: Sequence[int], tables: Collection[str]) -> None:
        self.blocks: list[AnyBlock] = []
        self.receipts: list[AnyReceipts] = []
        self._node = node
        self._numbers = numbers
        self._full = "transactions" in tables
        self._with_receipts = self._full or "logs" in tables
        self._block_calls = CallSet([("eth_getBlockByNumber", [hex(number), self._full]) for number in numbers])
        self._receipt_calls: CallSet | None = None
        self._single_calls: CallSet | None = None
        self._places: list[int] = []
        """Of the blocks with transactions: the others have no receipts to ask for."""

    def complete(self, deadline: ProgressDeadline) -> None:
        """Asks for what is missing, and checks all of it."""
        if not self.blocks:
            self._node.complete(self._block_calls, _blocks if self._full else _headers, deadline)
            try:
                self.blocks = check_blocks(self._numbers, self._block_calls.results, self._node.label)
            except MissingAnswerError:
                self._block_calls.reopen_nulls()
                raise
        if self._with_receipts:
            self._read_receipts(deadline)

    def _read_receipts(self, deadline: ProgressDeadline) -> None:
        if self._receipt_calls is None:
            self._places = [place for place, block in enumerate(self.blocks) if count_transactions(block)]
            self._receipt_calls = CallSet([(_RECEIPTS, [hex(self._numbers[place])]) for place in self._places])
        if self._single_calls is None:
            self._read_by_block(self._receipt_calls, deadline)
        if self._single_calls is not None:
            self._node.complete(self._single_calls, _receipts, deadline)
        answers: list[AnyReceipts | None] = [[] for _ in self._numbers]
        for place, receipts in zip(self._places, self._receipt_calls.results, strict=True):
            answers[place] = receipts
        self._add_singles(answers)
        try:
            self.receipts = [
                check_receipts(number, block, of_block, self._node.label)
                for number, block, of_block in zip(self._numbers, self.blocks, answers, strict=True)
            ]
        except MissingAnswerError:
            self._reopen(self._receipt_calls)
            raise

    def _reopen(self, by_block: CallSet) -> None:
        if self._single_calls is not None:
            self._single_calls.reopen_nulls()
            if self._single_calls.open:
                return
            self._single_calls = None
        by_block.reopen_nulls()

    def _read_by_block(self, call_set: CallSet, deadline: ProgressDeadline) -> None:
        """If the node cannot, receipts that are still missing become single calls."""
        while call_set.open and not self._node.lacks(_RECEIPTS):
            try:
                self._node.complete(call_set, _block_receipts, deadline)
            except NoSuchMethodError as error:
                if error.certain or not self._is_answered(call_set, deadline):
                    self._node.mark_missing(_RECEIPTS)
            except TooLargeError:
                break  # those of one block together, so they are asked for one by one
        if call_set.open:
            blocks = [self.blocks[self._places[open_place]] for open_place in call_set.open]
            hashes = [name for block in blocks for name in hashes_of(block)]
            self._single_calls = CallSet([("eth_getTransactionReceipt", [name]) for name in hashes])

    def _is_answered(self, call_set: CallSet, deadline: ProgressDeadline) -> bool:
        """Asks for the first open call alone once more: words like "blocked" may be about something else."""
        place = call_set.open[0]
        try:
            call_set.close([place], {place: self._node.ask([call_set.calls[place]], _block_receipts, deadline)[0]})
        except NoSuchMethodError:
            return False
        return True

    def _add_singles(self, answers: list[AnyReceipts | None]) -> None:
        if self._single_calls is None or self._receipt_calls is None:
            return
        singles = iter(self._single_calls.results)
        for open_place in self._receipt_calls.open:
            place = self._places[open_place]
            receipts = [next(singles) for _ in range(count_transactions(self.blocks[place]))]
            answers[place] = None if None in receipts else receipts


def make_tables(
    blocks: Sequence[AnyBlock], receipts: Sequence[AnyReceipts], tables: Collection[str], chain_id: int
) -> dict[str, pa.Table]:
    results = {}
    packed = pack_receipts(receipts)
    if "blocks" in tables:
        results["blocks"] = blocks_table(blocks, chain_id)
    if "transactions" in tables:
        results["transactions"] = transactions_table(cast("Sequence[Block | PackedBlock]", blocks), packed, chain_id)
    if "logs" in tables:
        transaction_hashes = results["transactions"]["transaction_hash"] if "transactions" in results else None
        results["logs"] = logs_table(blocks, packed, chain_id, transaction_hashes)
    return results
