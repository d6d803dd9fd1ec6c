"""One request and its answer, over any redirects; bounded in bytes, in hops and in seconds.

An answer is whole or it is none. Every hop is an address like the first: read strictly, resolved, checked. Headers of
the config, which may hold secrets, and bodies go to the origin that the config names, and to no other.
"""

import http.client
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from urllib.parse import urljoin

from tracelake.catalogue.feeds.addresses import AddressError, HttpAddress, parse_address
from tracelake.feeds.dialling import Resolve, find_addresses, open_connection, resolve_host
from tracelake.feeds.errors import FeedError, FeedRefusedError
from tracelake.feeds.hosts import FeedHosts
from tracelake.outbound_http import describe_failure, read_retry_after

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SAME_METHOD = frozenset({307, 308})
_PIECE = 256 * 1024
_USER_AGENT = "tracelake"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class FeedRequest:
    address: HttpAddress = field(repr=False)
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of the config, secrets included."""
    accept: str = "*/*"
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class FeedLimits:
    max_bytes: int
    max_redirects: int
    request_seconds: float
    open_ended: bool = False
    """An answer may end with its connection: its format shows whether it is whole."""


@dataclass(frozen=True, slots=True)
class FeedReply:
    status: int
    body: bytes
    content_type: str = ""
    link: str | None = None
    retry_after: float | None = None
    address: HttpAddress | None = field(default=None, repr=False)
    """The address that answered."""


@dataclass(eq=False)
class FeedClient:
    hosts: FeedHosts
    resolve: Resolve = resolve_host
    clock: Callable[[], float] = time.monotonic

    @cached_property
    def tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def ask(self, request: FeedRequest, limits: FeedLimits, until: float) -> FeedReply:
        """The answer, whatever its status; not a redirect. `until`: on our clock. Raises FeedError."""
        until = min(until, self.clock() + limits.request_seconds)
        for _ in range(limits.max_redirects + 1):
            reply, location = self._exchange(request, limits, until)
            if location is None:
                return reply
            request = _follow(request, reply.status, location)
        raise FeedError(f"{request.address.host}: more than {limits.max_redirects} redirects", final=True)

    def _exchange(self, request: FeedRequest, limits: FeedLimits, until: float) -> tuple[FeedReply, str | None]:
        def left() -> float:
            return until - self.clock()

        address = request.address
        answers = find_addresses(address, self.hosts, self.resolve, max(0.0, left()))
        connection = open_connection(address, answers, lambda: self.tls, left)
        try:
            return self._converse(connection, request, limits, left)
        except FeedError:
            raise
        except (OSError, http.client.HTTPException, zlib.error, ValueError) as error:
            # Its own words are not ours to repeat.
            raise FeedError(f"{address.host}: {describe_failure(error)}") from None
        finally:
            connection.close()

    def _converse(
        self,
        connection: http.client.HTTPConnection,
        request: FeedRequest,
        limits: FeedLimits,
        left: Callable[[], float],
    ) -> tuple[FeedReply, str | None]:
        address = request.address
        headers = {
            "host": address.authority,
            "user-agent": _USER_AGENT,
            "accept": request.accept,
            **{name.lower(): value for name, value in request.headers.items()},
            "accept-encoding": "gzip",
            "connection": "close",
        }
        if request.body is not None:
            headers["content-type"] = "application/json"
        connection.sock.settimeout(max(0.01, left()))
        connection.request(request.method, address.target, request.body, headers)
        response = connection.getresponse()
        location = response.getheader("location")
        if response.status in _REDIRECTS:
            if location is None:
                raise FeedError(f"{address.host} redirects to nowhere")
            return FeedReply(response.status, b""), location
        body = b""
        if response.status == 200:
            body = _unpack(response, _read(response, limits, address.host), limits, address.host)
        return (
            FeedReply(
                response.status,
                body,
                response.getheader("content-type") or "",
                response.getheader("link"),
                read_retry_after(response.getheader("retry-after")),
                address,
            ),
            None,
        )


def _follow(request: FeedRequest, status: int, location: str) -> FeedRequest:
    host = request.address.host
    try:
        address = parse_address(urljoin(str(request.address), location.partition("#")[0]))
    except (AddressError, ValueError) as error:
        reason = error if isinstance(error, AddressError) else "not an address"
        raise FeedRefusedError(f"{host} redirects to what cannot be called: {reason}") from None
    if request.address.scheme == "https" and address.scheme == "http":
        raise FeedRefusedError(f"{host} redirects from https to http")
    moved = address.origin != request.address.origin
    if request.method != "GET" and (moved or status not in _SAME_METHOD):
        raise FeedRefusedError(f"{host} redirects a POST: name the address that answers it in `url`")
    return replace(request, address=address, headers={} if moved else request.headers)


def _read(response: http.client.HTTPResponse, limits: FeedLimits, host: str) -> bytes:
    if response.length is None and not response.chunked and not limits.open_ended:
        raise FeedError(f"{host}: the answer tells neither its length nor its end, so nobody knows whether it is whole")
    if response.length is not None and response.length > limits.max_bytes:
        raise _too_large(limits, host)
    parts, size = [], 0
    while part := response.read1(_PIECE):
        parts.append(part)
        size += len(part)
        if size > limits.max_bytes:
            raise _too_large(limits, host)
    if response.length:
        raise FeedError(f"{host}: the answer was cut short")
    return b"".join(parts)


def _unpack(response: http.client.HTTPResponse, raw: bytes, limits: FeedLimits, host: str) -> bytes:
    encoding = (response.getheader("content-encoding") or "identity").strip().lower()
    if encoding == "identity":
        return raw
    if encoding not in ("gzip", "x-gzip"):
        raise FeedError(f"{host}: an answer in an encoding that nobody asked for", final=True)
    parts, size = [], 0
    while raw:
        if not raw.startswith(_GZIP):
            raise FeedError(f"{host}: the answer is not gzip as it says")
        unpacker = zlib.decompressobj(wbits=31)
        while raw and not unpacker.eof:
            part = unpacker.decompress(raw, limits.max_bytes + 1 - size)
            parts.append(part)
            size += len(part)
            if size > limits.max_bytes:
                raise _too_large(limits, host)
            raw = unpacker.unconsumed_tail
        if not unpacker.eof:
            raise FeedError(f"{host}: the answer was cut short")
        raw = unpacker.unused_data
    return b"".join(parts)


def _too_large(limits: FeedLimits, host: str) -> FeedError:
    text = f"{host}: an answer of more than {limits.max_bytes:,} bytes: ask for less, use paging, or raise `max_bytes`"
    return FeedError(text, final=True)
