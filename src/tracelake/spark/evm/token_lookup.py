"""Looking up tokens at a block of one node.

A slice of tokens is read from one node, at one block: its header is read before the calls and after them, and must be
the same. What the node has answered is kept while the slice is read. A call that the contract itself makes fail is an
answer; a node that fails is not.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from tracelake.spark.evm.calls import REVERTED, AnswerDecoder, CallSet, quantity
from tracelake.spark.evm.errors import AnswerError, BrokenChainError, MissingAnswerError, WrongBlockError
from tracelake.spark.evm.node import ProgressDeadline, RpcNode
from tracelake.spark.evm.node_pool import RpcPool
from tracelake.spark.evm.token_answers import read_decimals, read_text

SLICE = 300
STREAMS = 3
GAS = 5_000_000
"""Of one call: enough for any token, and a bound to what a hostile one makes a node compute and answer."""
_SYMBOL, _DECIMALS, _NAME = "0x95d89b41", "0x313ce567", "0x06fdde03"
_SELECTORS = (_SYMBOL, _DECIMALS, _NAME)
_ADDRESS = 20


class _Header(msgspec.Struct):
    hash: str
    number: str


_texts = AnswerDecoder(str)
_results = AnswerDecoder(str)
_headers = AnswerDecoder(_Header)


class TokenRow(NamedTuple):
    token: bytes
    symbol: str | None = None
    decimals: int | None = None
    name: str | None = None
    problem: str | None = None
    read_at_block: int | None = None


class TokenBlock(NamedTuple):
    """Which block is asked."""

    number: int
    latest: bool = False
    """The newest that the node has, which must not be older than that number."""


def look_up(pool: RpcPool, tokens: Sequence[bytes], block: TokenBlock) -> Iterator[TokenRow]:
    """In the order of the tokens."""
    slices = [tokens[start : start + SLICE] for start in range(0, len(tokens), SLICE)]
    stop = threading.Event()
    with ThreadPoolExecutor(STREAMS, thread_name_prefix="rpc") as threads:
        futures = [threads.submit(_look_up_slice, pool, some, block, stop) for some in slices]
        try:
            for future in futures:
                yield from future.result()
        finally:
            stop.set()  # after a failure nobody waits for the others
            for future in futures:
                future.cancel()


def _look_up_slice(pool: RpcPool, tokens: Sequence[bytes], block: TokenBlock, stop: threading.Event) -> list[TokenRow]:
    addresses = [token for token in tokens if len(token) == _ADDRESS]
    if not addresses:
        return [_refused(token) for token in tokens]
    readings: dict[RpcNode, _TokenReading] = {}

    def read(node: RpcNode, deadline: ProgressDeadline) -> dict[bytes, TokenRow]:
        reading = readings.pop(node, None) or _TokenReading(node, addresses, block)
        readings[node] = reading
        try:
            return reading.complete(deadline)
        except MissingAnswerError:
            raise  # what is missing is asked for again, and the rest stays
        except AnswerError:
            del readings[node]
            raise

    rows = pool.run(read, stop)
    return [rows[token] if token in rows else _refused(token) for token in tokens]


def _refused(token: bytes) -> TokenRow:
    return TokenRow(token, problem="no_address")


class _TokenReading:
    """What one node has answered of a slice so far."""

    def __init__(self, node: RpcNode, tokens: Sequence[bytes], block: TokenBlock) -> None:
        self._node = node
        self._tokens = tokens
        self._block = block
        self._number = -1
        """Of the block that is asked, once it is known."""
        self._hash = ""
        self._calls = CallSet([])
        self._codes: CallSet | None = None

    def complete(self, deadline: ProgressDeadline) -> dict[bytes, TokenRow]:
        if self._number < 0:
            self._begin(deadline)
        self._finish(self._calls, deadline)
        answers = [self._bytes(result) for result in self._calls.results]
        by_token = {token: answers[3 * place : 3 * place + 3] for place, token in enumerate(self._tokens)}
        silent = [token for token, results in by_token.items() if not any(results) and None not in results]
        if self._codes is None:
            self._codes = CallSet([("eth_getCode", [_text(token), hex(self._number)]) for token in silent])
        self._finish(self._codes, deadline)
        codes = zip(silent, self._codes.results, strict=True)
        missing = {token for token, code in codes if not self._bytes(code)}
        if self._header(self._number, deadline).hash != self._hash:
            raise BrokenChainError(
                f"block {self._number} became another while its state was read", host=self._node.label
            )
        return {token: self._row(token, by_token[token], token not in missing) for token in self._tokens}

    def _begin(self, deadline: ProgressDeadline) -> None:
        """A node that does not have the block would say of new tokens that they do not exist."""
        number = self._block.number
        header = self._header(number, deadline)
        if self._block.latest:
            head = self._node.ask([("eth_blockNumber", [])], _texts, deadline)[0]
            if head is None:
                raise MissingAnswerError("no block number", host=self._node.label)
            number = max(number, quantity(head, self._node.label))
            try:
                header = self._header(number, deadline)
            except MissingAnswerError:  # what was answered before is no progress: it is asked for again each time
                raise WrongBlockError(f"it has no block {number}, its newest", host=self._node.label) from None
        self._number, self._hash = number, header.hash
        self._calls = CallSet(
            [
                ("eth_call", [{"to": _text(token), "data": selector, "gas": hex(GAS)}, hex(number)])
                for token in self._tokens
                for selector in _SELECTORS
            ]
        )

    def _header(self, number: int, deadline: ProgressDeadline) -> _Header:
        header = self._node.ask([("eth_getBlockByNumber", [hex(number), False])], _headers, deadline)[0]
        if header is None:
            raise MissingAnswerError(f"null for block {number}", host=self._node.label)
        if not isinstance(header, _Header) or quantity(header.number, self._node.label) != number:
            raise WrongBlockError(f"asked for block {number}, it gave another", host=self._node.label)
        return header

    def _finish(self, calls: CallSet, deadline: ProgressDeadline) -> None:
        self._node.complete(calls, _results, deadline)
        if None in calls.results:
            calls.reopen_nulls()
            raise MissingAnswerError(f"null for {calls.calls[calls.open[0]][0]}", host=self._node.label)

    def _bytes(self, result: object) -> bytes | None:
        """None: the call was reverted."""
        if result is REVERTED:
            return None
        if isinstance(result, str) and result[:2] == "0x" and not any(map(str.isspace, result)):
            try:
                return bytes.fromhex(result[2:])
            except ValueError:
                pass
        raise AnswerError("the answer to a call is not hex", host=self._node.label)

    def _row(self, token: bytes, results: Sequence[bytes | None], exists: bool) -> TokenRow:
        if not exists:
            return TokenRow(token, problem="no_contract", read_at_block=self._number)
        symbol, decimals, name = read_text(results[0]), read_decimals(results[1]), read_text(results[2])
        fields = (("symbol", symbol.problem), ("decimals", decimals.problem), ("name", name.problem))
        problems = [f"{field}: {problem}" for field, problem in fields if problem is not None]
        return TokenRow(token, symbol.value, decimals.value, name.value, ", ".join(problems) or None, self._number)


def _text(token: bytes) -> str:
    return "0x" + token.hex()
