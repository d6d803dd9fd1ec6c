"""What the sandbox needs of the machine, and what to say where it is missing."""

import errno
import os
import platform
import re
import sys
from pathlib import Path

from tracelake.errors import TraceError
from tracelake.sandbox.seccomp import is_supported_machine

_OLDEST_KERNEL = (5, 14)
"""It counts processes per user namespace, and changes the attributes of a tree of mounts at once."""

_SYSCTLS = (
    ("user/max_user_namespaces", "0", "set the sysctl user.max_user_namespaces to 10000 or more"),
    ("kernel/unprivileged_userns_clone", "0", "set the sysctl kernel.unprivileged_userns_clone to 1, or run as root"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "set the sysctl kernel.apparmor_restrict_unprivileged_userns to 0, allow `userns` in an AppArmor profile for"
        " this interpreter, or run as root",
    ),
)
_NEEDS = {
    "user_namespace": "user namespaces",
    "namespaces": "mount, process id, network, IPC, host name and cgroup namespaces",
    "proc": "a mounted /proc",
    "mounts": "mounts in a mount namespace",
    "hostname": "a host name of its own",
    "loopback": "a loopback interface in a network namespace",
    "identity": "a change to an unprivileged user id",
    "limits": "resource limits",
    "capabilities": "dropping capabilities",
    "seccomp": "seccomp filters (CONFIG_SECCOMP_FILTER)",
    "start": "memory to start a process",
}


def check_machine() -> None:
    """Raises `sandbox_unavailable` for what can be seen without a trial."""
    if sys.platform != "linux":
        raise _unavailable("Linux", sys.platform, "run this service on Linux")
    if not is_supported_machine():
        raise _unavailable("an x86_64 or aarch64 processor", platform.machine(), "run this service on such a machine")
    if (match := re.match(r"(\d+)\.(\d+)", os.uname().release)) and ((int(match[1]), int(match[2])) < _OLDEST_KERNEL):
        raise _unavailable("Linux 5.14 or newer", match[0], "update the kernel")


def explain_refusal(step: str, code: int) -> TraceError:
    """What the machine lacks if it refused this step of the set-up."""
    reason = errno.errorcode.get(code, "no reason")
    if step == "mounts" and code == errno.ENOENT:
        return TraceError("sandbox_file_missing")
    remedy = "run this service outside of a container, or in one that allows namespaces"
    if step in ("user_namespace", "namespaces", "mounts") and os.geteuid() != 0:
        remedy = next((text for name, value, text in _SYSCTLS if _sysctl(name) == value), remedy)
    return _unavailable(_NEEDS.get(step, step), f"{reason} at the step `{step}`", remedy)


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None


def _unavailable(need: str, received: str, remedy: str) -> TraceError:
    return TraceError(
        "sandbox_unavailable",
        f"the sandbox needs {need}; this machine answered: {received}. Next step: {remedy}",
        missing=need,
        received=received,
    )
