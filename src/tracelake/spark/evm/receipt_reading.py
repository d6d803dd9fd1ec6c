"""Reading the receipts of a stretch of blocks from one node.

They are asked for by block; one by one where the node has no method for that, or finds them too large. Some nodes leave
receipts of system transactions out of those of a block, and have them singly: what is missing is asked for by hash.
What is missing then too is an error, or a phantom: a transaction that a block lists and that was never executed. Chains
that have such are read with `drop_phantoms`. A node that lags behind must not be mistaken for that, so null has to be
said twice, and by a node that has other receipts of the block, or a list of them.
"""

from collections.abc import Sequence

from tracelake.spark.evm.answer_checks import check_receipts, count_receipts, receipt_hashes
from tracelake.spark.evm.answers import Receipt
from tracelake.spark.evm.calls import CallSet
from tracelake.spark.evm.errors import MissingAnswerError, NoSuchMethodError, TooLargeError
from tracelake.spark.evm.node import ProgressDeadline, RpcNode
from tracelake.spark.evm.packed import (
    AnyBlock,
    AnyReceipts,
    PackedReceipts,
    count_transactions,
    hashes_of,
    keep_transactions,
)
from tracelake.spark.evm.read_options import ReadOptions, decoders_of
from tracelake.spark.evm.root_checks import check_receipts_root

_RECEIPTS = "eth_getBlockReceipts"
_RECEIPT = "eth_getTransactionReceipt"
_NULLS = 2
"""How often a node has to say that there is no receipt."""


