"""The limit of memory of one sandbox, counted over all of its processes.

A memory cgroup (version 1 or 2) is exact: the kernel kills, and counts what it killed. Where this process may not make
cgroups, a watch reads the memory of the sandbox's processes and ends a sandbox that has too much. In both cases the
watch counts what the kernel may hold for sockets beyond the first few, and each process has a limit of its own
(`SandboxLimits.data_bytes`), so that one burst cannot take the machine.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_MOUNT = Path("/sys/fs/cgroup")
_NAME = "trace-runner"
_ENTRANCES = {1: "tasks", 2: "cgroup.procs"}
"""Where a process writes 0 to join. In version 1 a thread that moves itself waits for no other process of the
machine; moving another process takes the kernel milliseconds, in which whoever asked for it stands still."""
_WATCH_SECONDS = 0.05
_FREE_SOCKETS = 64
"""So many are not counted: functions have few, with little in them."""
_SOCKET_BYTES = 208 * 1024
"""Linux's usual limit of one socket's buffer."""


class MemoryUse(Protocol):
    """Of one sandbox, as of the last `read`."""

    @property
    def peak_bytes(self) -> int: ...
    @property
    def exceeded(self) -> bool:
        """Whether any of its processes was killed for it."""
        ...

    def read(self) -> None: ...


class MemoryLimiter:
    """Limits by the best means that this process has."""

    def __init__(self, parent: "CgroupParent | None") -> None:
        self._parent = parent

    @classmethod
    def choose(cls) -> "MemoryLimiter":
        return cls(find_parent())

    @property
    def means(self) -> str:
        return "watch" if self._parent is None else f"cgroup v{self._parent.version}"

    @asynccontextmanager
    async def open_group(self, most_bytes: int) -> AsyncIterator["Cgroup | None"]:
        """An empty cgroup for one sandbox, which must have ended when the block is left. None: there are none here."""
        group = None if self._parent is None else self._parent.open_group(most_bytes)
        try:
            yield group
        finally:
            if group is not None:
                await group.remove()

    @asynccontextmanager
    async def limit(
        self, group: "Cgroup | None", pid: int, most_bytes: int, kill: Callable[[], None]
    ) -> AsyncIterator[MemoryUse]:
        """Limits this process, which has joined the group, and all that it will start. `kill` ends them."""
        watch = MemoryWatch(pid, most_bytes, kill, processes=group is None)
        watching = asyncio.create_task(watch.run())
        try:
            yield watch if group is None else _GroupAndWatch(group, watch)
        finally:
            watching.cancel()


class MemoryWatch:
    """Reads the memory of a process and its descendants; orphans become children of the first process.

    Sockets are counted always: the kernel lets senders exceed the limit of a cgroup a little, on each of their sockets.
    """

    def __init__(self, pid: int, most_bytes: int, kill: Callable[[], None], *, processes: bool = True) -> None:
        self._pid = pid
        self._processes = processes
        self._most_bytes = most_bytes
        self._kill = kill
        self.peak_bytes = 0
        self.exceeded = False

    def read(self) -> None:
        own = _memory_of_tree(self._pid) if self._processes else 0
        self.peak_bytes = max(self.peak_bytes, own + _memory_of_sockets(self._pid))

    async def run(self) -> None:
        while not self.exceeded:
            self.read()
            if self.peak_bytes > self._most_bytes:
                self.exceeded = True
                self._kill()
            await asyncio.sleep(_WATCH_SECONDS)


def _memory_of_tree(pid: int) -> int:
    total, pids = 0, [pid]
    while pids:
        directory = Path("/proc", str(pids.pop()))
        with suppress(OSError, ValueError):  # it has just ended
            for line in (directory / "status").read_text().splitlines():
                # Not the pages of files: they are the machine's, and most are shared by all sandboxes.
                if line.startswith(("RssAnon:", "RssShmem:")):
                    total += int(line.split()[1]) * 1024
            for thread in (directory / "task").iterdir():
                pids += [int(item) for item in (thread / "children").read_text().split()]
    return total


def _memory_of_sockets(pid: int) -> int:
    """What the kernel may hold in buffers of the sandbox's sockets: it does not say what it does hold."""
    with suppress(OSError, ValueError, IndexError):
        # "sockets: used 12", of all kinds, in the network namespace of the process.
        used = int(Path("/proc", str(pid), "net", "sockstat").read_text().split(maxsplit=3)[2])
        return max(0, used - _FREE_SOCKETS) * _SOCKET_BYTES
    return 0


