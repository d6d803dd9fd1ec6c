"""`trace up`: the whole stack on one machine, in one command, stopped by Ctrl-C.

Order: lock the home, TLS, Postgres clusters and the object store, roles and migrations, credentials, Dispatcher,
scheduler and workers; `stack.json` appears when all of it is ready and is gone before anything stops. The supervisor
holds the listener sockets, so addresses stay the same while a Dispatcher restarts; the next run takes them again.

Secrets reach the children through 0600 files below HOME, never through their environment.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import asyncpg
import click
import msgspec

from tracelake.adapters.s3.access import write_access
from tracelake.cli import secrets
from tracelake.cli.stack_screen import Screen
from tracelake.client.stack import ObjectStoreAddress
from tracelake.db import Database, LockedError
from tracelake.demo.recorded_chain import NAME as CHAIN
from tracelake.demo.recorded_chain import RecordedChain
from tracelake.settings import CHILD_VARIABLE, Settings, rpc
from tracelake.settings.home import CredentialFiles, Home, Stack, write_private
from tracelake.settings.runtimes import load_runtimes, worker_queue
from tracelake.stack import credentials, leftovers, listeners, lock, probe
from tracelake.stack.machine import socket_directory, wrap
from tracelake.stack.ports import again, read_ports, write_ports
from tracelake.stack.postgres import DATA_DATABASES, STATE_DATABASES, DatabaseSpec, EmbeddedPostgres
from tracelake.stack.provision import migrate_dsn, provision
from tracelake.stack.renewal import CredentialRenewal
from tracelake.stack.seaweedfs import EmbeddedObjectStore, Ports
from tracelake.stack.supervisor import Part, PartView, StartError, Supervisor
from tracelake.stack.tls import TlsFiles, ensure_tls, tls_files

_STORES_STAGE, _DISPATCHER_STAGE, _WORKER_STAGE = range(3)


def prepare_credentials(settings: Settings, home: Home) -> CredentialFiles:
    """The tokens that `stack.json` names, made at first start."""
    return credentials.prepare(settings, home)


@dataclass(frozen=True, slots=True)
class Clusters:
    """The embedded clusters of this home; None where a DSN of the person's own replaces one."""

    state: EmbeddedPostgres | None
    data: EmbeddedPostgres | None

    @classmethod
    def plan(cls, settings: Settings) -> "Clusters":
        home = settings.layout
        state = data = None
        before = read_ports(home.ports_file)
        state_port = settings.state_port or again(before, "state", taken=settings.data_port)
        if settings.state_dsn is None:
            state = _cluster(home, "state", home.postgres_state, state_port, STATE_DATABASES)
        if settings.data_dsn is None:
            data_port = settings.data_port or again(before, "data", taken=state_port)
            data = _cluster(home, "data", home.postgres_data, data_port, DATA_DATABASES)
        return cls(state, data)

    def all(self) -> list[EmbeddedPostgres]:
        return [cluster for cluster in (self.state, self.data) if cluster is not None]


def plan_object_store(settings: Settings) -> EmbeddedObjectStore | None:
    """None where one of the person's own replaces it."""
    if settings.s3_endpoint is not None:
        return None
    home = settings.layout
    return EmbeddedObjectStore(
        data_dir=home.objects,
        access_file=home.object_store_file,
        config_dir=home.object_store_config,
        log_file=home.log_file("object-store"),
        ports=Ports.choose(settings.s3_port, home.object_store_config / "ports.json"),
    )


def _cluster(home: Home, name: str, data_dir: Path, port: int, databases: tuple[DatabaseSpec, ...]) -> EmbeddedPostgres:
    return EmbeddedPostgres(
        name=name,
        data_dir=data_dir,
        socket_dir=socket_directory(home.root),
        secrets_dir=home.secrets,
        log_file=home.log_file(f"postgres-{name}"),
        port=port,
        databases=databases,
    )


