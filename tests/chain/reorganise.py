"""Other blocks for the same heights, for tests/support/chain.py: a chain that a node could have switched to."""

import copy
from collections.abc import Iterator, Mapping, Sequence

from tests.chain import ethereum
from tracelake.demo.chain.packing import Json
from tracelake.demo.chain.recording import RecordedBlock

MARK = "0x" + b"another branch".hex()


def alternatives(
    blocks: Sequence[RecordedBlock], parent: str, changed: int, later: Mapping[int, int]
) -> Iterator[RecordedBlock]:
    """The first `changed` blocks lose their last transaction; all follow `parent`, and commit to what they hold.
    From each block of `later` on, times are so many seconds later."""
    seconds = 0
    for position, one in enumerate(blocks):
        block, receipts = copy.deepcopy((one.block, one.receipts))
        seconds += later.get(one.number, 0)
        time = int(block["timestamp"], 16) + seconds
        block["timestamp"] = hex(time)
        block["parentHash"] = parent
        block["extraData"] = MARK
        if position < changed and block["transactions"]:
            block["transactions"].pop()
            receipts.pop()
            _commit(block, receipts)
        block["hash"] = parent = "0x" + ethereum.keccak256(ethereum.header(block)).hex()
        for part in (*block["transactions"], *receipts, *(log for receipt in receipts for log in receipt["logs"])):
            part["blockHash"] = parent
            if "blockTimestamp" in part:
                part["blockTimestamp"] = time if isinstance(part["blockTimestamp"], int) else hex(time)
        yield RecordedBlock(number=one.number, block=block, receipts=receipts)


def _commit(block: Json, receipts: list[Json]) -> None:
    bloom = 0
    for receipt in receipts:
        bloom |= int(receipt["logsBloom"], 16)
    block["logsBloom"] = f"0x{bloom:0512x}"
    block["gasUsed"] = receipts[-1]["cumulativeGasUsed"] if receipts else "0x0"
    transactions = [ethereum.transaction(transaction) for transaction in block["transactions"]]
    block["transactionsRoot"] = "0x" + ethereum.trie_root(transactions).hex()
    block["receiptsRoot"] = "0x" + ethereum.trie_root([ethereum.receipt(receipt) for receipt in receipts]).hex()
    block["blobGasUsed"] = hex(sum(int(receipt.get("blobGasUsed", "0x0"), 16) for receipt in receipts))
