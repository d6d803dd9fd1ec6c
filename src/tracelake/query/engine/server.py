"""Runs queries for the service, each in a sandbox of its own.

    engine = EngineServer()
    await engine.start()                          # raises `sandbox_unavailable` if the machine cannot isolate queries
    async with engine.run(query) as execution:
        async for chunk in execution.chunks():    # an Arrow IPC stream, as bytes
            ...
        report = await execution.report()         # or a `TraceError` with a code of the catalogue

Leaving the block ends the process of the query and everything it holds. The service neither parses what the sandbox
wrote nor repeats its texts: it counts bytes, and accepts numbers and known error codes.
"""

import math
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from tracelake.errors import TraceError
from tracelake.query.engine.requests import (
    ASYNC_THREADS,
    INPUT_DIRECTORY,
    MIB,
    ChildOutcome,
    EngineLimits,
    EngineQuery,
    EngineReport,
    failure_of,
)
from tracelake.sandbox.pipes import InwardPipe, open_pipe
from tracelake.sandbox.seccomp import Profile
from tracelake.sandbox.server import Sandbox, SandboxServer
from tracelake.sandbox.spec import Ending, Mount, SandboxLimits, SandboxReport, SandboxSpec

_OUTCOME_BYTES = 4096
_STREAM_SLACK = 4 * MIB
"""What the Arrow format adds to the rows."""
_MEMORY_SLACK, _MEMORY_PER_THREAD = 256 * MIB, 80 * MIB
"""Address space that allocators and stacks reserve, and mostly do not use."""
_SIGKILL = 9


class Execution:
    """One query at work."""

    def __init__(self, sandbox: Sandbox, limits: EngineLimits, output: InwardPipe, outcome: InwardPipe) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._output = output
        self._outcome = outcome
        self._bytes = 0
        self._ended = False
        self.succeeded = False

    async def chunks(self) -> AsyncIterator[bytes]:
        """The Arrow stream. Its end says nothing about success: await `report`."""
        while chunk := await self._output.read():
            self._bytes += len(chunk)
            if self._bytes > self._limits.result_bytes + _STREAM_SLACK:
                await self._sandbox.kill()
                raise TraceError("query_engine_crashed")
            yield chunk
        self._ended = True

    async def report(self) -> EngineReport:
        """Waits for the outcome. Rows that nobody read are dropped."""
        if not self._ended:
            async for _ in self.chunks():
                pass
        text = await self._outcome.read_tail(_OUTCOME_BYTES)
        if (outcome := _decode(text)) is None:
            raise await self._explain_end()
        if outcome.failure is not None:
            raise failure_of(outcome.failure)
        self.succeeded = True
        return EngineReport(
            rows=outcome.rows,
            bytes=self._bytes,
            truncated=outcome.truncated,
            exported_rows=outcome.exported_rows,
        )

    async def end(self) -> SandboxReport:
        """Waits until the process and its namespaces are gone, which takes longer than its outcome."""
        return await self._sandbox.wait()

    async def _explain_end(self) -> TraceError:
        """Why there was no outcome."""
        report = await self._sandbox.wait()
        if report.ending is Ending.DEADLINE or _used_all_cpu(report, self._limits):
            return TraceError("query_timeout")
        return TraceError("query_engine_crashed")


def _decode(text: bytes) -> ChildOutcome | None:
    try:
        return msgspec.json.decode(text, type=ChildOutcome)
    except msgspec.DecodeError:
        return None


class EngineServer:
    def __init__(self, *, spares: int = 2) -> None:
        """`spares`: processes with an empty database that wait for a query; each takes about 30 MiB."""
        self._server = SandboxServer("tracelake.query.engine.child", spares=spares)

    @property
    def pid(self) -> int | None:
        """The fork server's; None while there is none."""
        return self._server.pid

    async def start(self) -> None:
        await self._server.start()

    async def close(self) -> None:
        await self._server.close()

    @asynccontextmanager
    async def run(self, query: EngineQuery) -> AsyncIterator[Execution]:
        """A file that was to be exported is removed unless its report was successful."""
        async with AsyncExitStack() as stack:
            output = await stack.enter_async_context(open_pipe())
            outcome = await stack.enter_async_context(open_pipe())
            descriptors = [output.write_end, outcome.write_end]
            if query.export is not None:
                descriptors.append(stack.enter_context(_create_file(query.export)))
            spec, inner_query = _prepare(query)
            launch = self._server.launch(spec, msgspec.json.encode(inner_query), descriptors)
            sandbox = await stack.enter_async_context(launch)
            output.give_away()
            outcome.give_away()
            execution = Execution(sandbox, query.limits, output, outcome)
            try:
                yield execution
            finally:
                if query.export is not None and not execution.succeeded:
                    _remove_file(query.export)


@contextmanager
def _create_file(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_file(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def _cpu_seconds(limits: EngineLimits) -> int:
    return math.ceil(limits.deadline_seconds * limits.threads) + 1


def _used_all_cpu(report: SandboxReport, limits: EngineLimits) -> bool:
    killed = report.ending is Ending.SIGNALLED and report.status == _SIGKILL
    return killed and report.cpu_seconds >= _cpu_seconds(limits) - 1


def _prepare(query: EngineQuery) -> tuple[SandboxSpec, EngineQuery]:
    """Each file gets a place in the sandbox; the query learns nothing of its real path."""
    mounts = [] if query.directory is None else [Mount(source=query.directory, target=INPUT_DIRECTORY)]
    relations = {}
    for number, (name, relation) in enumerate(query.relations.items()):
        sources = (*relation.files, *relation.rows)
        if query.directory is not None:
            places = tuple(_place_below(query.directory, file) for file in sources)
        else:
            places = tuple(
                f"{INPUT_DIRECTORY}/{number}/{position}.{relation.format}" for position in range(len(sources))
            )
            mounts += [Mount(source=file, target=place) for file, place in zip(sources, places, strict=True)]
        count = len(relation.files)
        relations[name] = msgspec.structs.replace(relation, files=places[:count], rows=places[count:])
    limits = query.limits
    spec = SandboxSpec(
        limits=SandboxLimits(
            deadline_seconds=limits.deadline_seconds,
            memory_bytes=limits.memory_bytes + _MEMORY_SLACK + (limits.threads + ASYNC_THREADS) * _MEMORY_PER_THREAD,
            cpu_seconds=_cpu_seconds(limits),
            file_bytes=limits.export_bytes,
            open_files=64 + sum(len(relation.files) + len(relation.rows) for relation in relations.values()),
            processes=16 + 2 * limits.threads,
        ),
        profile=Profile.COMPUTING,
        mounts=tuple(mounts),
    )
    return spec, msgspec.structs.replace(query, relations=relations, directory=None, export=None)


def _place_below(directory: str, file: str) -> str:
    relative = file.removeprefix(f"{directory}/")
    if relative == file:
        raise ValueError("a file of the query is not in its directory")
    return f"{INPUT_DIRECTORY}/{relative}"
