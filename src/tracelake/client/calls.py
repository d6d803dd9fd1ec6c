"""The steps of every typed call: encode the body, raise the error of an error status, decode the reply."""

from typing import Any, TypeVar, cast

import msgspec

from tracelake.client.errors import decode, error_from
from tracelake.client.http import HttpClient, HttpReply
from tracelake.wire.contract import Route

B = TypeVar("B")
R = TypeVar("R")

encoder = msgspec.json.Encoder()


def encode_body(route: Route[B, Any], body: B | None) -> bytes | None:
    if not route.reads_body:
        return None
    return body if isinstance(body, bytes) else encoder.encode(body)


def read_reply(route: Route[Any, R], reply: HttpReply) -> R:
    if not 200 <= reply.status < 300:
        raise error_from(reply.status, reply.body)
    return cast(R, reply.body) if route.reply is bytes else decode(route.reply_decoder, reply.body)


async def call(
    http: HttpClient,
    route: Route[B, R],
    body: B | None,
    parameters: dict[str, Any],
    header: tuple[str, str] | None = None,
) -> R:
    reply = await http.request(
        route.method,
        route.url(parameters),
        body=encode_body(route, body),
        headers=() if header is None else (header,),
        content_type=route.body_media,
    )
    return read_reply(route, reply)
