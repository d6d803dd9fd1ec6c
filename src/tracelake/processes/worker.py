"""`trace worker`: the composition root of one worker process.

It finds the Dispatcher by `HOME/stack.json` and waits for it.
"""

import asyncio
import logging
import os
import secrets
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from tracelake.adapters.postgres_queue import PostgresQueue
from tracelake.adapters.s3.access import WORKING, StorePatience
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.cli.options import home_option
from tracelake.client import FileCredential, HttpClient, InternalClient, TaskClient
from tracelake.feeds.hosts import FeedHosts, hosts_of, parse_ports
from tracelake.feeds.places import FeedPlaces
from tracelake.processes.sink import keep_sink
from tracelake.settings import Settings, SettingsError
from tracelake.settings.configs import take_config
from tracelake.settings.home import LocalStack
from tracelake.settings.runtimes import load_runtimes, worker_queue
from tracelake.spark.child.sandbox import protect_memory
from tracelake.spark.evm.endpoints import resolve_with
from tracelake.spark.session import SharedSession, SparkConfig
from tracelake.stack import logs
from tracelake.stack.follow import follow_stack, run_process
from tracelake.stack.job_secrets import secret_provider
from tracelake.stack.rpc_addresses import resolver
from tracelake.storage.direct_tables import PostgresDirectTables
from tracelake.worker import Worker, WorkerConfig
from tracelake.worker.feeds import FeedOperators
from tracelake.worker.operators import OPERATORS
from tracelake.worker.org_process.launch import OrgProcessConfig
from tracelake.worker.org_process.pool import OrgProcesses
from tracelake.worker.spark import SparkOperators

logger = logging.getLogger(__name__)


def build_engine(settings: Settings) -> SparkOperators:
    """Builds the engine of this process, with a scratch directory of its own."""
    resolve_with(resolver(settings.layout, settings.org))
    scratch = settings.layout.spark / f"worker-{os.getpid()}"
    config = SparkConfig(
        scratch / "session",
        settings.spark_master,
        settings.spark_memory,
        log_level="warn",
        crash_directory=settings.layout.logs,
    )
    isolation = None
    transfer = _transfer(settings)
    if settings.spark_isolation == "org":
        isolation = OrgProcesses(
            OrgProcessConfig(
                scratch=scratch / "orgs",
                master=settings.spark_master,
                memory=settings.spark_memory,
                memory_bytes=_bytes(settings.spark_memory),
                overhead_bytes=_bytes(settings.spark_overhead),
                stop_seconds=settings.worker_stop_seconds,
                logs=settings.layout.logs,
                scratch_bucket=settings.scratch_bucket,
            ),
            transfer,
            settings.resolve_data_read_dsn,
            limit=settings.spark_processes,
            idle_seconds=settings.spark_idle_seconds,
            spare=settings.spark_spare,
        )
    return SparkOperators(
        SharedSession(config, settings.spark_idle_seconds),
        transfer,
        scratch,
        settings.resolve_data_read_dsn,
        settings.worker_stop_seconds,
        isolation,
    )


def _transfer(settings: Settings) -> S3Transfer:
    patience = StorePatience(settings.s3_timeout_seconds, settings.s3_retry_seconds, WORKING.retries)
    return S3Transfer(settings.resolve_object_store(), patience)


def _bytes(amount: str) -> int:
    """The number of bytes of an amount like 512m or 2g."""
    return int(amount[:-1]) * 2 ** (30 if amount[-1] in "gG" else 20)


def feed_hosts(settings: Settings) -> Callable[[str], FeedHosts]:
    """What the feeds of an org may call. Raises SettingsError."""
    entries = [entry for entry in settings.feed_hosts.split(",") if entry]
    ports = parse_ports(settings.feed_ports)

    def hosts(org: str) -> FeedHosts:
        return hosts_of(org, entries, public=settings.feed_public, ports=ports)

    try:
        hosts(settings.org)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return hosts