async def prepare_databases(settings: Settings, clusters: Clusters) -> None:
    """Roles, migrations, and the DSN files by which the children find their databases."""
    home = settings.layout
    for cluster in clusters.all():
        await provision(cluster)
    if clusters.state is not None:
        state_dsn = clusters.state.dsn("trace_state", "state")
        queue_owner_dsn = clusters.state.dsn("trace_state", "queue")
        queue_dsn = clusters.state.dsn("trace_queue", "queue")
        queue_users: tuple[str, ...] = ("trace_queue",)
    else:
        assert settings.state_dsn is not None
        assert settings.queue_dsn is not None
        state_dsn, queue_dsn, queue_owner_dsn = settings.state_dsn, settings.queue_dsn, settings.queue_dsn
        queue_users = ()
    if clusters.data is not None:
        data_dsn = clusters.data.dsn("trace_data", "data", tcp=True)
        data_read_dsn = clusters.data.dsn("trace_data_reader", "data", tcp=True)
    else:
        assert settings.data_dsn is not None
        data_dsn = settings.data_dsn
        data_read_dsn = settings.data_read_dsn or settings.data_dsn
    await _migrate(state_dsn, "state")
    await _migrate(queue_owner_dsn, "queue", users=queue_users)
    await _migrate(data_dsn, "data")
    write_private(home.state_dsn_file, state_dsn + "\n")
    write_private(home.queue_dsn_file, queue_dsn + "\n")
    write_private(home.data_dsn_file, data_dsn + "\n")
    write_private(home.data_read_dsn_file, data_read_dsn + "\n")


async def _migrate(dsn: str, database: Database, *, users: tuple[str, ...] = ()) -> None:
    try:
        await migrate_dsn(dsn, database, users=users)
    except LockedError as error:
        raise StartError(f"the {database} database cannot be brought to this release now: {error}") from None
    except (OSError, asyncpg.PostgresError) as error:
        raise StartError(f"the {database} database cannot be used: {error}") from None
    except (ValueError, asyncpg.InterfaceError) as error:
        # Their text may repeat parts of the DSN.
        raise StartError(f"{database}_dsn cannot be used ({type(error).__name__})") from None


def plan_parts(
    settings: Settings,
    clusters: Clusters,
    objects: EmbeddedObjectStore | None,
    sockets: Mapping[str, socket.socket],
    tls: TlsFiles,
    chain: RecordedChain | None = None,
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
            stage=_STORES_STAGE,
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
                stage=_STORES_STAGE,
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
                stage=_STORES_STAGE,
                command=chain.command,
                environment=chain.environment(),
                log_file=chain.log_file,
                ready=chain.ready,
            )
        )
    parts.append(
        Part(
            name="dispatcher",
            stage=_DISPATCHER_STAGE,
            command=partial(_child_command, "dispatcher"),
            environment=environment | telemetry | {listeners.VARIABLE: listeners.to_variable(sockets)},
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
                stage=_WORKER_STAGE,
                command=partial(_child_command, command),
                environment=environment,
                log_file=home.log_file(name),
            )
        )
    return parts


def _names(command: str, number: int) -> list[tuple[str, str]]:
    """Of some parts that run the same command, with the command."""
    return [(command if number == 1 else f"{command}-{index}", command) for index in range(1, number + 1)]


def _child_command(name: str) -> list[str]:
    # -P: a file in the current directory must not take the place of a module. A killed supervisor takes them
    # along at once: all are made to be killed at any time.
    return wrap([sys.executable, "-P", "-m", "tracelake", name], death_signal=signal.SIGKILL)


