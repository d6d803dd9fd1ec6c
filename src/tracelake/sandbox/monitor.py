"""The life of one sandbox, as its monitor sees it.

    fork server ── fork ──▶ monitor ── fork ──▶ first process of the sandbox (process id 1)

The monitor belongs to one sandbox. It reads the request from its control socket, makes the namespaces, forks the
first process, waits, and reports. It ends the sandbox when the deadline passes, or when the other end of the socket
closes: the service cancels by closing it, and a service that dies has closed it. When the first process ends, the
kernel kills all others of its process id namespace. When the monitor dies, for whatever reason, the kernel kills the
first process; when the fork server dies, the monitor. So nothing outlives any of them.

The first process tells the monitor over a pipe when its set-up is complete, or which step failed.
"""

import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import NoReturn

import msgspec

from tracelake.sandbox import linux
from tracelake.sandbox.confinement import SetupError, confine, enter_namespaces, refuse_syscalls
from tracelake.sandbox.spec import Ending, SandboxReport, SandboxSpec

HEADER = struct.Struct(">II")
"""Lengths of the spec and of the payload, which follow."""
_FIRST_SPARE = 512
"""Descriptors are moved above this number before they get their final one."""
_FIRST_GIVEN = 3
_READY = b"ready"
_FAILED = 125

Payload = Callable[[bytes, Sequence[int]], int]
"""What runs inside: gets the payload of the request and the descriptors it was given, returns the exit status."""


def run_sandbox(control: socket.socket, descriptors: Sequence[int], run: Payload) -> NoReturn:
    """Becomes the monitor. Called in a process that the fork server has just forked."""
    server = os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    started = monotonic()
    try:
        spec, payload = _receive(control)
        try:
            enter_namespaces()
            linux.end_with_parent(signal.SIGKILL)
            if os.getppid() != server:
                os._exit(_FAILED)
            report = _watch(spec, control, started, *_start(spec, payload, descriptors, run))
        except SetupError as error:
            report = SandboxReport(ending=Ending.REFUSED, step=error.step, errno=error.code)
        control.sendall(msgspec.json.encode(report))
    except (OSError, EOFError):
        os._exit(_FAILED)  # nobody listens
    finally:
        os._exit(0)


def _receive(control: socket.socket) -> tuple[SandboxSpec, bytes]:
    spec_length, payload_length = HEADER.unpack(_receive_exactly(control, HEADER.size))
    spec = msgspec.json.decode(_receive_exactly(control, spec_length), type=SandboxSpec)
    return spec, _receive_exactly(control, payload_length)


def _receive_exactly(control: socket.socket, length: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < length:
        chunk = control.recv(min(length - len(chunks), 1 << 20))
        if not chunk:
            raise EOFError
        chunks += chunk
    return bytes(chunks)


def _start(spec: SandboxSpec, payload: bytes, descriptors: Sequence[int], run: Payload) -> tuple[int, int]:
    """Forks the first process; returns its id and the pipe on which it tells how its set-up ended."""
    outcome, first_outcome = os.pipe()
    # Opened here: inside there is no such file. It is standard input, and output unless something else is.
    null = os.open("/dev/null", os.O_RDWR)
    pid = os.fork()
    if pid == 0:
        try:
            _become_first(spec, payload, first_outcome, [null, *descriptors], run)
        finally:
            os._exit(_FAILED)
    os.close(first_outcome)
    os.close(null)
    for descriptor in descriptors:
        os.close(descriptor)  # the ends that the service reads see their end of file with the sandbox
    return pid, outcome


def _become_first(
    spec: SandboxSpec, payload: bytes, outcome: int, descriptors: Sequence[int], run: Payload
) -> NoReturn:
    try:
        outcome, numbers = _arrange(outcome, descriptors)
        confine(spec)
        linux.end_with_parent(signal.SIGKILL)
        refuse_syscalls(spec)
        # A monitor that died before the line above cannot be noticed by a signal any more: nobody reads this pipe then.
        os.write(outcome, _READY)
        os.close(outcome)
        status = 0 if spec.trial else run(payload, numbers)
    except SetupError as error:
        os.write(outcome, msgspec.json.encode((error.step, error.code)))
        status = _FAILED
    except MemoryError:
        status = _FAILED
    sys.stdout.flush()
    os._exit(status)


def _arrange(outcome: int, descriptors: Sequence[int]) -> tuple[int, Sequence[int]]:
    """Closes all descriptors but those of the sandbox: 0 to 2 are the null device, from 3 on what it was given."""
    spare = [os.dup2(descriptor, _FIRST_SPARE + index) for index, descriptor in enumerate((*descriptors, outcome))]
    null, *own, outcome = spare
    for number in range(_FIRST_GIVEN):
        os.dup2(null, number)
    final = [os.dup2(descriptor, _FIRST_GIVEN + index) for index, descriptor in enumerate((*own, outcome))]
    linux.close_from(_FIRST_GIVEN + len(final))
    return final[-1], final[:-1]


def _watch(spec: SandboxSpec, control: socket.socket, started: float, pid: int, outcome: int) -> SandboxReport:
    handle = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(control, select.POLLIN | select.POLLRDHUP)
    left = max(0.0, started + spec.limits.deadline_seconds - monotonic())
    events = dict(poll.poll(left * 1000))
    ending = Ending.EXITED if handle in events else Ending.CANCELLED if events else Ending.DEADLINE
    if ending is not Ending.EXITED:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    _, wait_status, usage = os.wait4(pid, 0)
    status = os.waitstatus_to_exitcode(wait_status)
    message = os.read(outcome, 1024)
    if message != _READY and ending is Ending.EXITED:
        step, code = msgspec.json.decode(message, type=tuple[str, int]) if message else ("start", 0)
        return SandboxReport(ending=Ending.REFUSED, step=step, errno=code)
    if ending is Ending.EXITED and status < 0:
        ending, status = Ending.SIGNALLED, -status
    return SandboxReport(
        ending=ending,
        status=abs(status),
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_memory=usage.ru_maxrss * 1024,
    )
