"""The ASGI application of one listener.

It is deliberately small: find the route, check the credential and the role, read the parameters and a bounded body,
decode it strictly, call the handler, encode the reply. Every failure leaves as a code from the catalogue and nothing
else.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from tracelake.errors import TraceError
from tracelake.http.bodies import (
    ANONYMOUS_BATCH_BYTES,
    BodyBudget,
    HungUpError,
    Receive,
    declared_size,
    read_body,
)
from tracelake.http.connections import CONNECTION, ClientConnection, Stage
from tracelake.http.metrics import HttpMetrics
from tracelake.http.router import HttpRequest, Methods, RawReply, Router, StreamReply
from tracelake.wire.base import ErrorBody, ErrorInfo
from tracelake.wire.contract import HEADERS, Listener, Principal, Route

logger = logging.getLogger(__name__)

Scope: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_JSON = b"application/json"
_CLOSE = (b"connection", b"close")
_MOST_DISCARDED = 1024 * 1024
_NO_STATE: dict[str, Any] = {}
_FIELD = re.compile(r" - at `\$\.?(.*)`\Z", re.DOTALL)
_NAMED = re.compile(r"Object (?:contains unknown|missing required) field `(.*)`", re.DOTALL)
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_ENCODER = msgspec.json.Encoder()


class Admission(Protocol):
    """The check of a caller's credential, rate and role, before anything of the body is read."""

    async def admit(self, request: HttpRequest[Any], header: Callable[[str], str | None]) -> None:
        """Raises 401, 403 or 429, or leaves what the credential says in the request."""


def _ignore_refusal(route: Route[Any, Any], code: str) -> None:
    pass


