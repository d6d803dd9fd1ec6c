"""What one sandbox contains, what it may use, and how it ended. Sent from the service to its fork server as JSON."""

from enum import StrEnum

import msgspec

from tracelake.sandbox.seccomp import Profile

MIB = 1024 * 1024


class Mount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file or directory of the machine that is visible inside, read-only unless `writable`."""

    source: str
    target: str
    writable: bool = False
    executable: bool = False
    device: bool = False
    """A device node, such as /dev/null."""


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Each is enforced by the kernel or by the monitor, outside of the sandbox."""

    deadline_seconds: float
    """Wall clock, from the request on. Everything inside is killed then."""
    memory_bytes: int = 0
    """Address space beyond what the process has when it starts; 0: no limit, for programs that reserve more than they
    use."""
    data_bytes: int = 0
    """Private memory that one process may write to; 0: no limit."""
    cpu_seconds: int
    file_bytes: int = 0
    """Size of any file that is written."""
    open_files: int = 64
    processes: int = 16
    """Processes and threads together."""
    scratch_bytes: int = 0
    """Size of the private /tmp; 0: there is none."""


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    limits: SandboxLimits
    profile: Profile
    mounts: tuple[Mount, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    """Symbolic links: where, and what they say."""
    proc: bool = False
    """A /proc with the processes of the sandbox alone."""
    loopback: bool = False
    """A loopback interface that is up, for sockets within the sandbox. There is never another interface."""
    trial: bool = False
    """Ends after the set-up: shows that the machine allows each step."""


class Ending(StrEnum):
    EXITED = "exited"
    SIGNALLED = "signalled"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    """A step of the set-up failed: nothing has run."""


class SandboxReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the monitor saw."""

    ending: Ending
    status: int = 0
    """The exit status, or the number of the signal."""
    cpu_seconds: float = 0.0
    """Since the request came: of the first process, of the children it waited for, and of the monitor."""
    peak_memory: int = 0
    """Most resident memory in bytes, with what is shared with the fork server."""
    warm: bool = False
    """It was ready before its request came."""
    step: str = ""
    """The step of the set-up that the machine refused."""
    errno: int = 0
