"""A small JSON-RPC client for reading chains: blocking, over several nodes that stand in for each other.

`RpcPool.run` gives an operation one node to work with, so that what it reads is of one mind. If the operation fails for
any reason, the next try uses another node, if there is one; a node that failed rests, longer each time. The operation
may keep what a node has answered and ask the same node for the rest only: tries and the deadline count from its last
progress. `run` ends with what the operation returns, with the last error once the deadline or the tries are used up, or
at once when a node is of another chain or every node refuses. Everything asked is a read, so asking twice does no harm.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tracelake.spark.evm.calls import answers_of, quantity
from tracelake.spark.evm.endpoints import RpcEndpoint
from tracelake.spark.evm.errors import (
    AbandonedError,
    AnswerError,
    ChainMismatchError,
    HtmlAnswerError,
    IncompleteAnswerError,
    MissingAnswerError,
    RefusedError,
    RpcError,
    UnavailableError,
)
from tracelake.spark.evm.node import ProgressDeadline, RpcNode, RpcOptions

T = TypeVar("T")

_RESTED_SECONDS = 30.0
_MOST_PAGES = 3
"""Web pages in a row, after which a node is not asked any more."""
_texts = answers_of(str)


class RpcPool:
    """Nodes of one chain. Safe to use from several threads."""

    def __init__(
        self,
        endpoints: Sequence[RpcEndpoint],
        options: RpcOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        first_number: int = 1,
    ) -> None:
        """`first_number`: how errors number the first node, if it is one of several pools for the same endpoints."""
        self.options = options
        numbered = [replace(endpoint, number=number) for number, endpoint in enumerate(endpoints, first_number)]
        self.nodes = [RpcNode(endpoint, options, clock, sleep) for endpoint in numbered]
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

    def run(self, operation: Callable[[RpcNode, ProgressDeadline], T], stop: threading.Event | None = None) -> T:
        """`operation` gets a node and how long it may go on. `stop`: it ends at the next request or rest."""
        deadline = ProgressDeadline(self.options.deadline_seconds, self._clock, stop)
        last: RpcError | None = None
        failed = wrong = 0
        pages: dict[RpcNode, int] = {}
        while failed + wrong < self.options.tries:
            node = self._take(deadline, last)
            answer_count = deadline.answer_count
            try:
                self._verify(node, deadline)
                result = operation(node, deadline)
            except RefusedError as error:
                last = node.refused = error
                failed += 1
            except AbandonedError:
                raise
            except RpcError as error:
                if last is None or not self._is_cut_off(error, deadline):
                    last = error
                if isinstance(error, AnswerError) and not isinstance(error, MissingAnswerError):
                    wrong += 1  # what was read is read again, which is no progress
                    deadline.freeze()
                    node.failed(error)
                    continue
                progress = deadline.answer_count > answer_count
                failed = 1 if progress else failed + 1
                pages[node] = pages.get(node, 0) + 1 if isinstance(error, HtmlAnswerError) and not progress else 0
                node.failed(error, progress=progress)
                if pages[node] >= _MOST_PAGES:
                    node.refused = error
            else:
                node.worked()
                return result
            finally:
                self._give(node)
        assert last is not None
        raise last

    def _is_cut_off(self, error: RpcError, deadline: ProgressDeadline) -> bool:
        """Whether there was no time left for an answer, which says less than what was wrong before."""
        return isinstance(error, IncompleteAnswerError) and self._clock() >= deadline.until

    def _take(self, deadline: ProgressDeadline, last: RpcError | None) -> RpcNode:
        while True:
            with self._lock:
                usable = [node for node in self.nodes if node.refused is None]
                if not usable:
                    raise self._refusal()
                now = self._clock()
                ready = [node for node in usable if node.rests_until <= now]
                if ready:
                    node = min(ready, key=lambda node: (self._distrust(node, now), node.in_use))
                    node.in_use += 1
                    return node
                wait = min(node.rests_until for node in usable) - now
            if now + wait > deadline.until:
                trouble = next((node.trouble for node in usable if node.trouble is not None), None)
                raise last or trouble or UnavailableError("every node rests after failures", host=usable[0].label)
            deadline.pause(wait, self._sleep)

    def _refusal(self) -> RpcError:
        """Why no node can be used: rather one that time may change than one that it does not."""
        refusals = [node.refused for node in self.nodes if node.refused is not None]
        if not refusals:
            return UnavailableError("there is no node")
        return next((error for error in refusals if error.retryable), refusals[0])

    def _give(self, node: RpcNode) -> None:
        with self._lock:
            node.in_use -= 1

    def _distrust(self, node: RpcNode, now: float) -> int:
        return node.failures if now - node.failed_at < _RESTED_SECONDS else 0

    def _verify(self, node: RpcNode, deadline: ProgressDeadline) -> None:
        if node.verified:
            return
        text = node.ask([("eth_chainId", [])], _texts, deadline)[0]
        if text is None:
            raise MissingAnswerError("no chain id", host=node.label)
        if quantity(text, node.label) != self.options.chain_id:
            raise ChainMismatchError(
                f"{node.label} is a node of chain {quantity(text, node.label)}, and the job is for chain"
                f" {self.options.chain_id}: correct the job's chain_id or the endpoints"
            )
        node.verified = True


def head_of(pool: RpcPool) -> int:
    """The newest block that a node knows."""

    def ask(node: RpcNode, deadline: ProgressDeadline) -> int:
        text = node.ask([("eth_blockNumber", [])], _texts, deadline)[0]
        if text is None:
            raise MissingAnswerError("no block number", host=node.label)
        return quantity(text, node.label)

    return pool.run(ask)
