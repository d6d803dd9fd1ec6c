"""Routes as data: listener, method, path, principal, body, reply. Routers, OpenAPI and the access test all
read this.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from tracelake.dispatcher.tokens.claims import VerifiedClaims
from tracelake.dispatcher.users import UserClaims

_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


class Listener(StrEnum):
    PUBLIC = "public"
    TASK = "task"
    INTERNAL = "internal"


class Principal(StrEnum):
    """Who may call a route, and by which header."""

    NOBODY = "none"
    USER = "user"
    TASK = "task"
    ITEMS = "per item"
    """A batch: every item carries its own capability token."""
    WORKER = "worker"
    SERVICE = "service"


@dataclass(slots=True)
class Request:
    """A checked request: the credential holds, the body has its type."""

    route: "Route"
    body: Any = None
    claims: VerifiedClaims | None = None
    user: UserClaims | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    path: Mapping[str, str] = field(default_factory=dict)

    @property
    def task_claims(self) -> VerifiedClaims:
        assert self.claims is not None
        return self.claims


@dataclass(frozen=True, slots=True)
class Raw:
    """A reply that is not JSON."""

    body: bytes
    content_type: str
    status: int = 200
    max_age: int = 0
    """Seconds for which it may be cached; 0 is not at all."""


Handler: TypeAlias = Callable[[Request], Awaitable[msgspec.Struct | Raw]]


@dataclass(frozen=True)
class QueryParameter:
    name: str
    kind: Any
    """What msgspec can make a schema of; the handler itself checks the text."""
    required: bool = False
    description: str = ""


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
    query: tuple[QueryParameter, ...] = ()
    batch: bool = False
    """A batch form: allowed a larger body."""
    per_item: bool = False
    """The items of the body are decoded one by one by the handler."""

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[Any] | None:
        return None if self.body is None else msgspec.json.Decoder(self.body)

    @cached_property
    def parameters(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", self.path)


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
                pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)
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


def parse_uuid(text: str | None) -> UUID | None:
    """The hyphenated form alone: `UUID` itself also reads braces, urn:, underscores and foreign digits."""
    return UUID(text) if text and _UUID.fullmatch(text) else None
