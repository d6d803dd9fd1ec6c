"""What lies behind the way out in tests: a service that records each request, and a proxy towards it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.runner.attacks.messages import GRANT, TASK
from tracelake.runner.egress import Destinations, EgressProxy
from tracelake.runner.function import CountRefusal
from tracelake.runner.upstream import UpstreamService

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\netag: x\r\nset-cookie: s\r\n\r\nok"
_LARGE_BYTES = 256 * 1024 * 1024


class RecordingService:
    """Whatever lies behind the way out: it records each connection's bytes and answers."""

    def __init__(self, reply: bytes = OK) -> None:
        self.requests: list[bytes] = []
        self._reply = reply

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.read(1 << 20)
        self.requests.append(request)
        try:
            if b"/large HTTP" in request:
                await self._send_large(writer)
            else:
                writer.write(self._reply)
        except OSError:
            pass  # the caller has gone
        finally:
            writer.close()

    async def _send_large(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % _LARGE_BYTES)
        for _ in range(_LARGE_BYTES // 65536):
            writer.write(bytes(65536))
            await writer.drain()


@asynccontextmanager
async def open_proxy(service: RecordingService, refusals: CountRefusal) -> AsyncIterator[EgressProxy]:
    """The proxy of the attempt that `messages` are of."""
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    upstream = UpstreamService(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield EgressProxy(
            task_id=TASK,
            attempt=1,
            grant=GRANT,
            destinations=Destinations(tasks=upstream, queries=upstream, objects=upstream),
            count_refusal=refusals,
        )
    finally:
        server.close()
