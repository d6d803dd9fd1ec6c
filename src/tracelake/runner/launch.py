"""Starts a user's program in a sandbox, with its two addresses served from outside."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import msgspec

from tracelake.errors import TraceError
from tracelake.runner.inside import LISTENERS, OUTSIDE, READY, START, FunctionCall
from tracelake.runner.memory import Cgroup
from tracelake.sandbox.pipes import InwardPipe, open_pipe
from tracelake.sandbox.server import Sandbox, SandboxServer
from tracelake.sandbox.spec import SandboxSpec

_CREDENTIALS = struct.Struct("3i")
_DESCRIPTORS = struct.Struct(f"{len(LISTENERS)}i")
_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_DESCRIPTORS.size)
_SETUP_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFunction:
    """A sandbox that waits for its start."""

    sandbox: Sandbox
    pid: int
    """Its first process, as this machine numbers it."""
    runtime: socket.socket
    """Accepts what the program sends to the Runtime API."""
    egress: socket.socket
    output: InwardPipe
    errors: InwardPipe
    start: Callable[[], None]
    """From here on the user's program runs."""


@asynccontextmanager
async def prepare_function(
    server: SandboxServer, spec: SandboxSpec, call: FunctionCall, group: Cgroup | None = None
) -> AsyncIterator[PreparedFunction]:
    """`server` is a `SandboxServer` of the module `inside`. Everything in the sandbox is in the group, before it
    starts. Leaving the block ends everything in the sandbox."""
    link, inner_link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    async with AsyncExitStack() as stack:
        stack.enter_context(link)
        stack.enter_context(inner_link)
        link.setblocking(False)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # the kernel then names the sender's process
        output = await stack.enter_async_context(open_pipe())
        errors = await stack.enter_async_context(open_pipe())
        descriptors = [inner_link.fileno(), output.write_end, errors.write_end]
        if group is not None:
            descriptors.append(group.entrance)
        sandbox = await stack.enter_async_context(server.launch(spec, msgspec.json.encode(call), descriptors))
        inner_link.close()
        output.give_away()
        errors.give_away()
        pid, listeners = await _receive(link, sandbox, group)
        for listener in listeners:
            stack.enter_context(listener)
        runtime, egress = listeners
        yield PreparedFunction(
            sandbox=sandbox,
            pid=pid,
            runtime=runtime,
            egress=egress,
            output=output,
            errors=errors,
            start=lambda: _start(link),
        )


def _start(link: socket.socket) -> None:
    try:
        link.send(START)
    except OSError as error:
        raise TraceError("sandbox_lost") from error


async def _receive(link: socket.socket, sandbox: Sandbox, group: Cgroup | None) -> tuple[int, list[socket.socket]]:
    """The process and its listening sockets. Raises what the machine refused if the set-up failed."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(link.fileno(), readable.set)
    try:
        async with asyncio.timeout(_SETUP_SECONDS):
            await readable.wait()
        message, ancillary, _, _ = link.recvmsg(len(READY), _SPACE)
    except (OSError, TimeoutError):
        message, ancillary = b"", []
    finally:
        loop.remove_reader(link.fileno())
    pid, numbers = 0, []
    for _, kind, data in ancillary:
        if kind == socket.SCM_CREDENTIALS:
            pid = _CREDENTIALS.unpack(data)[0]
        elif kind == socket.SCM_RIGHTS:
            numbers = [item for (item,) in struct.iter_unpack("i", data[: len(data) - len(data) % 4])]
    if message == OUTSIDE and pid and group is not None:
        message = await asyncio.to_thread(_add_to_group, group, pid)
    if message != READY or not pid or len(numbers) != len(LISTENERS):
        for number in numbers:
            os.close(number)
        await sandbox.kill()
        await sandbox.wait()  # raises what the machine refused
        raise TraceError("sandbox_lost")
    listeners = [socket.socket(fileno=number) for number in numbers]
    for listener in listeners:
        listener.setblocking(False)
        listener.set_inheritable(False)
    return pid, listeners


def _add_to_group(group: Cgroup, pid: int) -> bytes:
    """Older kernels ask for the rights of the process that joins, and the one in the sandbox has none."""
    try:
        group.add(pid)
    except OSError:
        return b""
    return READY