@dataclass(eq=False)
class ListenerApp:
    name: str
    router: Router
    admission: Admission
    metrics: HttpMetrics
    body_max_bytes: int
    batch_body_max_bytes: int
    webhook_max_bytes: int
    anonymous_body_bytes: int
    on_refusal: Callable[[Route[Any, Any], str], None] = _ignore_refusal
    """Called with the route and the error code of every request that is refused."""

    def __post_init__(self) -> None:
        self._anonymous = BodyBudget(self.anonymous_body_bytes)
        self._counters: dict[tuple[str, int], Any] = {}
        self._seconds: dict[str, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        label, max_age, wait = "-", 0, 0
        route: Route[Any, Any] | None = None
        began = time.perf_counter()
        more: tuple[tuple[bytes, bytes], ...] = ()
        connection: ClientConnection | None = scope.get("state", _NO_STATE).get(CONNECTION)
        try:
            methods, in_path = self._find(scope)
            endpoint = methods.get(scope["method"])
            if endpoint is None:
                raise TraceError("method_not_allowed", allowed=sorted(methods))
            route = endpoint.route
            label = route.path
            request = HttpRequest(route)
            await self.admission.admit(request, lambda name: _header(scope, name))
            _note_credential(request, connection)
            if in_path or route.query or scope.get("query_string"):
                request.parameters = route.read_parameters(in_path, _query(scope))
            if route.reads_body:
                body = await self._read_body(scope, receive, request, connection)
                request.body = body
                if route.decoder is not None:
                    request.body = decode(route.decoder, body, per_item=bool(route.items))
            if endpoint.ends_with_caller:
                reply = await _while_connected(endpoint.handler(request), receive)
            else:
                reply = await endpoint.handler(request)
            _note_credential(request, connection)
            if isinstance(reply, StreamReply):
                status = await _send_stream(send, receive, reply)
                self._count(label, status, time.perf_counter() - began)
                return
            if isinstance(reply, RawReply):
                max_age, more = reply.max_age, reply.headers
                status, body, kind = reply.status, reply.body, reply.content_type.encode()
            elif isinstance(reply, bytes):
                status, body, kind = 200, reply, route.reply_media.encode()
            else:
                status, body, kind = 200, _ENCODER.encode(reply), _JSON
        except HungUpError:
            return
        except TraceError as refusal:
            status, body, kind = refusal.status, error_body(refusal), _JSON
            wait = refusal.details.get("retry_after_seconds", 0)
            if status == 409:
                self.metrics.fenced.labels(label, refusal.code).inc()
            self._count_refused(route, refusal.code)
        except Exception:
            logger.exception("request failed", extra={"listener": self.name, "route": label})
            status, body, kind = 500, error_body(TraceError("internal")), _JSON
            self.metrics.internal_errors.inc()
            self._count_refused(route, "internal")
        self._count(label, status, time.perf_counter() - began)
        if _closes(scope, status, connection):
            more = (*more, _CLOSE)
        await _send(send, status, body, kind, max_age, wait, more)

    async def _read_body(
        self, scope: Scope, receive: Receive, request: HttpRequest[Any], connection: ClientConnection | None
    ) -> bytes:
        """A bounded body. Who has shown no credential shares what there is for such callers."""
        route = request.route
        limit = self.batch_body_max_bytes if route.large else self.body_max_bytes
        if route.principal is Principal.WEBHOOK:
            limit = self.webhook_max_bytes
        too_large = TraceError("body_too_large", limit_bytes=limit)
        if route.principal is Principal.ITEMS and not (request.proven or (connection and connection.proven)):
            if limit > ANONYMOUS_BATCH_BYTES:
                limit = ANONYMOUS_BATCH_BYTES
                message = f"A batch above {limit} bytes needs the capability token of one of its items in the header."
                too_large = TraceError("credential_missing", message, header=HEADERS[Principal.TASK])
        elif route.principal is not Principal.WEBHOOK:
            return await read_body(receive, _declared(scope, limit), limit, too_large)
        declared = _declared(scope, limit)
        size = limit if declared is None else min(declared, limit)
        address = connection.address if connection else ""
        with self._anonymous.reserve(address, size, self._busy()):
            return await read_body(receive, declared, limit, too_large)

    def _busy(self) -> TraceError:
        if self.name == Listener.PUBLIC:
            return TraceError("rate_limited", retry_after_seconds=1)
        return TraceError("listener_busy", retry_after_seconds=1)

    def _find(self, scope: Scope) -> tuple[Methods, Mapping[str, str]]:
        # No path of ours needs an escape; one that has some is a way around a rule in front of us.
        routes = None if b"%" in scope.get("raw_path", b"") else self.router.find(scope["path"])
        if routes is None:
            raise TraceError("route_not_found")
        return routes

    def _count_refused(self, route: Route[Any, Any] | None, code: str) -> None:
        if route is not None:
            self.on_refusal(route, code)

    def _count(self, label: str, status: int, seconds: float) -> None:
        counter = self._counters.get((label, status))
        if counter is None:
            counter = self.metrics.requests.labels(self.name, label, str(status))
            self._counters[(label, status)] = counter
        counter.inc()
        timer = self._seconds.get(label)
        if timer is None:
            timer = self._seconds[label] = self.metrics.request_seconds.labels(self.name, label)
        timer.observe(seconds)


def decode(decoder: msgspec.json.Decoder[Any], body: bytes | msgspec.Raw, *, per_item: bool = False) -> Any:
    """Strict decoding: 400 for what is not JSON, 422 with the field for what is not this type.

    `per_item`: the items of this body are decoded by themselves later, so that a bad one fails alone.
    """
    # The plain search is a hundred times faster than the pattern and nearly always says no.
    if not per_item and b"\\u0000" in bytes(body) and _NUL.search(body):
        raise TraceError("body_invalid", "The character U+0000 cannot be stored.", field="")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        _check_well_formed(body)
        raise _invalid(str(error)) from error
    except _MALFORMED as error:
        raise TraceError("body_malformed") from error


def _check_well_formed(body: bytes | msgspec.Raw) -> None:
    """A typed decoder stops at the first wrong field; what comes after it may not even be JSON."""
    try:
        msgspec.json.decode(body)
    except msgspec.ValidationError:  # a number beyond every range is still JSON
        return
    except _MALFORMED as error:
        raise TraceError("body_malformed") from error


def _invalid(text: str) -> TraceError:
    field_match = _FIELD.search(text)
    field = field_match.group(1) if field_match else ""
    message = _FIELD.sub("", text)
    name_match = _NAMED.fullmatch(message)
    if name_match:
        field = f"{field}.{name_match.group(1)}" if field else name_match.group(1)
    return TraceError("body_invalid", message, field=field)


def error_body(error: TraceError) -> bytes:
    return _ENCODER.encode(ErrorBody(error=ErrorInfo(code=error.code, message=error.message, details=error.details)))


async def _wait_for_hang_up(receive: Receive) -> None:
    """Passes over a body that nobody read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _while_connected(work: Awaitable[Any], receive: Receive) -> Any:
    """The handler's reply. If the caller hangs up first, the handler is cancelled and has ended when this raises."""
    task = asyncio.ensure_future(work)
    hang_up = asyncio.ensure_future(_wait_for_hang_up(receive))
    try:
        await asyncio.wait({task, hang_up}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        raise HungUpError
    finally:
        hang_up.cancel()
        task.cancel()


def _note_credential(request: HttpRequest[Any], connection: ClientConnection | None) -> None:
    if connection is not None and request.proven:
        connection.proven = True


def _closes(scope: Scope, status: int, connection: ClientConnection | None) -> bool:
    """Whether the connection ends with this reply.

    What is left of a refused body is read and thrown away, so that the caller gets to read the reply; unless it is more
    than anybody may send. And who shows a credential that does not hold pays for a handshake before the next.
    """
    if status == 413:
        return True
    if status < 400 or connection is None:
        return False
    if connection.stage is Stage.BODY:
        declared = _declared(scope, _MOST_DISCARDED)
        return declared is None or declared > _MOST_DISCARDED
    return status == 401 and not connection.proven


def _declared(scope: Scope, limit: int) -> int | None:
    return declared_size(_header(scope, "content-length"), limit)


def _header(scope: Scope, name: str) -> str | None:
    """The header's value. Sent twice is as good as not at all: nobody should have to guess which one counted."""
    encoded_name = name.encode()
    values = [value for key, value in scope["headers"] if key == encoded_name]
    return values[0].decode("latin-1") if len(values) == 1 else None


def _query(scope: Scope) -> list[tuple[str, str]]:
    text: bytes = scope.get("query_string", b"")
    if not text:
        return []
    try:
        return parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=32)
    except ValueError as error:
        raise TraceError("body_invalid", "The query string cannot be read.", field="query") from error


async def _send(
    send: Send,
    status: int,
    body: bytes,
    kind: bytes,
    max_age: int,
    wait: int,
    more: tuple[tuple[bytes, bytes], ...] = (),
) -> None:
    headers = [
        (b"content-type", kind),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"max-age=%d" % max_age if max_age else b"no-store"),
        *more,
    ]
    if wait:
        headers.append((b"retry-after", b"%d" % wait))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_stream(send: Send, receive: Receive, reply: StreamReply) -> int:
    """The status to count. A reply that ends early has no last piece: the caller sees that it is not whole."""
    headers = [(b"content-type", reply.content_type.encode()), (b"cache-control", b"no-store"), *reply.headers]
    hang_up = asyncio.ensure_future(receive())  # the body was read: nothing else can come
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with asyncio.timeout(reply.seconds):
            async for piece in reply.pieces:
                if hang_up.done():
                    return 200
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        return 200
    except Exception as error:
        logger.warning("a reply was not finished", extra={"reason": type(error).__name__})
        return 503
    finally:
        hang_up.cancel()
        await reply.pieces.close()
