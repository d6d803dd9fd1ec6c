"""A WebSocket of a node that announces blocks, or fails to in one of many ways."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from ssl import SSLContext
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

Manner = Callable[[ServerConnection], None]
PATIENCE = 30.0
"""Seconds, after which a test has failed."""


class AnnouncingNode:
    """Each connection is served in the next of the given manners, and in the usual one after the last."""

    def __init__(self) -> None:
        self.manners: list[Manner] = []
        self.refusals: list[Response] = []
        """Answers to handshakes, instead of a connection."""
        self.subscribed: Queue[ServerConnection] = Queue()
        """Connections that subscribed and got an answer."""
        self.requests: list[Request] = []
        self.port = 0
        self.scheme = "ws"
        self._open: set[ServerConnection] = set()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/v3/secret-key-of-mine"

    def announce(self, block_hash: str) -> None:
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            send_head(connection, block_hash)

    def drop(self) -> None:
        """All connections are closed."""
        with self._lock:
            connections, self._open = self._open, set()
        for connection in connections:
            connection.close()

    def wait_subscribed(self) -> ServerConnection:
        try:
            return self.subscribed.get(timeout=PATIENCE)
        except Empty:
            raise AssertionError("nobody subscribed") from None

    def serve_usually(self, connection: ServerConnection) -> None:
        request = json.loads(connection.recv())
        assert (request["method"], request["params"]) == ("eth_subscribe", ["newHeads"])
        connection.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": "0xcafe"}))
        with self._lock:
            self._open.add(connection)
        self.subscribed.put(connection)
        for _message in connection:
            pass  # until it is closed

    def _handle(self, connection: ServerConnection) -> None:
        manner = self.manners.pop(0) if self.manners else self.serve_usually
        try:
            manner(connection)
        except (ConnectionClosed, OSError):
            pass
        finally:
            with self._lock:
                self._open.discard(connection)

    def _shake_hands(self, _connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        return self.refusals.pop(0) if self.refusals else None

    @contextmanager
    def serving(self, tls: SSLContext | None = None) -> Iterator["AnnouncingNode"]:
        with serve(self._handle, "127.0.0.1", 0, ssl=tls, process_request=self._shake_hands) as server:
            self.port = server.socket.getsockname()[1]
            self.scheme = "wss" if tls else "ws"
            thread = _start(server)
            try:
                yield self
            finally:
                self.drop()
                server.shutdown()
                thread.join(PATIENCE)


def _start(server: Server) -> threading.Thread:
    thread = threading.Thread(target=server.serve_forever, name="announcing", daemon=True)
    thread.start()
    return thread


def head_message(block_hash: Any, subscription: str = "0xcafe") -> str:
    head = {"number": "0x1", "hash": block_hash, "parentHash": "0x00"}
    params = {"subscription": subscription, "result": head}
    return json.dumps({"jsonrpc": "2.0", "method": "eth_subscription", "params": params})


def send_head(connection: ServerConnection, block_hash: str) -> None:
    connection.send(head_message(block_hash))
