"""One HTTP exchange with one node: POST a body, get a reply of any status, on connections that stay open.

Whatever else happens is one of the errors of `tracelake.spark.evm.errors`. A reply is whole or it is none: its length
and its compression are checked, its size and its time are bounded. What a status means is decided with the body
(`refusals`), since providers use the same status for different refusals.
"""

import http.client
import ipaddress
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tracelake.outbound_http import TimedResponse, describe_failure, read_retry_after
from tracelake.spark.evm.endpoints import RpcEndpoint
from tracelake.spark.evm.errors import IncompleteAnswerError, RpcError, TooLargeError, UnavailableError

try:
    from isal import isal_zlib  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # there is no wheel of it for every machine; zlib takes twice the time
    isal_zlib = zlib  # type: ignore[misc,assignment,unused-ignore]

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Also when unpacked."""
_PIECE = 1024 * 1024
_BadGzipError: type[Exception] = isal_zlib.error  # type: ignore[assignment,unused-ignore]


@dataclass(frozen=True, slots=True)
class HttpOptions:
    connect_seconds: float = 10.0
    answer_seconds: float = 60.0
    """For a whole answer, however slowly it comes."""


@dataclass(frozen=True, slots=True)
class NodeReply:
    status: int
    body: bytes | bytearray
    retry_after: float | None = None
    """Seconds."""


class HttpNode:
    """Safe to use from several threads; each exchange has a connection of its own."""

    def __init__(
        self, endpoint: RpcEndpoint, options: HttpOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.endpoint = endpoint
        self._options = options
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._tls = ssl.create_default_context() if endpoint.scheme == "https" else None
        self._headers = {"content-type": "application/json", "user-agent": "tracelake"}
        if endpoint.authorization is not None:
            self._headers["authorization"] = endpoint.authorization

    def post(self, body: bytes, *, until: float) -> NodeReply:
        """`until`: on our clock, when an answer is of no use any more."""
        until = min(until, self._clock() + self._options.answer_seconds)
        while True:
            connection, used = self._connection()
            try:
                reply, keep = self._exchange(connection, body, until)
            except RpcError:
                connection.close()
                raise
            except (http.client.RemoteDisconnected, ConnectionError, BrokenPipeError) as error:
                connection.close()
                if used and self._clock() < until:
                    continue  # it had been closed while it was idle, which says nothing about the node
                raise self._failure(error) from None
            except (OSError, http.client.HTTPException, _BadGzipError, ValueError) as error:
                connection.close()
                raise self._failure(error) from None
            except BaseException:
                connection.close()
                raise
            if keep:
                with self._lock:
                    self._idle.append(connection)
            else:
                connection.close()
            return reply

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        place, seconds = self.endpoint, self._options.connect_seconds
        if self._tls is not None:
            return http.client.HTTPSConnection(place.host, place.port, timeout=seconds, context=self._tls), False
        return http.client.HTTPConnection(place.host, place.port, timeout=seconds), False

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes, until: float) -> tuple[NodeReply, bool]:
        if connection.sock is None:
            connection.connect()
        else:
            connection.sock.settimeout(self._options.connect_seconds)  # it has what was left of the time before
        encoding = "identity" if _is_near(connection.sock) else "gzip"
        connection.request("POST", self.endpoint.path, body, {**self._headers, "accept-encoding": encoding})
        connection.response_class = partial(TimedResponse, left=lambda: until - self._clock())  # type: ignore[assignment]
        response = connection.getresponse()
        raw = self._read(response, until)
        encoding = (response.getheader("content-encoding") or "identity").lower()
        if encoding == "gzip":
            raw = self._unpack(raw)
        elif encoding != "identity":
            raise UnavailableError("an answer in an encoding that nobody asked for", host=self.endpoint.alias)
        return NodeReply(
            response.status, raw, read_retry_after(response.getheader("retry-after"))
        ), not response.will_close

    def _read(self, response: http.client.HTTPResponse, until: float) -> bytes | bytearray:
        length = response.length
        answer = self._read_parts(response, until) if length is None else self._read_length(response, length, until)
        if response.length:
            raise IncompleteAnswerError("the answer was cut short", host=self.endpoint.alias)
        response.close()  # it may be open still, and an open one keeps the connection from being used again
        return answer

    def _read_length(self, response: http.client.HTTPResponse, length: int, until: float) -> bytearray:
        """Into one buffer."""
        self._check_size(length)
        answer = bytearray(length)
        with memoryview(answer) as view:
            done = 0
            while done < length and (count := response.readinto(view[done : done + _PIECE])):
                done += count
                self._check_time(until)
        return answer

    def _read_parts(self, response: http.client.HTTPResponse, until: float) -> bytes:
        parts, size = [], 0
        while part := response.read1(_PIECE):
            parts.append(part)
            size += len(part)
            self._check_size(size)
            self._check_time(until)
        return b"".join(parts)

    def _check_size(self, size: int) -> None:
        if size > MAX_ANSWER_BYTES:
            raise TooLargeError(f"an answer of more than {MAX_ANSWER_BYTES} bytes", host=self.endpoint.alias)

    def _check_time(self, until: float) -> None:
        if self._clock() > until:
            raise IncompleteAnswerError("the answer came too slowly", host=self.endpoint.alias)

    def _unpack(self, raw: bytes | bytearray) -> bytes:
        unpacker = isal_zlib.decompressobj(wbits=31)
        answer = unpacker.decompress(raw, MAX_ANSWER_BYTES)
        if unpacker.unconsumed_tail:
            raise TooLargeError(f"an answer of more than {MAX_ANSWER_BYTES} bytes", host=self.endpoint.alias)
        if not unpacker.eof:
            raise IncompleteAnswerError("the answer was cut short", host=self.endpoint.alias)
        return answer

    def _failure(self, error: Exception) -> UnavailableError:
        incomplete = isinstance(error, TimeoutError | http.client.IncompleteRead)
        kind = IncompleteAnswerError if incomplete else UnavailableError
        return kind(describe_failure(error), host=self.endpoint.alias)


def _is_near(sock: socket.socket) -> bool:
    """Whether the other end is on this machine or in this network: packing an answer costs more time there than it
    saves. A proxy of this network that leads elsewhere counts as near."""
    address = sock.getpeername()[0]
    return ipaddress.ip_address(address.partition("%")[0]).is_private
