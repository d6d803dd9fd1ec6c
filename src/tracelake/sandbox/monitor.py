"""The life of one sandbox, as its monitor sees it.

    fork server ── fork ──▶ monitor ── fork ──▶ first process of the sandbox (process id 1)

The monitor belongs to one sandbox. It reads the request from its control socket, makes the namespaces, forks the
first process, waits, and reports. It ends the sandbox when the deadline passes, or when the other end of the socket
closes: the service cancels by closing it, and a service that dies has closed it. When the first process ends, the
kernel kills all others of its process id namespace. When the monitor dies, for whatever reason, the kernel kills the
first process; when the fork server dies, the monitor. So nothing outlives any of them.

Both may be there before the work is: the namespaces exist and the first process has made its preparations, which see
nothing of any request. Each serves one request and ends. The request comes over the socket that the fork server
shares with the monitor, as the control socket and the descriptors of the sandbox; the monitor passes it on to the
first process, which tells over a pipe when its set-up is complete, or which step failed.
"""

import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import clock_gettime, monotonic, process_time
from typing import NoReturn

import msgspec

from tracelake.sandbox import linux
from tracelake.sandbox.confinement import SetupError, confine, enter_namespaces, refuse_syscalls
from tracelake.sandbox.spec import Ending, SandboxReport, SandboxSpec

HEADER = struct.Struct(">II")
"""Lengths of the spec and of the payload, which follow."""
MOST_DESCRIPTORS = 64
_FIRST_SPARE = 512
"""Descriptors are moved above this number before they get their final one."""
_FIRST_GIVEN = 3
_READY = b"ready"
_SPECS = msgspec.json.Decoder(SandboxSpec)
"""Made once, in the fork server: what it takes to know the type costs more than reading a spec."""
_FAILED = 125

Run = Callable[[bytes, Sequence[int]], int]
"""What runs inside: gets the payload of the request and the descriptors it was given, returns the exit status."""


@dataclass(frozen=True, slots=True)
class Inside:
    """What a sandbox is for. Only `run` sees the request."""

    run: Run
    prepare: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class _First:
    pid: int
    link: socket.socket
    """Takes the request to the first process."""
    outcome: int
    """The pipe on which it tells how its set-up ended."""


def run_sandbox(requests: socket.socket, inside: Inside) -> NoReturn:
    """Becomes the monitor. Called in a process that the fork server has just forked."""
    server = os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    first: _First | SetupError
    try:
        try:
            enter_namespaces()
            linux.end_with_parent(signal.SIGKILL)
            if os.getppid() != server:
                os._exit(_FAILED)
            first = _start(requests, inside)
        except SetupError as error:
            first = error
        warm = not select.select([requests], [], [], 0)[0]
        if isinstance(first, _First) and not _await_request(requests, first):
            os._exit(_FAILED)
        message, descriptors, _, _ = socket.recv_fds(requests, 16, MOST_DESCRIPTORS)
        if message:
            control = socket.socket(fileno=descriptors[0])
            report = msgspec.structs.replace(_serve(control, descriptors[1:], first), warm=warm)
            control.sendall(msgspec.json.encode(report))
    except (OSError, EOFError):
        os._exit(_FAILED)  # nobody listens
    finally:
        os._exit(0)


def _await_request(requests: socket.socket, first: _First) -> bool:
    """False: the first process has died before there was anything to do."""
    handle = os.pidfd_open(first.pid)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(requests, select.POLLIN)
    events = dict(poll.poll())
    os.close(handle)
    return requests.fileno() in events


