"""Tells the service manager that started this process (systemd, `Type=notify`) that a stack is ready, or stops.

The manager names a datagram socket in NOTIFY_SOCKET; a name that begins with `@` is in the abstract namespace. Without
the variable, nobody asked. A manager that does not listen does not stop the stack.
"""

import contextlib
import os
import socket

_VARIABLE = "NOTIFY_SOCKET"


def notify(state: str) -> None:
    """Sends an assignment such as `READY=1`."""
    address = os.environ.get(_VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        manager.sendall(state.encode())
