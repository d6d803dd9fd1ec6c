"""A chain held ready: every answer is the bytes that are sent, made once when the chain is loaded."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tracelake.demo.chain.packing import Json
from tracelake.demo.chain.recording import RecordedBlock

_encode = msgspec.json.Encoder().encode


class StoredLog(msgspec.Struct, frozen=True, gc=False):
    """The fields that a filter compares, and the log as it is sent."""

    address: str
    topics: tuple[str, ...]
    body: bytes


class StoredBlock(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    hash: str
    full: bytes
    """The block with its whole transactions."""
    brief: bytes
    """The block with the hashes of its transactions."""
    receipts: bytes
    transactions: tuple[str, ...]
    logs: tuple[StoredLog, ...]


class ChainStore:
    """Blocks by number from 0 on, and where to find a block or a transaction by its hash."""

    def __init__(self, *, chain_id: str, client: str) -> None:
        self.chain_id = chain_id
        self.client = client
        self.blocks: list[StoredBlock] = []
        self.by_hash: dict[str, int] = {}
        self.of_transaction: dict[str, tuple[int, int]] = {}
        self._names: dict[str, str] = {}

    @classmethod
    def load(cls, blocks: Iterable[RecordedBlock], *, chain_id: str, client: str) -> "ChainStore":
        store = cls(chain_id=chain_id, client=client)
        for recorded in blocks:
            store.append(recorded.block, recorded.receipts)
        return store

    def copy(self) -> "ChainStore":
        """The same chain, to be changed by itself. The answers are shared."""
        other = ChainStore(chain_id=self.chain_id, client=self.client)
        other.blocks = self.blocks.copy()
        other.by_hash = self.by_hash.copy()
        other.of_transaction = self.of_transaction.copy()
        return other

    def append(self, block: Json, receipts: Sequence[Json]) -> None:
        self._index(len(self.blocks), self._stored(block, receipts))

    def replace(self, number: int, block: Json, receipts: Sequence[Json]) -> None:
        """Put another block in the place of one: the old one is not found any more, by whatever name."""
        old = self.blocks[number]
        del self.by_hash[old.hash]
        for transaction in old.transactions:
            self.of_transaction.pop(transaction, None)
        self._index(number, self._stored(block, receipts))

    def rename(self, number: int, hashes: Mapping[str, str]) -> None:
        """Put other hashes of blocks in the place of those that a block has in its answers."""
        old = self.blocks[number]

        def renamed(body: bytes) -> bytes:
            for before, after in hashes.items():
                body = body.replace(before.encode(), after.encode())
            return body

        del self.by_hash[old.hash]
        logs = tuple(StoredLog(log.address, log.topics, renamed(log.body)) for log in old.logs)
        answers = {name: renamed(getattr(old, name)) for name in ("full", "brief", "receipts")}
        self._index(number, msgspec.structs.replace(old, hash=hashes[old.hash], logs=logs, **answers))

    def _index(self, number: int, stored: StoredBlock) -> None:
        self.blocks[number : number + 1] = [stored]
        self.by_hash[stored.hash] = number
        for index, transaction in enumerate(stored.transactions):
            self.of_transaction[transaction] = (number, index)

    def _stored(self, block: Json, receipts: Sequence[Json]) -> StoredBlock:
        hashes = tuple(transaction["hash"] for transaction in block["transactions"])
        return StoredBlock(
            hash=block["hash"],
            full=_encode(block),
            brief=_encode({**block, "transactions": hashes}),
            receipts=_encode(receipts),
            transactions=hashes,
            logs=tuple(self._log(log) for receipt in receipts for log in receipt["logs"]),
        )

    def _log(self, log: Mapping[str, Any]) -> StoredLog:
        """Addresses and topics come again and again; each is held once."""
        name = self._names.setdefault
        topics = tuple(name(topic, topic) for topic in log["topics"])
        return StoredLog(name(log["address"], log["address"]), topics, _encode(log))

    def transaction(self, number: int, index: int) -> bytes:
        """Taken out of its block: who asks for single transactions is not in a hurry."""
        transactions = msgspec.json.decode(self.blocks[number].full, type=_Transactions).transactions
        return bytes(transactions[index])

    def receipt(self, number: int, index: int) -> bytes:
        receipts = msgspec.json.decode(self.blocks[number].receipts, type=list[msgspec.Raw])
        return bytes(receipts[index])


class _Transactions(msgspec.Struct):
    transactions: list[msgspec.Raw]
