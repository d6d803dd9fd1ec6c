"""The root directory of a sandbox: an empty read-only file system with exactly the mounts of its spec.

Runs in a mount namespace of its own. The machine's root stays reachable below `/old` while sources are mounted, and is
gone before anything untrusted runs.
"""

import os
from pathlib import Path

from tracelake.sandbox import linux
from tracelake.sandbox.spec import Mount, SandboxSpec

_BASE = "/tmp"  # noqa: S108 - a mount point: the tmpfs that becomes the root is private to the namespace
_OLD = "/old"
_DIRECTORIES = 1024
_SCRATCH_INODES = 16_384


def build_root(spec: SandboxSpec) -> None:
    os.umask(0o022)  # the service may keep its own files private; the user inside is another one
    sources = [os.path.realpath(mount.source) for mount in spec.mounts]
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    options = f"mode=0755,size=1m,nr_inodes={_DIRECTORIES + 2 * len(sources)}"
    linux.mount("tmpfs", _BASE, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    Path(f"{_BASE}{_OLD}").mkdir()
    linux.pivot_root(_BASE, f"{_BASE}{_OLD}")
    os.chdir("/")
    if spec.limits.scratch_bytes:
        _mount_scratch(spec.limits.scratch_bytes)  # first: other mounts may lie below it
    for source, mount in zip(sources, spec.mounts, strict=True):
        _bind(f"{_OLD}{source}", mount)
    for place, text in spec.links:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).symlink_to(text)
    if spec.proc:
        Path("/proc").mkdir()
        linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    linux.detach_mount(_OLD)
    Path(_OLD).rmdir()
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("none", "/", None, flags)


def _bind(source: str, mount: Mount) -> None:
    target = Path(mount.target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if Path(source).is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    linux.mount(source, mount.target, None, linux.MS_BIND | linux.MS_REC)
    attributes = linux.MOUNT_ATTR_NOSUID
    attributes |= 0 if mount.writable or mount.device else linux.MOUNT_ATTR_RDONLY
    attributes |= 0 if mount.executable else linux.MOUNT_ATTR_NOEXEC
    attributes |= 0 if mount.device else linux.MOUNT_ATTR_NODEV
    linux.set_mount_attributes(mount.target, attributes)


def _mount_scratch(size: int) -> None:
    Path("/tmp").mkdir()  # noqa: S108
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("tmpfs", "/tmp", "tmpfs", flags, f"mode=1777,size={size},nr_inodes={_SCRATCH_INODES}")  # noqa: S108
