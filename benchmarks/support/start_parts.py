"""The parts of a stack started by hand: one after the other, each alone, from its start until it answers."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import msgspec

from tracelake.processes.parts import plan_parts
from tracelake.settings import Settings
from tracelake.settings.home import LocalStack
from tracelake.stack import listeners
from tracelake.stack.clusters import Clusters, plan_object_store
from tracelake.stack.kept_ports import read_ports
from tracelake.stack.supervisor import Part
from tracelake.stack.tls import ensure_tls

_LOOK_SECONDS = 0.01
_START_SECONDS = 120.0
_STOP_SECONDS = 60.0


async def measure_parts(home: Path, stack: LocalStack) -> dict[str, float]:
    """Seconds of each part, in a home whose databases exist. `stack` is what an earlier run wrote there.

    The worker starts without Java. What `trace up` prepares before a start is not counted.
    """
    settings = Settings.load({"home": home, "spark_spare": "false"}, environ={})
    clusters = Clusters.plan(settings)
    sockets = listeners.bind(settings, read_ports(settings.layout.ports_file))
    tls = ensure_tls(settings.layout.tls, *settings.bind_hosts)
    urls = {f"{name}_url": listeners.url(sock, settings.bind_host_of(name)) for name, sock in sockets.items()}
    running: list[tuple[Part, subprocess.Popen[bytes]]] = []
    seconds: dict[str, float] = {}
    try:
        settings.layout.write_stack(msgspec.structs.replace(stack, pid=os.getpid(), **urls))
        for part in plan_parts(settings, clusters, plan_object_store(settings), sockets, tls):
            if part.prepare is not None:
                part.prepare()
            offset = part.log_file.stat().st_size if part.log_file.exists() else 0
            began = time.perf_counter()
            process = _spawn(part)
            running.append((part, process))
            await _wait_ready(part, process, offset)
            seconds[part.name] = time.perf_counter() - began
    finally:
        settings.layout.remove_stack()
        for part, process in reversed(running):
            _stop(part, process)
        for sock in sockets.values():
            sock.close()
    return seconds


def _spawn(part: Part) -> "subprocess.Popen[bytes]":
    with part.log_file.open("ab") as log:
        return subprocess.Popen(
            part.command(),
            env=dict(part.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=part.pass_fds,
            start_new_session=True,
        )


async def _wait_ready(part: Part, process: "subprocess.Popen[bytes]", offset: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if part.ready is not None:
            if await part.ready():
                return
        elif f"{part.name} ready".encode() in part.log_file.read_bytes()[offset:]:
            return
        await asyncio.sleep(_LOOK_SECONDS)
    raise RuntimeError(f"{part.name} does not start by hand; see {part.log_file}")


def _stop(part: Part, process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(part.stop_signal)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if part.clean_up is not None:
        part.clean_up()
