"""A real Dispatcher for tests: TLS listeners on loopback, real Postgres, a clock that tests can move.

It runs on an event loop in a thread of its own, so that plain and property-based tests can drive it synchronously.
Loops do not run by themselves: a test calls `run_once` where it wants time to pass.
"""

import asyncio
import socket
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import msgspec
import uvloop

from tests.support.configs import dispatcher_config, listener_limits
from tests.support.directory_store import DirectoryStore, DirectoryUrls
from tests.support.minter import MemoryMinter
from tracelake.adapters.local_invoker import LocalInvoker
from tracelake.adapters.postgres_queue import PostgresQueue
from tracelake.client.http import HttpClient
from tracelake.db.transaction import Store
from tracelake.dispatcher.assembly import Dispatcher, Ports, reserved_connections
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.views.rows import TableRows
from tracelake.http.server import ListenerServer
from tracelake.ports import CredentialMinter, Invoker, ObjectStore
from tracelake.settings import Settings
from tracelake.stack import listeners
from tracelake.stack.credentials import LiteCredentials
from tracelake.stack.tls import TlsFiles, ensure_tls
from tracelake.wire.contract import Listener

T = TypeVar("T")

MOVABLE_CLOCK = """
    CREATE TABLE IF NOT EXISTS test_clock (ahead interval NOT NULL);
    INSERT INTO test_clock SELECT '0' WHERE NOT EXISTS (SELECT FROM test_clock);
    CREATE OR REPLACE FUNCTION trace_now() RETURNS timestamptz LANGUAGE sql STABLE
        AS $$ SELECT statement_timestamp() + (SELECT ahead FROM test_clock) $$;"""


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any

    @property
    def code(self) -> str:
        """The error's code."""
        code: str = self.body["error"]["code"]
        return code


