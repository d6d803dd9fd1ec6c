"""`trace worker`: the composition root of one worker process.

It finds the Dispatcher by `HOME/stack.json` and waits for it.
"""

import asyncio
import logging
import os
import secrets
import socket

import click
import uvloop

from tracelake.adapters.lite.postgres_queue import PostgresQueue
from tracelake.client import FileCredential, HttpClient, InternalClient, TaskClient
from tracelake.processes import logs
from tracelake.processes.follow import follow_stack
from tracelake.processes.home import Stack
from tracelake.processes.runtimes import load_runtimes, worker_queue
from tracelake.processes.settings import Settings
from tracelake.processes.signals import stop_event
from tracelake.worker import Worker, WorkerConfig

logger = logging.getLogger(__name__)


def build(settings: Settings, stack: Stack) -> tuple[Worker, PostgresQueue, list[HttpClient]]:
    queue = PostgresQueue(settings.resolve_queue_dsn(), max_receives=settings.queue_max_receives)
    internal = HttpClient(stack.internal_url, stack.ca_file)
    task = HttpClient(stack.task_url, stack.ca_file)
    config = WorkerConfig(
        worker_id=f"{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(4)}",
        queues=(worker_queue(settings, load_runtimes(settings)),),
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


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Until told to stop. A stack that was started again has other addresses: the worker moves with it."""

    async def serve_stack(stack: Stack, leave: asyncio.Event) -> None:
        worker, queue, clients = build(settings, stack)
        logger.info("worker ready", extra={"runtime": settings.worker_runtime, "slots": settings.worker_slots})
        try:
            await worker.run(leave)
        finally:
            await queue.close()
            for client in clients:
                await client.close()

    await follow_stack(settings.layout, stop, serve_stack)
    logger.info("worker stops")


async def _main(settings: Settings) -> None:
    await serve(settings, stop_event())


@click.command(short_help="Run one worker process (what `trace up` starts).")
@click.option("--home", type=click.Path(), help="Where the stack keeps everything it stores.")
@click.option("--slots", "worker_slots", type=int, help="Tasks to run at once.")
@click.option("--runtime", "worker_runtime", help="The runtime whose tasks to take.")
def command(home: str | None, worker_slots: int | None, worker_runtime: str | None) -> None:
    """Run one worker process.

    `trace up` starts and supervises some; any number may be added by hand on the same home. On SIGTERM it finishes
    what runs, and after ten seconds hands the rest to whoever is there; sources it hands over at once.
    """
    settings = Settings.load({"home": home, "worker_slots": worker_slots, "worker_runtime": worker_runtime})
    logs.configure("worker", settings.log_level)
    uvloop.run(_main(settings))
