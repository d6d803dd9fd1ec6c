"""The steps that put a process into its sandbox. Each runs in a forked process that has one thread.

Two ways lead to the same place. A plain user makes the user namespace first, because it grants the right to make the
others. Root makes the others with its own rights, so that sources may lie below private directories, then changes to
a user id that nobody else has, and makes the user namespace last. Afterwards the process has no capability in any
namespace.

The order is fixed: namespaces, root directory, identity, limits, capabilities, seccomp. `SetupError` names the step
that the machine refused; nothing untrusted has run then.
"""

import errno
import os
import platform
import resource
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tracelake.sandbox import linux
from tracelake.sandbox.root_directory import build_root
from tracelake.sandbox.seccomp import assemble_filter, install_filter
from tracelake.sandbox.spec import SandboxLimits, SandboxSpec

_NAMESPACES = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWCGROUP
)
_FIRST_OWN_UID, _OWN_UIDS = 0x6000_0000, 0x1000_0000
"""Above all accounts: each sandbox of a service that runs as root gets a user id of its own."""
_NOBODY = 65534
_OOM_FIRST = "1000"
_CONNECTION_BUFFER = 262_144
_PENDING_SIGNALS = 1024
"""Also the number of timers. A plain user's sandboxes draw on the one stock of that user."""


class SetupError(Exception):
    def __init__(self, step: str, code: int) -> None:
        super().__init__(f"{step}: {os.strerror(code)}")
        self.step = step
        self.code = code


def enter_namespaces() -> None:
    """The next fork is the first process inside. This process stays outside of the process id namespace."""
    if os.geteuid() == 0:
        with _step("namespaces"):
            linux.unshare(_NAMESPACES)
        return
    uid, gid = os.geteuid(), os.getegid()
    own_proc = _open_own_proc()
    with _step("user_namespace"):
        linux.unshare(linux.CLONE_NEWUSER)
        _map_identity(own_proc, uid, gid)
    os.close(own_proc)
    with _step("namespaces"):
        linux.unshare(_NAMESPACES)


def confine(spec: SandboxSpec) -> None:
    """Makes this process, the first of its process id namespace, the sandbox. Only seccomp is missing afterwards."""
    own_proc = _open_own_proc()
    with _step("proc"):
        _write(own_proc, "oom_score_adj", _OOM_FIRST)
        image_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with _step("mounts"):
        build_root(spec)
    with _step("hostname"):
        linux.set_hostname("sandbox")
    if spec.loopback:
        with _step("loopback"):
            linux.raise_loopback()
        _limit_buffers(own_proc)
    if os.geteuid() == 0:
        _become_nobody(own_proc)
    os.close(own_proc)
    with _step("limits"):
        _set_limits(spec.limits, image_bytes)
    with _step("capabilities"):
        linux.drop_capabilities()
        linux.set_dumpable(dumpable=False)


def refuse_syscalls(spec: SandboxSpec) -> None:
    """The last step: from here on only the listed system calls exist."""
    with _step("seccomp"):
        install_filter(assemble_filter(spec.profile, platform.machine()))


def _become_nobody(own_proc: int) -> None:
    with _step("identity"):
        os.setgroups([])
        uid = _FIRST_OWN_UID + secrets.randbelow(_OWN_UIDS)
        try:
            os.setresgid(uid, uid, uid)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            uid = _NOBODY  # in a container that has few user ids
            os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    with _step("user_namespace"):
        linux.set_dumpable(dumpable=True)  # otherwise root owns the files that follow
        linux.unshare(linux.CLONE_NEWUSER)
        _map_identity(own_proc, uid, uid)


def _map_identity(own_proc: int, uid: int, gid: int) -> None:
    """The namespace has this one user and this one group."""
    _write(own_proc, "setgroups", "deny")
    _write(own_proc, "uid_map", f"{uid} {uid} 1")
    _write(own_proc, "gid_map", f"{gid} {gid} 1")


def _limit_buffers(own_proc: int) -> None:
    """Connections within the sandbox need no large buffers, and the kernel's stock of them is the machine's.

    Where the settings cannot be written, as in some containers, memory limits of the sandbox are all there is.
    """
    for name, default in (("tcp_rmem", 131_072), ("tcp_wmem", 16_384)):
        with suppress(OSError):
            _write(own_proc, f"../sys/net/ipv4/{name}", f"4096 {default} {_CONNECTION_BUFFER}")


def _open_own_proc() -> int:
    """A descriptor, because /proc will be out of sight."""
    with _step("proc"):
        return os.open("/proc/self", os.O_PATH | os.O_DIRECTORY)


def _write(directory: int, name: str, text: str) -> None:
    descriptor = os.open(name, os.O_WRONLY, dir_fd=directory)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _set_limits(limits: SandboxLimits, image_bytes: int) -> None:
    values = {
        resource.RLIMIT_AS: image_bytes + limits.memory_bytes if limits.memory_bytes else resource.RLIM_INFINITY,
        resource.RLIMIT_DATA: limits.data_bytes or resource.RLIM_INFINITY,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_SIGPENDING: _PENDING_SIGNALS,
        resource.RLIMIT_STACK: 8 * 1024 * 1024,
    }
    for kind, value in values.items():
        _, hard = resource.getrlimit(kind)
        allowed = min((limit for limit in (value, hard) if limit != resource.RLIM_INFINITY), default=value)
        resource.setrlimit(kind, (allowed, allowed))


@contextmanager
def _step(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SetupError(name, error.errno or 0) from error
