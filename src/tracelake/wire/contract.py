"""The types that describe a route: how it is called, by whom, and the types of its body and its reply.

`wire/routes.py` declares every route with these types. The routers of the services, the clients, the OpenAPI documents,
the reference pages and the access tests read that table.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from types import NoneType
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import msgspec

from tracelake.errors import TraceError
from tracelake.wire.parameters import PATH_PARAMETERS, Parameter
from tracelake.wire.webhooks import SIGNATURE_HEADER

B = TypeVar("B")
R = TypeVar("R")

JSON = "application/json"
YAML = "application/yaml"
BYTES = "application/octet-stream"
"""The media type of bodies that are stored and returned unchanged."""
ARROW = "application/vnd.apache.arrow.stream"
"""Rows, streamed."""
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Listener(StrEnum):
    PUBLIC = "public"
    TASK = "task"
    INTERNAL = "internal"
    QUERY = "query"
    """Of the Query Service, for people."""
    QUERY_TASK = "query_task"
    """Of the Query Service, for tasks."""
    RUNNER = "runner"
    """Of a runner, for Dispatchers."""


DISPATCHER_LISTENERS = (Listener.PUBLIC, Listener.TASK, Listener.INTERNAL)
QUERY_LISTENERS = (Listener.QUERY, Listener.QUERY_TASK)
RUNNER_LISTENERS = (Listener.RUNNER,)


class Principal(StrEnum):
    """Who may call a route; `HEADERS` names the header of the credential."""

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


class Role(StrEnum):
    """What a user may do; each role includes the ones before it."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"

    @property
    def includes(self) -> "frozenset[Role]":
        return _INCLUDED[self]


_INCLUDED = {role: frozenset(list(Role)[: index + 1]) for index, role in enumerate(Role)}

HEADERS = {
    Principal.TASK: "x-trace-task-capability",
    Principal.WORKER: "x-trace-worker-token",
    Principal.SERVICE: "x-trace-service-token",
    Principal.USER: "authorization",
    Principal.WEBHOOK: SIGNATURE_HEADER,
}


class Idempotency(StrEnum):
    """What happens when the same call is sent again. Any call may be repeated after a lost reply."""

    READ = "reads only"
    SAME = "changes nothing more"
    KEY = "same by its key"
    """A key in the body, the query or a header identifies the call; without one, each call is a new one."""
    NEXT = "does the next part"


@dataclass(frozen=True)
class Access:
    """The listeners that carry a route, and who may call it there."""

    listeners: tuple[Listener, ...]
    principal: Principal
    role: Role | None = None
    """The least role of a user; None admits every user."""


@dataclass(frozen=True, eq=False)
class Route(Generic[B, R]):
    """One route of the HTTP contract. Its handler takes a `B` and returns an `R`; so does a client's call."""

    access: Access
    method: str
    path: str
    summary: str
    body: type[B]
    """`NoneType`: the route reads no body. `bytes`: the body is of `body_media` and is not decoded."""
    reply: type[R]
    """`bytes`: the reply is of `reply_media`."""
    query: tuple[Parameter, ...] = ()
    errors: tuple[str, ...] = ()
    """Codes of this route, besides those that its credential, body and parameters imply."""
    idempotency: Idempotency = Idempotency.SAME
    key: str | None = None
    """The field of the body that identifies a repeated call. Clients fill it in."""
    body_media: str = JSON
    reply_media: str = JSON
    large: bool = False
    """The body may be as large as a batch."""
    items: tuple[type[msgspec.Struct], ...] = ()
    """The types of the items of a batch. The handler decodes each item on its own, so that a bad one fails alone."""

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.path_parameters) + len(self.query):
            raise ValueError(f"{self.method} {self.path} has two parameters of one name")
        if self.method == "GET":
            object.__setattr__(self, "idempotency", Idempotency.READ)

    @cached_property
    def listeners(self) -> tuple[Listener, ...]:
        return self.access.listeners

    @cached_property
    def principal(self) -> Principal:
        return self.access.principal

    @cached_property
    def role(self) -> Role | None:
        return self.access.role

    @cached_property
    def path_parameters(self) -> tuple[Parameter, ...]:
        return tuple(PATH_PARAMETERS[name] for name in re.findall(r"\{(\w+)\}", self.path))

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all parameters."""
        return frozenset(parameter.name for parameter in (*self.path_parameters, *self.query))

    @cached_property
    def reads_body(self) -> bool:
        return self.body is not NoneType

    @cached_property
    def decoder(self) -> "msgspec.json.Decoder[B] | None":
        """The decoder of a JSON body."""
        return msgspec.json.Decoder(self.body) if issubclass(self.body, msgspec.Struct) else None

    @cached_property
    def reply_decoder(self) -> "msgspec.json.Decoder[R]":
        return msgspec.json.Decoder(self.reply)

    def read_parameters(self, in_path: Mapping[str, str], in_query: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """Returns the typed values by name; raises 422 with the name of a bad one.

        People misspell names: on their routes an unknown name is an error and not a filter that filters nothing.
        """
        values = {parameter.name: parameter.read(in_path[parameter.name]) for parameter in self.path_parameters}
        texts: dict[str, str] = {}
        query_names = {parameter.name for parameter in self.query}
        for name, text in in_query:
            if name in texts:
                raise TraceError("body_invalid", "The parameter is given twice.", field=name[:100])
            if name not in query_names and self.principal is Principal.USER:
                raise TraceError("body_invalid", "The route has no such parameter.", field=name[:100])
            texts[name] = text
        for parameter in self.query:
            values[parameter.name] = parameter.read(texts.get(parameter.name))
        return values

    def url(self, values: Mapping[str, Any]) -> str:
        """The path and query of a call with these values; parameters that are None are left out.

        A name that cannot exist raises the error that the server returns for one that does not exist: it would not
        survive as a part of a path.
        """
        unknown = values.keys() - self.names
        if unknown:
            raise TypeError(f"{self.method} {self.path} has no parameter {', '.join(sorted(unknown))}")
        path, texts = self.path, {name: _text(value) for name, value in values.items() if value is not None}
        for parameter in self.path_parameters:
            path = path.replace(f"{{{parameter.name}}}", parameter.check(texts.pop(parameter.name)))
        return f"{path}?{urlencode(texts)}" if texts else path


def _text(value: Any) -> str:
    """A parameter as it is written in a URL."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value)
