"""Connections to hosts whose addresses were checked.

A name is resolved here, each of its addresses is checked, and the connection is made to one of those very addresses:
nobody resolves the name a second time, so an answer that changes in between has no effect.
"""

import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from tracelake.catalogue.feeds.addresses import HttpAddress
from tracelake.feeds.errors import FeedError, FeedRefusedError
from tracelake.feeds.hosts import FeedHosts
from tracelake.feeds.networks import IpAddress, is_never_a_host, is_own, refusal_of
from tracelake.outbound_http import TimedResponse, describe_failure

Resolve: TypeAlias = Callable[[str, int, float], Sequence[IpAddress]]
"""From a host and a port to its addresses, in at most so many seconds; raises OSError."""

CONNECT_SECONDS = 10.0
_MOST_ADDRESSES = 16


def resolve_host(host: str, port: int, seconds: float) -> list[IpAddress]:
    """By the machine's resolver, which has no limit of time of its own."""
    answers: list[IpAddress] = []
    problems: list[OSError] = []

    def ask() -> None:
        try:
            for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                answers.append(ipaddress.ip_address(place[0]))
        except OSError as error:
            problems.append(error)
        except ValueError:
            problems.append(OSError("not an address"))

    asking = threading.Thread(target=ask, name="resolver", daemon=True)
    asking.start()
    asking.join(seconds)
    if asking.is_alive():
        raise TimeoutError
    if problems:
        raise problems[0]
    return list(dict.fromkeys(answers))


def find_addresses(address: HttpAddress, hosts: FeedHosts, resolve: Resolve, seconds: float) -> list[IpAddress]:
    """Every address of the host, each of them checked. One that is refused refuses all. Raises FeedError."""
    host = address.host
    is_named = hosts.is_named(address)
    literal = _read_literal(host)
    if literal is not None and hosts.public and not is_named and (reason := _public_refusal(literal)) is not None:
        raise _refuse_private(address, reason, hosts)  # whatever its port is: no setting of ports lets it be called
    if (reason := hosts.refusal_of(address)) is not None:
        raise FeedRefusedError(f"{host} may not be called: {reason}")
    if literal is not None:
        answers = [literal]
    else:
        try:
            answers = list(resolve(host, address.port, seconds))[:_MOST_ADDRESSES]
        except OSError as error:
            text = "no answer in time" if isinstance(error, TimeoutError) else "the name is not known"
            raise FeedError(f"{host} cannot be found: {text}") from None
    if not answers:
        raise FeedError(f"{host} cannot be found: it has no address")
    for answer in answers:
        refusal = _named_refusal(answer, is_literal=literal is not None) if is_named else _public_refusal(answer)
        if refusal is not None:
            raise _refuse_private(address, refusal, hosts)
    return answers


def _read_literal(host: str) -> IpAddress | None:
    """The address, if the host is one; None: it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _refuse_private(address: HttpAddress, reason: str, hosts: FeedHosts) -> FeedRefusedError:
    return FeedRefusedError(
        f"{address.host} may not be called: it has an address that is {reason}. For a private host, the stack's"
        f" operator names it in the setting `feed_hosts`: {hosts.advise(address)}"
    )


def _public_refusal(answer: IpAddress) -> str | None:
    reason = refusal_of(answer)
    return "of the machine itself" if reason is None and is_own(answer) else reason


def _named_refusal(answer: IpAddress, *, is_literal: bool) -> str | None:
    return "never a host's" if not is_literal and is_never_a_host(answer) else None


def open_connection(
    address: HttpAddress, answers: Sequence[IpAddress], tls: Callable[[], ssl.SSLContext], left: Callable[[], float]
) -> http.client.HTTPConnection:
    """A connection to the first of these addresses that takes one. Raises FeedError."""
    failure: Exception = OSError()
    for answer in answers:
        if left() <= 0:
            failure = TimeoutError()
            break
        seconds = min(CONNECT_SECONDS, left())
        connection = http.client.HTTPConnection(address.host, address.port, timeout=seconds)
        connection.auto_open = 0  # never by the name
        connection.response_class = partial(TimedResponse, left=left)  # type: ignore[assignment]
        try:
            raw = socket.create_connection((str(answer), address.port), seconds)
            try:
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if address.scheme == "https":
                    raw = tls().wrap_socket(raw, server_hostname=address.host)
            except BaseException:
                raw.close()
                raise
        except OSError as error:
            failure = error
            continue
        connection.sock = raw
        return connection
    raise FeedError(f"{address.host} cannot be asked: {describe_failure(failure)}")
