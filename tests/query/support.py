"""A real Query Service for tests: TLS listeners on loopback, a real Dispatcher, gate, engine and Postgres data."""

import asyncio
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tests.http.support import user_token
from tests.routing.support import Flow, block
from tests.support.configs import listener_limits, query_config
from tests.support.directory_store import DirectoryStore
from tests.support.dispatcher import DispatcherHarness, Reply
from tracelake.client import FileCredential, HttpClient, InternalClient
from tracelake.http.server import ListenerServer
from tracelake.ports import ObjectChangedError, ObjectMeta
from tracelake.query.assembly import QueryApplication, QueryPorts, QueryServiceConfig
from tracelake.query.engine.server import EngineServer
from tracelake.query.gate.processes import GateProcesses
from tracelake.spark.testing import DirectoryTransfer
from tracelake.stack import listeners
from tracelake.wire.contract import Listener

FILES = """
name: files
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: write, activation: reactive, operator: decode_logs, inputs: [{from: {job: src}}]}
  - {name: read, activation: reactive, operator: noop, inputs: [{from: {job: write}, where: {chain_id: [1]}}]}
publish:
  blocks: {from: {job: write}, storage: s3}
"""


@dataclass(frozen=True, slots=True)
class LocalTransfer(DirectoryTransfer):
    """Notices what is gone or replaced, and signs addresses that say what they open."""

    store_url: str = "https://store.test"

    def download(self, meta: ObjectMeta, path: Path) -> None:
        source = self.path(meta.uri)
        current = DirectoryStore(self.root)._head(meta.uri, source)
        if current is None or (current.size, current.etag) != (meta.size, meta.etag):
            raise ObjectChangedError(source.name)
        DirectoryTransfer.download(self, meta, path)

    def sign(self, uris: Sequence[str], *, create: bool, seconds: int) -> list[str]:
        return [f"{self.store_url}/{uri.removeprefix('s3://')}?seconds={seconds}" for uri in uris]


