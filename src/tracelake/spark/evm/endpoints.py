"""Where the nodes are. Their addresses often carry keys, so they are shown by scheme, host and port alone.

Everything is read over HTTP. An address of a WebSocket (ws://, wss://) may stand among the others: whoever follows the
head of a chain lets it announce new blocks (`resolve_announcers`), and everybody else passes it over.
"""

import base64
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from tracelake.spark.evm.errors import NoEndpointError

PREFIX = "TRACE_RPC_"
_SHORT = 4
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
READABLE = ("http", "https")
ANNOUNCING = ("ws", "wss")


@dataclass(frozen=True, slots=True, repr=False)
class RpcEndpoint:
    scheme: str
    host: str
    port: int
    path: str
    authorization: str | None = None
    number: int = 1
    """Its place among the nodes of its name."""

    @property
    def alias(self) -> str:
        """How errors of tasks name it: everybody in the org reads them, and a host may be the operator's own affair."""
        return f"node-{self.number}"

    @property
    def label(self) -> str:
        """All of it that its owner may be shown."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def secrets(self) -> list[str]:
        """The parts of the rest that are long enough to be keys, as a node might repeat them."""
        parts = re.split("[/?&=]", self.path)
        if self.authorization is not None:
            encoded = self.authorization.removeprefix("Basic ")
            parts += [encoded, *base64.b64decode(encoded).decode().split(":", 1)]
        return [part for part in parts if len(part) > _SHORT]

    def __repr__(self) -> str:
        return f"<RpcEndpoint {self.label}>"


ResolveEndpoints: TypeAlias = Callable[[str, str], tuple[RpcEndpoint, ...]]
"""From a task's org and the name that its job's config gives (`rpc`) to the nodes behind it, which are that org's own,
with their WebSockets; raises `NoEndpointError`."""


def parse_endpoint(url: str, schemes: Collection[str] = READABLE) -> RpcEndpoint:
    """Raises ValueError, which says nothing of the address."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise ValueError("an RPC address is not a URL") from None
    if parts.scheme not in schemes or not parts.hostname:
        beginnings = " or ".join(f"{scheme}://" for scheme in schemes)
        raise ValueError(f"an RPC address must begin with {beginnings} and name a host")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or any(character <= " " for character in path):
        raise ValueError("an RPC address has characters that must be percent-encoded")
    authorization = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    return RpcEndpoint(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], path, authorization)


def endpoints_of(name: str, addresses: Mapping[str, str], *, absent: str | None = None) -> tuple[RpcEndpoint, ...]:
    """All addresses of a name, those of WebSockets included. `addresses`: by endpoint name, the URLs of its nodes,
    separated by commas. `absent` is the error without any."""
    urls = [url for url in addresses.get(name, "").split(",") if url.strip()]
    if not urls:
        raise NoEndpointError(
            absent
            or f"there are no RPC endpoints called {name!r}: set {PREFIX}{name.upper()} on the workers"
            " to the URLs of the nodes, separated by commas, or start the stack with its recorded chain"
            " (`trace up --set recorded_chain=example`); then retry the task"
        )
    try:
        endpoints = tuple(dict.fromkeys(parse_endpoint(url, (*READABLE, *ANNOUNCING)) for url in urls))
    except ValueError as error:
        raise NoEndpointError(f"the RPC endpoints called {name!r} cannot be used: {error}") from None
    if not any(endpoint.scheme in READABLE for endpoint in endpoints):
        raise NoEndpointError(
            f"the RPC endpoints called {name!r} cannot be used: a WebSocket only announces blocks, so an address that"
            " begins with http:// or https:// must stand beside it"
        )
    return endpoints


def from_environment(name: str) -> tuple[RpcEndpoint, ...]:
    """`TRACE_RPC_<NAME>` of this process."""
    if not _NAME.fullmatch(name):
        raise NoEndpointError(f"{name!r} is no name of RPC endpoints")
    return endpoints_of(name, {name: os.environ.get(PREFIX + name.upper(), "")})


def resolve_for_anybody(_org: str, name: str) -> tuple[RpcEndpoint, ...]:
    """The default way, for a process that works for one org alone. Workers set another (`resolve_with`)."""
    return from_environment(name)


class _Resolver:
    resolve: ResolveEndpoints = staticmethod(resolve_for_anybody)


def resolve_with(resolve: ResolveEndpoints) -> None:
    """For composition roots: from now on, names of endpoints are looked up by this."""
    _Resolver.resolve = staticmethod(resolve)


def resolve(org: str, name: str) -> tuple[RpcEndpoint, ...]:
    """The nodes to read from."""
    return tuple(endpoint for endpoint in _Resolver.resolve(org, name) if endpoint.scheme in READABLE)


def resolve_announcers(org: str, name: str) -> tuple[RpcEndpoint, ...]:
    """The WebSockets of nodes; there may be none."""
    return tuple(endpoint for endpoint in _Resolver.resolve(org, name) if endpoint.scheme in ANNOUNCING)
