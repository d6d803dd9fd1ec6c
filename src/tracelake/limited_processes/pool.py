"""A bounded pool of processes, in which whoever dies or takes too long is replaced.

Processes start when they are needed and stay for the next request. The work changes nothing, so a request whose process
was lost may be asked again.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from tracelake.limited_processes.child import NICENESS, ReplyKind, frame

MEMORY_BYTES = 1024**3
_SLOWDOWN = 3.0
"""The limit is processor time, which the process keeps by itself; on a busy machine it takes longer by the clock."""
_PIECE = 256 * 1024
_START_SECONDS = 30.0
"""A process that starts has modules to load."""
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LANG", "LC_ALL", "TZ")
_OVER_LIMIT = (-signal.SIGXCPU, -signal.SIGSEGV)
"""What a process ends with that met a limit: of time, or of memory inside of a library."""


class OverLimitError(Exception):
    """The request takes more time or memory than allowed."""


class ProcessLostError(Exception):
    """The process ended without an answer."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


class ChildFailureError(Exception):
    """A bug in the process; the text is for a log."""


class LimitedProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.used = False

    @classmethod
    async def start(cls, module: str, seconds: float, memory: int, niceness: int = NICENESS) -> "LimitedProcess":
        environment: Mapping[str, str] = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, str(seconds), str(memory), str(niceness)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(environment),
        )
        return cls(process)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ask(self, parts: Sequence[bytes]) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            for piece in _pieces(parts):
                self._process.stdin.write(piece)
                await self._process.stdin.drain()
            size = int.from_bytes(await self._process.stdout.readexactly(4), "big")
            body = await self._process.stdout.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), 1.0)  # it says by itself what it died of
            raise ProcessLostError(await self.end()) from None
        self.used = True
        return body

    async def end(self) -> int | None:
        with suppress(ProcessLookupError):
            if self.alive:
                self._process.kill()
        return await self._process.wait()


class LimitedProcesses:
    """At most so many processes of a module at a time; more requests wait, in the order in which they came."""

    def __init__(
        self,
        module: str,
        processes: int,
        *,
        seconds: float,
        memory_bytes: int = MEMORY_BYTES,
        niceness: int = NICENESS,
    ) -> None:
        self._module = module
        self._niceness = niceness
        self._seconds = seconds
        self._memory = memory_bytes
        self._places = asyncio.Semaphore(processes)
        self._idle: list[LimitedProcess] = []

    async def ask(self, *parts: bytes) -> bytes:
        """The process gets all parts as one request. Raises OverLimitError, ProcessLostError and ChildFailureError."""
        async with self._places:
            reply = await self._ask_one(parts)
        kind, body = reply[0], reply[1:]
        if kind == ReplyKind.OUT_OF_MEMORY:
            raise OverLimitError
        if kind == ReplyKind.FAILURE:
            raise ChildFailureError(body.decode(errors="replace"))
        return body

    async def warm_up(self) -> None:
        """Start one process, so that the first request does not wait for it."""
        if not self._idle:
            self._idle.append(await self._start())

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().end()

    async def _ask_one(self, parts: Sequence[bytes]) -> bytes:
        while True:
            process = await self._take()
            limit = self._seconds * _SLOWDOWN + (0 if process.used else _START_SECONDS)
            try:
                async with asyncio.timeout(limit):
                    reply = await process.ask(parts)
            except TimeoutError:
                await process.end()
                raise OverLimitError from None
            except ProcessLostError as lost:
                if lost.status in _OVER_LIMIT:
                    raise OverLimitError from None
                # One that waited may have ended for a reason of its own: then the next one is asked.
                if not process.used:
                    raise
                continue
            except BaseException:  # nobody waits any more; what it computes is nobody's
                await process.end()
                raise
            if reply[0] == ReplyKind.ANSWER:
                self._idle.append(process)
            else:
                await process.end()
            return reply

    async def _take(self) -> LimitedProcess:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
        return await self._start()

    async def _start(self) -> LimitedProcess:
        return await LimitedProcess.start(self._module, self._seconds, self._memory, self._niceness)


def _pieces(parts: Sequence[bytes]) -> Iterator[bytes | memoryview]:
    """The request as it is sent: a large one in pieces, so that copying it never holds the event loop up."""
    size = sum(map(len, parts))
    if size <= _PIECE:
        yield frame(b"".join(parts))
        return
    yield size.to_bytes(4, "big")
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _PIECE):
            yield view[start : start + _PIECE]
