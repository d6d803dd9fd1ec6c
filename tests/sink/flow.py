"""A real Dispatcher with a DAG of a buffered dataset, writers that publish, and a sink that a test steps by hand."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from tests.routing.support import Flow
from tests.sink.support import lines
from tests.support.dispatcher import DispatcherHarness, fence
from tracelake.adapters.lite.postgres_queue import PostgresQueue
from tracelake.client import DispatcherUnavailableError
from tracelake.dispatcher.buffers.letters import DeadBatches
from tracelake.dispatcher.views.pressure import list_pressure
from tracelake.errors import StoreUnavailableError
from tracelake.model.retry import Backoff
from tracelake.sink import tables
from tracelake.sink.drain import Drain, SinkConfig
from tracelake.sink.settling import Stores
from tracelake.sink.store import TableStore
from tracelake.wire.buffers import (
    BufferCommittedReply,
    BufferCommittedRequest,
    BufferedDataset,
    BufferOpenReply,
    BufferOpenRequest,
    BufferRejectedReply,
    BufferRejectedRequest,
    BuffersReply,
    DeadBatchesRequest,
)
from tracelake.wire.pressure import PressureReply

DAG = """\
name: transfers
jobs:
  - name: head
    activation: source
    source: {{ kind: manual }}
  - name: left
    activation: reactive
    runtime: ecs_platform
    operator: noop
    execution_strategy: PerPartition
    inputs: [{{ from: {{ job: head }} }}]
  - name: right
    activation: reactive
    runtime: ecs_platform
    operator: noop
    execution_strategy: PerPartition
    inputs: [{{ from: {{ job: head }} }}]
  - name: reader
    activation: reactive
    runtime: ecs_platform
    operator: noop
    execution_strategy: PerUpdate
    inputs: [{{ from: {{ dataset: large }} }}]
publish:
  large:
    from: [{{ job: left }}, {{ job: right }}]
    storage: postgres
    write_mode: buffered
    on_conflict: {on_conflict}
    {limits}
    schema:
      columns:
        - {{ name: key, type: int64, nullable: false }}
        - {{ name: value, type: text }}
{more}
      unique: [key]