def _serve(control: socket.socket, descriptors: Sequence[int], first: _First | SetupError) -> SandboxReport:
    started = monotonic()
    earlier_cpu = process_time() + (0.0 if isinstance(first, SetupError) else _cpu_seconds(first.pid))
    spec_text, payload = _receive(control)
    if isinstance(first, SetupError):
        return SandboxReport(ending=Ending.REFUSED, step=first.step, errno=first.code)
    with suppress(OSError):  # it has ended, which is seen below
        socket.send_fds(first.link, [HEADER.pack(len(spec_text), len(payload))], descriptors)
        first.link.sendall(spec_text + payload)
    for descriptor in descriptors:
        os.close(descriptor)  # the ends that the service reads see their end of file with the sandbox
    spec = _SPECS.decode(spec_text)
    return _watch(first, control, started + spec.limits.deadline_seconds, earlier_cpu)


def _receive(source: socket.socket) -> tuple[bytes, bytes]:
    """The texts of the spec and of the payload."""
    lengths = HEADER.unpack(_receive_exactly(source, HEADER.size))
    spec_text, payload = (_receive_exactly(source, length) for length in lengths)
    return spec_text, payload


def _receive_exactly(control: socket.socket, length: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < length:
        chunk = control.recv(min(length - len(chunks), 1 << 20))
        if not chunk:
            raise EOFError
        chunks += chunk
    return bytes(chunks)


def _start(requests: socket.socket, inside: Inside) -> _First:
    outcome, first_outcome = os.pipe()
    link, first_link = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            requests.close()
            link.close()
            _become_first(first_link, first_outcome, inside)
        finally:
            os._exit(_FAILED)
    os.close(first_outcome)
    first_link.close()
    return _First(pid, link, outcome)


def _become_first(link: socket.socket, outcome: int, inside: Inside) -> NoReturn:
    linux.end_with_parent(signal.SIGKILL)
    os.setsid()  # process groups cross namespaces: `kill(0)` would reach the monitor, the service and its terminal
    # Opened here: inside there is no such file.
    null = os.open("/dev/null", os.O_RDWR)
    inside.prepare()
    try:
        header, descriptors, _, _ = socket.recv_fds(link, HEADER.size, MOST_DESCRIPTORS)
        if len(header) < HEADER.size:
            os._exit(_FAILED)  # there will be no request
        spec_text, payload = (_receive_exactly(link, length) for length in HEADER.unpack(header))
        spec = _SPECS.decode(spec_text)
        outcome, numbers = _arrange(outcome, [null, *descriptors])
        confine(spec)
        linux.end_with_parent(signal.SIGKILL)  # again: the identity has changed
        refuse_syscalls(spec)
        # A monitor that died before the line above cannot be noticed by a signal any more: nobody reads this pipe then.
        os.write(outcome, _READY)
        os.close(outcome)
        status = 0 if spec.trial else inside.run(payload, numbers)
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


def _cpu_seconds(pid: int) -> float:
    """CPU time of a living process; the kernel derives the number of its clock from its process id."""
    return clock_gettime((~pid << 3) | 2)


def _watch(first: _First, control: socket.socket, deadline: float, earlier_cpu: float) -> SandboxReport:
    handle = os.pidfd_open(first.pid)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(control, select.POLLIN | select.POLLRDHUP)
    events = dict(poll.poll(max(0.0, deadline - monotonic()) * 1000))
    ending = Ending.EXITED if handle in events else Ending.CANCELLED if events else Ending.DEADLINE
    if ending is not Ending.EXITED:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    _, wait_status, usage = os.wait4(first.pid, 0)
    status = os.waitstatus_to_exitcode(wait_status)
    message = os.read(first.outcome, 1024)
    if message != _READY and ending is Ending.EXITED:
        step, code = msgspec.json.decode(message, type=tuple[str, int]) if message else ("start", 0)
        return SandboxReport(ending=Ending.REFUSED, step=step, errno=code)
    if ending is Ending.EXITED and status < 0:
        ending, status = Ending.SIGNALLED, -status
    return SandboxReport(
        ending=ending,
        status=abs(status),
        cpu_seconds=max(0.0, usage.ru_utime + usage.ru_stime + process_time() - earlier_cpu),
        peak_memory=usage.ru_maxrss * 1024,
    )
