"""A chain that grows and is reorganised while it is read, and the nodes that show it: late, forked, failing, lying."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from tests.follower.block_tree import CHAIN_ID, MadeBlock, chain_to
from tracelake.follower.links import ChainLink
from tracelake.follower.nodes import ChainRows
from tracelake.spark.evm.answer_checks import check_blocks, check_receipts
from tracelake.spark.evm.errors import LateBlockError, MissingAnswerError, UnavailableError
from tracelake.spark.evm.fetch import make_tables
from tracelake.spark.evm.packed import AnyReceipts, pack_regular_receipts

DEEPEST = 64
TABLES = ("blocks", "transactions", "logs")
Manner = Literal["honest", "late", "forked", "liar"]


class ChainWorld:
    """The tree of blocks and the head that the network agrees on. Every call of a node may change it."""

    def __init__(self, rng: random.Random, blocks: int) -> None:
        self.rng = rng
        self.restless = 0.0
        """How likely something happens during a call."""
        self.tips: list[MadeBlock] = []
        self.now = 0.0
        self.depths: list[int] = []
        self._made = 0
        self.chain: list[MadeBlock] = []
        self.made: list[MadeBlock] = []
        """Of all forks."""
        self.grow(blocks)

    @property
    def head(self) -> MadeBlock:
        return self.chain[-1]

    def grow(self, count: int) -> None:
        for _ in range(count):
            self.chain.append(self._make(self.chain[-1] if self.chain else None))

    def reorganise(self, depth: int, length: int) -> None:
        """The last `depth` blocks are replaced by `length` others."""
        depth = min(depth, len(self.chain) - 1)
        self.tips = [*self.tips[-3:], self.head]
        self.depths.append(depth)
        self.chain = self.chain[: len(self.chain) - depth]
        self.grow(length)

    def return_to_a_fork(self) -> None:
        """An abandoned chain wins after all."""
        near = [tip for tip in self.tips if self._depth_to(tip) <= DEEPEST]
        if near:
            tip = self.rng.choice(near)
            self.depths.append(self._depth_to(tip))
            self.tips = [*self.tips[-3:], self.head]
            self.chain = chain_to(tip)
            if self.rng.random() < 0.3:
                self.grow(self.rng.randrange(1, 4))

    def tick(self) -> None:
        if self.rng.random() >= self.restless:
            return
        event = self.rng.random()
        if event < 0.70:
            self.grow(self.rng.choice((1, 1, 1, 2, 5)))
        elif event < 0.90:
            depth = self.rng.choice((1, 1, 2, 3, self.rng.randrange(1, DEEPEST + 1)))
            # Mostly longer than what it replaces, sometimes shorter for a while.
            self.reorganise(depth, max(1, depth + self.rng.choice((-5, -1, 0, 1, 1, 2, 3))))
        else:
            self.return_to_a_fork()

    def _depth_to(self, tip: MadeBlock) -> int:
        other = chain_to(tip)
        common = sum(mine is its for mine, its in zip(self.chain, other, strict=False))
        return len(self.chain) - common

    def _make(self, parent: MadeBlock | None) -> MadeBlock:
        self._made += 1
        block = MadeBlock(0 if parent is None else parent.number + 1, parent, f"{self.rng.random()}/{self._made}")
        self.made.append(block)
        return block


@dataclass(eq=False)
class ShownNode:
    """One node: what it shows follows the world in its own manner."""

    world: ChainWorld
    label: str
    manner: Manner = "honest"
    failing: float = 0.0
    lag: int = 0
    fork: Sequence[MadeBlock] | None = field(default=None)
    reads: int = 0

    def heal(self) -> None:
        self.manner, self.failing, self.fork = "honest", 0.0, None

    def shown(self) -> Sequence[MadeBlock]:
        if self.manner == "late":
            return self.world.chain[: max(1, len(self.world.chain) - self.lag)]
        if self.manner == "forked":
            if self.fork is None or (self.world.restless and self.world.rng.random() < 0.02):
                self.fork = list(self.world.chain)  # and it stays on it, also when the others leave
            return self.fork
        return self.world.chain

    def read_head(self) -> ChainLink:
        self._happen()
        head = self.shown()[-1]
        if self.manner == "liar" and self.world.rng.random() < 0.5:
            return ChainLink(head.number + 1000, head.hash[:-4] + "beef", head.hash, head.timestamp)
        return _link(head)

    def read_links(self, numbers: Sequence[int]) -> list[ChainLink]:
        self._happen()
        blocks = self.shown()
        if not all(0 <= number < len(blocks) for number in numbers):
            raise MissingAnswerError("null for a block", host=self.label)
        links = [_link(blocks[number]) for number in numbers]
        if self.manner == "liar" and self.world.rng.random() < 0.3:
            return [link._replace(hash=link.hash[:-4] + "dead") for link in links]
        return links

    def read_rows(self, first: int, last: int) -> ChainRows:
        self._happen()
        self.reads += 1
        numbers = range(first, last + 1)
        shown = self.shown()
        blocks = [shown[number].answers[0] if number < len(shown) else None for number in numbers]
        checked = check_blocks(numbers, blocks, self.label)
        self.world.tick()  # between the blocks and their receipts
        shown = self.shown()
        answers: list[AnyReceipts | None] = [
            pack_regular_receipts(shown[number].answers[1]) if number < len(shown) else None for number in numbers
        ]
        if self.failing and last == len(shown) - 1 and self.world.rng.random() < 0.2:
            raise LateBlockError("receipts are not there yet", host=self.label)
        if self.manner == "liar" and self.world.rng.random() < 0.3:
            answers[-1] = []
        receipts = [
            check_receipts(number, block, of_block, self.label)
            for number, block, of_block in zip(numbers, checked, answers, strict=True)
        ]
        tables = make_tables(checked, receipts, TABLES, CHAIN_ID)
        links = [
            ChainLink(number, block.hash, block.parent_hash, int(block.timestamp, 16))
            for number, block in zip(numbers, checked, strict=True)
        ]
        return ChainRows(links, tables)

    def _happen(self) -> None:
        self.world.tick()
        if self.world.rng.random() < self.failing:
            raise UnavailableError("connection reset", host=self.label)


def tables_of(blocks: Sequence[MadeBlock]) -> dict[str, pa.Table]:
    """The rows of these blocks, as the product makes them of a node's answers."""
    numbers = range(blocks[0].number, blocks[-1].number + 1)
    checked = check_blocks(numbers, [block.answers[0] for block in blocks], "node")
    receipts = [
        check_receipts(made.number, block, pack_regular_receipts(made.answers[1]), "node")
        for made, block in zip(blocks, checked, strict=True)
    ]
    return make_tables(checked, receipts, TABLES, CHAIN_ID)


def _link(block: MadeBlock) -> ChainLink:
    return ChainLink(block.number, block.hash, block.parent_hash, block.timestamp)
