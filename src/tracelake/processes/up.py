"""`trace up`: the whole stack on one machine, in one command, stopped by Ctrl-C.

Order: lock the home, TLS, credentials, Postgres clusters, roles and migrations, then the Dispatcher. The object store,
workers, sinks and the scheduler start beside all of it. `stack.json`, which the last three wait for, appears when
everything else is ready and is gone before anything stops. The supervisor holds the listener sockets, so addresses stay
the same while a Dispatcher restarts; the next run takes them again.

Secrets reach the children through 0600 files below HOME, never through their environment.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import click
import msgspec

from tracelake.adapters.s3.access import write_access
from tracelake.cli.json_output import json_flag
from tracelake.cli.options import home_option
from tracelake.cli.stack_screen import Screen, choose_screen
from tracelake.client.stack import ObjectStoreAddress
from tracelake.demo.recorded_chain import NAME as CHAIN
from tracelake.demo.recorded_chain import RecordedChain
from tracelake.errors import TraceError
from tracelake.processes.detached import Detached
from tracelake.processes.next_steps import find_next_steps
from tracelake.processes.parts import (
    DATABASES_STAGE,
    DISPATCHER_STAGE,
    OBJECTS_STAGE,
    QUERY,
    QUERY_STAGE,
    RUNNER,
    RUNNER_STAGE,
    WORKER_STAGE,
    plan_parts,
)
from tracelake.sandbox.server import SandboxServer
from tracelake.settings import Settings, SettingsError
from tracelake.settings.home import CredentialFiles, Home, LocalStack, write_private
from tracelake.settings.runtimes import load_runtimes, worker_queue
from tracelake.stack import credentials, job_secrets, leftovers, listeners, lock, rpc_addresses, service_manager
from tracelake.stack.clusters import Clusters, plan_object_store, prepare_databases
from tracelake.stack.full_restore import refuse_unfinished
from tracelake.stack.kept_ports import read_ports, write_ports
from tracelake.stack.machine import socket_directory
from tracelake.stack.renewal import CredentialRenewal
from tracelake.stack.supervisor import PartView, Supervisor, run_together
from tracelake.stack.tls import TlsFiles, ensure_tls, tls_files


def prepare_credentials(settings: Settings, home: Home) -> CredentialFiles:
    """The tokens that `stack.json` names, made at first start."""
    return credentials.prepare(settings, home)


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
        query_sockets: dict[str, socket.socket] = {}
        if settings.query_service:
            query_sockets = listeners.bind(settings, read_ports(home.ports_file), listeners.QUERY_LISTENERS)
            ports |= {name: listener.getsockname()[1] for name, listener in query_sockets.items()}
        runner_sockets: dict[str, socket.socket] = {}
        if settings.runner:
            runner_sockets = listeners.bind(settings, read_ports(home.ports_file), listeners.RUNNER_LISTENERS)
            ports |= {name: listener.getsockname()[1] for name, listener in runner_sockets.items()}
        write_ports(home.ports_file, ports if self._chain is None else ports | {CHAIN: self._chain.port})
        objects = plan_object_store(settings)
        if objects is not None:
            objects.ensure_access()
        else:
            write_access(home.object_store_file, settings.resolve_object_store())
        parts = plan_parts(settings, clusters, objects, sockets, tls, self._chain, query_sockets, runner_sockets)
        self._supervisor = supervisor = Supervisor(parts, on_change=self._on_change)
        try:
            if await self._unless_stopped(self._start(supervisor, clusters, sockets, tls, query_sockets)):
                await self._stop.wait()
        finally:
            home.remove_stack()
            service_manager.notify("STOPPING=1")
            self._screen.say("Stopping ...")
            await supervisor.stop()
            job_secrets.forget_environment(home)
            for listener in (*sockets.values(), *query_sockets.values(), *runner_sockets.values()):
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
        query_sockets: Mapping[str, socket.socket],
    ) -> None:
        settings, home = self._settings, self._home
        tokens = prepare_credentials(settings, home)
        rpc_addresses.keep_environment(home, settings.org, None if self._chain is None else self._chain.url)
        job_secrets.keep_environment(home)
        problem = asyncio.create_task(_find_sandbox_problem()) if query_sockets else None
        await run_together(
            supervisor.start(OBJECTS_STAGE),
            # They wait for `stack.json`. Workers start Java meanwhile, which takes as long as all the rest.
            supervisor.start(WORKER_STAGE),
            self._start_dispatcher(supervisor, clusters),
        )
        open_sockets = dict(sockets)
        if problem is not None:
            if reason := await problem:
                self._screen.say(f"The Query Service was not started: {reason}")
            else:
                await supervisor.start(QUERY_STAGE)
                open_sockets |= query_sockets
        if settings.runner:
            await supervisor.start(RUNNER_STAGE)
        urls = {name: listeners.url(listener, settings.bind_host_of(name)) for name, listener in open_sockets.items()}
        shared = listeners.shared_urls(open_sockets, settings.public_host)
        stack = LocalStack(
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
            query_url=urls.get("query"),
            query_task_url=urls.get("query_task"),
            shared_public_url=shared.get("public"),
            shared_query_url=settings.query_public_url or shared.get("query"),
        )
        next_steps = await find_next_steps(settings)
        home.write_stack(stack)
        self._screen.ready(stack, next_steps)
        service_manager.notify("READY=1")

    async def _start_dispatcher(self, supervisor: Supervisor, clusters: Clusters) -> None:
        """The databases, and then the Dispatcher, which needs them."""
        settings = self._settings
        await supervisor.start(DATABASES_STAGE)
        for sentence in await leftovers.clear(clusters.state, settings.state_dsn):
            with contextlib.suppress(OSError):
                click.echo(sentence, err=True)
        await prepare_databases(settings, clusters)
        await supervisor.start(DISPATCHER_STAGE)

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
        servers = [view for name in ("dispatcher", QUERY, RUNNER) if (view := self._views.get(name)) is not None]
        if certificate != self._served_certificate and any(view.pid is not None for view in servers):
            for view in servers:
                if view.pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(view.pid, signal.SIGTERM)  # the supervisor starts it again, with the new one
            self._served_certificate = certificate

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._screen.tick()


async def _find_sandbox_problem() -> str | None:
    """What this machine lacks to isolate queries; None: nothing."""
    sandboxes = SandboxServer("tracelake.sandbox.program")
    try:
        await sandboxes.start()
    except TraceError as error:
        return error.message
    finally:
        await sandboxes.close()
    return None


def _address(settings: Settings) -> ObjectStoreAddress:
    access = settings.resolve_object_store()
    buckets = {
        "datasets": settings.dataset_bucket,
        "scratch": settings.scratch_bucket,
        "bundles": settings.bundle_bucket,
    }
    return ObjectStoreAddress(endpoint=access.endpoint, region=access.region, buckets=buckets)


def check_settings(settings: Settings) -> None:
    """A mistake is said here, not in the log of each part."""
    worker_queue(settings, load_runtimes(settings))
    job_secrets.from_environment(os.environ)


def run_up(settings: Settings, choose: Callable[[Home], Screen]) -> None:
    """Run the stack of these settings until it is told to stop."""
    check_settings(settings)
    home = settings.layout
    home.make()
    with lock.hold(home.lock_file):
        refuse_unfinished(home)
        # Left by a kill: whoever reads it would talk to nobody.
        home.remove_stack()

        async def main() -> None:
            with choose(home) as screen:
                await Up(settings, screen).run()

        asyncio.run(main())


@click.command()
@home_option
@click.option("--workers", type=int, help="How many worker processes to start (default: 1).")
@click.option("--no-workers", is_flag=True, help="Start no worker.")
@click.option("--bind-host", help="The address that the public and the task listener bind (default: 127.0.0.1).")
@click.option("--public-port", type=int, help="Port of the public listener: API of users, webhooks.")
@click.option("--task-port", type=int, help="Port of the task listener: calls of running tasks.")
@click.option("--internal-port", type=int, help="Port of the internal listener: workers, services, health, metrics.")
@click.option("--state-port", type=int, help="Port of the Postgres cluster of the state.")
@click.option("--data-port", type=int, help="Port of the Postgres cluster of the data.")
@click.option("--log-level", help="debug, info, warning or error.")
@click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Any setting of docs/reference/settings.md."
)
@click.option("--detach", is_flag=True, help="Run in the background; return when the stack is ready.")
@json_flag("Print only stack.json, as one line, when the stack is ready.")
def command(*, no_workers: bool, assignments: tuple[str, ...], detach: bool, as_json: bool, **options: Any) -> None:
    """Start the whole stack on this machine: Postgres, the object store, Dispatcher, scheduler, workers.

    It runs until Ctrl-C or SIGTERM; a second Ctrl-C stops it at once. While it runs, HOME/stack.json tells programs how
    to reach it. A port is the one of the last run, or a free one if another program has taken that; set those that must
    not change.

    With --detach the stack runs in the background until `trace down`, also after the terminal is closed. The command
    returns when it is ready; its messages go to HOME/logs/up.log. A stack that runs already is left as it is, and the
    command succeeds.

    Exit status: 0 if the stack was stopped, or with --detach is ready; 1 if it could not start.

    \b
    Examples:
      trace up
      trace up --detach
      trace up --home ./stack --workers 2
      trace up --set recorded_chain=example
    """
    overrides = dict(_assignment(text) for text in assignments)
    overrides |= {name: value for name, value in options.items() if value is not None}
    if no_workers:
        overrides["workers"] = 0
    settings = Settings.load(overrides)
    if detach:
        check_settings(settings)
        Detached(settings, lambda choose: run_up(settings, choose), as_json=as_json).start()
    else:
        run_up(settings, lambda home: choose_screen(home, json=as_json))


def _assignment(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise SettingsError(f"--set: expected NAME=VALUE, received {text!r}")
    return name, value
