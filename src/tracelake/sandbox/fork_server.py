"""The fork server: a process that has imported what sandboxes run, and forks one of them per request.

Started as `python -I -m tracelake.sandbox.fork_server MODULE` with an empty environment and one socket as descriptor
0. It imports MODULE, whose `run` is what runs inside, and then only receives descriptors and forks: it reads no
request, opens no connection and holds no data, so that a sandbox inherits nothing of another. It ends when the
service closes the socket.
"""

import gc
import importlib
import os
import platform
import signal
import socket
import sys
from contextlib import suppress

from tracelake.sandbox.monitor import run_sandbox
from tracelake.sandbox.seccomp import Profile, assemble_filter

MOST_DESCRIPTORS = 64


def main() -> None:
    run = importlib.import_module(sys.argv[1]).run
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
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 16, MOST_DESCRIPTORS)
        if not message:
            return
        with suppress(OSError):  # too many processes: the service sees its end of the control socket close
            if os.fork() == 0:
                requests.close()
                run_sandbox(socket.socket(fileno=descriptors[0]), descriptors[1:], run)
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    main()