"""


@dataclass
class DispatcherCalls:
    """What a sink says, to the Dispatcher itself; the first answers may be lost, though everything was done."""

    harness: DispatcherHarness
    lost: int = 0

    async def buffers(self) -> BuffersReply:
        return await self.harness.dispatcher.buffers.list()

    async def buffer_open(self, request: BufferOpenRequest) -> BufferOpenReply:
        return await self.harness.dispatcher.buffers.open(request)

    async def buffer_committed(self, request: BufferCommittedRequest) -> BufferCommittedReply:
        reply = await self.harness.dispatcher.buffers.committed(request)
        if self.lost:
            self.lost -= 1
            raise DispatcherUnavailableError("the answer was lost")
        return reply

    async def buffer_rejected(self, request: BufferRejectedRequest) -> BufferRejectedReply:
        return await self.harness.dispatcher.buffers.rejected(request)


class FailingObjects:
    """The object store, away as long as the flow says."""

    def __init__(self, flow: "BufferFlow") -> None:
        self._flow = flow

    async def get(self, uri: str, *, if_match: str | None = None) -> bytes | None:
        if self._flow.fails("objects"):
            raise StoreUnavailableError
        return await self._flow.harness.objects.get(uri, if_match=if_match)


class DiedError(BaseException):
    """The sink was killed here: nothing of it goes on."""


@dataclass
class BufferFlow:
    harness: DispatcherHarness
    data_dsn: str
    org: str = "acme"
    on_conflict: str = "update"
    deaths: list[str] = field(default_factory=list)
    """Names of signals: the next sink that reaches the first of them dies there."""
    away: dict[str, int] = field(default_factory=dict)
    """`objects`, `data`, `dispatcher`: so many calls fail before one is answered."""
    waited: int = 0

    def __post_init__(self) -> None:
        self.flow = Flow(self.harness, self.org)
        self.deploy()
        self.blocks = 0

    def deploy(self, *more: str, limits: str = "") -> Any:
        columns = "\n".join(f"        - {{ {column} }}" for column in more)
        return self.flow.deploy(DAG.format(on_conflict=self.on_conflict, more=columns, limits=limits))

    @property
    def dataset(self) -> BufferedDataset:
        listed = self.harness.run(self.harness.dispatcher.buffers.list()).datasets
        (found,) = [item for item in listed if item.org == self.org]
        return msgspec.structs.replace(found, backlog=None)

    def attempt(self, job: str) -> tuple[str, Any]:
        """A running task of a writer."""
        self.blocks += 1
        self.flow.trigger("transfers", "head", range={"start": self.blocks, "end": self.blocks})
        task = self.flow.tasks(job, "Queued")[-1]
        return str(task["task_id"]), self.flow.claim(task["task_id"])

    def publish(self, rows: Sequence[Any] | bytes, job: str = "left", **fields: Any) -> Any:
        task_id, lease = self.attempt(job)
        data = rows if isinstance(rows, bytes) else lines(rows)
        prefix = lease["task"]["outputs"][0]["storage"]["buffer_prefix"]
        uri = f"{prefix}batch.jsonl"
        self.harness.run(self.harness.objects.put(uri, data))
        body = fence(task_id, lease, batch_uri=uri, dedupe_scope="large", **fields)
        reply = self.harness.task("buffer-publish", lease["capability_token"], body)
        assert reply.status == 200, reply
        self.flow.complete(task_id, lease)
        return reply.body | {"uri": uri}

    def reject(self, publish_id: str, reason: str = "no", line: int | None = None) -> None:
        """As a sink that cannot take it says."""
        body = {"publish_id": publish_id, "code": "row_invalid", "reason": reason, "line": line}
        assert self.harness.service("POST", "/internal/buffer-rejected", body).status == 200

    def sink(
        self, config: SinkConfig | None = None, visibility: float = 60.0, known: BufferedDataset | None = None
    ) -> int:
        """One round of a fresh sink, until the queue is empty or it dies; how many batches it finished with."""
        while self.harness.relay():
            pass

        return self.harness.run(self._rounds(config, visibility, known))

    async def _rounds(
        self, config: SinkConfig | None = None, visibility: float = 60.0, known: BufferedDataset | None = None
    ) -> int:
        queue = PostgresQueue(self.harness.queue_dsn)
        stores = Stores(self._dsn)
        drain = Drain(
            known or self.dataset_now(await self.harness.dispatcher.buffers.list()),
            config=config or SinkConfig(visibility_seconds=visibility, wait_seconds=0.0, backoff=Backoff(0.01, 0.05)),
            queue=queue,
            objects=FailingObjects(self),
            calls=DispatcherCalls(self.harness, self.away.pop("dispatcher", 0)),
            stores=stores,
            stop=asyncio.Event(),
            on_signal=self._reached,
        )
        done = 0
        try:
            while more := await drain.run_once():
                done += more
        except DiedError:
            pass
        finally:
            stores.close()
            await queue.close()
        return done

    def sinks_at_once(self, count: int) -> list[int]:
        while self.harness.relay():
            pass

        async def together() -> list[int]:
            one = SinkConfig(batches=1, wait_seconds=0.0, backoff=Backoff(0.01, 0.05))
            return list(await asyncio.gather(*(self._rounds(one) for _ in range(count))))

        return self.harness.run(together())

    def dataset_now(self, listed: BuffersReply) -> BufferedDataset:
        (found,) = [item for item in listed.datasets if item.org == self.org]
        return msgspec.structs.replace(found, backlog=None)

    def fails(self, what: str) -> bool:
        left = self.away.get(what, 0)
        self.away[what] = max(0, left - 1)
        return left > 0

    def _dsn(self) -> str:
        return "postgresql://trace_data:x@127.0.0.1:1/data" if self.fails("data") else self.data_dsn

    def _reached(self, signal: str) -> None:
        self.waited += signal == "waiting"
        if self.deaths and self.deaths[0] == signal:
            self.deaths.pop(0)
            raise DiedError(signal)

    def come_back(self) -> None:
        """What a dead sink held is visible again."""

        async def show() -> None:
            import asyncpg

            connection = await asyncpg.connect(self.harness.queue_dsn)
            try:
                await connection.execute("UPDATE messages SET visible_at = now() WHERE queue LIKE 'buffers.%'")
            finally:
                await connection.close()

        self.harness.run(show())

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        store = TableStore(self.data_dsn)
        table = tables.quoted(tables.table_name(self.dataset.dataset_uuid))
        try:
            store.follow(self.dataset)
            with store._transaction() as run:
                return run(f"SELECT {', '.join(names or ('key', 'value'))} FROM {table} ORDER BY key")
        finally:
            store.close()

    def has_table(self) -> bool:
        return self.has_column("key")

    def has_column(self, name: str) -> bool:
        """Of the table, which nobody makes by asking."""
        store = TableStore(self.data_dsn)
        try:
            with store._transaction() as run:
                found = run(
                    "SELECT 1 FROM information_schema.columns WHERE table_name = $1 AND column_name = $2",
                    tables.table_name(self.dataset.dataset_uuid),
                    name,
                )
            return bool(found)
        finally:
            store.close()

    def letters(self) -> list[dict[str, Any]]:
        rows = self.harness.sql(
            "SELECT * FROM buffer_publishes WHERE dead_at IS NOT NULL AND dropped_at IS NULL AND org_id = $1 "
            "ORDER BY publish_seq",
            self.org_id(),
        )
        return [dict(row) for row in rows]

    def letters_of(self) -> DeadBatches:
        return DeadBatches(self.harness.dispatcher.ports.store, lambda: None)

    def replay(self) -> int:
        changed: int = self.harness.run(
            self.letters_of().replay(self.flow.actor, DeadBatchesRequest(dataset="large"))
        ).changed
        return changed

    def reader_units(self) -> list[str]:
        return [task["unit_key"] for task in self.flow.tasks("reader")]

    def pressure(self) -> PressureReply:
        org_id = self.org_id()

        async def look() -> PressureReply:
            async with self.harness.dispatcher.ports.store.connection() as connection:
                return await list_pressure(connection, org_id)

        return self.harness.run(look())

    def org_id(self) -> UUID:
        found: UUID = self.harness.sql("SELECT org_id FROM orgs WHERE name = $1", self.org)[0]["org_id"]
        return found
