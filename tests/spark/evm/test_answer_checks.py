"""Every way in which an answer can contradict itself is noticed, and told with block and host."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.support.chain import recorded
from tracelake.spark.evm.answer_checks import check_blocks, check_receipts
from tracelake.spark.evm.answers import Block, BlockHeader, Receipt
from tracelake.spark.evm.errors import (
    AnswerError,
    ForeignReceiptsError,
    LogGapError,
    WrongBlockError,
    WrongReceiptsError,
)
from tracelake.spark.evm.packed import counted, pack_regular_block, pack_regular_receipts

HOST = "https://node:443"
OTHER = "0x" + "ab" * 32
BLOCKS = 300
NUMBER = next(
    one.number
    for one in recorded(BLOCKS)
    if len(one.receipts) > 2 and any(len(receipt["logs"]) > 1 for receipt in one.receipts[:-1])
)


def answers() -> tuple[Block, list[Receipt]]:
    one = recorded(BLOCKS)[NUMBER]
    return msgspec.convert(one.block, Block), msgspec.convert(one.receipts, list[Receipt])


def with_logs(receipts: list[Receipt]) -> Receipt:
    return next(receipt for receipt in receipts if len(receipt.logs) > 1)


def gap(_: Block, receipts: list[Receipt]) -> None:
    with_logs(receipts).logs[0].log_index = "0x3e7"


def lost_log(_: Block, receipts: list[Receipt]) -> None:
    with_logs(receipts).logs.pop(0)


def foreign_log(_: Block, receipts: list[Receipt]) -> None:
    with_logs(receipts).logs[0].block_hash = OTHER


def removed_log(_: Block, receipts: list[Receipt]) -> None:
    with_logs(receipts).logs[0].removed = True


def log_of_another_transaction(_: Block, receipts: list[Receipt]) -> None:
    with_logs(receipts).logs[0].transaction_hash = OTHER


def five_topics(_: Block, receipts: list[Receipt]) -> None:
    with_logs(receipts).logs[0].topics = [OTHER] * 5


def no_place(_: Block, receipts: list[Receipt]) -> None:
    with_logs(receipts).logs[0].log_index = "many"


def foreign_receipt(_: Block, receipts: list[Receipt]) -> None:
    receipts[1].block_hash = OTHER


def receipt_twice(_: Block, receipts: list[Receipt]) -> None:
    receipts[1] = receipts[0]


def receipt_of_another(_: Block, receipts: list[Receipt]) -> None:
    receipts[1].transaction_hash = OTHER


def extra_receipt(_: Block, receipts: list[Receipt]) -> None:
    receipts.append(receipts[-1])


@pytest.mark.parametrize(
    ("break_it", "error"),
    [
        (gap, LogGapError),
        (lost_log, LogGapError),
        (no_place, AnswerError),
        (foreign_log, ForeignReceiptsError),
        (removed_log, ForeignReceiptsError),
        (log_of_another_transaction, WrongReceiptsError),
        (five_topics, AnswerError),
        (foreign_receipt, ForeignReceiptsError),
        (receipt_twice, WrongReceiptsError),
        (receipt_of_another, WrongReceiptsError),
        (extra_receipt, WrongReceiptsError),
    ],
)
def test_receipts(break_it: Callable[[Block, list[Receipt]], None], error: type[AnswerError]) -> None:
    block, receipts = answers()
    check_receipts(NUMBER, block, receipts, HOST)
    break_it(block, receipts)
    for packed in (receipts, pack_regular_receipts(receipts)):
        with pytest.raises(error, match=f"^{HOST}: .*block {NUMBER}"):
            check_receipts(NUMBER, block, packed, HOST)


def test_receipts_in_another_order_are_put_right() -> None:
    block, receipts = answers()
    assert check_receipts(NUMBER, block, receipts[::-1], HOST) == receipts


def test_receipts_of_a_block_without_whole_transactions() -> None:
    block, receipts = answers()
    one = recorded(BLOCKS)[NUMBER].block
    header = msgspec.convert({**one, "transactions": [row["hash"] for row in one["transactions"]]}, BlockHeader)
    assert check_receipts(NUMBER, header, receipts, HOST) == receipts
    header.transactions.pop()
    with pytest.raises(WrongReceiptsError):
        check_receipts(NUMBER, header, receipts, HOST)
    assert block.hash == header.hash


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("block_hash", OTHER, ForeignReceiptsError),
        ("transaction_index", "0x9", WrongBlockError),
        ("transaction_index", None, AnswerError),
        ("transaction_index", "1", AnswerError),
    ],
)
def test_transactions(field: str, value: Any, error: type[AnswerError]) -> None:
    block, _ = answers()
    assert check_blocks([NUMBER], [block], HOST) == [block]
    setattr(block.transactions[1], field, value)
    for packed in (block, pack_regular_block(block)):
        with pytest.raises(error, match=f"block {NUMBER}"):
            check_blocks([NUMBER], [packed], HOST)


def test_zeros_in_front_of_a_number_change_nothing() -> None:
    block, receipts = answers()
    block.transactions[1].transaction_index = "0x01"
    receipts[1].transaction_index = "0x01"
    logs = with_logs(receipts).logs
    logs[0].log_index = "0x0" + logs[0].log_index[2:]
    check_blocks([NUMBER], [block], HOST)
    check_receipts(NUMBER, block, receipts, HOST)


def test_counting_has_no_end() -> None:
    assert counted(5000)[-1] == hex(4999)
    assert len(counted(3)) == 3
