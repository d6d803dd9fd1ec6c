"""Where a JWKS document comes from: a file, or an https address. Both block; the caller has a thread for that."""

import http.client
import os
import ssl
from pathlib import Path
from urllib.parse import urlsplit

MAX_BYTES = 1024 * 1024
TIMEOUT_SECONDS = 5.0


class JwksFile:
    """Answers the text when it has changed since the last call, else None."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, int, int] | None = None

    def __call__(self) -> bytes | None:
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            # A replaced file is another inode, an edited one has another time or length.
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            if version == self._version:
                return None
            document = _bounded(file.read(MAX_BYTES + 1))
        self._version = version
        return document


class JwksUrl:
    """One GET over TLS with a verified certificate; whoever answers with a redirect is not followed."""

    def __init__(self, url: str, *, context: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            raise ValueError("keys come by https alone")
        self._host, self._port = parts.hostname, parts.port or 443
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._context = context or ssl.create_default_context()

    def __call__(self) -> bytes | None:
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_SECONDS, context=self._context)
        try:
            connection.request("GET", self._target, headers={"Accept": "application/json"})
            reply = connection.getresponse()
            if reply.status != 200:
                raise ValueError(f"status {reply.status}")
            return _bounded(reply.read(MAX_BYTES + 1))
        except http.client.HTTPException as error:
            raise ValueError("not an HTTP reply") from error
        finally:
            connection.close()


def _bounded(document: bytes) -> bytes:
    if len(document) > MAX_BYTES:
        raise ValueError("larger than any set of keys")
    return document