class ReceiptReading:
    """What one node has answered so far. `blocks` are checked; afterwards they lack the transactions that were dropped,
    and `receipts` are those of the others."""

    def __init__(self, node: RpcNode, numbers: Sequence[int], blocks: list[AnyBlock], options: ReadOptions) -> None:
        self.blocks = blocks
        self.receipts: list[AnyReceipts] = []
        self._node = node
        self._numbers = numbers
        self._options = options
        self._decoders = decoders_of(options)
        self._places = [place for place, block in enumerate(blocks) if count_transactions(block)]
        """Of the blocks with transactions: the others have no receipts to ask for."""
        self._by_block = CallSet([(_RECEIPTS, [hex(numbers[place])]) for place in self._places])
        self._single_calls: CallSet | None = None
        self._gaps: dict[int, BlockGap] = {}
        """By place: blocks of which some receipts were missing."""

    def complete(self, deadline: ProgressDeadline) -> None:
        """Asks for what is missing, and checks all of it."""
        if self._single_calls is None:
            self._read_by_block(self._by_block, deadline)
        if self._single_calls is not None:
            self._node.complete(self._single_calls, self._decoders.receipts, deadline)
        answers: list[AnyReceipts | None] = [[] for _ in self._numbers]
        for place, receipts in zip(self._places, self._by_block.results, strict=True):
            answers[place] = receipts
        self._add_singles(answers)
        self._fill_gaps(answers, deadline)
        try:
            checked = [self._checked(place, of_block) for place, of_block in enumerate(answers)]
        except MissingAnswerError:
            self._reopen(self._by_block)
            raise
        self.blocks = [block for block, _ in checked]
        self.receipts = [receipts for _, receipts in checked]

    def _checked(self, place: int, answer: AnyReceipts | None) -> tuple[AnyBlock, AnyReceipts]:
        number, block, rules = self._numbers[place], self.blocks[place], self._options.rules
        gap = self._gaps.get(place)
        phantoms = set() if gap is None else gap.phantoms
        if not phantoms:
            receipts = check_receipts(number, block, answer, self._node.label, rules, self._options.fields)
            if self._options.verify_roots:
                check_receipts_root(number, block, receipts, self._node.label)
            return block, receipts
        hashes = hashes_of(block)
        places = [index for index, name in enumerate(hashes) if name not in phantoms]
        rest = keep_transactions(block, places)
        receipts = check_receipts(number, rest, answer, self._node.label, rules, self._options.fields, places=places)
        return rest, receipts

    def _fill_gaps(self, answers: list[AnyReceipts | None], deadline: ProgressDeadline) -> None:
        for place, receipts in enumerate(answers):
            missing = count_transactions(self.blocks[place]) - count_receipts(receipts)
            if receipts is not None and missing > 0:
                gap = self._gaps.get(place) or self._open_gap(place, receipts, deadline)
                if gap is not None:
                    self._gaps[place] = gap
                    gap.complete(self._node, self._options, deadline)
                    answers[place] = gap.receipts

    def _open_gap(self, place: int, receipts: AnyReceipts, deadline: ProgressDeadline) -> "BlockGap | None":
        """None if the receipts that are there are not even of this block's transactions."""
        missing = set(hashes_of(self.blocks[place])) - set(receipt_hashes(receipts))
        if len(missing) + count_receipts(receipts) != count_transactions(self.blocks[place]):
            return None
        if isinstance(receipts, PackedReceipts):  # once more, this time one by one: others are put between them
            calls = [(_RECEIPTS, [hex(self._numbers[place])])]
            receipts = self._node.ask(calls, self._decoders.plain_receipts, deadline)[0] or []
        return BlockGap(hashes_of(self.blocks[place]), receipts, self._options.rules.drop_phantoms)

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
                self._node.complete(call_set, self._decoders.block_receipts, deadline)
            except NoSuchMethodError as error:
                if error.certain or not self._is_answered(call_set, deadline):
                    self._node.mark_missing(_RECEIPTS)
            except TooLargeError:
                break  # those of one block together, so they are asked for one by one
        if call_set.open:
            blocks = [self.blocks[self._places[open_place]] for open_place in call_set.open]
            hashes = [name for block in blocks for name in hashes_of(block)]
            self._single_calls = CallSet([(_RECEIPT, [name]) for name in hashes])

    def _is_answered(self, call_set: CallSet, deadline: ProgressDeadline) -> bool:
        """Asks for the first open call alone once more: words like "blocked" may be about something else."""
        place = call_set.open[0]
        try:
            answer = self._node.ask([call_set.calls[place]], self._decoders.block_receipts, deadline)[0]
            call_set.close([place], {place: answer})
        except NoSuchMethodError:
            return False
        return True

    def _add_singles(self, answers: list[AnyReceipts | None]) -> None:
        if self._single_calls is None:
            return
        singles = iter(self._single_calls.results)
        for open_place in self._by_block.open:
            place = self._places[open_place]
            receipts = [next(singles) for _ in range(count_transactions(self.blocks[place]))]
            present = [receipt for receipt in receipts if receipt is not None]
            is_whole = len(present) == len(receipts)
            # A node that has none of them does not have the block: it is asked again.
            answers[place] = present if is_whole or (present and self._options.rules.drop_phantoms) else None


class BlockGap:
    """A block of which some receipts are missing, and what the node says when it is asked for these by hash."""

    def __init__(self, hashes: Sequence[str], receipts: Sequence[Receipt], drop_phantoms: bool) -> None:
        present = {receipt.transaction_hash for receipt in receipts}
        self._by_hash = {receipt.transaction_hash: receipt for receipt in receipts}
        self._hashes = hashes
        self._calls = CallSet([(_RECEIPT, [name]) for name in hashes if name not in present])
        self._rounds = _NULLS if drop_phantoms else 1
        self.phantoms: set[str] = set()

    @property
    def receipts(self) -> list[Receipt]:
        """In the order of the transactions, as far as they are there."""
        return [self._by_hash[name] for name in self._hashes if name in self._by_hash]

    def complete(self, node: RpcNode, options: ReadOptions, deadline: ProgressDeadline) -> None:
        while self._rounds:
            node.complete(self._calls, decoders_of(options).receipts, deadline)
            self._rounds -= 1
            self._calls.reopen_nulls()
            if not self._calls.open:
                self._rounds = 0
        gap_hashes = [call[1][0] for call in self._calls.calls]
        self._by_hash |= {
            name: receipt for name, receipt in zip(gap_hashes, self._calls.results, strict=True) if receipt is not None
        }
        if options.rules.drop_phantoms:
            self.phantoms = {name for name in gap_hashes if name not in self._by_hash}
