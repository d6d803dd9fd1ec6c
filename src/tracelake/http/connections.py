"""The connections of one listener: how many it holds, for whom, and for how long.

A listener has a limit of connections, and so has each address that connects to it (for IPv6 each /64). A newcomer at
a limit takes the place of a connection that nobody would miss, of the address that holds the most: first one that
never showed a valid credential, then an idle one, then one whose request is not complete. A request that is being
handled is never cut off; if there is nothing else, the newcomer is refused.

Every stage before a request is complete has a deadline that starts with the stage, so that bytes that trickle in do
not extend it; a body must also keep a least rate. The stages:

    silent     connected, no byte received: costs a descriptor, no TLS state
    handshake  TLS
    head       until the headers of a request are complete
    body       until its body is complete
    handling   the handler runs
    idle       from the reply to the next request
"""

import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

CONNECTION = "connection"
"""Where the state of an ASGI scope holds the `ClientConnection`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    connections: int
    address_connections: int
    handshakes: int
    """TLS handshakes at once: what a turn of the event loop spends on them."""
    handshake_seconds: float
    """From the connection to the end of the handshake."""
    head_seconds: float
    body_seconds: float
    body_bytes_per_second: int
    """Least rate of a body, after a grace of a quarter of `body_seconds`."""
    idle_seconds: float
    """From a reply to the next request; a reply that is not read by then is given up too."""

    @property
    def shortest_seconds(self) -> float:
        return min(self.handshake_seconds, self.head_seconds, self.body_seconds, self.idle_seconds)


class Stage(StrEnum):
    SILENT = "silent"
    HANDSHAKE = "handshake"
    HEAD = "head"
    BODY = "body"
    HANDLING = "handling"
    IDLE = "idle"


class ClientConnection:
    """What a listener knows of one connection. `abort` ends it at once, without a word to the client."""

    __slots__ = ("abort", "address", "body_bytes", "proven", "since", "stage")

    def __init__(self, address: str, now: float, abort: Callable[[], object]) -> None:
        self.address = address
        self.abort = abort
        self.stage = Stage.SILENT
        self.since = now
        """When the stage began."""
        self.proven = False
        """Whether a valid credential was seen on it."""
        self.body_bytes = 0
        """Received of the body so far."""

    def enter(self, stage: Stage, now: float) -> None:
        self.stage = stage
        self.since = now

    @property
    def rank(self) -> int:
        """Whom to give up first: the lowest."""
        if not self.proven:
            return 0
        return 1 if self.stage is Stage.IDLE else 2

    def overdue(self, limits: ListenerLimits, now: float) -> bool:
        age = now - self.since
        match self.stage:
            case Stage.SILENT | Stage.HANDSHAKE:
                return age > limits.handshake_seconds
            case Stage.HEAD:
                return age > limits.head_seconds
            case Stage.BODY:
                paced = age - limits.body_seconds / 4
                return age > limits.body_seconds or self.body_bytes < paced * limits.body_bytes_per_second
            case Stage.IDLE:
                return age > limits.idle_seconds
            case Stage.HANDLING:
                return False


class ConnectionTable:
    """The connections of one listener, by address. It decides; whoever asks does."""

    def __init__(self, limits: ListenerLimits) -> None:
        self.limits = limits
        self._by_address: dict[str, dict[ClientConnection, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ClientConnection]:
        for connections in self._by_address.values():
            yield from connections

    def add(self, connection: ClientConnection) -> None:
        self._by_address.setdefault(connection.address, {})[connection] = None
        self._count += 1

    def remove(self, connection: ClientConnection) -> None:
        """Does nothing for one that is gone already."""
        siblings = self._by_address.get(connection.address)
        if siblings is None or connection not in siblings:
            return
        del siblings[connection]
        self._count -= 1
        if not siblings:
            del self._by_address[connection.address]

    def reached_limit(self, address: str) -> str | None:
        """Which limit one more connection of this address would exceed."""
        if len(self._by_address.get(address, ())) >= self.limits.address_connections:
            return "address"
        return "listener" if self._count >= self.limits.connections else None

    def expendable(self, address: str | None = None) -> ClientConnection | None:
        """The connection to give up for a newcomer: of this address, else of the one that holds the most."""
        if address is not None:
            return _weakest(self._by_address.get(address, {}))
        heaviest = max(self._by_address, key=lambda name: len(self._by_address[name]), default=None)
        if heaviest is None:
            return None
        return _weakest(self._by_address[heaviest]) or _weakest(self)

    def overdue(self, now: float) -> list[ClientConnection]:
        return [connection for connection in self if connection.overdue(self.limits, now)]


def _weakest(connections: "dict[ClientConnection, None] | ConnectionTable") -> ClientConnection | None:
    candidates = (connection for connection in connections if connection.stage is not Stage.HANDLING)
    return min(candidates, key=lambda connection: (connection.rank, connection.since), default=None)


def address_key(host: str) -> str:
    """Whose connections count together: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
