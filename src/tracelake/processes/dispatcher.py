"""`trace dispatcher`: the composition root of one Dispatcher process."""

import asyncio
import gc
import logging
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import asyncpg
import click

from tracelake.adapters.bundle_processes import BundleProcesses
from tracelake.adapters.disk_sync import DiskSync
from tracelake.adapters.document_processes import DocumentProcesses
from tracelake.adapters.local_invoker import LocalInvoker
from tracelake.adapters.postgres_queue import PostgresQueue
from tracelake.adapters.s3.access import ASKING, StorePatience
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.adapters.s3.signing import S3Urls
from tracelake.adapters.s3.sts import EndpointMinter
from tracelake.catalogue import CATALOGUE
from tracelake.cli.options import home_option
from tracelake.client import FileCredential, HttpClient, InternalClient
from tracelake.db.transaction import AWAY, Store
from tracelake.dispatcher.assembly import Dispatcher, Ports, reserved_connections
from tracelake.dispatcher.slices import SWITCH_SECONDS
from tracelake.errors import StoreUnavailableError
from tracelake.http.server import ListenerServer
from tracelake.model.backoff import Backoff
from tracelake.ports import CredentialMinter
from tracelake.processes.identity_provider import open_user_keys
from tracelake.processes.listener_limits import listener_limits
from tracelake.processes.table_rows import DataTables
from tracelake.settings import Settings, SettingsError
from tracelake.settings.configs import dispatcher_config
from tracelake.stack import listeners
from tracelake.stack.credentials import LiteCredentials
from tracelake.stack.follow import run_process
from tracelake.stack.provision import migrate_dsn
from tracelake.stack.renewal import read_renewal
from tracelake.stack.store_roles import TASK_ROLE
from tracelake.stack.tls import TlsFiles, certificate_end, ensure_tls
from tracelake.tokens.jwks import JwksKeys
from tracelake.wire.contract import Listener

logger = logging.getLogger(__name__)

_CLOCK_BODY = "SELECT statement_timestamp()"
_START_WAIT = Backoff(0.1, 5.0)


def _patience(settings: Settings) -> StorePatience:
    """The timeouts of the object store: short, because a caller waits for each answer."""
    return StorePatience(
        min(ASKING.request_seconds, settings.s3_timeout_seconds),
        min(ASKING.retry_seconds, settings.s3_retry_seconds),
        ASKING.retries,
    )


def _disk_sync(settings: Settings) -> Callable[[], Awaitable[None]] | None:
    """The flush of the embedded store, whose files are on this machine; None for another store."""
    if settings.s3_endpoint is not None or not settings.object_store_sync:
        return None
    return DiskSync(settings.layout.objects).run


def _minter(settings: Settings) -> CredentialMinter | None:
    """Of credentials for users' code: with the embedded store's own role, or the one that was set."""
    role = TASK_ROLE if settings.s3_endpoint is None else settings.s3_task_role
    if role is None:
        return None
    if settings.s3_endpoint == "aws":
        from tracelake.adapters.aws_sts import AwsMinter  # boto3, which few need, is slow to import

        return AwsMinter(settings.s3_region, role)
    return EndpointMinter(settings.resolve_object_store(), role)


def _runner(settings: Settings, tls: TlsFiles) -> InternalClient | None:
    """The runner of users' functions; None: this stack has none."""
    if settings.runner_url is None:
        return None
    service_token = FileCredential(settings.layout.keys / "service.token")
    return InternalClient(HttpClient(settings.runner_url, tls.ca), service=service_token)


def _query_url(settings: Settings) -> str | None:
    """As set, or as this machine's stack has it now: the Query Service may start later, or not at all. A loopback
    address stands for the host by which the caller reaches the public listener (`cli/login.py`)."""
    if settings.query_public_url is not None:
        return settings.query_public_url
    stack = settings.layout.read_stack()
    return None if stack is None else stack.query_url


def build(settings: Settings, tls: TlsFiles, task_url: str, *, open_metrics: bool = True) -> Dispatcher:
    config = dispatcher_config(settings)
    credentials = LiteCredentials.ensure(settings.layout.keys)
    ports = Ports(
        store=Store(
            settings.resolve_state_dsn(),
            size=settings.state_pool_size,
            name="state",
            reserved=reserved_connections(settings.state_pool_size, config),
        ),
        queue=PostgresQueue(settings.resolve_queue_dsn(), max_receives=settings.queue_max_receives),
        objects=S3ObjectStore(settings.resolve_object_store(), _patience(settings), _disk_sync(settings)),
        invoker=LocalInvoker(task_url, tls.ca, _runner(settings, tls)),
        task_signer=credentials.task_keys,
        user_signer=credentials.user_keys,
        user_keys=open_user_keys(settings),
        worker_secret=credentials.worker,
        service_secret=credentials.service,
        metrics_secret=None if open_metrics else credentials.metrics,
        webhook_secrets=credentials.webhooks,
        minter=_minter(settings),
        tables=DataTables(settings.resolve_data_read_dsn),
        documents=DocumentProcesses(settings.document_processes, seconds=settings.document_seconds),
        urls=S3Urls(settings.resolve_object_store(), _patience(settings)),
        bundles=BundleProcesses(settings.bundle_processes, seconds=settings.bundle_seconds),
        query_url=lambda: _query_url(settings),
    )
    return Dispatcher(ports, config)