@dataclass
class ServiceHarness:
    dispatcher: DispatcherHarness
    home: Path
    data_dsn: str
    config: QueryServiceConfig = field(default_factory=query_config)
    application: QueryApplication = field(init=False)
    store_url: str = "https://store.test"
    urls: dict[str, str] = field(init=False, default_factory=dict)
    clients: dict[str, HttpClient] = field(init=False, default_factory=dict)
    _servers: list[ListenerServer] = field(init=False, default_factory=list)

    @classmethod
    def start(
        cls,
        dispatcher: DispatcherHarness,
        home: Path,
        data_dsn: str,
        *,
        store_url: str = "https://store.test",
        **changes: Any,
    ) -> "ServiceHarness":
        harness = cls(dispatcher, home, data_dsn, replace(query_config(), **changes), store_url)
        dispatcher.run(harness._open())
        return harness

    def stop(self) -> None:
        self.dispatcher.run(self._close())

    async def _open(self) -> None:
        dispatcher = self.dispatcher
        self._engine, self._gate = EngineServer(), GateProcesses(1)
        await self._engine.start()
        internal = HttpClient(listeners.url(dispatcher.sockets["internal"], "127.0.0.1"), dispatcher.tls.ca)
        self._internal = internal
        ports = QueryPorts(
            dispatcher=InternalClient(internal, service=FileCredential(dispatcher.credentials.service.token_file)),
            gate=self._gate,
            engine=self._engine,
            transfer=LocalTransfer(dispatcher.home / "objects", store_url=self.store_url),
            objects=dispatcher.objects,
            data_dsn=lambda: self.data_dsn,
            directory=self.home,
        )
        self.application = QueryApplication(ports, self.config)
        for listener, app in self.application.apps.items():
            sock = listeners.bind_one(listener.value, "127.0.0.1", 0)
            server = ListenerServer(
                app,
                sock,
                certificate=dispatcher.tls.certificate,
                private_key=dispatcher.tls.key,
                limits=listener_limits(),
            )
            await server.start()
            self._servers.append(server)
            self.urls[listener] = listeners.url(sock, "127.0.0.1")
            self.clients[listener] = HttpClient(self.urls[listener], dispatcher.tls.ca)

    async def _close(self) -> None:
        for client in self.clients.values():
            await client.close()
        await asyncio.gather(*(server.stop() for server in self._servers))
        await self.application.close()
        await self._gate.close()
        await self._engine.close()
        await self._internal.close()

    @property
    def running(self) -> list[Path]:
        """Directories of queries that have not ended."""
        return list((self.home / "running").iterdir())

    # Calls

    def user_headers(self, org: str, subject: str = "ann", role: str = "reader") -> dict[str, str]:
        return {"authorization": f"Bearer {user_token(self.dispatcher, org=org, subject=subject, roles=[role])}"}

    async def ask_async(self, listener: Listener, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Any:
        data = None if body is None else msgspec.json.encode(body)
        return await self.clients[listener].request(method, path, body=data, headers=list(headers.items()))

    def call(self, listener: Listener, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Reply:
        reply = self.dispatcher.run(self.ask_async(listener, method, path, body, headers))
        return Reply(reply.status, msgspec.json.decode(reply.body))

    def query(self, org: str, sql: str, *, subject: str = "ann", **fields: Any) -> Reply:
        headers = self.user_headers(org, subject)
        return self.call(Listener.QUERY, "POST", "/v1/query", {"sql": sql} | fields, headers)

    def rows(self, org: str, sql: str, **fields: Any) -> list[list[Any]]:
        reply = self.query(org, sql, **fields)
        assert reply.status == 200, reply
        rows: list[list[Any]] = reply.body["rows"]
        return rows

    def raw(self, org: str, sql: str, **fields: Any) -> Any:
        headers = self.user_headers(org)
        return self.dispatcher.run(self.ask_async(Listener.QUERY, "POST", "/v1/query", {"sql": sql} | fields, headers))

    def query_as_task(self, task_id: Any, lease: Any, sql: str, **fields: Any) -> Reply:
        body = {"task_id": str(task_id), "attempt": lease["attempt"], "lease_token": lease["lease_token"], "sql": sql}
        headers = {"x-trace-task-capability": lease["capability_token"]}
        return self.call(Listener.QUERY_TASK, "POST", "/v1/task/query", body | fields, headers)

    def audits(self, org: str) -> list[Any]:
        """Oldest first."""
        headers = self.user_headers(org, "boss", "admin")
        reply = self.dispatcher.call("public", "GET", "/v1/query-audit", None, headers)
        entries: list[Any] = reply.body["entries"]
        return entries[::-1]


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def commit_blocks(flow: Flow, start: int, end: int, content: bytes) -> str:
    """One unit of `blocks`, committed; returns the address of its file."""
    flow.trigger("files", "src", range={"start": start, "end": end})
    task = next(task["task_id"] for task in flow.tasks("write", "Queued"))
    lease = flow.claim(task)
    prefix: str = lease["task"]["outputs"][0]["storage"]["write_prefix"]
    name = f"blocks_{start}_{end}.parquet"
    for file, data in ((name, content), ("_SUCCESS", b"")):
        flow.harness.run(flow.harness.objects.put(prefix + file, data))
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    ref = {"scheme": "s3", "bucket": bucket, "prefix": key, "glob": "*.parquet"}
    published = flow.event("files", "write", range_start=start, range_end=end) | {"storage_ref": ref}
    event = flow.event("files", "write", **block(start, end))
    flow.complete(task, lease, datasets_published=[published], events=[event])
    return prefix + name


def blocks_table(start: int, end: int) -> pa.Table:
    numbers = list(range(start, end + 1))
    return pa.table(
        {
            "block_number": pa.array(numbers, pa.int64()),
            "chain_id": pa.array([1 if number % 2 == 0 else 10 for number in numbers], pa.int64()),
            "hash": pa.array([number.to_bytes(4, "big") for number in numbers], pa.binary()),
            "value": pa.array([str(2**200 + number) for number in numbers], pa.string()),
        }
    )


def wait_until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return value
