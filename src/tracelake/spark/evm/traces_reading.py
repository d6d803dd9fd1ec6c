"""Reading the traces of a stretch of blocks from one node.

They are asked for by `trace_block`, or where the node has no such method by `debug_traceBlockByHash` with `callTracer`.
The latter names the block by its hash. The former has a number only, and every trace in the answer names its block.
"""

from collections.abc import Sequence

from tracelake.spark.evm.calls import Call, CallSet, PackingDecoder
from tracelake.spark.evm.errors import (
    ForeignTracesError,
    MissingAnswerError,
    NoSuchMethodError,
    NoTracesError,
    WrongTracesError,
)
from tracelake.spark.evm.node import ProgressDeadline, RpcNode
from tracelake.spark.evm.packed import AnyBlock, count_transactions, hashes_of
from tracelake.spark.evm.traces import (
    BlockTrace,
    BlockTraces,
    TracedTransaction,
    allow_deep_calls,
    pack_block_traces,
    pack_call_frames,
)

BY_NUMBER, BY_HASH = "trace_block", "debug_traceBlockByHash"
_CALL_TRACER = {"tracer": "callTracer"}
_DECODERS = {
    BY_NUMBER: PackingDecoder(list[BlockTrace], pack_block_traces, least=0),
    BY_HASH: PackingDecoder(list[TracedTransaction], pack_call_frames, least=0),
}


class PlacedTraces:
    """Checked traces of a block, and where its transactions are."""

    __slots__ = ("hashes", "places", "traces")

    def __init__(self, traces: BlockTraces, places: Sequence[int], hashes: Sequence[str]) -> None:
        self.traces = traces
        self.places = places
        """Of each transaction that has traces, in the block."""
        self.hashes = hashes


class TraceReading:
    """What one node has answered so far, of blocks that are checked."""

    def __init__(
        self, node: RpcNode, numbers: Sequence[int], blocks: Sequence[AnyBlock], *, partial: bool = False
    ) -> None:
        """`partial`: transactions that were never executed have no traces."""
        self.traces: list[PlacedTraces] = []
        self._node = node
        self._numbers = numbers
        self._blocks = blocks
        self._partial = partial
        self._answers: list[BlockTraces | None] = [None] * len(blocks)
        self._method = ""
        self._places: list[int] = []
        """Of the blocks that are asked for."""
        self._calls = CallSet([])
        self._refusals: dict[str, str] = {}
        """By method, how the node refused it."""

    def complete(self, deadline: ProgressDeadline) -> None:
        """Asks for what is missing, and checks all of it."""
        allow_deep_calls()
        self._read(deadline)
        for place, answer in zip(self._places, self._calls.results, strict=True):
            self._answers[place] = answer
        try:
            self.traces = [self._checked(place) for place in range(len(self._blocks))]
        except MissingAnswerError:
            self._calls.reopen_nulls()
            raise

    def _read(self, deadline: ProgressDeadline) -> None:
        """By the first of the methods that the node has. One that it lacked before is asked for last, not left out: the
        error is final, and somebody may have put it right."""
        for method in sorted((BY_NUMBER, BY_HASH), key=self._node.lacks):
            if method in self._refusals:
                continue
            self._choose(method)
            for is_certain in (False, True):
                try:
                    self._node.complete(self._calls, _DECODERS[method], deadline)
                except NoSuchMethodError as error:
                    if any(result is not None for result in self._calls.results):
                        raise  # it has the method, and one backend of several does not
                    if error.certain or is_certain:  # words like "blocked" may be about something else
                        self._node.mark_missing(method)
                        self._refusals[method] = f"{method} ({error})"
                        break
                else:
                    return
        tried = " and ".join(self._refusals.values())
        hint = "Use a node with one of these methods, or leave `traces` out"
        raise NoTracesError(f"it has no traces of blocks; tried {tried}. {hint}", host=self._node.label)

    def _choose(self, method: str) -> None:
        if self._method == method:
            return
        self._method = method
        self._places = [place for place, number in enumerate(self._numbers) if self._is_traced(number, place)]
        self._calls = CallSet([self._call(place) for place in self._places])

    def _is_traced(self, number: int, place: int) -> bool:
        """A block without transactions has at most rewards, which only the one method has; the first block has none."""
        return number > 0 and (self._method == BY_NUMBER or count_transactions(self._blocks[place]) > 0)

    def _call(self, place: int) -> Call:
        if self._method == BY_NUMBER:
            return BY_NUMBER, [hex(self._numbers[place])]
        return BY_HASH, [self._blocks[place].hash, _CALL_TRACER]

    def _checked(self, place: int) -> PlacedTraces:
        number, block, host = self._numbers[place], self._blocks[place], self._node.label
        traces = self._answers[place]
        if traces is None:
            if place in self._places:
                raise MissingAnswerError(f"null for the traces of block {number}", host=host)
            return PlacedTraces(BlockTraces([]), [], [])
        if traces.block_hashes - {block.hash}:
            raise ForeignTracesError(f"traces of block {number} are of another block with that number", host=host)
        if traces.problem is not None:
            raise WrongTracesError(f"block {number}: {traces.problem}", host=host)
        hashes = hashes_of(block)
        if None in traces.transactions:  # older nodes give one for each transaction, without its hash
            is_right, places = len(traces.transactions) == len(hashes), list(range(len(hashes)))
        elif self._partial:
            by_hash = {name: index for index, name in enumerate(hashes)}
            places = [by_hash[name] for name in traces.transactions if name in by_hash]
            is_right = len(places) == len(traces.transactions) and places == sorted(set(places))
        else:
            is_right, places = traces.transactions == hashes, list(range(len(hashes)))
        if not is_right:
            counts = f"{len(hashes)} transactions, and the traces are of {len(traces.transactions)}"
            raise WrongTracesError(f"block {number} has {counts}, or of others", host=host)
        return PlacedTraces(traces, places, hashes)
