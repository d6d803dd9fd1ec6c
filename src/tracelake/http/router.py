"""Requests, endpoints, and the router that finds an endpoint by method and path."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from tracelake.tokens.token_claims import VerifiedClaims
from tracelake.tokens.users import UserClaims
from tracelake.wire.contract import Route
from tracelake.wire.parameters import PATH_PARAMETERS
from tracelake.wire.webhooks import SignedHead

B = TypeVar("B")
R = TypeVar("R")

_NO_PARAMETERS: Mapping[str, Any] = {}
_NO_BODY: Any = None


@dataclass(slots=True)
class HttpRequest(Generic[B]):
    """A checked request: the credential holds, the body has its type."""

    route: Route[B, Any]
    body: B = _NO_BODY
    claims: VerifiedClaims | None = None
    user: UserClaims | None = None
    signed: SignedHead | None = None
    """Of a delivery. It can be read, and no more: the signature is of a body that was not there yet."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Typed values of the path and the query. What the caller left out is at its default."""
    proven: bool = False
    """Whether a valid credential came with it, by header or, in a batch, with an item."""
    traceparent: str | None = None
    """The header of a user's request, as it came. Nobody else may say which trace to go on with."""

    def __getitem__(self, name: str) -> Any:
        """The value of a parameter."""
        return self.parameters[name]

    @property
    def task_claims(self) -> VerifiedClaims:
        assert self.claims is not None
        return self.claims

    @property
    def signed_head(self) -> SignedHead:
        assert self.signed is not None
        return self.signed

    @property
    def user_claims(self) -> UserClaims:
        assert self.user is not None
        return self.user


@dataclass(frozen=True, slots=True)
class RawReply:
    """A reply with a status, a media type or headers of its own."""

    body: bytes
    content_type: str
    status: int = 200
    max_age: int = 0
    """Seconds for which it may be cached; 0 is not at all."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Besides those of every reply."""


class Pieces(Protocol):
    """The body of a reply, piece by piece; `close` is called once, whether it was read to its end or not."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StreamReply:
    """A reply that is sent while it is made. If it cannot be finished the connection ends before the last piece."""

    pieces: Pieces
    content_type: str
    seconds: float
    """How long it may take, however slowly the caller reads."""
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route and the function that answers it."""

    route: Route[Any, Any]
    handler: Callable[[HttpRequest[Any]], Awaitable[Any]]
    ends_with_caller: bool = False
    """The handler is cancelled when the caller hangs up."""


def answer(
    route: Route[B, R],
    handler: Callable[[HttpRequest[B]], Awaitable[R | RawReply | StreamReply]],
    *,
    ends_with_caller: bool = False,
) -> Endpoint:
    """Binds a handler to a route; the handler takes the route's body and returns its reply."""
    return Endpoint(route, handler, ends_with_caller)


Methods: TypeAlias = Mapping[str, Endpoint]


class Router:
    """Finds exact paths by one look-up, and the few paths with parameters by their pattern."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._exact: dict[str, dict[str, Endpoint]] = {}
        self._patterns: list[tuple[re.Pattern[str], dict[str, Endpoint]]] = []
        by_path: dict[str, dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            route = endpoint.route
            methods = by_path.setdefault(route.path, {})
            if route.method in methods:
                raise ValueError(f"two endpoints for {route.method} {route.path}")
            methods[route.method] = endpoint
        for path, methods in by_path.items():
            if "{" in path:
                pattern = re.sub(r"\{(\w+)\}", _group, path)
                self._patterns.append((re.compile(pattern), methods))
            else:
                self._exact[path] = methods
        self.routes = [endpoint.route for methods in by_path.values() for endpoint in methods.values()]

    def find(self, path: str) -> tuple[Methods, Mapping[str, str]] | None:
        """The methods of a path and the texts of its parameters, or None."""
        methods = self._exact.get(path)
        if methods is not None:
            return methods, _NO_PARAMETERS
        for pattern, candidates in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                return candidates, match.groupdict()
        return None


def _group(name: re.Match[str]) -> str:
    values = ".+" if PATH_PARAMETERS[name[1]].has_slashes else "[^/]+"
    return f"(?P<{name[1]}>{values})"
