"""Reading a stretch of blocks from one node: asked for in batches, checked, and made into tables.

All of a stretch comes from the same node, so that receipts and blocks are of one mind. What is wrong with it in any way
is an `RpcError`, and the pool asks another node for the whole stretch. A value that its column cannot hold is believed
when all nodes say it.
"""

from collections.abc import Collection, Sequence
from typing import cast

import pyarrow as pa

from tracelake.spark.evm.answers import Block, Header, Receipt
from tracelake.spark.evm.check import check_blocks, check_receipts
from tracelake.spark.evm.columns import BadHexError
from tracelake.spark.evm.errors import AnswerError, NoSuchMethodError, ValueTooLargeError
from tracelake.spark.evm.rpc import Node, RpcPool, answers_of
from tracelake.spark.evm.tables import blocks_table, logs_table, transactions_table

_RECEIPTS = "eth_getBlockReceipts"
_blocks = answers_of(Block)
_headers = answers_of(Header)
_block_receipts = answers_of(list[Receipt])
_receipts = answers_of(Receipt)


class Stretch:
    """Consecutive blocks of one node, with what is needed to join them to the next."""

    __slots__ = ("first_parent", "last_hash", "numbers", "tables")

    def __init__(self, numbers: Sequence[int], first_parent: str, last_hash: str, tables: dict[str, pa.Table]) -> None:
        self.numbers = numbers
        self.first_parent = first_parent
        self.last_hash = last_hash
        self.tables = tables


def fetch(pool: RpcPool, numbers: Sequence[int], tables: Collection[str]) -> Stretch:
    """Consecutive blocks, of which only what the tables need is asked for."""
    too_large: set[Node] = set()

    def read(node: Node, until: float) -> Stretch:
        full = "transactions" in tables
        asked = [("eth_getBlockByNumber", [hex(number), full]) for number in numbers]
        blocks = check_blocks(numbers, node.ask(asked, _blocks if full else _headers, until), node.label)
        receipts: list[list[Receipt]] = []
        if full or "logs" in tables:
            said = _read_receipts(node, numbers, blocks, until)
            receipts = [
                check_receipts(number, block, of_block, node.label)
                for number, block, of_block in zip(numbers, blocks, said, strict=True)
            ]
        try:
            made = make_tables(blocks, receipts, tables, pool.options.chain_id)
        except BadHexError as error:
            raise AnswerError(f"blocks {numbers[0]} to {numbers[-1]}: {error}", host=node.label) from None
        except ValueTooLargeError as error:
            too_large.add(node)
            if all(one in too_large or one.refused is not None for one in pool.nodes):
                raise
            raise AnswerError(f"blocks {numbers[0]} to {numbers[-1]}: {error}", host=node.label) from None
        return Stretch(numbers, blocks[0].parent_hash, blocks[-1].hash, made)

    return pool.run(read)


def make_tables(
    blocks: Sequence[Block | Header], receipts: Sequence[Sequence[Receipt]], tables: Collection[str], chain_id: int
) -> dict[str, pa.Table]:
    made = {}
    if "blocks" in tables:
        made["blocks"] = blocks_table(blocks, chain_id)
    if "transactions" in tables:
        made["transactions"] = transactions_table(cast("Sequence[Block]", blocks), receipts, chain_id)
    if "logs" in tables:
        known = made["transactions"]["transaction_hash"] if "transactions" in made else None
        made["logs"] = logs_table(blocks, receipts, chain_id, known)
    return made


def _read_receipts(
    node: Node, numbers: Sequence[int], blocks: Sequence[Block | Header], until: float
) -> Sequence[Sequence[Receipt] | None]:
    """By block, or, from a node that cannot, one by one. Blocks without transactions are not asked about."""
    hashes = [
        block.transactions if isinstance(block, Header) else [one.hash for one in block.transactions]
        for block in blocks
    ]
    wanted = [place for place, of_block in enumerate(hashes) if of_block]
    found: list[Sequence[Receipt] | None] = [[] for _ in numbers]
    if _RECEIPTS not in node.lacks:
        try:
            said = node.ask([(_RECEIPTS, [hex(numbers[place])]) for place in wanted], _block_receipts, until)
        except NoSuchMethodError:
            node.lacks.add(_RECEIPTS)
        else:
            for place, receipts in zip(wanted, said, strict=True):
                found[place] = receipts
            return found
    asked = [("eth_getTransactionReceipt", [name]) for place in wanted for name in hashes[place]]
    single = iter(node.ask(asked, _receipts, until))
    for place in wanted:
        # One that is not there makes the block's receipts too few, which is what the check says then.
        found[place] = [one for one in (next(single) for _ in hashes[place]) if one is not None]
    return found
