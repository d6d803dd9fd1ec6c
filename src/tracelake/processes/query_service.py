"""`trace query-service`: the composition root of one Query Service process.

It needs the internal listener of a Dispatcher, the object store, and Postgres data by a role that reads. It has no
credential for the state database and no signing key. A machine that cannot isolate queries has no Query Service: the
process ends, and says what is missing.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping
from pathlib import Path

import click

from tracelake.adapters.s3.access import WORKING
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.adapters.shared_secrets import SharedSecret
from tracelake.cli.options import home_option
from tracelake.client import FileCredential, HttpClient, InternalClient
from tracelake.http.server import ListenerServer
from tracelake.processes.identity_provider import open_user_keys
from tracelake.processes.listener_limits import listener_limits
from tracelake.query.assembly import QueryApplication, QueryPorts, QueryServiceConfig
from tracelake.query.engine.server import EngineServer
from tracelake.query.execution import EngineResources
from tracelake.query.gate.processes import GateProcesses
from tracelake.query.service import QueryLimits
from tracelake.query.slots import SlotLimits
from tracelake.settings import Settings
from tracelake.settings.configs import ISSUER, take_config, user_token_rules
from tracelake.settings.home import LocalStack
from tracelake.stack import listeners
from tracelake.stack.follow import follow_stack, run_process
from tracelake.stack.tls import ensure_tls
from tracelake.wire.contract import Listener

logger = logging.getLogger(__name__)


def query_config(settings: Settings) -> QueryServiceConfig:
    return take_config(
        QueryServiceConfig,
        settings,
        limits=take_config(QueryLimits, settings, "query_"),
        slots=take_config(SlotLimits, settings, "query_"),
        resources=take_config(EngineResources, settings, "query_"),
        cache_bytes=settings.query_cache_bytes,
        download_seconds=settings.query_download_seconds,
        issuer=ISSUER,
        user_tokens=user_token_rules(settings),
        jwks_cache_seconds=int(settings.jwks_cache_seconds),
    )


async def serve(settings: Settings, sockets: Mapping[str, socket.socket], stop: asyncio.Event) -> None:
    """Serves until `stop` is set. A stack that was started again has other addresses: the service moves with it."""
    engine, gate = EngineServer(), GateProcesses(settings.query_gate_processes)
    await engine.start()
    try:
        await gate.warm_up()

        async def serve_stack(stack: LocalStack, leave: asyncio.Event) -> None:
            await _serve_stack(settings, sockets, engine, gate, stack, leave)

        await follow_stack(settings.layout, stop, serve_stack)
        logger.info("query service stops")
    finally:
        await gate.close()
        await engine.close()


async def _serve_stack(
    settings: Settings,
    sockets: Mapping[str, socket.socket],
    engine: EngineServer,
    gate: GateProcesses,
    stack: LocalStack,
    leave: asyncio.Event,
) -> None:
    tls, keys = ensure_tls(settings.layout.tls, *settings.bind_hosts), settings.layout.keys
    access = settings.resolve_object_store()
    http = HttpClient(stack.internal_url, stack.ca_file)
    open_metrics = listeners.is_loopback(sockets["query"])
    application = QueryApplication(
        QueryPorts(
            dispatcher=InternalClient(http, service=FileCredential(keys / "service.token")),
            gate=gate,
            engine=engine,
            transfer=S3Transfer(access, WORKING),
            objects=S3ObjectStore(access, WORKING),
            data_dsn=settings.resolve_data_read_dsn,
            directory=settings.layout.query,
            user_keys=open_user_keys(settings),
            metrics_secret=None if open_metrics else SharedSecret.ensure(keys, "metrics"),
        ),
        query_config(settings),
    )
    limits = listener_limits(settings, listeners.QUERY_LISTENERS)
    servers = [
        ListenerServer(
            application.apps[Listener(name)],
            sock.dup(),  # a server closes its socket, and another stack may come
            certificate=tls.certificate,
            private_key=tls.key,
            limits=limits[name],
        )
        for name, sock in sockets.items()
    ]
    application.start()
    try:
        for server in servers:
            await server.start()
        logger.info("query service ready", extra={"ports": {server.name: server.port for server in servers}})
        await leave.wait()
    finally:
        await asyncio.gather(*(server.stop() for server in servers))
        await application.close()
        await http.close()


async def serve_listeners(settings: Settings, stop: asyncio.Event) -> None:
    """Serves on the sockets of the supervisor, or on new ones, until `stop` is set."""
    names = listeners.QUERY_LISTENERS
    await serve(settings, listeners.inherited(names=names) or listeners.bind(settings, names=names), stop)


@click.command(short_help="Run one Query Service process (what `trace up` starts).")
@home_option
def command(home: Path | None) -> None:
    """Run one Query Service process: it answers SQL over datasets, each query in a sandbox.

    `trace up` starts and supervises one. It needs Linux with user namespaces; if the machine lacks something, the
    command says what.
    """
    settings = Settings.load({"home": home})
    run_process("query", settings, serve_listeners)
