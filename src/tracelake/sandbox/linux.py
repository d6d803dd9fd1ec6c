"""System calls that Python's standard library does not offer, through the C library. Each raises OSError."""

import ctypes
import fcntl
import os
import socket
import struct
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 0x1, 0x2, 0x4, 0x8, 0x20, 0x1000, 0x4000
MS_PRIVATE = 0x40000
_MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS = 1, 4, 22, 24, 28
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_SECCOMP_MODE_FILTER = 2
_SECUREBITS = 0b11101111
"""Root has no privileges by its number, and these bits are locked; `keep_caps` is off and locked."""
_CAPABILITIES_VERSION = 0x20080522
_LAST_CAPABILITY = 63

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR, _CLOSE_RANGE = 442, 436  # the same on every architecture


_NO_ARGUMENTS = (ctypes.c_ulong(0),) * 3


class FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class _MountAttributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd"))


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags))


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _check(_libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, options.encode()))


def set_mount_attributes(target: str, attributes: int) -> None:
    """Adds attributes to the mount and to all mounts below it."""
    change = _MountAttributes(attr_set=attributes)
    _syscall(_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, ctypes.byref(change), ctypes.sizeof(change))


def detach_mount(target: str) -> None:
    _check(_libc.umount2(target.encode(), _MNT_DETACH))


def pivot_root(new_root: str, old_root: str) -> None:
    _syscall(_PIVOT_ROOT[os.uname().machine], new_root.encode(), old_root.encode())


def set_hostname(name: str) -> None:
    _check(_libc.sethostname(name.encode(), len(name)))


def raise_loopback() -> None:
    """Brings up the loopback interface of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def close_from(first: int) -> None:
    """Closes every file descriptor from this number on."""
    _syscall(_CLOSE_RANGE, first, 0xFFFFFFFF, 0)


def end_with_parent(signal: int) -> None:
    """The kernel sends the signal when the thread ends that started this process. A change of identity cancels it."""
    _prctl(_PR_SET_PDEATHSIG, signal)


def set_dumpable(*, dumpable: bool) -> None:
    """Whether other processes of the same user may read this one's memory and /proc entries."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def drop_capabilities() -> None:
    """Gives up all capabilities, and every way to get one back."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    _prctl(_PR_SET_SECUREBITS, _SECUREBITS)
    for capability in range(_LAST_CAPABILITY + 1):
        if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), *_NO_ARGUMENTS) != 0:
            break  # the first one that this kernel does not have
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def set_seccomp_filter(program: FilterProgram) -> None:
    _check(_libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program)))


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), *_NO_ARGUMENTS))


def _syscall(number: int, *arguments: Any) -> None:
    """Numbers are passed in full width: the C library cannot know their types."""
    _check(_libc.syscall(number, *(ctypes.c_long(item) if isinstance(item, int) else item for item in arguments)))


def _check(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
