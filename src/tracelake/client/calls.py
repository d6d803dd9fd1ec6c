"""What every typed call does: send JSON, raise what an error status means, read the answer by its type."""

from typing import Any, TypeVar

import msgspec

from tracelake.client.errors import decode, error_from
from tracelake.client.http import HttpClient

T = TypeVar("T")

encoder = msgspec.json.Encoder()


async def call(
    http: HttpClient,
    method: str,
    path: str,
    decoder: "msgspec.json.Decoder[T]",
    *,
    header: tuple[str, str] | None = None,
    body: Any = None,
    timeout: float | None = None,
) -> T:
    reply = await http.request(
        method,
        path,
        body=None if body is None else encoder.encode(body),
        headers=() if header is None else (header,),
        timeout=timeout,
    )
    if not 200 <= reply.status < 300:
        raise error_from(reply.status, reply.body)
    return decode(decoder, reply.body)
