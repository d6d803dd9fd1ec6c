"""Serves a recorded chain over JSON-RPC on loopback, as a node would: `python -m tracelake.demo.chain.server`.

    python -m tracelake.demo.chain.server --recording examples/token_flows/chain.jsonl.xz --port 0

prints one line of JSON with its URL when it is ready. It ends on SIGTERM or SIGINT, and, when its standard input is a
pipe, as soon as that is closed: whoever started it need not survive to end it. A line `head 1200` on that pipe shows
1200 blocks from then on.

With `--live` the same chain is served at /live as well, and moves by calls that no node has:

    curl -d '{"jsonrpc": "2.0", "id": 1, "method": "demo_setHead", "params": [2399]}' http://127.0.0.1:PORT/live
    curl -d '{"jsonrpc": "2.0", "id": 1, "method": "demo_reorg", "params": [12]}' http://127.0.0.1:PORT/live

The first makes block 2399 the newest one, the second replaces the newest 12 blocks by others.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tracelake.demo.chain.app import ChainApp, RequestPace
from tracelake.demo.chain.head import Visible
from tracelake.demo.chain.methods import Methods
from tracelake.demo.chain.orders import Orders
from tracelake.demo.chain.recording import Recording, RecordingError
from tracelake.demo.chain.rpc import Rpc
from tracelake.demo.chain.store import ChainStore
from tracelake.one_write import OneWrite

HOST = "127.0.0.1"
MAX_WORKERS = 16
MAX_DIGITS = 18
_GROWTH_STEP_SECONDS = 0.05


class _ChainProtocol(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", OneWrite(transport, self.loop)))


class _ChainUvicorn(uvicorn.Server):
    """Signals belong to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ChainServer:
    """Serves an application on a socket that is already bound."""

    def __init__(self, app: Any, sock: socket.socket) -> None:
        self.url = "http://{}:{}".format(*sock.getsockname()[:2])
        self._socket = sock
        self._server = _ChainUvicorn(
            uvicorn.Config(
                app,
                http=_ChainProtocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=1,
                backlog=1024,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise RuntimeError("the server ended while starting")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task


def bound_socket(port: int) -> socket.socket:
    return socket.create_server((HOST, port), backlog=1024)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.requests_per_second is not None and options.workers > 1:
        parser.error("--requests-per-second is kept by one process: leave --workers at 1")
    if options.live and options.workers > 1:
        parser.error("--live changes the chain of one process: leave --workers at 1")
    try:
        recording = Recording(options.recording)
        store = ChainStore.load(recording, chain_id=recording.head.chain_id, client=recording.head.client)
    except RecordingError as error:
        parser.exit(1, f"{error}\n")
    try:
        sock = bound_socket(options.port)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "the machine refuses it"
        parser.exit(1, f"Port {options.port} cannot be used: {reason}. Take another, or 0 for a free one.\n")
    visible = Visible(options.head or len(store.blocks), of=len(store.blocks))
    pace = RequestPace(options.requests_per_second) if options.requests_per_second else None
    live = _live_rpc(store.copy(), visible.count) if options.live else None
    app = ChainApp(Rpc(Methods(store, visible).table()), live=live, pace=pace, compress=not options.no_gzip)
    children, is_parent, alive = _fork(options.workers - 1)
    uvloop.run(_serve(ChainServer(app, sock), visible, options, store, is_parent=is_parent, alive=alive))
    for child in children:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
    return 0


def _live_rpc(store: ChainStore, blocks: int) -> Rpc:
    visible = Visible(blocks, of=len(store.blocks))
    return Rpc(Methods(store, visible).table() | Orders(store, visible).table())


async def _serve(
    server: ChainServer,
    visible: Visible,
    options: argparse.Namespace,
    store: ChainStore,
    *,
    is_parent: bool,
    alive: int | None,
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await server.start()
    growing: asyncio.Task[None] | None = None
    if is_parent:
        if options.grow:
            growing = asyncio.create_task(_grow(visible, options.grow))
        _obey_stdin(loop, visible, stop)
        ready = {"url": server.url, "chain_id": store.chain_id, "blocks": len(store.blocks), "head": visible.head}
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
    elif alive is not None:
        loop.add_reader(alive, stop.set)  # the parent's end is closed when it ends, in whatever way
    await stop.wait()
    if growing is not None:
        growing.cancel()
    await server.stop()


async def _grow(visible: Visible, per_second: float) -> None:
    loop = asyncio.get_running_loop()
    started, first = loop.time(), visible.count
    while True:
        await asyncio.sleep(_GROWTH_STEP_SECONDS)
        visible.set(max(visible.count, first + int((loop.time() - started) * per_second)))


def _obey_stdin(loop: asyncio.AbstractEventLoop, visible: Visible, stop: asyncio.Event) -> None:
    """Obeys standard input if it is a pipe or socket; a terminal or /dev/null does not end with a parent."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, ValueError, OSError):
        return
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return

    def obey() -> None:
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:
            for line in lines:
                word, _, value = line.decode(errors="replace").strip().partition(" ")
                if word == "head" and value.isdecimal() and len(value) <= MAX_DIGITS:
                    visible.set(int(value))
                else:
                    sys.stderr.write("Not understood. The only order is: head NUMBER_OF_BLOCKS\n")
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=obey, name="stdin", daemon=True).start()


def _fork(count: int) -> tuple[list[int], bool, int | None]:
    """The children's ids (none in a child), whether this is the parent, and what a child hears its end by."""
    reading, writing = os.pipe()
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            os.close(writing)
            return [], False, reading
        children.append(child)
    os.close(reading)
    return children, True, writing


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tracelake.demo.chain.server",
        description="Serve a recorded chain over JSON-RPC on 127.0.0.1; one line of JSON says its URL when ready.",
        epilog="Example, a chain that starts with 100 blocks and grows by 5 a second: "
        "python -m tracelake.demo.chain.server --recording examples/token_flows/chain.jsonl.xz --head 100 --grow 5",
    )
    parser.add_argument("--recording", type=Path, required=True, help="the recording, a .jsonl.xz file")
    parser.add_argument("--port", type=_port, default=0, help="0 (the default) takes a free one")
    parser.add_argument("--head", type=_positive_int, help="how many blocks are visible (default: all)")
    parser.add_argument("--grow", type=_positive, help="show so many more blocks a second, up to the last")
    parser.add_argument(
        "--requests-per-second",
        type=_positive,
        help="answer HTTP requests (a batch is one) beyond it with 429 and Retry-After",
    )
    parser.add_argument("--workers", type=_workers, default=1, help="processes that serve (default: 1)")
    parser.add_argument("--live", action="store_true", help="serve it also at /live, where its head can be moved")
    parser.add_argument("--no-gzip", action="store_true", help="send plain answers also to who takes gzip")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("a number above 0")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("a whole number above 0")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65_535:
        raise argparse.ArgumentTypeError("a port number, or 0")
    return value


def _workers(text: str) -> int:
    value = _positive_int(text)
    if value > MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"at most {MAX_WORKERS}")
    return value


if __name__ == "__main__":
    sys.exit(main())
