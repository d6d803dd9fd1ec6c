"""Bodies: read up to a limit, and only so many at once of callers who have shown no credential.

Where the credential stands in a header it is checked before a byte of the body is read. Two routes cannot do that: the
signature of a webhook is of the body, and the items of a batch bring a credential each. Their bodies share a budget of
the listener, of which one address has a quarter.
"""

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from tracelake.errors import TraceError

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]

ADDRESS_SHARE = 4
ANONYMOUS_BATCH_BYTES = 64 * 1024
"""The largest batch of a caller who has shown no credential yet."""


class HungUpError(Exception):
    """The caller went away before its body was whole."""


class BodyBudget:
    """Bytes that bodies of unknown callers may take at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._total = 0
        self._by_address: dict[str, int] = {}

    @contextmanager
    def reserve(self, address: str, size: int, refusal: TraceError) -> Iterator[None]:
        """Raises the refusal if there is no room. One body always fits, however small the budget is."""
        mine = self._by_address.get(address, 0)
        if mine and mine + size > self._most // ADDRESS_SHARE:
            raise refusal
        if self._total and self._total + size > self._most:
            raise refusal
        self._total += size
        self._by_address[address] = mine + size
        try:
            yield
        finally:
            self._total -= size
            left = self._by_address[address] - size
            if left:
                self._by_address[address] = left
            else:
                del self._by_address[address]


def declared_size(header: str | None, limit: int) -> int | None:
    """The Content-Length, cut off just above the limit; None if there is none that can be read."""
    if header is None or not (header.isascii() and header.isdigit()):
        return None
    digits = header.lstrip("0") or "0"
    return limit + 1 if len(digits) > len(str(limit)) else min(int(digits), limit + 1)


async def read_body(receive: Receive, declared: int | None, limit: int, too_large: TraceError) -> bytes:
    """Raises `too_large` as soon as the limit is known to be exceeded."""
    if declared is not None and declared > limit:
        raise too_large
    message = await receive()
    if message["type"] == "http.disconnect":
        raise HungUpError
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False) and len(body) <= limit:
        return body
    chunks = [body]
    size = len(body)
    while message.get("more_body", False):
        if size > limit:
            break
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HungUpError
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
    if size > limit:
        raise too_large
    return b"".join(chunks)
