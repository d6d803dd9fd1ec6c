"""A subscription to the heads of a node (`eth_subscribe`, newHeads) over a WebSocket, in a thread of its own.

It only wakes the follower, which then reads and verifies over HTTP. Whatever goes wrong here (no connection, a refusal,
silence, rubbish, a flood, a frame that is too large) ends the connection; the follower polls meanwhile, and the next
connection is tried after a rest that grows. The rules are those of HTTP endpoints: certificates are verified, neither
proxies nor redirects are followed, and errors say nothing of the address.
"""

import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, PayloadTooBig
from websockets.sync.client import ClientConnection, connect

from tracelake.follower.head_signal import HeadSignal
from tracelake.outbound_http import describe_failure
from tracelake.spark.evm.endpoints import RpcEndpoint

MAX_FRAME_BYTES = 256 * 1024
_MOST_IN_A_SECOND = 500
"""Messages. No chain has so many blocks."""
_LONGEST_HASH = 66
_STEP_SECONDS = 0.5
_ID = 1
_REQUEST = msgspec.json.encode({"jsonrpc": "2.0", "id": _ID, "method": "eth_subscribe", "params": ["newHeads"]})

_silent = logging.Logger("websocket", logging.CRITICAL + 1)
"""The library's own log has whole requests in it, and so the keys of addresses."""


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    connect_seconds: float = 5.0
    answer_seconds: float = 10.0
    silent_seconds: float = 120.0
    """After so long without a block it is subscribed anew."""
    first_rest_seconds: float = 1.0
    longest_rest_seconds: float = 60.0


class SubscriptionError(Exception):
    """Why a subscription ended; it says nothing of the address."""


class _Announcement(msgspec.Struct):
    subscription: str | int
    result: dict[str, Any]


class _Message(msgspec.Struct):
    """An answer to the subscription, or one of its announcements."""

    id: int | str | None = None
    result: Any = None
    error: Any = None
    method: str | None = None
    params: _Announcement | None = None


_messages = msgspec.json.Decoder(_Message)


class HeadSubscription:
    """One WebSocket, from `start` until `close`."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        signal: HeadSignal,
        tell: Callable[[str], None] = lambda _text: None,
        options: SubscriptionOptions = SubscriptionOptions(),  # noqa: B008 - it is frozen
        number: int = 1,
    ) -> None:
        self._endpoint = endpoint
        self._signal = signal
        self._tell = tell
        self._options = options
        self._label = f"subscription {number}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heads-{number}", daemon=True)
        self._tls = ssl.create_default_context() if endpoint.scheme == "wss" else None
        self._announced = False

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """It ends within a moment; nobody has to wait for that, since it has no effect any more."""
        self._stop.set()

    def join(self, seconds: float) -> bool:
        """Whether it has ended by then."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            self._announced = False
            try:
                self._listen()
            except Exception as error:
                reason = _describe(error)
                failures = 1 if self._announced else failures + 1
                if failures == 1 and not self._stop.is_set():
                    self._tell(f"{self._label} ended: {reason}; it is tried again, and nodes are polled meanwhile")
            self._signal.lose()
            rest = self._options.first_rest_seconds * 2 ** min(20, max(0, failures - 1))
            spread = random.uniform(0.5, 1.0)  # noqa: S311 - only spreads tries
            self._stop.wait(min(self._options.longest_rest_seconds, rest) * spread)

    def _listen(self) -> None:
        """Until it is closed; raises whatever ends it before."""
        place = self._endpoint
        host = f"[{place.host}]" if ":" in place.host else place.host
        # With a socket of ours there is neither a proxy nor a redirect: it is connected to this very address.
        sock = socket.create_connection((place.host, place.port), self._options.connect_seconds)
        sock.settimeout(None)  # that was for connecting; the library has times of its own for the rest
        with connect(
            f"{place.scheme}://{host}:{place.port}{place.path}",
            sock=sock,
            ssl=self._tls,
            compression=None,
            additional_headers=None if place.authorization is None else {"Authorization": place.authorization},
            user_agent_header="tracelake",
            open_timeout=self._options.connect_seconds,
            close_timeout=_STEP_SECONDS,
            max_size=MAX_FRAME_BYTES,
            logger=_silent,
        ) as connection:
            connection.send(_REQUEST, text=True)
            self._take_messages(connection)

    def _take_messages(self, connection: ClientConnection) -> None:
        subscription: str | int | None = None
        heard_at = second_began = time.monotonic()
        count = 0
        while not self._stop.is_set():
            now = time.monotonic()
            patience = self._options.answer_seconds if subscription is None else self._options.silent_seconds
            if now - heard_at > patience:
                raise SubscriptionError(f"nothing came for {patience:g} seconds")
            try:
                text = connection.recv(timeout=_STEP_SECONDS)
            except TimeoutError:
                continue
            now = time.monotonic()
            if now - second_began >= 1.0:
                second_began, count = now, 0
            count += 1
            if count > _MOST_IN_A_SECOND:
                raise SubscriptionError(f"more than {_MOST_IN_A_SECOND} messages in a second")
            message = _decode(text)
            if message.id == _ID and message.method is None:
                subscription = _subscription(message)
                heard_at = now
                self._tell(f"{self._label} announces new blocks")
            elif message.params is not None and message.params.subscription == subscription:
                self._signal.announce(_block_hash(message.params))
                self._announced = True
                heard_at = now


def _decode(text: str | bytes) -> _Message:
    try:
        return _messages.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise SubscriptionError("a message that is not JSON-RPC") from None


def _subscription(message: _Message) -> str | int:
    if message.error is not None or not isinstance(message.result, str | int):
        raise SubscriptionError("the node refuses eth_subscribe")
    return message.result


def _block_hash(announcement: _Announcement) -> str:
    name = announcement.result.get("hash")
    if not isinstance(name, str) or len(name) > _LONGEST_HASH:
        raise SubscriptionError("a block without a hash")
    return name.lower()


def _describe(error: Exception) -> str:
    """Never the words of the library, which may repeat the address."""
    if isinstance(error.__cause__, InvalidStatus):  # a redirect, which is not followed
        error = error.__cause__
    match error:
        case SubscriptionError():
            return str(error)
        case InvalidStatus():
            return f"HTTP status {error.response.status_code} instead of a WebSocket"
        case InvalidHandshake():
            return "the answer is not that of a WebSocket"
        case PayloadTooBig():
            return f"a message of more than {MAX_FRAME_BYTES} bytes"
        case ConnectionClosed() if error.sent is not None and error.sent.code == 1009:
            return f"a message of more than {MAX_FRAME_BYTES} bytes"
        case ConnectionClosed():
            return "the connection was closed"
        case _:
            return describe_failure(error)
