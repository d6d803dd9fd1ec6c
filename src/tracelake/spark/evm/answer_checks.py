"""Whether what a node said can be true: of the blocks that were asked for, of one piece, complete.

Hashes are compared here, not computed: `root_checks` computes them for jobs that want it. Without it, a node that
invents content under true hashes is believed.
Every error names the block, and the node by its number (`RpcEndpoint.alias`).
"""

from collections.abc import Callable, Sequence

from tracelake.spark.evm.answers import Block, Receipt, SparseTransaction
from tracelake.spark.evm.calls import quantity
from tracelake.spark.evm.chain_rules import STRICT, ChainRules
from tracelake.spark.evm.errors import (
    AnswerError,
    BrokenChainError,
    ForeignReceiptsError,
    LogGapError,
    MissingAnswerError,
    WrongBlockError,
    WrongReceiptsError,
)
from tracelake.spark.evm.optional_columns import ChosenFields
from tracelake.spark.evm.packed import (
    MOST_TOPICS,
    NO_FIELDS,
    AnyBlock,
    AnyReceipts,
    PackedBlock,
    PackedReceipts,
    count_transactions,
    counted,
    hashes_of,
)

_LAST_TYPE = 4
"""Of the types of transactions that Ethereum has."""
_MOST_LOGS = 2**32 - 1


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
    if transactions and isinstance(transactions[0], SparseTransaction):
        _check_fields(number, block, host)
    if {transaction.block_hash for transaction in transactions} - {block.hash, None}:
        raise ForeignReceiptsError(f"block {number} has transactions that say they are of another block", host=host)
    places = [transaction.transaction_index for transaction in transactions]
    if places != counted(len(places)):
        positions = [_position(place, number, host) for place in places]
        if positions != list(range(len(places))):
            raise WrongBlockError(f"the transactions of block {number} are not numbered from 0 on", host=host)


def _check_fields(number: int, block: Block, host: str) -> None:
    """What a transaction of a type of Ethereum has, also where others may lack it."""
    for transaction in block.transactions:
        fields = (transaction.value, transaction.input, transaction.gas, transaction.nonce)
        if None in fields and _position(transaction.type or "0x0", number, host) <= _LAST_TYPE:
            raise AnswerError(f"a transaction of block {number} lacks value, input, gas or nonce", host=host)


def check_receipts(
    number: int,
    block: AnyBlock,
    receipts: AnyReceipts | None,
    host: str,
    rules: ChainRules = STRICT,
    fields: ChosenFields = NO_FIELDS,
    places: Sequence[int] | None = None,
) -> AnyReceipts:
    """One for each transaction, in their order, of this very block, with logs numbered as the rules say.

    `places`: of the block's transactions, where some were left out."""
    if receipts is None:
        raise MissingAnswerError(f"null for the receipts of block {number}", host=host)
    expected = count_transactions(block)
    count = count_receipts(receipts)
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
    log_places = _check_logs(number, block, present, host, rules)
    if places is None and log_places is None:
        return present
    logs = [log for receipt in present for log in receipt.logs]
    packed = PackedReceipts(block.hash, [len(present)], present, logs, fields)
    packed.places, packed.log_places = places, log_places
    return packed


def count_receipts(receipts: AnyReceipts | None) -> int:
    if receipts is None:
        return 0
    return len(receipts.hashes) if isinstance(receipts, PackedReceipts) else len(receipts)


def receipt_hashes(receipts: AnyReceipts) -> list[str | None]:
    """Of their transactions."""
    if isinstance(receipts, PackedReceipts):
        return receipts.hashes.to_list()
    return [receipt.transaction_hash for receipt in receipts]


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


def _check_logs(
    number: int, block: AnyBlock, receipts: Sequence[Receipt], host: str, rules: ChainRules
) -> list[int] | None:
    """The numbers of the logs, where they are not those of their places."""
    logs = [log for receipt in receipts for log in receipt.logs]
    if not logs:
        return None
    log_places = None
    places = [log.log_index for log in logs]
    if places != counted(len(places)):
        positions = [_position(place, number, host) for place in places]
        if positions != list(range(len(positions))):
            if rules.log_index == "strict":
                raise LogGapError(f"the logs of block {number} are not numbered from 0 on without a gap", host=host)
            if max(positions) > _MOST_LOGS:
                raise AnswerError(f"a log of block {number} has a number that is too large", host=host)
            log_places = positions if rules.log_index == "as_given" else None
    if {log.block_hash for log in logs} != {block.hash} or True in [log.removed for log in logs]:
        raise ForeignReceiptsError(f"logs of block {number} are of another block with that number", host=host)
    owners = [receipt.transaction_hash for receipt in receipts for _ in receipt.logs]
    if [log.transaction_hash for log in logs] != owners:
        raise WrongReceiptsError(f"logs of block {number} say they are of other transactions", host=host)
    if max([len(log.topics) for log in logs]) > MOST_TOPICS:
        raise AnswerError(f"a log of block {number} has more than four topics", host=host)
    return log_places


def check_follows(number: int, parent_hash: str, previous: str | None, broken: Callable[[str], Exception]) -> None:
    """That what was read in another request, or by another task, ends where this begins."""
    if previous is not None and parent_hash != previous:
        raise broken(f"block {number} is not the child of the block {number - 1} that was read before it")


def _position(value: str | None, number: int, host: str) -> int:
    try:
        return quantity(value or "", host)
    except AnswerError:
        raise AnswerError(f"something in block {number} has no place", host=host) from None