class Background:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
        return asyncio.run_coroutine_threadsafe(self._show_cancellation(work), self.loop).result(timeout)

    async def _show_cancellation(self, work: Coroutine[Any, Any, T]) -> T:
        """A future of another thread would lose the place at which the work was cancelled."""
        try:
            return await work
        except asyncio.CancelledError as error:
            raise RuntimeError("the work was cancelled") from error

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@dataclass
class DispatcherHarness:
    state_dsn: str
    queue_dsn: str
    home: Path
    config: DispatcherConfig = field(default_factory=dispatcher_config)
    background: Background = field(default_factory=Background)
    invoker: Invoker | None = None
    """Instead of the local one."""
    store: ObjectStore | None = None
    """Instead of a directory."""
    tables: TableRows | None = None
    minter: CredentialMinter = field(default_factory=MemoryMinter)
    query_url: str | None = None
    """What people are told of the Query Service."""

    dispatcher: Dispatcher = field(init=False)
    credentials: LiteCredentials = field(init=False)
    objects: ObjectStore = field(init=False)
    tls: TlsFiles = field(init=False)
    sockets: Mapping[str, socket.socket] = field(init=False)
    clients: dict[str, HttpClient] = field(init=False, default_factory=dict)
    _servers: list[ListenerServer] = field(init=False, default_factory=list)

    @classmethod
    def start(
        cls,
        state_dsn: str,
        queue_dsn: str,
        home: Path,
        config: DispatcherConfig | None = None,
        *,
        invoker: Invoker | None = None,
        store: ObjectStore | None = None,
        tables: TableRows | None = None,
        minter: CredentialMinter | None = None,
    ) -> "DispatcherHarness":
        harness = cls(
            state_dsn,
            queue_dsn,
            home,
            config or dispatcher_config(),
            invoker=invoker,
            store=store,
            tables=tables,
            minter=minter or MemoryMinter(),
        )
        harness.run(harness._open())
        return harness

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
        return self.background.run(work, timeout)

    def stop(self) -> None:
        try:
            self.run(self._close())
        finally:
            self.background.close()

    def restart(self) -> None:
        """A new process image on the same stores: everything kept in memory is gone."""
        self.run(self._close())
        self.run(self._open())

    async def _open(self) -> None:
        settings = Settings.load({"home": self.home}, environ={})
        self.tls = ensure_tls(self.home / "tls", *settings.bind_hosts)
        self.credentials = LiteCredentials.ensure(self.home / "keys")
        (self.home / "objects").mkdir(exist_ok=True)
        self.objects = self.store or DirectoryStore(self.home / "objects")
        self.sockets = sockets = listeners.bind(settings)
        self.dispatcher = Dispatcher(
            Ports(
                store=Store(self.state_dsn, size=6, name="state", reserved=reserved_connections(6, self.config)),
                queue=PostgresQueue(self.queue_dsn),
                objects=self.objects,
                invoker=self.invoker
                or LocalInvoker(listeners.url(sockets["task"], settings.bind_host_of("task")), self.tls.ca),
                task_signer=self.credentials.task_keys,
                user_signer=self.credentials.user_keys,
                worker_secret=self.credentials.worker,
                service_secret=self.credentials.service,
                webhook_secrets=self.credentials.webhooks,
                minter=self.minter,
                tables=self.tables,
                urls=DirectoryUrls(),
                query_url=lambda: self.query_url,
            ),
            self.config,
        )
        await self.dispatcher.ports.store.open()
        for name, sock in sockets.items():
            app = self.dispatcher.apps[Listener(name)]
            server = ListenerServer(
                app, sock, certificate=self.tls.certificate, private_key=self.tls.key, limits=listener_limits()
            )
            await server.start()
            self._servers.append(server)
            self.clients[name] = HttpClient(listeners.url(sock, settings.bind_host_of(name)), self.tls.ca)

    async def _close(self) -> None:
        for client in self.clients.values():
            await client.close()
        await asyncio.gather(*(server.stop() for server in self._servers))
        self._servers.clear()
        await self.dispatcher.stop()
        await self.dispatcher.ports.invoker.close()
        await self.dispatcher.ports.queue.close()
        await self.dispatcher.ports.store.close()

    # Calls

    @property
    def worker_token(self) -> str:
        return self.credentials.worker.token_file.read_text().strip()

    @property
    def service_token(self) -> str:
        return self.credentials.service.token_file.read_text().strip()

    def call(
        self,
        listener: str,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        return self.run(self.call_async(listener, method, path, body, headers))

    async def call_async(
        self,
        listener: str,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        data = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        reply = await self.clients[listener].request(method, path, body=data, headers=list((headers or {}).items()))
        try:
            decoded = msgspec.json.decode(reply.body) if reply.body else None
        except msgspec.DecodeError:
            decoded = reply.body
        return Reply(reply.status, decoded)

    def worker(self, method: str, path: str, body: Any = None) -> Reply:
        return self.call("internal", method, path, body, {"x-trace-worker-token": self.worker_token})

    def service(self, method: str, path: str, body: Any = None) -> Reply:
        return self.call("internal", method, path, body, {"x-trace-service-token": self.service_token})

    def task(self, call: str, token: str, body: Any) -> Reply:
        return self.call("task", "POST", f"/v1/task/{call}", body, {"x-trace-task-capability": token})

    def task_batch(self, calls: list[dict[str, Any]]) -> list[Any]:
        """The answers to many task calls in one request, with the first one's token in the header as a worker does."""
        header = {"x-trace-task-capability": calls[0]["capability_token"]}
        reply = self.call("task", "POST", "/v1/task/batch", {"calls": calls}, header)
        assert reply.status == 200, reply
        answers: list[Any] = reply.body["answers"]
        return answers

    def claim(self, task_id: str, claim_id: str | None = None, worker_id: str = "test") -> Reply:
        body = {"task_id": task_id, "worker_id": worker_id}
        return self.worker("POST", "/internal/task-claim", body | ({"claim_id": claim_id} if claim_id else {}))

    def make_job(self, name: str = "job", *, org: str = "acme", **fields: Any) -> Any:
        definition = {"org": org, "dag": "dag", "name": name, "runtime": "ecs_platform", "operator": "noop"} | fields
        reply = self.service("POST", "/internal/jobs", definition)
        assert reply.status == 200, reply
        return reply.body

    def make_task(self, job_id: str, **fields: Any) -> str:
        reply = self.service("POST", "/internal/tasks", {"tasks": [{"job_id": job_id} | fields]})
        assert reply.status == 200, reply
        task_id: str = reply.body["tasks"][0]["task_id"]
        return task_id

    # Tables and time

    async def _sql(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        async with self.dispatcher.ports.store.connection() as connection:
            return await connection.fetch(query, *arguments)

    def sql(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        return self.run(self._sql(query, *arguments))

    def row(self, task_id: str) -> asyncpg.Record:
        return self.sql("SELECT * FROM tasks WHERE task_id = $1", task_id)[0]

    def use_movable_clock(self) -> None:
        async def replace() -> None:
            async with self.dispatcher.ports.store.connection() as connection:
                await connection.execute(MOVABLE_CLOCK)

        self.run(replace())

    def advance(self, seconds: float) -> None:
        """Move the state database's time forward; the Dispatcher sees it at its next look."""
        self.sql("UPDATE test_clock SET ahead = ahead + make_interval(secs => $1)", seconds)
        now = self.sql("SELECT trace_now() AS now")[0]["now"]
        self.dispatcher.clock.observe(now)

    def reap(self) -> int:
        return self.run(self.dispatcher.reaper.run_once())

    def requeue_due(self) -> int:
        return self.run(self.dispatcher.retries.run_once())

    def relay(self) -> int:
        return self.run(self.dispatcher.relay.run_once())

    def invoke(self) -> int:
        """One round of the invoke loop, to the end of the attempts it starts."""

        async def once() -> int:
            taken = await self.dispatcher.invocations.run_once()
            await self.dispatcher.invocations.settle()
            if isinstance(self.dispatcher.ports.invoker, LocalInvoker):
                await asyncio.gather(*self.dispatcher.ports.invoker._running)
            return taken

        return self.run(once())


def fence(task_id: str, claimed: Any, **fields: Any) -> dict[str, Any]:
    """The body of a task call by the attempt that `claimed` (a claim's reply) started."""
    return {"task_id": task_id, "attempt": claimed["attempt"], "lease_token": claimed["lease_token"]} | fields
