"""Pipes out of a sandbox, read by the event loop."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_CHUNK = 65_536


class InwardPipe:
    """One direction: the sandbox writes to `write_end`, the service reads."""

    def __init__(self, reader: asyncio.StreamReader, write_end: int) -> None:
        self._reader = reader
        self._write_end: int | None = write_end

    @property
    def write_end(self) -> int:
        assert self._write_end is not None, "the write end was given away"
        return self._write_end

    def give_away(self) -> None:
        """Closes our copy of the write end, so that the pipe ends with the sandbox."""
        if self._write_end is not None:
            os.close(self._write_end)
            self._write_end = None

    async def read(self) -> bytes:
        """The next bytes; none at the end."""
        return await self._reader.read(_CHUNK)

    async def read_tail(self, limit: int) -> bytes:
        """Reads to the end, and keeps the last bytes."""
        tail = bytearray()
        while chunk := await self.read():
            tail += chunk
            del tail[: max(0, len(tail) - limit)]
        return bytes(tail)


@asynccontextmanager
async def open_pipe() -> AsyncIterator[InwardPipe]:
    read_end, write_end = os.pipe()
    reader = asyncio.StreamReader(limit=_CHUNK)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", buffering=0)
    )
    pipe = InwardPipe(reader, write_end)
    try:
        yield pipe
    finally:
        pipe.give_away()
        transport.close()
