"""As many rows as a caller asked for, over as many pages as the server makes of them."""

from typing import Any, TypeVar

import msgspec

from tracelake.client.user import UserClient
from tracelake.wire.contract import Route

P = TypeVar("P", bound=msgspec.Struct)

PAGE_ROWS = 500


async def collect(
    client: UserClient,
    route: Route[None, P],
    rows: str,
    *,
    limit: int,
    cursor: str | None = None,
    **parameters: Any,
) -> P:
    """One page with up to `limit` of the rows that its field `rows` holds; `next` goes on behind the last of them."""
    first = await client.call(route, limit=min(limit, PAGE_ROWS), cursor=cursor, **parameters)
    items, following = list(getattr(first, rows)), getattr(first, "next", None)
    while following is not None and len(items) < limit:
        more = await client.call(route, limit=min(limit - len(items), PAGE_ROWS), cursor=following, **parameters)
        items += getattr(more, rows)
        # A server that repeats a cursor would keep us for ever.
        following = None if getattr(more, "next", None) == following else getattr(more, "next", None)
    return msgspec.structs.replace(first, **{rows: items, "next": following})