class Up:
    """One run of `trace up`; `run` returns when everything has stopped."""

    def __init__(self, settings: Settings, screen: Screen) -> None:
        self._settings = settings
        self._home = settings.layout
        self._screen = screen
        self._views: dict[str, PartView] = {}
        self._stop = asyncio.Event()
        self._supervisor: Supervisor | None = None
        self._chain = RecordedChain.plan(settings)
        self._served_certificate = b""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup, say
                loop.add_signal_handler(number, self._on_signal)
        side_jobs = [asyncio.create_task(self._tick()), asyncio.create_task(self._renewal().run())]
        try:
            await self._run()
        finally:
            for job in side_jobs:
                job.cancel()

    async def _run(self) -> None:
        settings, home = self._settings, self._home
        clusters = Clusters.plan(settings)
        tls = ensure_tls(home.tls, *settings.bind_hosts)
        self._served_certificate = tls.certificate.read_bytes()
        sockets = listeners.bind(settings, read_ports(home.ports_file))
        ports = {name: listener.getsockname()[1] for name, listener in sockets.items()}
        ports |= {cluster.name: cluster.port for cluster in clusters.all()}
        write_ports(home.ports_file, ports if self._chain is None else ports | {CHAIN: self._chain.port})
        parts = plan_parts(settings, clusters, plan_object_store(settings), sockets, tls, self._chain)
        self._supervisor = supervisor = Supervisor(parts, on_change=self._on_change)
        try:
            if await self._unless_stopped(self._start(supervisor, clusters, sockets, tls)):
                await self._stop.wait()
        finally:
            home.remove_stack()
            self._screen.say("Stopping ...")
            await supervisor.stop()
            secrets.forget_environment(home)
            for listener in sockets.values():
                listener.close()
            home.parts_file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                socket_directory(home.root).rmdir()
            self._screen.say("Stopped.")

    async def _start(
        self,
        supervisor: Supervisor,
        clusters: Clusters,
        sockets: Mapping[str, socket.socket],
        tls: TlsFiles,
    ) -> None:
        settings, home = self._settings, self._home
        await supervisor.start(_STORES_STAGE)
        for sentence in await leftovers.clear(clusters.state, settings.state_dsn):
            with contextlib.suppress(OSError):
                click.echo(sentence, err=True)
        await prepare_databases(settings, clusters)
        if settings.s3_endpoint is not None:
            write_access(home.object_store_file, settings.resolve_object_store())
        tokens = prepare_credentials(settings, home)
        rpc.keep_environment(home, settings.org, None if self._chain is None else self._chain.url)
        secrets.keep_environment(home)
        await supervisor.start(_DISPATCHER_STAGE)
        await supervisor.start(_WORKER_STAGE)
        urls = {name: listeners.url(listener, settings.bind_host_of(name)) for name, listener in sockets.items()}
        stack = Stack(
            pid=os.getpid(),
            home=str(home.root),
            public_url=urls["public"],
            task_url=urls["task"],
            internal_url=urls["internal"],
            ca_file=str(tls.ca),
            worker_token_file=str(tokens.worker_token),
            service_token_file=str(tokens.service_token),
            admin_token_file=str(tokens.admin_token),
            queue_dsn_file=str(home.queue_dsn_file),
            data_dsn_file=str(home.data_dsn_file),
            object_store=_address(settings),
        )
        home.write_stack(stack)
        self._screen.ready(stack)

    async def _unless_stopped(self, work: Awaitable[None]) -> bool:
        """Do the work; False if a signal came first."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                return False
            await task
            return True
        finally:
            stopped.cancel()

    def _on_signal(self) -> None:
        if self._stop.is_set() and self._supervisor is not None:
            self._screen.say("Stopping at once ...")
            self._supervisor.hurry()
        self._stop.set()

    def _on_change(self, view: PartView) -> None:
        self._views[view.name] = view
        with contextlib.suppress(OSError):
            write_private(self._home.parts_file, msgspec.json.encode(list(self._views.values())))
        self._screen.part(view)

    def _renewal(self) -> CredentialRenewal:
        """Certificates and the admin token end; a stack that runs for years must not."""
        return CredentialRenewal(self._home, self._renew_credentials, on_failure=self._screen.say)

    def _renew_credentials(self) -> None:
        ensure_tls(self._home.tls, *self._settings.bind_hosts)
        prepare_credentials(self._settings, self._home)
        certificate = tls_files(self._home.tls).certificate.read_bytes()
        dispatcher = self._views.get("dispatcher")
        if certificate != self._served_certificate and dispatcher is not None and dispatcher.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(dispatcher.pid, signal.SIGTERM)  # the supervisor starts it again, with the new one
            self._served_certificate = certificate

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._screen.tick()


def _address(settings: Settings) -> ObjectStoreAddress:
    access = settings.resolve_object_store()
    buckets = {
        "datasets": settings.dataset_bucket,
        "scratch": settings.scratch_bucket,
        "bundles": settings.bundle_bucket,
    }
    return ObjectStoreAddress(endpoint=access.endpoint, region=access.region, buckets=buckets)


def run_up(settings: Settings, choose: Callable[[Home], Screen]) -> None:
    """Run the stack of these settings until it is told to stop."""
    worker_queue(settings, load_runtimes(settings))  # a mistake is said here, not in the log of each part
    secrets.from_environment(os.environ)
    home = settings.layout
    home.make()
    with lock.hold(home.lock_file):
        # Left by a kill: whoever reads it would talk to nobody.
        home.remove_stack()

        async def main() -> None:
            with choose(home) as screen:
                await Up(settings, screen).run()

        asyncio.run(main())
