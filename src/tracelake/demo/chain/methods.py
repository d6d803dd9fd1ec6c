"""The JSON-RPC methods of an Ethereum node that a recording can answer, as far as its blocks are visible."""

from typing import Any

import msgspec

from tracelake.demo.chain.contracts import call_contract, code_of
from tracelake.demo.chain.filters import parse_filter
from tracelake.demo.chain.head import Visible
from tracelake.demo.chain.rpc import INVALID_PARAMS, LIMIT_EXCEEDED, SERVER_ERROR, ChainRpcError, Method
from tracelake.demo.chain.store import ChainStore, StoredBlock
from tracelake.demo.chain.values import HASH_CHARS, parse_hash, parse_quantity

MAX_FILTER_BLOCKS = 10_000
MAX_FILTER_LOGS = 20_000

NULL = b"null"
_HEADS = frozenset({"latest", "safe", "finalized", "pending"})
"""Tags that all mean the newest visible block: nothing is ever undone here, and nothing is pending."""


class Methods:
    def __init__(self, store: ChainStore, visible: Visible) -> None:
        self._store = store
        self._visible = visible
        self._chain_id = msgspec.json.encode(store.chain_id)
        self._network = msgspec.json.encode(str(int(store.chain_id, 16)))
        self._client = msgspec.json.encode(f"tracelake-recording/{store.client}")

    def table(self) -> dict[str, Method]:
        return {
            "eth_blockNumber": self.block_number,
            "eth_call": self.call,
            "eth_chainId": self.chain_id,
            "eth_getBlockByHash": self.block_by_hash,
            "eth_getBlockByNumber": self.block_by_number,
            "eth_getBlockReceipts": self.block_receipts,
            "eth_getBlockTransactionCountByNumber": self.transaction_count,
            "eth_getCode": self.code,
            "eth_getLogs": self.logs,
            "eth_getTransactionByHash": self.transaction,
            "eth_getTransactionReceipt": self.receipt,
            "eth_syncing": self.syncing,
            "net_version": self.network,
            "web3_clientVersion": self.client_version,
        }

    def chain_id(self, params: list[Any]) -> bytes:
        _expect(params, 0)
        return self._chain_id

    def network(self, params: list[Any]) -> bytes:
        _expect(params, 0)
        return self._network

    def client_version(self, params: list[Any]) -> bytes:
        _expect(params, 0)
        return self._client

    def syncing(self, params: list[Any]) -> bytes:
        _expect(params, 0)
        return b"false"

    def block_number(self, params: list[Any]) -> bytes:
        _expect(params, 0)
        return b'"%s"' % hex(self._visible.head).encode()

    def block_by_number(self, params: list[Any]) -> bytes:
        _expect(params, 2)
        block = self._at(params[0])
        return _block(block, params[1])

    def block_by_hash(self, params: list[Any]) -> bytes:
        _expect(params, 2)
        block = self._of_hash(parse_hash(params[0], "argument 0"))
        return _block(block, params[1])

    def block_receipts(self, params: list[Any]) -> bytes:
        _expect(params, 1)
        block = self._named(params[0])
        return NULL if block is None else block.receipts

    def transaction_count(self, params: list[Any]) -> bytes:
        _expect(params, 1)
        block = self._at(params[0])
        return NULL if block is None else b'"%s"' % hex(len(block.transactions)).encode()

    def transaction(self, params: list[Any]) -> bytes:
        place = self._place(params)
        return NULL if place is None else self._store.transaction(*place)

    def receipt(self, params: list[Any]) -> bytes:
        place = self._place(params)
        return NULL if place is None else self._store.receipt(*place)

    def call(self, params: list[Any]) -> bytes:
        _expect(params, 2)
        self._check_state(params[1])
        return call_contract(self._store.chain_id, params[0])

    def code(self, params: list[Any]) -> bytes:
        _expect(params, 2)
        self._check_state(params[1])
        return code_of(self._store.chain_id, params[0])

    def _check_state(self, block: Any) -> None:
        if self._named(block) is None:
            raise ChainRpcError(SERVER_ERROR, "header not found")

    def logs(self, params: list[Any]) -> bytes:
        _expect(params, 1)
        log_filter = parse_filter(params[0])
        if log_filter.block_hash is not None:
            block = self._of_hash(log_filter.block_hash)
            if block is None:
                raise ChainRpcError(SERVER_ERROR, "unknown block")
            blocks = [block]
        else:
            head = self._visible.head
            first = head if log_filter.first is None else log_filter.first
            last = head if log_filter.last is None else log_filter.last
            if first > last:
                raise ChainRpcError(INVALID_PARAMS, "invalid block range params")
            if last > head:
                raise ChainRpcError(INVALID_PARAMS, "block range extends beyond current head block")
            if last - first >= MAX_FILTER_BLOCKS:
                raise ChainRpcError(
                    LIMIT_EXCEEDED, f"the range has more than {MAX_FILTER_BLOCKS} blocks; ask for fewer"
                )
            blocks = self._store.blocks[first : last + 1]
        matching = [log.body for block in blocks for log in block.logs if log_filter.takes(log)]
        if len(matching) > MAX_FILTER_LOGS:
            raise ChainRpcError(
                LIMIT_EXCEEDED, f"the answer has more than {MAX_FILTER_LOGS} logs; ask for fewer blocks"
            )
        return b"[" + b",".join(matching) + b"]"

    def _at(self, value: Any) -> StoredBlock | None:
        """The visible block of a number or a tag."""
        if isinstance(value, str) and value in _HEADS:
            return self._store.blocks[self._visible.head]
        number = 0 if value == "earliest" else parse_quantity(value, "argument 0")
        return self._store.blocks[number] if number <= self._visible.head else None

    def _of_hash(self, block_hash: str) -> StoredBlock | None:
        number = self._store.by_hash.get(block_hash)
        return None if number is None or number > self._visible.head else self._store.blocks[number]

    def _named(self, value: Any) -> StoredBlock | None:
        """The block of a number, a tag, a hash, or an object with one of them."""
        if isinstance(value, dict):
            if "blockHash" in value:
                return self._of_hash(parse_hash(value["blockHash"], "blockHash"))
            return self._at(value.get("blockNumber"))
        if isinstance(value, str) and len(value) == HASH_CHARS:
            return self._of_hash(parse_hash(value, "argument 0"))
        return self._at(value)

    def _place(self, params: list[Any]) -> tuple[int, int] | None:
        _expect(params, 1)
        place = self._store.of_transaction.get(parse_hash(params[0], "argument 0"))
        return None if place is None or place[0] > self._visible.head else place


def _block(block: StoredBlock | None, full: Any) -> bytes:
    if not isinstance(full, bool):
        raise ChainRpcError(INVALID_PARAMS, "invalid argument 1: true for whole transactions, false for their hashes")
    if block is None:
        return NULL
    return block.full if full else block.brief


def _expect(params: list[Any], count: int) -> None:
    if len(params) > count:
        raise ChainRpcError(INVALID_PARAMS, f"too many arguments, want at most {count}")
    if len(params) < count:
        raise ChainRpcError(INVALID_PARAMS, f"missing value for required argument {len(params)}")
