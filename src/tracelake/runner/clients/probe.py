"""A function that looks for holes in its own sandbox; a runner starts with it. Returns what it found."""

import contextlib
import os
import socket
from typing import Any

_ENVIRONMENT = {
    "AWS_ENDPOINT_URL_S3",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
    "AWS_LAMBDA_RUNTIME_API",
    "HOME",
    "LAMBDA_TASK_ROOT",
    "LANG",
    "LC_CTYPE",
    "PATH",
    "TMPDIR",
    "TRACE_TASK_URL",
    "TZ",
    "_HANDLER",
}
_FAMILIES = {16: "netlink", 17: "packet", 31: "bluetooth", 38: "algorithms", 40: "vsock", 44: "xdp"}
_UNKNOWN_ADDRESS = ("192.0.2.1", 80)
"""Reserved for documentation: nobody answers there."""


def handler(_event: Any, _context: Any) -> list[str]:
    holes = []
    if os.getpid() != 1:
        holes.append("it sees processes of the machine")
    if os.getuid() == 0 or os.geteuid() == 0:
        holes.append("it has root's user id")
    if set(os.environ) - _ENVIRONMENT:
        holes.append("it has variables of the machine's environment")
    private = ("/proc/1/environ", "/etc/passwd", "/sys", "/run", "/old")
    holes += [f"it can open {path}" for path in private if _opens(path)]
    for path in ("/var/task/x", "/var/runtime/x", "/x", "/usr/x"):
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
            holes.append(f"it can write {path}")
    for family, name in _FAMILIES.items():
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            with contextlib.suppress(OSError):
                socket.socket(family, kind).close()
                holes.append(f"it has sockets of the family {name}")
    with contextlib.suppress(OSError):
        socket.create_connection(_UNKNOWN_ADDRESS, timeout=1).close()
        holes.append("it can connect to other machines")
    return holes


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True