class EarlyEngine:
    """The engine of a worker, built while the rest of the stack starts: its spare process needs seconds."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine: SparkOperators | None = None
        _sweep(settings.layout.spark)
        with suppress(SettingsError):  # the object store has no credentials before the first start in a home
            self._engine = build_engine(settings)

    def take(self) -> SparkOperators:
        """The caller closes what it gets. An engine for another object store is replaced."""
        if self._engine is not None and self._engine.transfer != _transfer(self._settings):
            self.close()
        engine, self._engine = self._engine or build_engine(self._settings), None
        return engine

    def close(self) -> None:
        """Closes an engine that nobody took."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def worker_config(settings: Settings, worker_id: str) -> WorkerConfig:
    return take_config(
        WorkerConfig,
        settings,
        worker_id=worker_id,
        queues=(worker_queue(settings, load_runtimes(settings)),),
        slots=settings.worker_slots,
        reserved_slots=min(settings.worker_reserved_slots, settings.worker_slots // 8),
        visibility_seconds=settings.queue_visibility_seconds,
        abandon_seconds=2 * settings.worker_stop_seconds,
    )


def build(
    settings: Settings, stack: LocalStack, engine: SparkOperators
) -> tuple[Worker, PostgresQueue, list[HttpClient]]:
    queue = PostgresQueue(settings.resolve_queue_dsn(), max_receives=settings.queue_max_receives)
    internal = HttpClient(stack.internal_url, stack.ca_file)
    task = HttpClient(stack.task_url, stack.ca_file)
    config = worker_config(settings, f"{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(4)}")
    feeds = FeedOperators(
        engine.transfer, feed_hosts(settings), FeedPlaces(settings.feed_processes), _bytes(settings.feed_memory)
    )
    claims = InternalClient(internal, worker=FileCredential(settings.layout.keys / "worker.token"))
    worker = Worker(
        config,
        queue=queue,
        claims=claims,
        tasks=TaskClient(task),
        operators=OPERATORS | feeds.operators() | engine.operators(),
        secrets=secret_provider(settings.layout),
        tables=PostgresDirectTables(settings.resolve_data_dsn),
        log_calls=claims,
    )
    return worker, queue, [internal, task]


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Serves until `stop` is set. A stack that was started again has other addresses: the worker moves with it."""
    early_engine = EarlyEngine(settings)

    async def serve_stack(stack: LocalStack, leave: asyncio.Event) -> None:
        engine = early_engine.take()
        worker, queue, clients = build(settings, stack, engine)
        logger.info("worker ready", extra={"runtime": settings.worker_runtime, "slots": settings.worker_slots})
        sink = None
        if settings.worker_sink:
            sink = asyncio.create_task(keep_sink(settings, stack, engine.shared, engine.transfer, leave))
        try:
            await worker.run(leave)
        finally:
            if sink is not None:
                leave.set()
                await asyncio.gather(sink, return_exceptions=True)
            engine.close()
            await queue.close()
            for client in clients:
                await client.close()

    try:
        await follow_stack(settings.layout, stop, serve_stack)
    finally:
        early_engine.close()
    logger.info("worker stops")


def _sweep(directory: Path) -> None:
    """Removes the scratch directories of workers that were killed."""
    for left in directory.glob("worker-*"):
        pid = left.name.removeprefix("worker-")
        if not pid.isdigit() or not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)


@click.command(short_help="Run one worker process (what `trace up` starts).")
@home_option
@click.option("--slots", "worker_slots", type=int, help="Tasks to run at once.")
@click.option("--runtime", "worker_runtime", help="The runtime whose tasks to take.")
def command(home: Path | None, worker_slots: int | None, worker_runtime: str | None) -> None:
    """Run one worker process.

    `trace up` starts and supervises some; any number may be added by hand on the same home. On SIGTERM it finishes
    what runs, and after ten seconds hands the rest to other workers; sources it hands over at once.
    """
    settings = Settings.load({"home": home, "worker_slots": worker_slots, "worker_runtime": worker_runtime})
    logs.clean_prints()
    # What users wrote runs in processes of the same user.
    protect_memory()
    run_process("worker", settings, serve)
