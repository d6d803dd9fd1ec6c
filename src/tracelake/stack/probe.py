"""Ask a local listener whether it is alive or ready, trusting the stack's own CA alone.

A process that stands still is known after two seconds: its listener takes the connection and never shakes hands.
"""

import contextlib
import http.client
import socket
import ssl
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

_CONNECT_SECONDS = 2.0
_READ_SECONDS = 4.0
"""Longer than a Dispatcher waits for its stores before it says that they are away."""


class Readiness(NamedTuple):
    """The answer of `GET /readyz`."""

    answers: bool
    ready: bool = False
    away: tuple[str, ...] = ()
    """Stores that the Dispatcher does not reach."""


class _Health(msgspec.Struct):
    checks: dict[str, str] = {}


def ready(internal_url: str, ca_file: Path) -> bool:
    """Whether `GET /readyz` answers 200 now."""
    return readiness(internal_url, ca_file).ready


def alive(internal_url: str, ca_file: Path) -> bool:
    """Whether `GET /healthz` answers 200 now."""
    answer = _get(internal_url, "/healthz", ca_file)
    return answer is not None and answer[0] == 200


def readiness(internal_url: str, ca_file: Path) -> Readiness:
    answer = _get(internal_url, "/readyz", ca_file)
    if answer is None:
        return Readiness(False)
    status, body = answer
    return Readiness(True, status == 200, _away(body))


def _get(url: str, path: str, ca_file: Path) -> tuple[int, bytes] | None:
    """Status and body; None if nobody answers in time."""
    parts = urlsplit(url)
    try:
        context = ssl.create_default_context(cafile=ca_file)
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=_CONNECT_SECONDS, context=context
        )
        with contextlib.closing(connection):
            connection.connect()
            connection.sock.settimeout(_READ_SECONDS)
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read()
    except (OSError, http.client.HTTPException):
        return None


def _away(body: bytes) -> tuple[str, ...]:
    try:
        checks = msgspec.json.decode(body, type=_Health).checks
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()
    return tuple(name for name, state in checks.items() if state == "unavailable")


def answers(url: str, ca_file: Path) -> bool:
    """Whether the listener completes a TLS handshake now."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        with socket.create_connection((host, parts.port or 443), timeout=_CONNECT_SECONDS) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except OSError:
        return False
    return True
