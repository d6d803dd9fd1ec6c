"""The service's side: starts a fork server, keeps it running, and has it make sandboxes.

    server = SandboxServer("tracelake.sandbox.program")
    await server.start()                                  # raises `sandbox_unavailable` if the machine lacks something
    async with server.launch(spec, payload, [descriptor]) as sandbox:
        report = await sandbox.wait()                     # leaving the block ends it, whatever it does

Nothing ever runs outside of a sandbox: there is no other way to run a payload.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from tracelake.errors import TraceError
from tracelake.sandbox.machine import check_machine, explain_refusal
from tracelake.sandbox.monitor import HEADER, MOST_DESCRIPTORS
from tracelake.sandbox.seccomp import Profile
from tracelake.sandbox.spec import MIB, Ending, Mount, SandboxLimits, SandboxReport, SandboxSpec

_START_SECONDS = 60.0
_RESTART_SECONDS = 0.2
_GRACE_SECONDS = 5.0
"""How long a monitor may take after the deadline: then the machine is not well."""


class Sandbox:
    """One sandbox that was launched. `wait` returns once everything in it has ended."""

    def __init__(self, control: socket.socket, deadline_seconds: float) -> None:
        self._control = control
        self._deadline_seconds = deadline_seconds
        self._report: asyncio.Task[SandboxReport] | None = None

    async def wait(self) -> SandboxReport:
        """May be awaited by several, and again. Raises `sandbox_unavailable` if the machine refused a step of the
        set-up, and `sandbox_lost` if the fork server died."""
        if self._report is None:
            self._report = asyncio.create_task(self._receive())
        return await asyncio.shield(self._report)

    async def kill(self) -> None:
        """Ends everything inside, and returns when it has ended."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        with suppress(TraceError):
            await self.wait()

    async def close(self) -> None:
        try:
            await self.kill()
        finally:
            if self._report is not None:
                self._report.cancel()
                await asyncio.wait({self._report})  # it reads the socket, whose number is free once that is closed
            self._control.close()

    async def _receive(self) -> SandboxReport:
        loop = asyncio.get_running_loop()
        message = bytearray()
        try:
            async with asyncio.timeout(self._deadline_seconds + _GRACE_SECONDS):
                while chunk := await loop.sock_recv(self._control, 4096):
                    message += chunk
        except (OSError, TimeoutError) as error:
            raise TraceError("sandbox_lost") from error
        if not message:
            raise TraceError("sandbox_lost")
        report = msgspec.json.decode(bytes(message), type=SandboxReport)
        if report.ending is Ending.REFUSED:
            raise explain_refusal(report.step, report.errno)
        return report


class SandboxServer:
    def __init__(self, module: str, *, spares: int = 0) -> None:
        """`module` has the function `run` that runs inside, and is imported once. `spares`: sandboxes that are made
        before they are needed; each takes some memory."""
        self._module = module
        self._spares = spares
        self._process: asyncio.subprocess.Process | None = None
        self._requests: socket.socket | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._ready.is_set() else None

    async def start(self) -> None:
        """Raises `sandbox_unavailable` and names what the machine lacks."""
        check_machine()
        await self._spawn()
        self._supervision = asyncio.create_task(self._supervise())
        try:
            await self._try_setup()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends the fork server; every sandbox ends with it."""
        if self._supervision is not None:
            self._supervision.cancel()
            with suppress(asyncio.CancelledError):
                await self._supervision
            self._supervision = None
        await self._end()

    @asynccontextmanager
    async def launch(
        self, spec: SandboxSpec, payload: bytes, descriptors: Sequence[int] = ()
    ) -> AsyncIterator[Sandbox]:
        """`descriptors` are 3, 4, ... inside. The caller closes its own copies."""
        if len(descriptors) >= MOST_DESCRIPTORS:
            raise ValueError("too many descriptors")
        control, monitors_end = socket.socketpair()
        control.setblocking(False)
        sandbox = Sandbox(control, spec.limits.deadline_seconds)
        try:
            with monitors_end:
                await self._send([monitors_end.fileno(), *descriptors])
            spec_text = msgspec.json.encode(spec)
            message = b"".join((HEADER.pack(len(spec_text), len(payload)), spec_text, payload))
            with suppress(OSError):  # then `wait` says what happened
                await asyncio.get_running_loop().sock_sendall(control, message)
            yield sandbox
        finally:
            await asyncio.shield(sandbox.close())

    async def _try_setup(self) -> None:
        limits = SandboxLimits(deadline_seconds=30, memory_bytes=64 * MIB, cpu_seconds=5, scratch_bytes=MIB)
        program = Mount(source=sys.executable, target="/python")
        for profile in Profile:
            spec = SandboxSpec(limits=limits, profile=profile, mounts=(program,), trial=True)
            async with self.launch(spec, b"") as sandbox:
                report = await sandbox.wait()
            if report.ending is not Ending.EXITED or report.status != 0:
                raise explain_refusal("start", 0)

    async def _send(self, descriptors: Sequence[int]) -> None:
        try:
            async with asyncio.timeout(_START_SECONDS):
                while True:
                    await self._ready.wait()
                    assert self._requests is not None
                    try:
                        socket.send_fds(self._requests, [b"launch"], descriptors)
                    except BlockingIOError:
                        await asyncio.sleep(0.001)  # the fork server is behind by hundreds of requests
                    except OSError:
                        self._ready.clear()  # it died; the supervision starts another
                    else:
                        return
        except TimeoutError as error:
            raise TraceError("sandbox_lost") from error

    def _command(self) -> Sequence[str]:
        return (sys.executable, "-I", "-m", "tracelake.sandbox.fork_server")

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(),
                self._module,
                str(self._spares),
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.DEVNULL,
                env={},
                cwd="/",
            )
        self._requests = ours
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_START_SECONDS):
                message = await loop.sock_recv(ours, 16)
        except (OSError, TimeoutError):
            message = b""
        if not message:
            await self._end()
            raise TraceError("sandbox_lost", "the fork server of the sandbox ended before it was ready")
        self._ready.set()

    async def _supervise(self) -> None:
        while True:
            assert self._process is not None
            await self._process.wait()
            self._ready.clear()
            await self._end()
            while True:
                await asyncio.sleep(_RESTART_SECONDS)
                try:
                    await self._spawn()
                except (TraceError, OSError):
                    continue
                break

    async def _end(self) -> None:
        self._ready.clear()
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            if process.returncode is None:
                process.kill()
        await process.wait()
