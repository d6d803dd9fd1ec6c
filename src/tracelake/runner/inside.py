"""The inner side of a function's sandbox, up to the moment when it becomes the user's program.

It opens the two addresses that the program will call, on the sandbox's own loopback interface, and hands the listening
sockets to the runner: a socket stays in the network namespace where it was made, so the runner accepts connections from
inside without any process of ours in the sandbox. Then it waits until the runner has limited its memory.
"""

import os
import socket
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from tracelake.sandbox import linux

LISTENERS = ("runtime", "egress")
PORTS = (9001, 9002)
HOST = "127.0.0.1"
READY, START = b"ready", b"start"
OUTSIDE = b"outer"
"""Ready, but it could not join its memory cgroup: the runner has to move it."""
_ENTER = b"0"
_BACKLOG = 64
_NICENESS = 5
"""Users' code gives way to the services of the machine."""


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    arguments: tuple[str, ...]
    environment: dict[str, str]
    directory: str


_CALLS = msgspec.json.Decoder(FunctionCall)
"""Made once, in the fork server."""


def run(payload: bytes, descriptors: Sequence[int]) -> NoReturn:
    call = _CALLS.decode(payload)
    link_number, output, errors, *entrance = descriptors
    listeners = [socket.create_server((HOST, port), backlog=_BACKLOG) for port in PORTS]
    with socket.socket(fileno=link_number) as link:
        message = READY if all(_join(group) for group in entrance) else OUTSIDE
        socket.send_fds(link, [message], [listener.fileno() for listener in listeners])
        if link.recv(len(START)) != START:
            os._exit(1)  # the runner has given up
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.nice(_NICENESS)
        os.chdir(call.directory)
        for listener in listeners:
            listener.detach()
        link.detach()
    linux.close_from(3)
    os.execve(call.arguments[0], call.arguments, call.environment)  # noqa: S606 - inside of the sandbox


def _join(group: int) -> bool:
    """Moves this process into the memory cgroup; the descriptor is closed with all others before the program starts."""
    try:
        return os.write(group, _ENTER) == len(_ENTER)
    except OSError:
        return False
