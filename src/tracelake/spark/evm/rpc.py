"""A small JSON-RPC client for reading chains: blocking, over several nodes that stand in for each other.

`RpcPool.run` gives an operation one node to work with, so that what it reads is of one mind. Fails the operation, in
whatever way, the next try is another node's, if there is one; a node that failed rests, longer each time. It ends with
what the operation returns, with the last error once the deadline or the tries are used up, or at once when a node is of
another chain. Everything asked is a read, so asking twice does no harm.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from tracelake.spark.evm.endpoints import RpcEndpoint
from tracelake.spark.evm.errors import (
    AnswerError,
    ChainMismatchError,
    MissingAnswerError,
    NoSuchMethodError,
    RateLimitedError,
    RefusedError,
    RpcError,
    TooLargeError,
    UnavailableError,
)
from tracelake.spark.evm.http import HttpNode, HttpOptions
from tracelake.spark.evm.pace import Pace

T = TypeVar("T")
Call = tuple[str, list[Any]]

_ids = itertools.count(1)
_RESTED_SECONDS = 30.0
_TOO_MUCH = ("rate limit", "rate-limit", "too many requests", "request limit", "capacity", "throttl", "quota")
_TOO_LARGE = ("too large", "response size", "batch size", "batch limit", "exceeds max", "too big")
_UNKNOWN = ("method not found", "does not exist", "not supported", "unsupported method", "not available")


class ErrorBody(msgspec.Struct, frozen=True, gc=False):
    code: int = 0
    message: str = ""


class Answer(msgspec.Struct, Generic[T], frozen=True, gc=False):
    id: int | str | float | None = None
    result: T | None = None
    error: ErrorBody | None = None


def answers_of(kind: Any) -> "msgspec.json.Decoder[list[Answer[Any]]]":
    """For the answers of a batch whose results are all of this type."""
    return msgspec.json.Decoder(list[Answer[kind]])


_words = answers_of(str)
_one_error = msgspec.json.Decoder(Answer[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class RpcOptions:
    chain_id: int
    batch_size: int = 20
    """Calls in one HTTP request, at most; fewer while a node finds that too many."""
    requests_per_second: float | None = None
    """Of this pool, for each node; a batch is one request."""
    deadline_seconds: float = 180.0
    """For one operation, with all its tries and waits."""
    tries: int = 12
    backoff_seconds: float = 0.5
    longest_backoff_seconds: float = 20.0
    http: HttpOptions = field(default_factory=HttpOptions)


class Node:
    """One endpoint and what we know of it."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        options: RpcOptions,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.label = endpoint.label
        self.pace = Pace(options.requests_per_second, clock)
        self.lacks: set[str] = set()
        """Methods that it said it does not have."""
        self.verified = False
        self.refused: RefusedError | None = None
        """Why it is not asked any more."""
        self.trouble: RpcError | None = None
        """What it failed with last, while it rests."""
        self.failures = 0
        self.failed_at = float("-inf")
        self.rests_until = float("-inf")
        self.in_use = 0
        self._secrets = endpoint.secrets
        self._http = HttpNode(endpoint, options.http, clock)
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self._batch = float(options.batch_size)

    @property
    def batch_size(self) -> int:
        return max(1, int(self._batch))

    def close(self) -> None:
        self._http.close()

    def ask(self, calls: Sequence[Call], decoder: "msgspec.json.Decoder[list[Answer[Any]]]", until: float) -> list[Any]:
        """The results in the order of the calls; null is None. In as many requests as the node's batches need."""
        results: list[Any] = [None] * len(calls)
        wanted = list(range(len(calls)))
        while wanted:
            size = self.batch_size
            now, later = wanted[:size], wanted[size:]
            got = self._request([calls[place] for place in now], decoder, until)
            for place, answer in zip(now, got, strict=True):
                if answer is not None:
                    results[place] = answer.result
            missing = [place for place, answer in zip(now, got, strict=True) if answer is None]
            if len(missing) == len(now):
                raise MissingAnswerError(f"no answer to {calls[now[0]][0]}", host=self.label)
            if missing:
                self._batch = max(1.0, float(len(now) - len(missing)))
            wanted = missing + later
        return results

    def smaller_batches(self) -> bool:
        """False if they are as small as can be."""
        if self.batch_size == 1:
            return False
        self._batch = max(1.0, self.batch_size / 2)
        return True

    def worked(self) -> None:
        self.failures = 0
        self.trouble = None
        self.pace.faster()
        self._batch = min(float(self._options.batch_size), self._batch * 1.05)

    def failed(self, at_least: float = 0.0) -> None:
        now = self._clock()
        self.failures += 1
        self.failed_at = now
        longest = self._options.longest_backoff_seconds
        pause = min(longest, self._options.backoff_seconds * 2 ** min(20, self.failures - 1))
        self.rests_until = now + max(at_least, pause * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads tries

    def _request(
        self, calls: Sequence[Call], decoder: "msgspec.json.Decoder[list[Answer[Any]]]", until: float
    ) -> list[Answer[Any] | None]:
        wait = self.pace.wait()
        if wait:
            if self._clock() + wait > until:
                raise RateLimitedError("the pace it allows is too slow for us", host=self.label, retry_after=wait)
            self._sleep(wait)
        first = next(_ids) * 1_000_000
        body = msgspec.json.encode(
            [
                {"jsonrpc": "2.0", "id": first + place, "method": method, "params": params}
                for place, (method, params) in enumerate(calls)
            ]
        )
        found = self._decode(self._http.post(body, until=until), decoder)
        answers: list[Answer[Any] | None] = [None] * len(calls)
        for answer in found:
            place = answer.id - first if isinstance(answer.id, int) else -1
            if not 0 <= place < len(calls) or answers[place] is not None:
                raise AnswerError("an answer to a call that nobody made", host=self.label)
            if answer.error is not None:
                raise self._said(answer.error, calls[place][0])
            answers[place] = answer
        return answers

    def _decode(self, raw: bytes, decoder: "msgspec.json.Decoder[list[Answer[Any]]]") -> list[Answer[Any]]:
        try:
            return decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            wrong = error
        try:
            whole = _one_error.decode(raw)  # an error that concerns the batch as such comes alone
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            whole = None
        if whole is not None and whole.error is not None:
            raise self._said(whole.error, "a batch")
        if isinstance(wrong, msgspec.ValidationError):
            raise AnswerError(f"an answer of another form than JSON-RPC has: {wrong}", host=self.label) from None
        raise UnavailableError("the answer is not JSON", host=self.label)

    def _said(self, error: ErrorBody, method: str) -> RpcError:
        said = error.message.lower()
        told = f"error {error.code} to {method}{self._quoted(error.message)}"
        if error.code == -32601 or any(text in said for text in _UNKNOWN):
            return NoSuchMethodError(told, host=self.label)
        if error.code == -32003 or any(text in said for text in _TOO_LARGE):
            return TooLargeError(told, host=self.label)
        if error.code in (-32005, 429) or any(text in said for text in _TOO_MUCH):
            return RateLimitedError(told, host=self.label)
        return UnavailableError(told, host=self.label)

    def _quoted(self, message: str) -> str:
        """The node's words, unless they repeat what is secret in its address."""
        if not message or any(secret in message for secret in self._secrets):
            return ""
        plain = "".join(character if character.isprintable() else " " for character in message[:120])
        return f" ({plain})"


class RpcPool:
    """Nodes of one chain. Safe to use from several threads."""

    def __init__(
        self,
        endpoints: Sequence[RpcEndpoint],
        options: RpcOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.options = options
        self.nodes = [Node(endpoint, options, clock, sleep) for endpoint in endpoints]
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def forgive(self) -> None:
        """Nodes that refused us are asked again: somebody may have put it right."""
        for node in self.nodes:
            node.refused = None

    def run(self, operation: Callable[[Node, float], T]) -> T:
        """`operation` gets a node and, on our clock, until when it has time."""
        until = self._clock() + self.options.deadline_seconds
        last: RpcError | None = None
        for _ in range(self.options.tries):
            node = self._take(until, last)
            try:
                self._verify(node, until)
                result = operation(node, until)
            except RateLimitedError as error:
                last = node.trouble = error
                node.pace.slower()
                node.failed(at_least=error.retry_after or 0.0)
            except TooLargeError as error:
                last = error
                if not node.smaller_batches():
                    node.failed()
            except RefusedError as error:
                last = error
                node.refused = error
            except RpcError as error:
                last = node.trouble = error
                node.smaller_batches()
                node.failed()
            else:
                node.worked()
                return result
            finally:
                self._give(node)
        assert last is not None
        raise last

    def _take(self, until: float, last: RpcError | None) -> Node:
        while True:
            with self._lock:
                usable = [node for node in self.nodes if node.refused is None]
                if not usable:
                    raise self.nodes[0].refused or UnavailableError("there is no node")
                now = self._clock()
                ready = [node for node in usable if node.rests_until <= now]
                if ready:
                    node = min(ready, key=lambda node: (self._distrust(node, now), node.in_use))
                    node.in_use += 1
                    return node
                wait = min(node.rests_until for node in usable) - now
            if now + wait > until:
                known = next((node.trouble for node in usable if node.trouble is not None), None)
                raise last or known or UnavailableError("every node rests after failures", host=usable[0].label)
            self._sleep(wait)

    def _give(self, node: Node) -> None:
        with self._lock:
            node.in_use -= 1

    def _distrust(self, node: Node, now: float) -> int:
        return node.failures if now - node.failed_at < _RESTED_SECONDS else 0

    def _verify(self, node: Node, until: float) -> None:
        if node.verified:
            return
        said = node.ask([("eth_chainId", [])], _words, until)[0]
        if said is None:
            raise MissingAnswerError("no chain id", host=node.label)
        if quantity(said, node.label) != self.options.chain_id:
            raise ChainMismatchError(
                f"{node.label} is a node of chain {quantity(said, node.label)}, and the job is for chain"
                f" {self.options.chain_id}: correct the job's chain_id or the endpoints"
            )
        node.verified = True


def quantity(said: str, host: str) -> int:
    try:
        if said[:2] == "0x" and "_" not in said:
            return int(said, 16)
    except ValueError:
        pass
    raise AnswerError("a number that is none", host=host)


def head_of(pool: RpcPool) -> int:
    """The newest block that a node knows."""

    def ask(node: Node, until: float) -> int:
        said = node.ask([("eth_blockNumber", [])], _words, until)[0]
        if said is None:
            raise MissingAnswerError("no block number", host=node.label)
        return quantity(said, node.label)

    return pool.run(ask)
