"""Typed client of the user API, `/v1/*` on the public listener.

Every call is idempotent: reads change nothing, a deploy is identified by its content, a trigger by a key (generated
here if the caller gives none), and cancel, retry and skip reply `duplicate`. So a 429 is repeated after the time that
the server asks for, within bounds, and after a 401 the token is read again once, because tokens rotate.

A name that no DAG, job or dataset can have raises the error of one that does not exist, without a call: it could not be
part of a path.

A restarted stack may have other addresses: after a call without a reply, the next call looks the stack up again.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload
from uuid import uuid4

import msgspec

from tracelake.client.calls import encode_body, read_reply
from tracelake.client.credentials import Credential, FileCredential
from tracelake.client.errors import DispatcherUnavailableError, StackDownError, error_from
from tracelake.client.http import HttpClient, HttpReply
from tracelake.client.stack import NoStackError, Stack
from tracelake.errors import TraceError
from tracelake.wire.contract import HEADERS, Principal, Route

B = TypeVar("B")
R = TypeVar("R")

TOKEN_VARIABLE = "TRACE_TOKEN"  # noqa: S105 - the variable's name

_HEADER = HEADERS[Principal.USER]
_MAX_TRIES = 5
_CONNECT_SECONDS = 10
_READ_SECONDS = 10
"""The timeout of reads, which are bounded; other calls have the timeout of `HttpClient`."""
_STREAM_SECONDS = 660.0
"""The timeout of streams; longer than a Dispatcher streams."""
_MAX_WAIT_SECONDS = 30
"""A longer Retry-After is reported to the caller as an error."""


class TextCredential:
    """A token given as text, which cannot be read again."""

    def __init__(self, token: str) -> None:
        self._token = token

    def current(self) -> str:
        return self._token

    def newer_than(self, refused: str) -> str | None:  # noqa: ARG002 - the protocol's
        return None


def user_credential(stack: Stack, token_file: Path | None, environ: Mapping[str, str] = os.environ) -> Credential:
    """The given file; else the token of the context; on the machine of the stack TRACE_TOKEN, else its admin token.

    TRACE_TOKEN belongs to a stack of this machine. It is not sent to that of a context, which has a token of its own.
    Where it is set and empty, somebody meant another token than the admin's: raises credential_missing.
    """
    if token_file is not None:
        return FileCredential(token_file)
    token = environ.get(TOKEN_VARIABLE) if stack.context is None else None
    if token is None:
        return FileCredential(Path(stack.user_token_file))
    if not token.strip():
        raise TraceError("credential_missing", f"{TOKEN_VARIABLE} is set, but empty: set it to a token, or unset it.")
    return TextCredential(token.strip())


def is_own_token(stack: Stack, token_file: Path | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether nobody gave a token, so that it is the one of the stack's context or of its admin."""
    return token_file is None and (stack.context is not None or TOKEN_VARIABLE not in environ)


class UserClient:
    def __init__(
        self, http: HttpClient, credential: Credential, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._http = http
        self._credential = credential
        self._sleep = sleep
        self._lost = False
        """The last call had no reply."""
        self._place: _Place | None = None
        self.on_wait: Callable[[TraceError, float], object] | None = None
        """Called before a wait that the server asked for, with its refusal and the seconds."""
        self.is_remote = False
        """The stack is one of a context: its object store need not be reachable from here."""

    @classmethod
    def of_stack(
        cls,
        stack: Stack,
        token_file: Path | None = None,
        *,
        again: Callable[[], Stack] | None = None,
        credential: Credential | None = None,
    ) -> "UserClient":
        """`again` looks the stack up again, or raises NoStackError; without it the first address is kept."""
        client = cls(_http(stack), credential or user_credential(stack, token_file))
        client.is_remote = stack.context is not None
        if again is not None:
            client._place = _Place(stack, token_file, again, credential)
        return client

    async def close(self) -> None:
        await self._http.close()

    @overload
    async def call(self, route: Route[None, R], /, **parameters: Any) -> R: ...
    @overload
    async def call(self, route: Route[B, R], body: B, /, **parameters: Any) -> R: ...
    async def call(self, route: Route[Any, R], body: Any = None, /, **parameters: Any) -> R:
        """Parameters of the path and the query are given by name; None leaves one out."""
        return read_reply(route, await self._call(route, body, parameters))

    async def exchange(self, route: Route[B, Any], body: B, /, **parameters: Any) -> HttpReply:
        """The reply of a route whose body is not always JSON; raises the error of an error status."""
        reply = await self._call(route, body, parameters)
        if not 200 <= reply.status < 300:
            raise error_from(reply.status, reply.body)
        return reply

    async def stream(
        self, route: Route[B, bytes], body: B, sink: Callable[[bytes], object], /, **parameters: Any
    ) -> None:
        """Passes the reply to `sink` part by part; raises if it breaks off."""
        read_reply(route, await self._call(route, body, parameters, sink))

    async def _call(
        self,
        route: Route[Any, Any],
        body: Any,
        parameters: Mapping[str, Any],
        sink: Callable[[bytes], object] | None = None,
    ) -> HttpReply:
        url, data = route.url(parameters), encode_body(route, _with_key(route, body))
        if self._lost and self._place is not None:
            await self._find_again(self._place)
        try:
            reply = await self._send(route, url, data, sink)
        except DispatcherUnavailableError:
            self._lost = True
            raise
        self._lost = False
        return reply

    async def _find_again(self, place: "_Place") -> None:
        try:
            stack = place.again()
            if stack == place.stack:
                return
            http = _http(stack)
        except (NoStackError, OSError):
            raise StackDownError("the stack is down") from None
        await self._http.close()
        self._http, self._credential = http, place.credential or user_credential(stack, place.token_file)
        place.stack = stack

    async def _send(
        self, route: Route[Any, Any], url: str, body: bytes | None, sink: Callable[[bytes], object] | None
    ) -> HttpReply:
        token, looked_again = self._credential.current(), False
        for tries in range(1, _MAX_TRIES + 1):
            reply = await self._http.request(
                route.method,
                url,
                body=body,
                headers=[(_HEADER, f"Bearer {token}")],
                timeout=_STREAM_SECONDS if sink is not None else _READ_SECONDS if route.method == "GET" else None,
                content_type=route.body_media,
                sink=sink,
            )
            if reply.status == 401 and not looked_again:
                newer, looked_again = self._credential.newer_than(token), True
                if newer is not None:
                    token = newer
                    continue
            wait = 1 if reply.retry_after is None else reply.retry_after
            if reply.status != 429 or wait > _MAX_WAIT_SECONDS or tries == _MAX_TRIES:
                break
            if self.on_wait is not None:
                self.on_wait(error_from(reply.status, reply.body), wait)
            await self._sleep(wait)
        return reply


@dataclass(slots=True)
class _Place:
    """Where the stack was found, and how to look it up again."""

    stack: Stack
    token_file: Path | None
    again: Callable[[], Stack]
    credential: Credential | None = None


def _http(stack: Stack) -> HttpClient:
    return HttpClient(stack.public_url, stack.ca_file, connect_timeout=_CONNECT_SECONDS)


def _with_key(route: Route[Any, Any], body: Any) -> Any:
    """The body with a generated key, so that a call repeated after a lost reply is not a second trigger."""
    if route.key is None or getattr(body, route.key) is not None:
        return body
    return msgspec.structs.replace(body, **{route.key: str(uuid4())})
