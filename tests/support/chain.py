"""A recorded chain served to a test, with everything at hand that can go wrong between a client and a node.

    with serve_chain(blocks=100) as chain:
        chain.inject(Status(503), times=2)        # the next two requests; then all is well again
        chain.reorganise(60)                      # blocks 60 and on are others now, with consistent hashes
        ingest(chain.url)
        assert chain.calls[0].method == "eth_chainId"

Faults of the transport (`inject`) change how a right answer is sent; faults of the data (methods of ServedChain) change
what the node knows, at once for everyone, until `restore`.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from tests.chain.faults import Call, Fault, Rule, calls_of
from tests.chain.reorganise import alternatives
from tracelake.demo.chain.app import MAX_BODY_BYTES, ChainApp, Receive, Scope, Send
from tracelake.demo.chain.head import Visible
from tracelake.demo.chain.methods import NULL, Methods
from tracelake.demo.chain.packing import Json
from tracelake.demo.chain.recording import RecordedBlock, Recording
from tracelake.demo.chain.rpc import Method, Rpc
from tracelake.demo.chain.server import ChainServer, bound_socket
from tracelake.demo.chain.store import ChainStore

RECORDING = Path(__file__).parents[2] / "examples" / "token_flows" / "chain.jsonl.xz"
T = TypeVar("T")


@lru_cache(maxsize=4)
def recorded(blocks: int) -> tuple[RecordedBlock, ...]:
    """The first blocks of the shipped recording. They are shared: copy what you change."""
    return tuple(islice(Recording(RECORDING), blocks))


@dataclass(slots=True)
class _Wrong:
    """What the node says otherwise than its blocks do."""

    chain_id: str | None = None
    null_blocks: set[int] = field(default_factory=set)
    null_receipts: set[int] = field(default_factory=set)
    omitted: set[str] = field(default_factory=set)
    """Transactions whose receipts are not among those of their block ..."""
    phantoms: set[str] = field(default_factory=set)
    """... and of which there are none singly either."""


class ServedChain:
    def __init__(self, blocks: Sequence[RecordedBlock], *, chain_id: str, client: str, head: int | None) -> None:
        self.calls: list[Call] = []
        """Every call that came in, in order, whatever became of it."""
        self.requests = 0
        """How many HTTP requests came in."""
        self.url = ""
        self._known = {one.number: one for one in blocks}
        self._original = dict(self._known)
        self._store = ChainStore.load(blocks, chain_id=chain_id, client=client)
        self._visible = Visible(head or len(blocks), of=len(blocks))
        self._wrong = _Wrong()
        self._rules: list[Rule] = []
        self._watchers: list[Callable[[list[Call]], None]] = []
        self._table = self._methods()
        self._app = ChainApp(Rpc(self._table))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # What goes wrong on the way.

    def inject(self, fault: Fault, *, times: int | None = 1, when: Callable[[list[Call]], bool] | None = None) -> None:
        """Let the fault happen to the next `times` requests (None: to all) that `when` is true of."""
        self._do(lambda: self._rules.append(Rule(fault, times, when)))

    def clear(self) -> None:
        """No fault of the transport is left."""
        self._do(self._rules.clear)

    def watch(self, watcher: Callable[[list[Call]], None]) -> None:
        """Called with the calls of each request before it is answered; may change the chain, which then answers so."""
        self._do(lambda: self._watchers.append(watcher))

    # What the node knows.

    def block(self, number: int) -> RecordedBlock:
        """The block as it is served now."""
        return self._known[number]

    def show(self, blocks: int) -> None:
        """So many blocks are visible from now on."""
        self._do(lambda: self._visible.set(blocks))

    def reorganise(
        self, first: int, *, changed: int | None = None, later: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """From `first` on the chain is another. The first `changed` blocks (None: all) lack their last transaction;
        all have other hashes. Roots, blooms, gas, receipts and parents fit together. From each block of `later` on,
        times are so many seconds later than they were."""

        def change() -> None:
            last = max(self._known)
            parent = self._known[first - 1].block["hash"]
            blocks = [self._known[number] for number in range(first, last + 1)]
            for other in alternatives(blocks, parent, len(blocks) if changed is None else changed, later):
                self._put(other)

        self._do(change)

    def lose_receipts(self, number: int, count: int = 1) -> None:
        """The last receipts of a block are not among its receipts, and not there singly."""
        lost = [receipt["transactionHash"] for receipt in self._known[number].receipts[-count:]]
        self._do(lambda: self._wrong.phantoms.update(lost))
        self._change(number, lambda block, receipts: (block, receipts[: max(0, len(receipts) - count)]))

    def omit_receipts(self, hashes: Sequence[str], *, singly: bool = True) -> None:
        """These are not among the receipts of their blocks. `singly`: there are some if they are asked for by hash."""
        self._do(lambda: (self._wrong.omitted if singly else self._wrong.phantoms).update(hashes))

    def add_method(self, name: str, answer: Callable[[list[Any]], Any]) -> None:
        """A method that the recording does not have, or another answer of one that it has: params to JSON."""
        self._do(lambda: self._table.__setitem__(name, lambda params: msgspec.json.encode(answer(params))))

    def misnumber(self, number: int, says: int) -> None:
        """Asked for one number, the node gives a block that calls itself another."""
        self._change(number, lambda block, receipts: ({**block, "number": hex(says)}, receipts))

    def break_parent(self, number: int) -> None:
        """The block names a parent that there is not."""
        self._change(number, lambda block, receipts: ({**block, "parentHash": "0x" + "bad0" * 16}, receipts))

    def null_block(self, number: int) -> None:
        """The node says null for a block below its head."""
        self._do(lambda: self._wrong.null_blocks.add(number))

    def null_receipts(self, number: int) -> None:
        self._do(lambda: self._wrong.null_receipts.add(number))

    def other_chain(self, chain_id: int) -> None:
        def change() -> None:
            self._wrong.chain_id = hex(chain_id)

        self._do(change)

    def restore(self) -> None:
        """The chain is as it was recorded; how much of it is visible stays."""

        def change() -> None:
            self._wrong = _Wrong()
            self._table.clear()
            self._table.update(self._methods())
            for number, one in self._original.items():
                if self._known[number] is not one:
                    self._put(one)

        self._do(change)

    # How it is done.

    def _change(self, number: int, change: Callable[[Json, list[Json]], tuple[Json, list[Json]]]) -> None:
        def put() -> None:
            block, receipts = change(self._known[number].block, self._known[number].receipts)
            self._put(RecordedBlock(number=number, block=block, receipts=receipts))

        self._do(put)

    def _put(self, one: RecordedBlock) -> None:
        self._store.replace(one.number, one.block, one.receipts)
        self._known[one.number] = one

    def _methods(self) -> dict[str, Method]:
        methods = Methods(self._store, self._visible)
        table = methods.table()

        def chain_id(params: list[Any]) -> bytes:
            right = methods.chain_id(params)
            return right if self._wrong.chain_id is None else msgspec.json.encode(self._wrong.chain_id)

        def network(params: list[Any]) -> bytes:
            right = methods.network(params)
            wrong = self._wrong.chain_id
            return right if wrong is None else msgspec.json.encode(str(int(wrong, 16)))

        def nulled(method: Method, numbers: Callable[[], set[int]]) -> Method:
            def answer(params: list[Any]) -> bytes:
                asked = params[0] if params else None
                null = any(asked in (hex(number), self._known[number].block["hash"]) for number in numbers())
                return NULL if null else method(params)

            return answer

        def omitting(method: Method) -> Method:
            def answer(params: list[Any]) -> bytes:
                whole = method(params)
                missing = self._wrong.omitted | self._wrong.phantoms
                if not missing or whole == NULL:
                    return whole
                return msgspec.json.encode(
                    [one for one in msgspec.json.decode(whole) if one["transactionHash"] not in missing]
                )

            return answer

        for name in ("eth_getBlockByNumber", "eth_getBlockByHash"):
            table[name] = nulled(table[name], lambda: self._wrong.null_blocks)
        table["eth_getBlockReceipts"] = nulled(table["eth_getBlockReceipts"], lambda: self._wrong.null_receipts)
        table["eth_getBlockReceipts"] = omitting(table["eth_getBlockReceipts"])
        single = table["eth_getTransactionReceipt"]
        table["eth_getTransactionReceipt"] = lambda params: (
            NULL if params and params[0] in self._wrong.phantoms else single(params)
        )
        return {**table, "eth_chainId": chain_id, "net_version": network}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        more = True
        while more and len(body) <= MAX_BODY_BYTES:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        calls = calls_of(body)
        self.calls.extend(calls)
        self.requests += 1
        for watcher in self._watchers:
            watcher(calls)

        async def again() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        rule = next((rule for rule in self._rules if rule.holds(calls)), None)
        if rule is None:
            await self._app(scope, again, send)
        else:
            rule.use()
            await rule.fault.happen(self._app, scope, again, send)

    def _do(self, change: Callable[[], T]) -> None:
        """In the server's thread, between two requests: nobody sees half a change."""
        if self._loop is None or threading.current_thread() is self._thread:
            change()
            return

        async def run() -> None:
            change()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(timeout=60)

    @contextmanager
    def serving(self) -> Iterator["ServedChain"]:
        ready, ended = threading.Event(), asyncio.Event()
        problem: list[BaseException] = []

        async def serve() -> None:
            server = ChainServer(self, bound_socket(0))
            self._loop = asyncio.get_running_loop()
            await server.start()
            self.url = server.url
            ready.set()
            await ended.wait()
            await server.stop()

        def run() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:
                problem.append(error)
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name="chain", daemon=True)
        self._thread.start()
        ready.wait(timeout=60)
        if problem:
            raise problem[0]
        try:
            yield self
        finally:
            for rule in self._rules:
                rule.fault.release()
            assert self._loop is not None
            self._loop.call_soon_threadsafe(ended.set)
            self._thread.join(timeout=60)
            self._loop = None
        if problem:
            raise problem[0]


@contextmanager
def serve_chain(blocks: int | Sequence[RecordedBlock] = 100, *, head: int | None = None) -> Iterator[ServedChain]:
    """Serve the first blocks of the shipped recording (or given ones), `head` of them visible, in a thread."""
    chosen = recorded(blocks) if isinstance(blocks, int) else blocks
    about = Recording(RECORDING).head
    with ServedChain(chosen, chain_id=about.chain_id, client=about.client, head=head).serving() as chain:
        yield chain
