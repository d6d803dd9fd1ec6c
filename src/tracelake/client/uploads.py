"""Uploads the archive of a function: a bundle, which a DAG can name."""

import asyncio
import http.client
import ssl
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit
from uuid import UUID

from tracelake.client.errors import DispatcherUnavailableError
from tracelake.client.user import UserClient
from tracelake.model.backoff import Backoff
from tracelake.wire import routes
from tracelake.wire.bundles import PIECE_BYTES, BundleDetail, FinalizeBundleRequest, OpenBundleRequest

_SECONDS = 60.0
_TRIES = 4
_PIECE = 64 * 1024
_BACKOFF = Backoff(0.2, 5.0)
_KNOWN_BUNDLES = 500
"""The newest bundles, among which a push looks for the same one."""
_DONE = {200, 201, 204, 409, 412}
"""409 and 412: the object is there already, by a call whose reply was lost. Finalizing compares its hash."""


async def push_bundle(
    client: UserClient,
    archive: bytes,
    request: FinalizeBundleRequest,
    on_progress: Callable[[int], None] = lambda _: None,
) -> BundleDetail:
    """Uploads and finalizes the archive. The same one again is the same bundle, as long as that is enabled."""
    page = await client.call(routes.LIST_BUNDLES, limit=_KNOWN_BUNDLES)
    key = (request.sha256, request.language, request.entrypoint)
    for row in page.bundles:
        if row.status == "ready" and (row.sha256, row.language, row.entrypoint) == key:
            # Finalizing once more is answered with what was recorded.
            return await client.call(routes.FINALIZE_BUNDLE, request, bundle_id=row.bundle_id)
    opened = await client.call(routes.OPEN_BUNDLE, OpenBundleRequest(size_bytes=len(archive)))
    if client.is_remote:
        await _send_pieces(client, opened.bundle_id, archive, on_progress)
    else:
        await asyncio.to_thread(upload, opened.url, opened.headers, archive, on_progress)
    return await client.call(routes.FINALIZE_BUNDLE, request, bundle_id=opened.bundle_id)


async def _send_pieces(client: UserClient, bundle_id: UUID, archive: bytes, on_progress: Callable[[int], None]) -> None:
    for offset in range(0, len(archive), PIECE_BYTES):
        piece = archive[offset : offset + PIECE_BYTES]
        reply = await client.call(routes.SEND_BUNDLE_PIECE, piece, bundle_id=bundle_id, offset=offset)
        on_progress(reply.received)


def upload(
    url: str, headers: Mapping[str, str], content: bytes, on_progress: Callable[[int], None] = lambda _: None
) -> None:
    """`on_progress` gets the bytes that were sent so far. Errors never name the address, which is a credential."""
    for tries in range(1, _TRIES + 1):
        try:
            status = _put(url, headers, content, on_progress)
        except (OSError, http.client.HTTPException) as error:
            reason = type(error).__name__
        else:
            if status in _DONE:
                return
            reason = f"status {status}"
            if status < 500:
                break
        if tries < _TRIES:
            time.sleep(_BACKOFF.seconds(tries))
    raise DispatcherUnavailableError(f"the object store did not take the archive ({reason}); push it again")


def _put(url: str, headers: Mapping[str, str], content: bytes, on_progress: Callable[[int], None]) -> int:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = (
        http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_SECONDS, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.hostname, parts.port, timeout=_SECONDS)
    )
    try:
        connection.putrequest("PUT", f"{parts.path}?{parts.query}", skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        for start in range(0, len(content), _PIECE):
            connection.send(content[start : start + _PIECE])
            on_progress(min(start + _PIECE, len(content)))
        reply = connection.getresponse()
        reply.read()
        return reply.status
    finally:
        connection.close()
