"""Ask a local listener whether it is ready, trusting the stack's own CA alone."""

import contextlib
import http.client
import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit

_TIMEOUT_SECONDS = 3.0


def ready(internal_url: str, ca_file: Path) -> bool:
    """Whether `GET /readyz` answers 200 now."""
    parts = urlsplit(internal_url)
    try:
        context = ssl.create_default_context(cafile=ca_file)
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=_TIMEOUT_SECONDS, context=context
        )
        with contextlib.closing(connection):
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def answers(url: str, ca_file: Path) -> bool:
    """Whether the listener completes a TLS handshake now."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        with socket.create_connection((host, parts.port or 443), timeout=_TIMEOUT_SECONDS) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except OSError:
        return False
    return True
