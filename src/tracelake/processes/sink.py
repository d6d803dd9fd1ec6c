"""`trace sink`: the composition root of a sink, alone in a process or beside a worker.

It finds the Dispatcher by `HOME/stack.json` and waits for it.
"""

import asyncio
import logging
import os
import shutil
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import click

from tracelake.adapters.postgres_queue import PostgresQueue
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.cli.options import home_option
from tracelake.client import FileCredential, HttpClient, InternalClient
from tracelake.model.backoff import Backoff
from tracelake.ports import FileTransfer
from tracelake.settings import Settings
from tracelake.settings.configs import take_config
from tracelake.settings.home import LocalStack
from tracelake.sink.config import SinkConfig
from tracelake.sink.loop import Sink
from tracelake.sink.spark_load import SparkLoader
from tracelake.spark.session import SharedSession, SparkConfig
from tracelake.stack.follow import follow_stack, run_process

logger = logging.getLogger(__name__)

_BACKOFF = Backoff(0.5, 30.0)


def sink_config(settings: Settings) -> SinkConfig:
    return take_config(
        SinkConfig,
        settings,
        "sink_",
        max_receives=settings.queue_max_receives,
        visibility_seconds=settings.queue_visibility_seconds,
        large_bytes=settings.sink_spark_bytes,
    )


async def run_sink(
    settings: Settings, stack: LocalStack, shared: SharedSession, transfer: FileTransfer, stop: asyncio.Event
) -> None:
    """Runs a sink until `stop` is set; the Spark session belongs to the caller."""
    async with AsyncExitStack() as closing:
        # One more receive than a sink allows itself: it is the sink that says what became of a batch.
        queue = PostgresQueue(settings.resolve_queue_dsn(), max_receives=settings.queue_max_receives + 1)
        closing.push_async_callback(queue.close)
        http = HttpClient(stack.internal_url, stack.ca_file)
        closing.push_async_callback(http.close)
        sink = Sink(
            sink_config(settings),
            queue=queue,
            objects=S3ObjectStore(settings.resolve_object_store()),
            calls=InternalClient(http, service=FileCredential(settings.layout.keys / "service.token")),
            data_dsn=settings.resolve_data_dsn,
            large=SparkLoader(shared.use, transfer, settings.resolve_data_dsn),
        )
        logger.info("sink ready")
        await sink.run(stop)


async def keep_sink(
    settings: Settings, stack: LocalStack, shared: SharedSession, transfer: FileTransfer, leave: asyncio.Event
) -> None:
    """Runs a sink beside a worker until `leave` is set, and starts it again when it fails."""
    failures = 0
    while not leave.is_set():
        stop = asyncio.Event()
        running = asyncio.create_task(run_sink(settings, stack, shared, transfer, stop))
        leaving = asyncio.create_task(leave.wait())
        try:
            await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            await running
        except Exception:
            failures += 1
            logger.exception("the sink ended and starts anew")
            with suppress(TimeoutError):
                await asyncio.wait_for(leave.wait(), _BACKOFF.seconds(failures))
        finally:
            leaving.cancel()


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    async def serve_stack(stack: LocalStack, leave: asyncio.Event) -> None:
        scratch = settings.layout.spark / f"sink-{os.getpid()}"
        config = SparkConfig(
            scratch / "session", settings.spark_master, settings.spark_memory, crash_directory=settings.layout.logs
        )
        shared = SharedSession(config, settings.spark_idle_seconds)
        try:
            await run_sink(settings, stack, shared, S3Transfer(settings.resolve_object_store()), leave)
        finally:
            shared.close()
            shutil.rmtree(scratch, ignore_errors=True)

    await follow_stack(settings.layout, stop, serve_stack)
    logger.info("sink stops")


@click.command(short_help="Run one sink process (a worker of `trace up` has one beside it).")
@home_option
def command(home: Path | None) -> None:
    """Run one sink process: it turns published batches into rows of buffered datasets.

    The workers that `trace up` starts have a sink beside them (`worker_sink`); any number may be added by hand on the
    same home, and none of them knows of the others.
    """
    settings = Settings.load({"home": home})
    run_process("sink", settings, serve)
