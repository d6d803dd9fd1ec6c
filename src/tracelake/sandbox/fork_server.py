"""The fork server: a process that has imported what sandboxes run, and forks one of them per request.

Started as `python -I -m tracelake.sandbox.fork_server MODULE SPARES` with an empty environment and one socket as
descriptor 0. It imports MODULE, whose `run` is what runs inside, and then only receives descriptors and forks: it
reads no request, opens no connection and holds no data, so that a sandbox inherits nothing of another. It ends when
the service closes the socket.

It keeps some spares: monitors with a first process that waits for its one request. MODULE may have a function
`preload`, which runs here once and must start no thread, and `prepare`, which runs in each first process before its
request comes.
"""

import gc
import importlib
import os
import platform
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from tracelake.sandbox.monitor import MOST_DESCRIPTORS, Inside, run_sandbox
from tracelake.sandbox.seccomp import Profile, assemble_filter

_QUIET_MILLISECONDS = 20
"""Spares are made when no request has come for so long: they would slow down the work that has just begun."""


def main() -> None:
    module = importlib.import_module(sys.argv[1])
    getattr(module, "preload", lambda: None)()
    inside = Inside(module.run, getattr(module, "prepare", lambda: None))
    requests = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes monitors that have ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the service as well, which decides
    for profile in Profile:
        assemble_filter(profile, platform.machine())  # kept for every fork
    gc.collect()
    gc.freeze()  # pages that nobody writes stay shared
    requests.send(b"ready")
    _serve(requests, inside, spares=int(sys.argv[2]))


def _serve(requests: socket.socket, inside: Inside, spares: int) -> None:
    idle: list[socket.socket] = []
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        if not poll.poll(None if len(idle) >= spares else _QUIET_MILLISECONDS):
            with suppress(OSError):
                idle.append(_fork_monitor([requests, *idle], inside))
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, 16, MOST_DESCRIPTORS)
        if not message:
            return
        with suppress(OSError):  # too many processes: the service sees its end of the control socket close
            while not _hand_over(idle.pop() if idle else _fork_monitor([requests], inside), descriptors):
                pass  # a spare that had died
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_monitor(others: Sequence[socket.socket], inside: Inside) -> socket.socket:
    ours, monitors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        for other in (ours, *others):
            other.close()
        run_sandbox(monitors, inside)
    monitors.close()
    return ours


def _hand_over(monitor: socket.socket, descriptors: Sequence[int]) -> bool:
    with monitor:
        try:
            socket.send_fds(monitor, [b"request"], descriptors)
        except BrokenPipeError:
            return False
    return True


if __name__ == "__main__":
    main()
