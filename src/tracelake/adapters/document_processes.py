"""Documents read in processes of their own: a bounded pool, in which whoever dies or takes too long is replaced.

Processes start when they are needed and stay for the next document. Reading changes nothing, so a document whose
process was lost may be read again.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tracelake.dag import DagInvalidError, Surroundings
from tracelake.dag.child import (
    REPLIES,
    ConfigRequest,
    DagReply,
    DocumentReply,
    DocumentRequest,
    FailureReply,
    InvalidConfigReply,
    LocateRequest,
    ProblemsReply,
    ReadRequest,
    frame,
)
from tracelake.errors import TraceError
from tracelake.model.dag import Dag, Problem

logger = logging.getLogger(__name__)

MEMORY_BYTES = 1024**3
_SLOWDOWN = 3.0
"""The limit is processor time, which the process keeps by itself; on a busy machine it takes longer by the clock."""
_START_SECONDS = 30.0
"""A process that starts has modules to load."""
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LANG", "LC_ALL", "TZ")
_OVER_LIMIT = (-signal.SIGXCPU, -signal.SIGSEGV)
"""What a process ends with that met a limit: of time, or of memory inside of a library."""


class _LostError(Exception):
    """The process ended without an answer."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


class _DocumentProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.used = False

    @classmethod
    async def start(cls, seconds: float, memory: int) -> "_DocumentProcess":
        environment: Mapping[str, str] = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tracelake.dag.child", str(seconds), str(memory)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(environment),
        )
        return cls(process)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ask(self, request: DocumentRequest) -> DocumentReply:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(frame(request))
            await self._process.stdin.drain()
            size = int.from_bytes(await self._process.stdout.readexactly(4), "big")
            body = await self._process.stdout.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), 1.0)  # it says by itself what it died of
            raise _LostError(await self.end()) from None
        self.used = True
        reply: DocumentReply = REPLIES.decode(body)
        return reply

    async def end(self) -> int | None:
        with suppress(ProcessLookupError):
            if self.alive:
                self._process.kill()
        return await self._process.wait()


class DocumentProcesses:
    """At most so many at a time; more wait, in the order in which they came."""

    def __init__(self, processes: int, *, seconds: float, memory_bytes: int = MEMORY_BYTES) -> None:
        self._seconds = seconds
        self._memory = memory_bytes
        self._places = asyncio.Semaphore(processes)
        self._idle: list[_DocumentProcess] = []

    async def read(self, text: bytes, surroundings: Surroundings) -> Dag:
        """Raises DagInvalidError."""
        reply = await self._ask(ReadRequest(text, surroundings))
        if isinstance(reply, ProblemsReply):
            raise DagInvalidError(reply.problems)
        assert isinstance(reply, DagReply)
        return reply.dag

    async def locate(self, text: bytes, problems: Sequence[Problem]) -> list[Problem]:
        """The same problems with their places in the text."""
        reply = await self._ask(LocateRequest(text, list(problems)))
        assert isinstance(reply, ProblemsReply)
        return reply.problems

    async def check_config(self, operator: str, config: dict[str, Any]) -> None:
        """Raises TraceError."""
        await self._ask(ConfigRequest(operator, config))

    async def warm_up(self) -> None:
        """Start one process, so that the first document does not wait for it."""
        if not self._idle:
            self._idle.append(await _DocumentProcess.start(self._seconds, self._memory))

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().end()

    async def _ask(self, request: DocumentRequest) -> DocumentReply:
        async with self._places:
            try:
                reply = await self._ask_one(request)
            except _LostError as lost:
                logger.warning("a process that reads documents was lost", extra={"exit_status": lost.status})
                if lost.status in _OVER_LIMIT:
                    raise _too_costly(self._seconds) from None
                raise TraceError("document_reader_unavailable") from None
        if isinstance(reply, FailureReply):
            if reply.memory:
                raise _too_costly(self._seconds)
            logger.error("a document could not be read", extra={"reason": reply.text})
            raise TraceError("internal")
        if isinstance(reply, InvalidConfigReply):
            raise TraceError("job_invalid", reply.message, **reply.details)
        return reply

    async def _ask_one(self, request: DocumentRequest) -> DocumentReply:
        while True:
            process = await self._take()
            limit = self._seconds * _SLOWDOWN + (0 if process.used else _START_SECONDS)
            try:
                async with asyncio.timeout(limit):
                    reply = await process.ask(request)
            except TimeoutError:
                await process.end()
                raise _too_costly(self._seconds) from None
            except _LostError as lost:
                # One that waited may have ended for a reason of its own: then the next one is asked.
                if not process.used or lost.status in _OVER_LIMIT:
                    raise
                continue
            except BaseException:  # nobody waits any more; what it computes is nobody's
                await process.end()
                raise
            if isinstance(reply, FailureReply):
                await process.end()
            else:
                self._idle.append(process)
            return reply

    async def _take(self) -> _DocumentProcess:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
        return await _DocumentProcess.start(self._seconds, self._memory)


def _too_costly(seconds: float) -> TraceError:
    return TraceError("document_too_costly", limit_seconds=seconds)
