"""Pipes out of a sandbox, read by the event loop.

They are no transports of the event loop: uvloop closes the descriptor of a pipe twice, and the second time it may be
that of a file which another thread has just opened.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_CHUNK = 65_536


class InwardPipe:
    """One direction: the sandbox writes to `write_end`, the service reads, in one place at a time."""

    def __init__(self) -> None:
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        self._read_end: int | None = read_end
        self._write_end: int | None = write_end
        self._readable: asyncio.Future[None] | None = None

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
        """The next bytes; none at the end, or when the pipe was closed."""
        await asyncio.sleep(0)  # a sandbox that writes without pause leaves turns to others
        while self._read_end is not None:
            try:
                return os.read(self._read_end, _CHUNK)
            except BlockingIOError:
                await self._wait_readable(self._read_end)
        return b""

    async def read_tail(self, limit: int) -> bytes:
        """Reads to the end, and keeps the last bytes."""
        tail = bytearray()
        while chunk := await self.read():
            tail += chunk
            del tail[: max(0, len(tail) - limit)]
        return bytes(tail)

    def close(self) -> None:
        self.give_away()
        if self._read_end is None:
            return
        if self._readable is not None:
            asyncio.get_running_loop().remove_reader(self._read_end)
            _wake(self._readable)
        os.close(self._read_end)
        self._read_end = None

    async def _wait_readable(self, read_end: int) -> None:
        loop = asyncio.get_running_loop()
        self._readable = loop.create_future()
        loop.add_reader(read_end, _wake, self._readable)
        try:
            await self._readable
        finally:
            self._readable = None
            if self._read_end is not None:
                loop.remove_reader(read_end)


def _wake(readable: "asyncio.Future[None]") -> None:
    if not readable.done():
        readable.set_result(None)


@asynccontextmanager
async def open_pipe() -> AsyncIterator[InwardPipe]:
    pipe = InwardPipe()
    try:
        yield pipe
    finally:
        pipe.close()
