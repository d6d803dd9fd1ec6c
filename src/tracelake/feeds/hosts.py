"""Which hosts the feeds of an org may call.

Public hosts on the usual ports, unless the stack forbids them; and the private hosts that the stack's operator names
for that org, each with its port. A private service belongs to named orgs, like an RPC endpoint.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from tracelake.catalogue.feeds.addresses import AddressError, HttpAddress, parse_host

PORTS = (80, 443)
"""Of public hosts."""


class FeedHosts(msgspec.Struct, frozen=True, kw_only=True):
    """What one org may call. It is sent to the process that does."""

    public: bool = True
    ports: tuple[Annotated[int, Meta(ge=1, le=65535)], ...] = PORTS
    private: frozenset[tuple[str, int]] = frozenset()
    """Host and port."""
    org: str = "ORG"
    """Whose entries of `feed_hosts` these are, for errors."""

    def is_named(self, address: HttpAddress) -> bool:
        return (address.host, address.port) in self.private

    def refusal_of(self, address: HttpAddress) -> str | None:
        """Why nobody looks for the host; None: its addresses decide."""
        if self.is_named(address):
            return None
        if not self.public:
            return "this stack calls only the hosts that its operator names (setting `feed_hosts`)"
        if address.port not in self.ports:
            ports = ", ".join(str(port) for port in self.ports)
            return (
                f"the port is {address.port}, and feeds call {ports} (setting `feed_ports`); a private host is named"
                f" with its port in the setting `feed_hosts`: {self.advise(address)}"
            )
        return None

    def advise(self, address: HttpAddress) -> str:
        """How the stack's operator lets this org call the address."""
        host = f"[{address.host}]" if ":" in address.host else address.host
        return f"restart the stack with `trace up --set feed_hosts={self.org}@{host}:{address.port}`"


def hosts_of(org: str, entries: Iterable[str], *, public: bool, ports: tuple[int, ...] = PORTS) -> FeedHosts:
    """`entries`: like `acme@prices.internal:8080`. Raises ValueError, which names the entry."""
    private = set()
    for entry in entries:
        owner, host, port = parse_entry(entry)
        if owner == org:
            private.add((host, port))
    return FeedHosts(public=public, ports=ports, private=frozenset(private), org=org)


def parse_entry(entry: str) -> tuple[str, str, int]:
    """Org, host and port. Raises ValueError."""
    org, at, place = entry.partition("@")
    host, colon, port = place.rpartition(":")
    try:
        if not at or not colon or not org or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65_535:
            raise AddressError("expected org@host:port")
        return org, parse_host(host), int(port)
    except AddressError as error:
        raise ValueError(f"feed_hosts: {entry!r}: {error}; write entries like acme@prices.internal:8080") from None


def parse_ports(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
