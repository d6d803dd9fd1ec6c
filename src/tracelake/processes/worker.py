"""`trace worker`: the composition root of one worker process.

It finds the Dispatcher by `HOME/stack.json` and waits for it.
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
from contextlib import suppress

import click
import uvloop

from tracelake.adapters.lite.postgres_queue import PostgresQueue
from tracelake.client import FileCredential, HttpClient, InternalClient, TaskClient
from tracelake.model.retry import Backoff
from tracelake.processes import logs
from tracelake.processes.home import Home, Stack
from tracelake.processes.runtimes import load_runtimes, worker_queue
from tracelake.processes.settings import Settings
from tracelake.worker import Worker, WorkerConfig

logger = logging.getLogger(__name__)

_WAIT = Backoff(0.1, 2.0)
_WATCH_SECONDS = 2.0


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


async def _wait_for_stack(home: Home, stop: asyncio.Event) -> Stack | None:
    tries = 0
    while not stop.is_set():
        stack = home.read_stack()
        if stack is not None:
            return stack
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
    """Until told to stop. A stack that was started again has other addresses: the worker moves with it."""
    while (stack := await _wait_for_stack(settings.layout, stop)) is not None:
        await _serve_stack(settings, stack, stop)


async def _serve_stack(settings: Settings, stack: Stack, stop: asyncio.Event) -> None:
    worker, queue, clients = build(settings, stack)
    leave = asyncio.Event()
    watching = asyncio.create_task(_watch(settings.layout, stack, stop, leave))
    logger.info("worker ready", extra={"runtime": settings.worker_runtime, "slots": settings.worker_slots})
    try:
        await worker.run(leave)
        logger.info("worker stops" if stop.is_set() else "the stack was started again")
    finally:
        watching.cancel()
        await queue.close()
        for client in clients:
            await client.close()


async def _watch(home: Home, stack: Stack, stop: asyncio.Event, leave: asyncio.Event) -> None:
    """Set `leave` when told to stop, or when another stack has taken the place of this one."""
    while home.read_stack() in (None, stack):
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _WATCH_SECONDS)
            break
    leave.set()


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
