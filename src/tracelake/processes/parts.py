"""The parts of a stack: every child process that `trace up` supervises, and how each is started and stopped."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from functools import partial

from tracelake.demo.recorded_chain import NAME as CHAIN
from tracelake.demo.recorded_chain import RecordedChain
from tracelake.settings import CHILD_VARIABLE, Settings
from tracelake.stack import listeners, probe
from tracelake.stack.clusters import Clusters
from tracelake.stack.machine import wrap
from tracelake.stack.seaweedfs import EmbeddedObjectStore
from tracelake.stack.supervisor import Part
from tracelake.stack.tls import TlsFiles

DATABASES_STAGE, OBJECTS_STAGE, DISPATCHER_STAGE, WORKER_STAGE, QUERY_STAGE, RUNNER_STAGE = range(6)
"""They stop in the reverse order. `processes/up.py` starts stages together that can wait for each other."""

QUERY, RUNNER = "query", "runner"


def plan_parts(
    settings: Settings,
    clusters: Clusters,
    objects: EmbeddedObjectStore | None,
    sockets: Mapping[str, socket.socket],
    tls: TlsFiles,
    chain: RecordedChain | None = None,
    query_sockets: Mapping[str, socket.socket] | None = None,
    runner_sockets: Mapping[str, socket.socket] | None = None,
) -> list[Part]:
    """Every child of this stack, in the order of their stages."""
    home = settings.layout
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TRACE_", "OTEL_"))}
    # The headers of a collector are a secret, and workers run what others wrote.
    telemetry = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
    environment |= settings.to_environment() | {"PYTHONUNBUFFERED": "1", CHILD_VARIABLE: "1"}
    internal_url = listeners.url(sockets["internal"], settings.bind_host_of("internal"))
    parts = [
        Part(
            name=f"postgres-{cluster.name}",
            stage=DATABASES_STAGE,
            command=cluster.command,
            environment=cluster.environment(),
            log_file=cluster.log_file,
            prepare=cluster.prepare,
            ready=cluster.ready,
            # Fast shutdown: end sessions, write a checkpoint. In a hurry: recovery does the rest.
            stop_signal=signal.SIGINT,
            hurry_signal=signal.SIGQUIT,
            grace_seconds=60.0,
            # Recovery after a crash takes as long as it takes; giving up would only start it over.
            start_seconds=3600.0,
        )
        for cluster in clusters.all()
    ]
    if objects is not None:
        parts.append(
            Part(
                name="object-store",
                stage=OBJECTS_STAGE,
                command=objects.command,
                environment=objects.environment(),
                log_file=objects.log_file,
                prepare=objects.prepare,
                ready=partial(asyncio.to_thread, objects.ready),
                clean_up=objects.clean_up,
                # It takes half a minute to end politely, and loses nothing by being killed.
                stop_signal=signal.SIGKILL,
            )
        )
    if chain is not None:
        parts.append(
            Part(
                name=CHAIN,
                stage=OBJECTS_STAGE,
                command=chain.command,
                environment=chain.environment(),
                log_file=chain.log_file,
                ready=chain.ready,
            )
        )
    runner_url = listeners.url(runner_sockets[RUNNER], settings.runner_bind_host) if runner_sockets else None
    runner_variable = {} if runner_url is None else {"TRACE_RUNNER_URL": runner_url}
    parts.append(
        Part(
            name="dispatcher",
            stage=DISPATCHER_STAGE,
            command=partial(_child_command, "dispatcher"),
            environment=environment
            | telemetry
            | runner_variable
            | {listeners.VARIABLE: listeners.to_variable(sockets)},
            log_file=home.log_file("dispatcher"),
            pass_fds=tuple(listener.fileno() for listener in sockets.values()),
            ready=partial(asyncio.to_thread, probe.ready, internal_url, tls.ca),
            alive=partial(asyncio.to_thread, probe.alive, internal_url, tls.ca),
        )
    )
    workers, sinks = _names("worker", settings.workers), _names("sink", settings.sinks)
    for name, command in [("scheduler", "scheduler"), *workers, *sinks]:
        parts.append(
            Part(
                name=name,
                stage=WORKER_STAGE,
                command=partial(_child_command, command),
                environment=environment,
                log_file=home.log_file(name),
            )
        )
    services = []
    if query_sockets:
        query_url = listeners.url(query_sockets["query"], settings.bind_host_of("query"))
        services.append((QUERY, QUERY_STAGE, "query-service", query_sockets, query_url))
    if runner_sockets and runner_url is not None:
        services.append((RUNNER, RUNNER_STAGE, "runner", runner_sockets, runner_url))
    for name, stage, command, service_sockets, url in services:
        parts.append(
            Part(
                name=name,
                stage=stage,
                command=partial(_child_command, command),
                environment=environment | {listeners.VARIABLE: listeners.to_variable(service_sockets)},
                log_file=home.log_file(name),
                pass_fds=tuple(listener.fileno() for listener in service_sockets.values()),
                alive=partial(asyncio.to_thread, probe.alive, url, tls.ca),
            )
        )
    return parts


def _names(command: str, number: int) -> list[tuple[str, str]]:
    """The names of parts that run the same command, each with the command."""
    return [(command if number == 1 else f"{command}-{index}", command) for index in range(1, number + 1)]


def _child_command(name: str) -> list[str]:
    # -P: a file in the current directory must not take the place of a module. A killed supervisor takes them
    # along at once: all are made to be killed at any time.
    return wrap([sys.executable, "-P", "-m", "tracelake", name], death_signal=signal.SIGKILL)
