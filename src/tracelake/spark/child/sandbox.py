"""Limits that a process imposes on itself and on everything it starts, without privileges: Linux namespaces,
Landlock.

Each mechanism that the kernel does not offer is skipped and named, so that the worker can log it once:

- `namespaces`: a user namespace without capabilities; a network of its own that has a loopback and nothing else;
  process ids of its own, so that no other process can be signalled and everything ends with the first one.
- `proc`: a view of /proc with its own processes alone.
- `files`: Landlock. Programs and libraries can be read, the process' own directory can be written, nothing else is
  there.
- `signals`: Landlock, for kernels where process ids are shared.

Only the standard library is used here: it runs before anything else is imported.
"""

import ctypes
import fcntl
import glob
import os
import resource
import socket
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress

_CLONE_NEWNS, _CLONE_NEWIPC = 0x00020000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x40000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 1, 4, 24, 36
_PR_SET_NO_NEW_PRIVS = 38
_SIOCSIFFLAGS, _IFF_UP_RUNNING = 0x8914, 0x41
_SIGKILL = 9
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same on every architecture
_LANDLOCK_VERSION = 1
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_SCOPES = 0b11
"""Abstract sockets and signals."""
_READ = _READ_FILE | _READ_DIR
_RIGHTS_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_NEWEST_RIGHTS = (1 << 16) - 1
_NET_VERSION, _SCOPE_VERSION = 4, 6

PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/opt/java")
SETTINGS = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/alternatives"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/host.conf", "/etc/resolv.conf"),
    *("/etc/localtime", "/etc/timezone", "/etc/locale.alias", "/etc/ssl", "/etc/pki", "/etc/crypto-policies"),
    *("/etc/java*", "/etc/.java", "/proc", "/sys"),
)
"""Of /etc what libraries ask for, without what administrators keep there."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_libc = ctypes.CDLL(None, use_errno=True)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def protect_memory() -> None:
    """Makes memory and environment of this process unreadable for other processes of the same user."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def end_with_parent() -> None:
    """Ends this process when the thread that started it ends, and takes up orphans of its own children."""
    _libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def limit_resources() -> None:
    """No memory dumps: they would be written by the kernel, where it likes."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def enter_namespaces(*, network: bool) -> str | None:
    """Answers why not, if not. `network`: keep the machine's network. The next fork is the first process inside."""
    # Tried by somebody else first: half of it, a network without its loopback, say, would be worse than nothing.
    if (probe := os.fork()) == 0:
        try:
            os._exit(min(_enter_namespaces(network=network), 255))
        except OSError as error:
            os._exit(min(error.errno or 1, 255))
        finally:
            os._exit(1)
    failure = os.waitstatus_to_exitcode(os.waitpid(probe, 0)[1])
    if failure:
        return os.strerror(failure) if failure > 0 else "it is forbidden here"
    _enter_namespaces(network=network)
    return None


def _enter_namespaces(*, network: bool) -> int:
    """0, or why the kernel refused. Raises OSError when it refuses later."""
    uid, gid = os.getuid(), os.getgid()
    flags = _CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWPID | (0 if network else _CLONE_NEWNET)
    if _libc.unshare(flags) != 0:
        return ctypes.get_errno()
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
            file.write(text)
    if not network:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP_RUNNING))
    return 0


def mount_proc() -> str | None:
    """Answers why not, if not: a container that hides parts of /proc does not allow it."""
    if _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        return os.strerror(ctypes.get_errno())
    if _libc.mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None) != 0:
        return os.strerror(ctypes.get_errno())
    return None


def drop_capabilities() -> None:
    """Also those that a namespace gave, and those that a program could give."""
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _libc.capset(header, (ctypes.c_uint32 * 6)())
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def landlock_version() -> int:
    """0 where the kernel has no Landlock, or it is turned off."""
    return max(0, int(_libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)))


def restrict_files(readable: Iterable[str], writable: Iterable[str]) -> str | None:
    """Answers why not, if not. Everything that is not named, or below what is, cannot be opened any more.

    Needs `drop_capabilities` before it."""
    version = landlock_version()
    if not version:
        return "the kernel has no Landlock"
    rights = _RIGHTS_BY_VERSION.get(version, _NEWEST_RIGHTS)
    attributes = struct.pack("QQQ", rights, 0, _SCOPES if version >= _SCOPE_VERSION else 0)
    size = 24 if version >= _SCOPE_VERSION else 16 if version >= _NET_VERSION else 8
    ruleset = _libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return os.strerror(ctypes.get_errno())
    try:
        for path in (*readable, *_interpreter()):
            _allow(ruleset, path, (_READ | _EXECUTE) & rights)
        for pattern in SETTINGS:
            for path in glob.glob(pattern):  # noqa: PTH207 - the fewer modules the better
                _allow(ruleset, path, _READ)
        for path in PROGRAMS:
            _allow(ruleset, path, _READ | _EXECUTE)
        for path in DEVICES:
            _allow(ruleset, path, (_READ_FILE | _WRITE_FILE | _IOCTL_DEV) & rights)
        for path in writable:
            _allow(ruleset, path, rights)
        if _libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0) != 0:
            return os.strerror(ctypes.get_errno())
    finally:
        os.close(ruleset)
    return None


def _interpreter() -> list[str]:
    """This interpreter, its libraries, and what it imports from."""
    binary = os.path.realpath(sys.executable)
    return [sys.prefix, sys.base_prefix, os.path.dirname(binary), *(path for path in sys.path if path)]  # noqa: PTH120


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no right
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        rule = _PathBeneath(rights, descriptor)
        if _libc.syscall(_LANDLOCK_ADD, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0) != 0:
            raise OSError(ctypes.get_errno(), f"Landlock refused a rule for {path}")
    finally:
        os.close(descriptor)
