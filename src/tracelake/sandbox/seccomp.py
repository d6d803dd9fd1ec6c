"""A seccomp filter that refuses every system call which is not on a list.

The filter is a classic BPF program, assembled here. It kills the process when a call comes from another instruction set
(32-bit calls on a 64-bit kernel have other numbers), and answers EPERM to a call that is not allowed. A few calls are
allowed for some arguments only: `clone` makes threads, in programs also processes, and never namespaces.
"""

import ctypes
import errno
import platform
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from tracelake.sandbox import linux
from tracelake.sandbox.syscalls import AARCH64, COMPUTING, PROGRAMS, X86_64

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_ARGUMENTS = 0, 4, 16
_X32_BIT = 0x40000000

_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000 | 0x00000080
"""CLONE_NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWNS and NEWTIME."""
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX and FIOCLEX: not TIOCSTI, which types into a terminal."""
_PRCTLS = (2, 3, 15, 16, 23, 38, 39, 0x53564D41)
"""GET_PDEATHSIG, GET_DUMPABLE, SET and GET of NAME, CAPBSET_READ, SET and GET of NO_NEW_PRIVS, names of memory areas.
Not SET_PDEATHSIG: the process would outlive its monitor."""

_PROTOCOLS = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)


class Profile(StrEnum):
    COMPUTING = "computing"
    """Threads and files: our own code that parses what others wrote."""
    PROGRAMS = "programs"
    """Also processes and sockets: other people's programs."""


@dataclass(frozen=True, slots=True)
class _Machine:
    audit_number: int
    syscalls: dict[str, int]


_MACHINES = {
    "x86_64": _Machine(0xC000003E, X86_64),
    "aarch64": _Machine(0xC00000B7, AARCH64),
}

_Instruction = tuple[int, int, int, int]
"""Operation, jump if true, jump if false, constant."""


def is_supported_machine() -> bool:
    return platform.machine() in _MACHINES


@cache
def assemble_filter(profile: Profile, machine_name: str) -> bytes:
    """The filter as the kernel takes it."""
    return b"".join(struct.pack("HBBI", *instruction) for instruction in _instructions(profile, machine_name))


def install_filter(code: bytes) -> None:
    """Binds this process and its descendants to the filter for good. Needs no_new_privs."""
    buffer = ctypes.create_string_buffer(code, len(code))
    linux.set_seccomp_filter(linux.FilterProgram(len(code) // 8, ctypes.addressof(buffer)))


def _instructions(profile: Profile, machine_name: str) -> Iterator[_Instruction]:
    machine = _MACHINES[machine_name]
    numbers = machine.syscalls
    programs = profile is Profile.PROGRAMS
    yield (_LOAD, 0, 0, _OFFSET_ARCHITECTURE)
    yield (_JUMP_EQUAL, 1, 0, machine.audit_number)
    yield (_RETURN, 0, 0, _KILL_PROCESS)
    yield (_LOAD, 0, 0, _OFFSET_NUMBER)
    yield (_JUMP_GREATER_EQUAL, 0, 1, _X32_BIT)
    yield (_RETURN, 0, 0, _KILL_PROCESS)
    for name in sorted(PROGRAMS if programs else COMPUTING):
        if name in numbers:
            yield (_JUMP_EQUAL, 0, 1, numbers[name])
            yield (_RETURN, 0, 0, _ALLOW)
    yield from _of(numbers["clone"], _check_clone(programs=programs))
    # ENOSYS: the C library then uses `clone`, whose flags a filter can read.
    yield from _of(numbers["clone3"], [_refuse(errno.ENOSYS)])
    yield from _of(numbers["ioctl"], _check_listed(1, _IOCTLS, errno.ENOTTY))
    yield from _of(numbers["prctl"], _check_listed(0, _PRCTLS, errno.EINVAL))
    yield from _of(numbers["prlimit64"], _check_null(2))
    if programs:
        yield from _of(numbers["socket"], _check_socket())
        # The kernel makes sockets of any family for a pair, and loads the family's module, before it finds none fit.
        yield from _of(numbers["socketpair"], _check_listed(0, [socket.AF_UNIX], errno.EAFNOSUPPORT))
    yield _refuse(errno.EPERM)


def _of(number: int, body: Iterable[_Instruction]) -> list[_Instruction]:
    """Each body ends with an answer, so that what follows still has the number of the call loaded."""
    instructions = list(body)
    return [(_JUMP_EQUAL, 0, len(instructions), number), *instructions]


def _refuse(code: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)


def _load_argument(index: int, *, high: bool = False) -> _Instruction:
    return (_LOAD, 0, 0, _OFFSET_ARGUMENTS + 8 * index + (4 if high else 0))


def _check_clone(*, programs: bool) -> Iterator[_Instruction]:
    yield _load_argument(0)
    yield (_JUMP_SET, 0, 1, _CLONE_NAMESPACES)
    yield _refuse(errno.EPERM)
    if not programs:
        yield (_JUMP_SET, 1, 0, _CLONE_THREAD)
        yield _refuse(errno.EPERM)
    yield (_RETURN, 0, 0, _ALLOW)


def _check_socket() -> Iterator[_Instruction]:
    """Families by allowlist, and TCP and UDP alone: the kernel loads modules for other protocols of IP."""
    yield _load_argument(2)
    for skipped, protocol in zip((3, 2, 1), _PROTOCOLS, strict=True):
        yield (_JUMP_EQUAL, skipped, 0, protocol)
    yield _refuse(errno.EPROTONOSUPPORT)
    yield from _check_listed(0, [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6], errno.EAFNOSUPPORT)


def _check_listed(index: int, values: Iterable[int], refusal: int) -> Iterator[_Instruction]:
    yield _load_argument(index)
    for value in values:
        yield (_JUMP_EQUAL, 0, 1, value)
        yield (_RETURN, 0, 0, _ALLOW)
    yield _refuse(refusal)


def _check_null(index: int) -> Iterator[_Instruction]:
    for high in (False, True):
        yield _load_argument(index, high=high)
        yield (_JUMP_EQUAL, 1, 0, 0)
        yield _refuse(errno.EPERM)
    yield (_RETURN, 0, 0, _ALLOW)