class Cgroup:
    """One memory cgroup that holds one sandbox."""

    def __init__(self, directory: Path, version: int) -> None:
        self._directory = directory
        self._version = version
        self.peak_bytes = 0
        self.exceeded = False
        self.entrance = os.open(directory / _ENTRANCES[version], os.O_WRONLY)
        """A descriptor; a process that writes 0 to it joins. The kernel asks for the rights of whoever opened it."""

    def add(self, pid: int) -> None:
        """Joins a process that could not do so itself."""
        (self._directory / "cgroup.procs").write_text(str(pid))

    async def remove(self) -> None:
        """Its processes have ended, or are about to."""
        os.close(self.entrance)
        self.read()
        for _ in range(50):
            try:
                self._directory.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                await asyncio.sleep(0.02)
            else:
                return

    def read(self) -> None:
        if self._version == 1:
            peak, events = "memory.max_usage_in_bytes", "memory.oom_control"
        else:
            peak, events = "memory.peak", "memory.events"
        with suppress(OSError, ValueError):
            self.peak_bytes = int((self._directory / peak).read_text())
        with suppress(OSError, ValueError):
            lines = (line.split() for line in (self._directory / events).read_text().splitlines())
            self.exceeded = any(name == "oom_kill" and int(value) > 0 for name, value in lines)


@dataclass(frozen=True, slots=True)
class _GroupAndWatch:
    """The use of a sandbox whose processes are in a cgroup."""

    group: Cgroup
    watch: MemoryWatch

    @property
    def peak_bytes(self) -> int:
        return max(self.group.peak_bytes, self.watch.peak_bytes)

    @property
    def exceeded(self) -> bool:
        return self.group.exceeded or self.watch.exceeded

    def read(self) -> None:
        self.group.read()
        self.watch.read()


class CgroupParent:
    """A cgroup below which this process may make others."""

    def __init__(self, directory: Path, version: int) -> None:
        self._directory = directory
        self.version = version

    def open_group(self, most_bytes: int) -> Cgroup | None:
        directory = self._directory / f"{_NAME}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            directory.mkdir()
            if self.version == 1:
                (directory / "memory.limit_in_bytes").write_text(str(most_bytes))
                with suppress(OSError):  # buffers of connections are counted apart, in kernels that count them at all
                    (directory / "memory.kmem.tcp.limit_in_bytes").write_text(str(most_bytes))
                with suppress(OSError):  # a kernel that does not count swap
                    (directory / "memory.memsw.limit_in_bytes").write_text(str(most_bytes))
            else:
                (directory / "memory.max").write_text(str(most_bytes))
                (directory / "memory.oom.group").write_text("1")
                with suppress(OSError):
                    (directory / "memory.swap.max").write_text("0")
            return Cgroup(directory, self.version)
        except OSError:
            with suppress(OSError):
                directory.rmdir()
            return None

    def remove_left(self) -> None:
        """Those of a runner that was killed. A runner that lives may be about to use one that is still empty."""
        for directory in self._directory.glob(f"{_NAME}-*"):
            pid = directory.name.removeprefix(f"{_NAME}-").partition("-")[0]
            if not Path("/proc", pid).exists():
                with suppress(OSError):
                    directory.rmdir()


def find_parent(mount: Path = _MOUNT, own: Path = Path("/proc/self/cgroup")) -> CgroupParent | None:
    """Below the own cgroup, or beside it: in version 2 a cgroup with processes has no others below it."""
    paths: dict[str, str] = {}
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            paths |= dict.fromkeys(controllers.split(","), path.lstrip("/"))
    candidates = []
    if "memory" in paths:
        candidates.append(CgroupParent(mount / "memory" / paths["memory"], 1))
    elif "" in paths:
        directory = mount / paths[""]
        candidates += [CgroupParent(place, 2) for place in (directory, directory.parent) if place.is_relative_to(mount)]
    for candidate in candidates:
        candidate.remove_left()
        trial = candidate.open_group(64 * 1024 * 1024)
        if trial is not None and _can_move(trial):
            return candidate
    return None


def _can_move(trial: Cgroup) -> bool:
    """Whether a process of ours can be put there: shown with one that does nothing."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    os.close(read_end)
    try:
        trial.add(pid)
    except OSError:
        moved = False
    else:
        moved = True
    os.close(write_end)
    os.waitpid(pid, 0)
    os.close(trial.entrance)
    with suppress(OSError):
        trial._directory.rmdir()
    return moved
