"""Start a program so that it cannot outlive its parent; standard library only, run as a script.

    python -I -S launch.py PARENT_PID DEATH_SIGNAL INNER_UID program [argument ...]

- DEATH_SIGNAL is sent to the program when the parent's thread that started it ends (Linux; 0 for none).
- INNER_UID, unless 0, makes the program see itself as that user inside a user namespace of its own while
  the kernel still treats it as the caller. Postgres refuses to run as root; this lets root run it below a
  0700 home without changing the owner of anything.

Files and sockets that the program makes are for its owner alone, unless it says otherwise (umask 077).

The script replaces itself with the program, so the process id is the program's. Exit status 124 (no user
namespace) or 125 means that the program was not started; the reason is the last line on standard error.
"""

import contextlib
import ctypes
import os
import signal
import sys

EXIT_NOT_STARTED = 125
EXIT_NO_NAMESPACE = 124

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1


def _fail(message: str, status: int = EXIT_NOT_STARTED) -> None:
    sys.stderr.write(f"launch: {message}\n")
    sys.stderr.flush()
    os._exit(status)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _enter_user_namespace(inner_uid: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER) != 0:
        _fail(f"no user namespace: {os.strerror(ctypes.get_errno())}", EXIT_NO_NAMESPACE)
    try:
        # Kernels before 3.19 have no setgroups file; the gid map needs it denied where there is one.
        with contextlib.suppress(FileNotFoundError):
            _write("/proc/self/setgroups", "deny")
        _write("/proc/self/gid_map", f"{inner_uid} {gid} 1")
        _write("/proc/self/uid_map", f"{inner_uid} {uid} 1")
    except OSError as error:
        _fail(f"no user namespace: {error.strerror}", EXIT_NO_NAMESPACE)


def _die_with(parent: int, signal_number: int) -> None:
    # A shell ignores interrupts for what it starts in the background, and that is inherited: until the program has a
    # handler of its own, the signal would be lost.
    if signal_number != signal.SIGKILL:
        signal.signal(signal_number, signal.SIG_DFL)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        _fail(f"prctl: {os.strerror(ctypes.get_errno())}")
    # The parent may have ended before the call above: then no signal will ever come.
    if os.getppid() != parent:
        _fail("the parent has ended")


def main(arguments: list[str]) -> None:
    parent, signal_number, inner_uid = (int(argument) for argument in arguments[:3])
    program = arguments[3:]
    os.umask(0o077)
    if sys.platform.startswith("linux"):
        if inner_uid:
            _enter_user_namespace(inner_uid)
        # After the namespace: a change of credentials clears the death signal.
        if signal_number:
            _die_with(parent, signal_number)
    try:
        os.execv(program[0], program)  # noqa: S606 - the caller names the program by its full path
    except OSError as error:
        _fail(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
