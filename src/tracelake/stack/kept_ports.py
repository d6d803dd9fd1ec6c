"""The ports of the run before, in HOME/run/ports.json: addresses that others were given stay as they are.

A port that a setting names comes first; one that somebody else has taken meanwhile is replaced by a free one. A file
that is missing or cannot be read costs nothing but new ports.
"""

import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tracelake.settings.home import write_private
from tracelake.stack.machine import free_port


def read_ports(path: Path) -> dict[str, int]:
    """The ports by name; invalid ones are left out."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        ports = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
        return {name: port for name, port in ports.items() if 0 < port < 65536}
    return {}


def write_ports(path: Path, ports: Mapping[str, int]) -> None:
    write_private(path, msgspec.json.encode(dict(ports)) + b"\n")


def again(before: Mapping[str, int], name: str, *, taken_port: int = 0) -> int:
    """The port of the run before if nobody else has it, or another one."""
    port = before.get(name, 0)
    return port if port not in (0, taken_port) and is_free(port) else free_port(taken_port=taken_port)


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could bind the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError):
            return False
    return True
