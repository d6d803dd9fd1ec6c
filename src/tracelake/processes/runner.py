"""`trace runner`: the composition root of one runner process.

It needs the task listener of a Dispatcher, and the addresses of the Query Service and the object store for its
functions, but no credential for any of them. A machine that cannot isolate functions has a runner all the same: it
refuses every attempt with the reason, so that people see it where they look.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping
from pathlib import Path

import click

from tracelake.adapters.shared_secrets import SharedSecret
from tracelake.cli.options import home_option
from tracelake.client import HttpClient
from tracelake.http.server import ListenerServer
from tracelake.processes.listener_limits import listener_limits
from tracelake.runner.assembly import RunnerApplication, RunnerConfig, RunnerPorts
from tracelake.runner.egress import Destinations
from tracelake.runner.function import INSIDE, FunctionRunner
from tracelake.runner.memory import MemoryLimiter
from tracelake.runner.self_test import check_isolation
from tracelake.runner.upstream import UpstreamService
from tracelake.sandbox.server import SandboxServer
from tracelake.settings import Settings
from tracelake.settings.configs import archive_limits, take_config
from tracelake.settings.home import LocalStack
from tracelake.stack import listeners
from tracelake.stack.follow import follow_stack, run_process
from tracelake.stack.tls import ensure_tls

logger = logging.getLogger(__name__)


def runner_config(settings: Settings) -> RunnerConfig:
    return take_config(
        RunnerConfig,
        settings,
        slots=settings.runner_slots,
        wait_seconds=settings.runner_wait_seconds,
        scratch_bytes=settings.runner_scratch_bytes,
        cache_bytes=settings.runner_cache_bytes,
        bundle_limits=archive_limits(settings),
        heartbeat_seconds=settings.runner_heartbeat_seconds,
    )


async def serve(settings: Settings, sockets: Mapping[str, socket.socket], stop: asyncio.Event) -> None:
    """Serves until `stop` is set. A stack that was started again has other addresses: the runner moves with it."""
    sandboxes = SandboxServer(INSIDE, spares=settings.runner_spares)
    limiter = MemoryLimiter.choose()
    functions = FunctionRunner(sandboxes, limiter)
    problem = await check_isolation(sandboxes, functions)
    logger.info("runner starts", extra={"memory_limit": limiter.means, "problem": problem})
    try:

        async def serve_stack(stack: LocalStack, leave: asyncio.Event) -> None:
            await _serve_stack(settings, sockets, functions, problem, stack, leave)

        await follow_stack(settings.layout, stop, serve_stack)
        logger.info("runner stops")
    finally:
        await sandboxes.close()


async def _serve_stack(
    settings: Settings,
    sockets: Mapping[str, socket.socket],
    functions: FunctionRunner,
    problem: str | None,
    stack: LocalStack,
    leave: asyncio.Event,
) -> None:
    tls, keys = ensure_tls(settings.layout.tls, *settings.bind_hosts), settings.layout.keys
    http = HttpClient(stack.task_url, stack.ca_file)
    open_metrics = listeners.is_loopback(sockets["runner"])
    application = RunnerApplication(
        RunnerPorts(
            functions=functions,
            tasks=http,
            destinations=find_destinations(stack),
            directory=settings.layout.runner,
            service_secret=SharedSecret.ensure(keys, "service"),
            metrics_secret=None if open_metrics else SharedSecret.ensure(keys, "metrics"),
            problem=problem,
        ),
        runner_config(settings),
    )
    server = ListenerServer(
        application.app,
        sockets["runner"].dup(),  # a server closes its socket, and another stack may come
        certificate=tls.certificate,
        private_key=tls.key,
        limits=listener_limits(settings, listeners.RUNNER_LISTENERS)["runner"],
    )
    try:
        await server.start()
        logger.info("runner ready", extra={"port": server.port})
        await leave.wait()
    finally:
        await server.stop()
        await application.close()
        await http.close()


def find_destinations(stack: LocalStack) -> Destinations:
    store = stack.object_store
    endpoint = store.endpoint or f"https://s3.{store.region}.amazonaws.com"
    return Destinations(
        tasks=UpstreamService(stack.task_url, str(stack.ca_file)),
        queries=None if stack.query_task_url is None else UpstreamService(stack.query_task_url, str(stack.ca_file)),
        objects=UpstreamService(endpoint),
    )


async def serve_listeners(settings: Settings, stop: asyncio.Event) -> None:
    """Serves on the socket of the supervisor, or on a new one, until `stop` is set."""
    names = listeners.RUNNER_LISTENERS
    await serve(settings, listeners.inherited(names=names) or listeners.bind(settings, names=names), stop)


@click.command(short_help="Run one runner of users' functions (what `trace up` starts).")
@home_option
def command(home: Path | None) -> None:
    """Run one runner: it runs users' functions, each attempt in a sandbox of its own.

    `trace up` starts and supervises one. It needs Linux with user namespaces; if the machine lacks something, the
    runner refuses every function and says what.
    """
    settings = Settings.load({"home": home})
    run_process("runner", settings, serve_listeners)
