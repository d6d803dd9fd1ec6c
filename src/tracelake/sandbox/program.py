"""Programs in a sandbox: runs a command line and collects a bounded part of what it prints.

`run` is the inner side, in a process that the fork server forked: it replaces itself by the program. The program has no
environment but the one named here.
"""

import asyncio
import os
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

import msgspec

from tracelake.sandbox.pipes import open_pipe
from tracelake.sandbox.server import SandboxServer
from tracelake.sandbox.spec import Mount, SandboxReport, SandboxSpec

_DEVICES = ("null", "zero", "full", "random", "urandom")
_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/etc/ld.so.cache")


class ProgramCall(msgspec.Struct, frozen=True, kw_only=True):
    arguments: tuple[str, ...]
    environment: dict[str, str] = {}
    directory: str = "/"


class ProgramResult(msgspec.Struct, frozen=True, kw_only=True):
    report: SandboxReport
    output: bytes
    """The last bytes of standard output; the limit is the caller's."""
    errors: bytes


def run(payload: bytes, descriptors: Sequence[int]) -> NoReturn:
    call = msgspec.json.decode(payload, type=ProgramCall)
    for number, descriptor in zip((1, 2), descriptors, strict=False):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(call.directory)
    os.execve(call.arguments[0], call.arguments, call.environment)  # noqa: S606 - inside of the sandbox


async def run_program(
    server: SandboxServer, spec: SandboxSpec, call: ProgramCall, *, output_bytes: int = 256 * 1024
) -> ProgramResult:
    """`server` is a `SandboxServer` of this module."""
    async with open_pipe() as output, open_pipe() as errors:
        descriptors = [output.write_end, errors.write_end]
        async with server.launch(spec, msgspec.json.encode(call), descriptors) as sandbox:
            output.give_away()
            errors.give_away()
            # The pipes end with the sandbox, and the sandbox with its deadline.
            output_tail, errors_tail = await asyncio.gather(
                output.read_tail(output_bytes), errors.read_tail(output_bytes)
            )
            report = await sandbox.wait()
    return ProgramResult(report=report, output=output_tail, errors=errors_tail)


def interpreter_mounts() -> tuple[tuple[Mount, ...], tuple[tuple[str, str], ...]]:
    """What this Python needs with its packages, in `system_mounts`."""
    packages = (sysconfig.get_path(name) for name in ("purelib", "platlib"))
    return system_mounts(sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), *packages)


@cache
def system_mounts(*directories: str) -> tuple[tuple[Mount, ...], tuple[tuple[str, str], ...]]:
    """Programs and libraries of the system, these directories and some devices; and links among them.

    Looked up once: a process sees what was installed when it asked first.
    """
    mounts: dict[str, Mount] = {}
    links = []
    for path in (*_SYSTEM, *directories):
        if Path(path).is_symlink() and path in _SYSTEM:
            links.append((path, str(Path(path).readlink())))
        elif Path(path).exists() and not any(Path(path).is_relative_to(parent) for parent in mounts):
            mounts[path] = Mount(source=path, target=path, executable=True)
    for name in _DEVICES:
        mounts[f"/dev/{name}"] = Mount(source=f"/dev/{name}", target=f"/dev/{name}", device=True)
    return tuple(mounts.values()), tuple(links)