async def serve(settings: Settings, sockets: Mapping[str, socket.socket], stop: asyncio.Event) -> None:
    """Run until told to stop. Stores may be away at any time, also at the start."""
    if not await _prepare_stores(settings, stop):
        return
    tls = ensure_tls(settings.layout.tls, *settings.bind_hosts)
    task_url = listeners.url(sockets["task"], settings.bind_host_of("task"))
    dispatcher = build(settings, tls, task_url, open_metrics=listeners.is_loopback(sockets["internal"]))
    limits = listener_limits(settings)
    servers = [
        ListenerServer(
            dispatcher.apps[Listener(name)],
            sock,
            certificate=tls.certificate,
            private_key=tls.key,
            limits=limits[name],
        )
        for name, sock in sockets.items()
    ]
    _watch_credentials(dispatcher, settings, tls)
    await dispatcher.ports.store.open()
    if isinstance(dispatcher.ports.user_keys, JwksKeys):
        await dispatcher.ports.user_keys.look()  # it may be away: then the first token asks again
    dispatcher.start_loops()
    try:
        for server in servers:
            await server.start()
        _tune_garbage_collector()
        logger.info("dispatcher ready", extra={"ports": {server.name: server.port for server in servers}})
        if isinstance(dispatcher.ports.documents, DocumentProcesses):
            await dispatcher.ports.documents.warm_up()
        await asyncio.to_thread(lambda: CATALOGUE.plugins)  # imports packages, and logs those that cannot be used
        await stop.wait()
        logger.info("dispatcher stops")
    finally:
        await asyncio.gather(*(server.stop() for server in servers))
        await dispatcher.stop()
        await dispatcher.ports.documents.close()
        await dispatcher.ports.bundles.close()
        await dispatcher.ports.invoker.close()
        await dispatcher.ports.queue.close()
        await dispatcher.ports.store.close()


def _tune_garbage_collector() -> None:
    """Freeze what is loaded by now and collect less often.

    Modules and definitions stay for the life of the process, and calls leave next to no cycles behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _watch_credentials(dispatcher: Dispatcher, settings: Settings, tls: TlsFiles) -> None:
    """Metrics of the certificate that this process serves until it ends, and of how its renewal goes."""
    end = certificate_end(tls.certificate).timestamp()
    renewal_file = settings.layout.renewal_file
    dispatcher.metrics.certificate_left.set_function(lambda: end - time.time())
    dispatcher.metrics.renewal_failures.set_function(lambda: read_renewal(renewal_file).failures)


async def _prepare_stores(settings: Settings, stop: asyncio.Event) -> bool:
    """Wait for the databases; migrate those that `trace up` does not manage; check the clock. False: told to stop."""
    tries = 0
    while True:
        try:
            if settings.state_dsn is not None:
                await migrate_dsn(settings.resolve_state_dsn(), "state")
                await migrate_dsn(settings.resolve_queue_dsn(), "queue")
            for name, dsn in (("state", settings.resolve_state_dsn()), ("queue", settings.resolve_queue_dsn())):
                await check_clock(dsn, name, allow_test_clock=settings.test_clock)
            return True
        except asyncpg.InsufficientPrivilegeError:
            raise SettingsError(
                "the roles of state_dsn and queue_dsn must own their databases, to migrate them"
            ) from None
        except (*AWAY, StoreUnavailableError) as away:
            tries += 1
            if tries == 1:
                logger.warning("waiting for the databases", extra={"reason": type(away).__name__})
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _START_WAIT.seconds(tries))
            if stop.is_set():
                return False


async def check_clock(dsn: str, name: str, *, allow_test_clock: bool) -> None:
    """Refuse a `trace_now()` that is not the migrations' own: leases and tokens would follow a false clock."""
    connection = await asyncpg.connect(dsn, timeout=5.0)
    try:
        body = await connection.fetchval("SELECT prosrc FROM pg_proc WHERE proname = 'trace_now' AND pronargs = 0")
    finally:
        with suppress(*AWAY):
            await connection.close(timeout=2.0)
    if body is None:
        raise SettingsError(f"the {name} database has no trace_now(); start it with `trace up` or run its migrations")
    if " ".join(body.split()) != _CLOCK_BODY and not allow_test_clock:
        raise SettingsError(
            f"trace_now() of the {name} database was replaced; restore it, or set test_clock if this is a test"
        )


async def serve_listeners(settings: Settings, stop: asyncio.Event) -> None:
    """Serves on the sockets of the supervisor, or on new ones, until `stop` is set."""
    await serve(settings, listeners.inherited() or listeners.bind(settings), stop)


@click.command(short_help="Run one Dispatcher process (what `trace up` starts).")
@home_option
def command(home: Path | None) -> None:
    """Run one Dispatcher process.

    `trace up` starts and supervises it; run it by itself only against databases of your own
    (TRACE_STATE_DSN, TRACE_QUEUE_DSN). Any number may run against the same databases.
    """
    settings = Settings.load({"home": home})
    sys.setswitchinterval(SWITCH_SECONDS)
    run_process("dispatcher", settings, serve_listeners)
