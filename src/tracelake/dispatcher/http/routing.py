"""Routes as data: listener, method, path, principal, role, parameters, body, reply. Routers, OpenAPI and the access
test all read this.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from tracelake.dispatcher.http.parameters import PATH_PARAMETERS, Parameter
from tracelake.dispatcher.tokens.claims import VerifiedClaims
from tracelake.dispatcher.users import Role, UserClaims
from tracelake.errors import TraceError
from tracelake.wire.webhooks import SignedHead


class Listener(StrEnum):
    PUBLIC = "public"
    TASK = "task"
    INTERNAL = "internal"


class Principal(StrEnum):
    """Who may call a route, and by which header."""

    NOBODY = "none"
    METRICS = "metrics"
    """A monitoring system: by the metrics token or the service token, unless the listener is on loopback."""
    USER = "user"
    TASK = "task"
    ITEMS = "per item"
    """A batch: every item carries its own capability token."""
    WORKER = "worker"
    SERVICE = "service"
    WEBHOOK = "signature"
    """Whoever has the secret of the webhook that the path names, and signed the body with it."""


@dataclass(slots=True)
class Request:
    """A checked request: the credential holds, the body has its type."""

    route: "Route"
    body: Any = None
    claims: VerifiedClaims | None = None
    user: UserClaims | None = None
    signed: SignedHead | None = None
    """Of a delivery. It can be read, and no more: the signature is of a body that was not there yet."""
    path: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    """Of both the typed values. What the caller left out is at its default."""
    proven: bool = False
    """Whether a valid credential came with it, by header or, in a batch, with an item."""
    traceparent: str | None = None
    """The header of a user's request, as it came. Nobody else may say which trace to go on with."""

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
class Raw:
    """A reply that is not JSON."""

    body: bytes
    content_type: str
    status: int = 200
    max_age: int = 0
    """Seconds for which it may be cached; 0 is not at all."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Besides those of every reply."""


Handler: TypeAlias = Callable[[Request], Awaitable[msgspec.Struct | Raw]]


@dataclass(frozen=True)
class Route:
    listeners: tuple[Listener, ...]
    method: str
    path: str
    principal: Principal
    handler: Handler
    summary: str
    body: type[msgspec.Struct] | None = None
    reply: type[Any] | None = None
    query: tuple[Parameter, ...] = ()
    role: Role | None = None
    """The least role of a user; None opens the route to every one of its principals."""
    raw_body: str | None = None
    """The media type of a body that the handler gets as bytes."""
    raw_reply: str | None = None
    """The media type of a reply that the handler gives as bytes."""
    batch: bool = False
    """A batch form: allowed a larger body."""
    per_item: bool = False
    """The items of the body are decoded one by one by the handler."""

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[Any] | None:
        return None if self.body is None else msgspec.json.Decoder(self.body)

    @cached_property
    def parameters(self) -> list[Parameter]:
        """Those of the path."""
        return [PATH_PARAMETERS[name] for name in re.findall(r"\{(\w+)\}", self.path)]

    @property
    def reads_body(self) -> bool:
        return self.body is not None or self.raw_body is not None

    def read_path(self, found: Mapping[str, str]) -> dict[str, Any]:
        return {parameter.name: parameter.read(found[parameter.name]) for parameter in self.parameters}

    def read_query(self, found: list[tuple[str, str]]) -> dict[str, Any]:
        """The typed values; 422 with the name for whatever does not belong there.

        People misspell: on their routes an unknown name is an error and not a filter that filters nothing.
        """
        values: dict[str, str] = {}
        known = {parameter.name for parameter in self.query}
        for name, text in found:
            if name in values:
                raise TraceError("body_invalid", "This parameter is there twice.", field=name[:100])
            if name not in known and self.principal is Principal.USER:
                raise TraceError("body_invalid", "There is no such parameter.", field=name[:100])
            values[name] = text
        return {parameter.name: parameter.read(values.get(parameter.name)) for parameter in self.query}


class Router:
    """Exact paths by one look-up; the few with parameters by their pattern."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: list[tuple[re.Pattern[str], dict[str, Route]]] = []
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            methods = by_path.setdefault(route.path, {})
            if route.method in methods:
                raise ValueError(f"two routes for {route.method} {route.path}")
            methods[route.method] = route
        for path, methods in by_path.items():
            if "{" in path:
                pattern = re.sub(r"\{(\w+)\}", _group, path)
                self._patterns.append((re.compile(pattern), methods))
            else:
                self._exact[path] = methods

    def find(self, path: str) -> tuple[dict[str, Route], dict[str, str]] | None:
        """The methods of a path and its parameters, or None."""
        methods = self._exact.get(path)
        if methods is not None:
            return methods, {}
        for pattern, candidates in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                return candidates, match.groupdict()
        return None


def _group(found: re.Match[str]) -> str:
    values = ".+" if PATH_PARAMETERS[found[1]].has_slashes else "[^/]+"
    return f"(?P<{found[1]}>{values})"
