"""`trace worker`: the composition root of one worker process.

It finds the Dispatcher by `HOME/run/endpoints.json`, which `trace up` writes before it starts its children, or by
`HOME/stack.json`, and waits for one of them.
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
from pathlib import Path

import click
import msgspec
import uvloop

from tracelake.adapters.lite.postgres_queue import PostgresQueue
from tracelake.client import FileCredential, HttpClient, InternalClient, TaskClient
from tracelake.model.retry import Backoff
from tracelake.processes import logs
from tracelake.processes.home import Home
from tracelake.processes.settings import Settings
from tracelake.worker import Worker, WorkerConfig

logger = logging.getLogger(__name__)

_WAIT = Backoff(0.1, 2.0)


class Endpoints(msgspec.Struct, frozen=True):
    task_url: str
    internal_url: str
    ca_file: str


def read_endpoints(home: Home) -> Endpoints | None:
    for path in (home.run / "endpoints.json", home.stack_file):
        try:
            return msgspec.json.decode(path.read_bytes(), type=Endpoints)
        except (OSError, msgspec.DecodeError):
            continue
    return None


def build(settings: Settings, endpoints: Endpoints) -> tuple[Worker, PostgresQueue, list[HttpClient]]:
    queue = PostgresQueue(settings.resolve_queue_dsn(), max_receives=settings.queue_max_receives)
    internal = HttpClient(endpoints.internal_url, Path(endpoints.ca_file))
    task = HttpClient(endpoints.task_url, Path(endpoints.ca_file))
    config = WorkerConfig(
        worker_id=f"{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(4)}",
        queues=(f"tasks.{settings.worker_runtime}",),
        slots=settings.worker_slots,
        heartbeat_seconds=settings.heartbeat_seconds,
        visibility_seconds=settings.queue_visibility_seconds,
    )
    worker = Worker(
        config,
        queue=queue,
        claims=InternalClient(internal, worker=FileCredential(settings.layout.keys / "worker.token")),
        tasks=TaskClient(task),
    )
    return worker, queue, [internal, task]


async def _wait_for_endpoints(home: Home, stop: asyncio.Event) -> Endpoints | None:
    tries = 0
    while not stop.is_set():
        endpoints = read_endpoints(home)
        if endpoints is not None:
            return endpoints
        tries += 1
        if tries == 1:
            logger.warning("waiting for the stack to say where it is")
        try:
            async with asyncio.timeout(_WAIT.seconds(tries)):
                await stop.wait()
        except TimeoutError:
            continue
    return None


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    endpoints = await _wait_for_endpoints(settings.layout, stop)
    if endpoints is None:
        return
    worker, queue, clients = build(settings, endpoints)
    logger.info("worker ready", extra={"runtime": settings.worker_runtime, "slots": settings.worker_slots})
    try:
        await worker.run(stop)
        logger.info("worker stops")
    finally:
        await queue.close()
        for client in clients:
            await client.close()


async def _main(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(settings, stop)


@click.command(short_help="Run one worker process (what `trace up` starts).")
@click.option("--home", type=click.Path(), help="Where the stack keeps everything it stores.")
@click.option("--slots", "worker_slots", type=int, help="Tasks to run at once.")
@click.option("--runtime", "worker_runtime", help="The runtime whose tasks to take.")
def command(home: str | None, worker_slots: int | None, worker_runtime: str | None) -> None:
    """Run one worker process.

    `trace up` starts and supervises some; any number may be added by hand on the same home. On SIGTERM it finishes
    what runs, and after ten seconds leaves the rest to be retried.
    """
    settings = Settings.load({"home": home, "worker_slots": worker_slots, "worker_runtime": worker_runtime})
    logs.configure("worker", settings.log_level)
    uvloop.run(_main(settings))
