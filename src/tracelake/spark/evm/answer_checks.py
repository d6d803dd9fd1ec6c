"""Whether what a node said can be true: of the blocks that were asked for, of one piece, complete.

What is not checked: hashes are compared, not computed, so a node that invents a whole consistent chain is believed.
Every error names the block, and the node by its number (`RpcEndpoint.alias`).
"""

from collections.abc import Callable, Sequence

from tracelake.spark.evm.answers import Block, Receipt
from tracelake.spark.evm.calls import quantity
from tracelake.spark.evm.errors import (
    AnswerError,
    BrokenChainError,
    ForeignReceiptsError,
    LogGapError,
    MissingAnswerError,
    WrongBlockError,
    WrongReceiptsError,
)
from tracelake.spark.evm.packed import (
    MOST_TOPICS,
    AnyBlock,
    AnyReceipts,
    PackedBlock,
    PackedReceipts,
    count_transactions,
    counted,
    hashes_of,
)


def check_blocks(numbers: Sequence[int], blocks: Sequence[AnyBlock | None], host: str) -> list[AnyBlock]:
    """All there, numbered as asked, each the child of the one before it."""
    checked: list[AnyBlock] = []
    for number, block in zip(numbers, blocks, strict=True):
        if block is None:
            raise MissingAnswerError(f"null for block {number}", host=host)
        reported = quantity(block.number, host)
        if reported != number:
            raise WrongBlockError(f"asked for block {number}, it gave one that calls itself {reported}", host=host)
        if checked and block.parent_hash != checked[-1].hash:
            raise BrokenChainError(f"block {number} is not the child of block {number - 1}", host=host)
        _check_transactions(number, block, host)
        checked.append(block)
    return checked


def _check_transactions(number: int, block: AnyBlock, host: str) -> None:
    """A block without its transactions has none to check, and one that is packed was checked for that."""
    if not isinstance(block, Block):
        return
    transactions = block.transactions
    if {transaction.block_hash for transaction in transactions} - {block.hash, None}:
        raise ForeignReceiptsError(f"block {number} has transactions that say they are of another block", host=host)
    places = [transaction.transaction_index for transaction in transactions]
    if places != counted(len(places)):
        positions = [_position(place, number, host) for place in places]
        if positions != list(range(len(places))):
            raise WrongBlockError(f"the transactions of block {number} are not numbered from 0 on", host=host)


def check_receipts(number: int, block: AnyBlock, receipts: AnyReceipts | None, host: str) -> AnyReceipts:
    """One for each transaction, in their order, of this very block, with logs numbered without a gap."""
    if receipts is None:
        raise MissingAnswerError(f"null for the receipts of block {number}", host=host)
    expected = count_transactions(block)
    count = len(receipts.hashes) if isinstance(receipts, PackedReceipts) else len(receipts)
    if count != expected:
        raise WrongReceiptsError(
            f"block {number} has {expected} transactions, and there are {count} receipts", host=host
        )
    if isinstance(receipts, PackedReceipts):
        _check_packed(number, block, receipts, host)
        return receipts
    hashes = hashes_of(block)
    if {receipt.block_hash for receipt in receipts} - {block.hash}:
        raise ForeignReceiptsError(f"receipts of block {number} are of another block with that number", host=host)
    present = list(receipts)
    if [receipt.transaction_hash for receipt in present] != hashes:
        present.sort(key=lambda receipt: _position(receipt.transaction_index, number, host))
        if [receipt.transaction_hash for receipt in present] != hashes:
            raise WrongReceiptsError(f"receipts of block {number} are of other transactions", host=host)
    _check_logs(number, block, present, host)
    return present


def _check_packed(number: int, block: AnyBlock, receipts: PackedReceipts, host: str) -> None:
    """They are in order and of one block, with their logs, or they would not be packed."""
    if receipts.block_hash not in (block.hash, None):
        raise ForeignReceiptsError(f"receipts of block {number} are of another block with that number", host=host)
    if isinstance(block, PackedBlock):
        same = receipts.hashes.parts == block.columns["hash"].parts  # all of one length
    else:
        same = receipts.hashes.to_list() == hashes_of(block)
    if not same:
        raise WrongReceiptsError(f"receipts of block {number} are of other transactions", host=host)


def _check_logs(number: int, block: AnyBlock, receipts: Sequence[Receipt], host: str) -> None:
    logs = [log for receipt in receipts for log in receipt.logs]
    if not logs:
        return
    places = [log.log_index for log in logs]
    if places != counted(len(places)):
        positions = [_position(place, number, host) for place in places]
        if positions != list(range(len(positions))):
            raise LogGapError(f"the logs of block {number} are not numbered from 0 on without a gap", host=host)
    if {log.block_hash for log in logs} != {block.hash} or True in [log.removed for log in logs]:
        raise ForeignReceiptsError(f"logs of block {number} are of another block with that number", host=host)
    owners = [receipt.transaction_hash for receipt in receipts for _ in receipt.logs]
    if [log.transaction_hash for log in logs] != owners:
        raise WrongReceiptsError(f"logs of block {number} say they are of other transactions", host=host)
    if max([len(log.topics) for log in logs]) > MOST_TOPICS:
        raise AnswerError(f"a log of block {number} has more than four topics", host=host)


def check_follows(number: int, parent_hash: str, previous: str | None, broken: Callable[[str], Exception]) -> None:
    """That what was read in another request, or by another task, ends where this begins."""
    if previous is not None and parent_hash != previous:
        raise broken(f"block {number} is not the child of the block {number - 1} that was read before it")


def _position(value: str | None, number: int, host: str) -> int:
    try:
        return quantity(value or "", host)
    except AnswerError:
        raise AnswerError(f"something in block {number} has no place", host=host) from None
