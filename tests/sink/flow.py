"""A real Dispatcher with a DAG of a buffered dataset, writers that publish, and a sink that a test steps by hand."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pyarrow as pa

from tests.routing.support import Flow
from tests.sink.support import lines
from tests.support.configs import sink_config
from tests.support.dispatcher import DispatcherHarness, Reply, fence
from tracelake.adapters.postgres_queue import PostgresQueue
from tracelake.client import DispatcherUnavailableError
from tracelake.dispatcher.buffers.dead_batches import DeadBatches
from tracelake.dispatcher.public_ids import PublicIds
from tracelake.dispatcher.views.pressure import list_pressure
from tracelake.errors import StoreUnavailableError
from tracelake.model.backoff import Backoff
from tracelake.model.buffered import quoted, table_name
from tracelake.rows.reader import BadBatchError, BatchReader
from tracelake.sink.config import SinkConfig
from tracelake.sink.drain import DatasetDrain
from tracelake.sink.outcomes import Commit, Loaded, Refusal
from tracelake.sink.parse import parse_batch
from tracelake.sink.retrying import StoppedError
from tracelake.sink.store import TableStore
from tracelake.sink.store_pool import StorePool
from tracelake.storage.data_connection import StoreAwayError
from tracelake.wire.buffers import (
    BufferBatch,
    BufferCommittedReply,
    BufferCommittedRequest,
    BufferedDataset,
    BufferOpenReply,
    BufferOpenRequest,
    BufferRejectedReply,
    BufferRejectedRequest,
    BuffersReply,
    DeadBatchesChanged,
    DeadBatchesRequest,
    TablesDroppedReply,
    TablesDroppedRequest,
    TablesMeasuredReply,
    TablesMeasuredRequest,
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

    async def tables_dropped(self, request: TablesDroppedRequest) -> TablesDroppedReply:
        return await self.harness.dispatcher.buffers.tables_dropped(request)

    async def tables_measured(self, request: TablesMeasuredRequest) -> TablesMeasuredReply:
        return await self.harness.dispatcher.buffers.tables_measured(request)


class FailingObjects:
    """The object store, away as long as the flow says."""

    def __init__(self, flow: "BufferFlow") -> None:
        self._flow = flow

    async def get(self, uri: str, *, if_match: str | None = None) -> bytes | None:
        if self._flow.fails("objects"):
            raise StoreUnavailableError
        return await self._flow.harness.objects.get(uri, if_match=if_match)


class Hands:
    """Loads as Spark does, without it: by connections of its own, and one batch twice as if a task had been retried."""

    def __init__(self, flow: "BufferFlow") -> None:
        self._flow = flow

    def load(self, dataset: BufferedDataset, staging: str, batches: Sequence[BufferBatch]) -> list[Loaded | Refusal]:
        flow, reader, found = self._flow, BatchReader(dataset.schema), list[Loaded | Refusal]()
        if flow.fails("spark"):
            raise RuntimeError("an executor was lost")
        flow.reached("loading")
        store = TableStore(flow.data_dsn)
        try:
            for index, batch in enumerate(batches):
                data: bytes | None = b""
                if not batch.is_empty:
                    data = flow.harness.run(flow.harness.objects.get(batch.batch_uri, if_match=batch.etag))
                try:
                    rows = parse_batch(reader, batch, data)
                except BadBatchError as error:
                    found.append(Refusal(batch, error))
                    continue
                for _ in range(1 + (index == 0)):
                    if rows.num_rows:
                        store.load(staging, [rows])
                found.append(Loaded(batch, rows.num_rows))
        finally:
            store.close()
        flow.reached("loaded")
        return found


class WatchedStore(TableStore):
    """One that a sink can die in, and whose word that it committed may be lost."""

    def __init__(self, dsn: str, flow: "BufferFlow") -> None:
        super().__init__(dsn, flow.lock_seconds)
        self._flow = flow

    def _ingest(self, table: str, rows: Sequence[pa.RecordBatch], *, temporary: bool) -> None:
        super()._ingest(table, rows, temporary=temporary)
        self._flow.reached("staged")

    def _merge(
        self, run: Any, dataset: BufferedDataset, staging: str, loaded: Sequence[Loaded], sure: bool
    ) -> list[Commit]:
        commits = super()._merge(run, dataset, staging, loaded, sure)
        self._flow.reached("merged")
        return commits

    def commit_direct(self, *arguments: Any, **options: Any) -> list[Commit]:
        return self._lose(super().commit_direct(*arguments, **options))

    def commit_staged(self, *arguments: Any, **options: Any) -> list[Commit]:
        return self._lose(super().commit_staged(*arguments, **options))

    def _lose(self, commits: list[Commit]) -> list[Commit]:
        if self._flow.fails("answer"):
            raise StoreAwayError("the answer was lost")
        return commits


class WatchedStores(StorePool):
    def __init__(self, flow: "BufferFlow", limit: int = 4) -> None:
        super().__init__(flow.dsn, limit)
        self._flow = flow

    def _open(self) -> TableStore:
        return WatchedStore(self._dsn(), self._flow)


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
    """`objects`, `data`, `answer`, `spark`, `dispatcher`: so many calls fail before one is answered."""
    waited: int = 0
    large: bool = False
    """Everything is loaded by many hands."""
    batches: int = 64
    hooks: dict[str, Callable[[], None]] = field(default_factory=dict)
    """What happens the next time that a sink comes to a signal."""
    lock_seconds: float = 30.0

    def __post_init__(self) -> None:
        self.flow = Flow(self.harness, self.org)
        self.deploy()
        self.blocks = 0
        self.triggered: set[int] = set()

    def deploy(self, *more: str, limits: str = "", indexes: str = "[]") -> Any:
        columns = "\n".join(f"        - {{ {column} }}" for column in more)
        document = DAG.format(on_conflict=self.on_conflict, more=columns, limits=limits)
        return self.flow.deploy(f"{document}      indexes: {indexes}\n")

    @property
    def dataset(self) -> BufferedDataset:
        listed = self.harness.run(self.harness.dispatcher.buffers.list()).datasets
        (found,) = [item for item in listed if item.org == self.org]
        return msgspec.structs.replace(found, backlog=None)

    def attempt(self, job: str, block: int | None = None) -> tuple[str, Any]:
        """A running task of a writer, of a block that no task was for yet, or of this one."""
        if block is None:
            self.blocks += 1
        number = block or self.blocks
        first = block is None or block not in self.triggered
        self.triggered.add(number)
        self.flow.trigger("transfers", "head" if first else job, range={"start": number, "end": number})
        task = self.flow.tasks(job, "Queued")[-1]
        return str(task["task_id"]), self.flow.claim(task["task_id"])

    def publish(self, rows: Sequence[Any] | bytes, job: str = "left", **fields: Any) -> Any:
        task_id, lease = self.attempt(job)
        reply = self.publish_by(task_id, lease, rows, **fields)
        self.flow.complete(task_id, lease)
        return reply

    def write(self, *batches: Sequence[Any], job: str = "left", block: int | None = None) -> list[Any]:
        """A task that publishes these batches and completes."""
        task_id, lease = self.attempt(job, block)
        prefix = lease["task"]["outputs"][0]["storage"]["buffer_prefix"]
        replies = []
        for number, rows in enumerate(batches):
            uri = f"{prefix}{number}.jsonl"
            self.harness.run(self.harness.objects.put(uri, lines(rows)))
            replies.append(self.publish_by(task_id, lease, None, batch_uri=uri))
        self.flow.complete(task_id, lease)
        return replies

    def publish_by(self, task_id: str, lease: Any, rows: Sequence[Any] | bytes | None, **fields: Any) -> Any:
        reply = self.try_publish(task_id, lease, rows, **({"dedupe_scope": "large"} | fields))
        assert reply.status == 200, reply
        prefix = lease["task"]["outputs"][0]["storage"]["buffer_prefix"]
        ids = self.harness.run(PublicIds(self.harness.dispatcher.ports.store).of(self.org_id()))
        number = ids.batches.open(reply.body["publish_seq"])
        return reply.body | {"publish_seq": number, "uri": f"{prefix}batch.jsonl", "task_id": task_id}

    def try_publish(self, task_id: str, lease: Any, rows: Sequence[Any] | bytes | None, **fields: Any) -> Reply:
        """Without rows: what was written before."""
        uri = lease["task"]["outputs"][0]["storage"]["buffer_prefix"] + "batch.jsonl"
        if rows is not None:
            data = rows if isinstance(rows, bytes) else lines(rows)
            self.harness.run(self.harness.objects.put(uri, data))
        body = fence(task_id, lease, **({"batch_uri": uri} | fields))
        return self.harness.task("buffer-publish", lease["capability_token"], body)

    def reject(self, publish_id: str, reason: str = "no", line: int | None = None) -> None:
        """As a sink that cannot take it says."""
        body = {"publish_id": publish_id, "code": "row_invalid", "reason": reason, "line": line}
        assert self.harness.service("POST", "/internal/buffer-rejected", body).status == 200

    def sink(
        self, config: SinkConfig | None = None, visibility: float = 60.0, known: BufferedDataset | None = None
    ) -> int:
        """One round of a fresh sink, until the queue is empty or it dies; how many batches it finished with."""
        self.relay()
        return self.harness.run(self.rounds(config, visibility, known))

    def relay(self) -> None:
        while self.harness.relay():
            pass

    async def rounds(
        self,
        config: SinkConfig | None = None,
        visibility: float = 60.0,
        known: BufferedDataset | None = None,
        *,
        shared: StorePool | None = None,
        stop: asyncio.Event | None = None,
    ) -> int:
        queue = PostgresQueue(self.harness.queue_dsn)
        stores = shared or WatchedStores(self)
        drain = DatasetDrain(
            known or self.dataset_now(await self.harness.dispatcher.buffers.list()),
            config=config
            or sink_config(
                batches=self.batches,
                visibility_seconds=visibility,
                wait_seconds=0.0,
                large_bytes=0,
                backoff=Backoff(0.01, 0.05),
            ),
            queue=queue,
            objects=FailingObjects(self),
            calls=DispatcherCalls(self.harness, self.away.pop("dispatcher", 0)),
            stores=stores,
            stop=stop or asyncio.Event(),
            large=Hands(self) if self.large else None,
            on_signal=self.reached,
        )
        done = 0
        try:
            while more := await drain.run_once():
                done += more
        except (DiedError, StoppedError):
            pass
        finally:
            if stores is not shared:
                stores.close()
            await queue.close()
        return done

    def sinks_at_once(self, count: int) -> list[int]:
        self.relay()

        async def together() -> list[int]:
            one = sink_config(batches=1, wait_seconds=0.0, backoff=Backoff(0.01, 0.05))
            return list(await asyncio.gather(*(self.rounds(one) for _ in range(count))))

        return self.harness.run(together())

    def dataset_now(self, listed: BuffersReply) -> BufferedDataset:
        (found,) = [item for item in listed.datasets if item.org == self.org]
        return msgspec.structs.replace(found, backlog=None)

    def fails(self, what: str) -> bool:
        left = self.away.get(what, 0)
        self.away[what] = max(0, left - 1)
        return left > 0

    def dsn(self) -> str:
        return "postgresql://trace_data:x@127.0.0.1:1/data" if self.fails("data") else self.data_dsn

    def reached(self, signal: str) -> None:
        self.waited += signal == "waiting"
        if (hook := self.hooks.pop(signal, None)) is not None:
            hook()
        if self.deaths and self.deaths[0] == signal:
            self.deaths.pop(0)
            raise DiedError(signal)

    def come_back(self) -> None:
        """What a dead sink held is visible again."""
        self.queue_sql("UPDATE messages SET visible_at = now() WHERE queue = $1", self.dataset.queue)

    def queue_sql(self, statement: str, *arguments: Any) -> None:
        async def execute() -> None:
            connection = await asyncpg.connect(self.harness.queue_dsn)
            try:
                await connection.execute(statement, *arguments)
            finally:
                await connection.close()

        self.harness.run(execute())

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        store = TableStore(self.data_dsn)
        try:
            store.follow(self.dataset)
        finally:
            store.close()
        return self.data_sql(f"SELECT {', '.join(names or ('key', 'value'))} FROM {self.table} ORDER BY key")

    def data_sql(self, statement: str) -> list[tuple[Any, ...]]:
        store = TableStore(self.data_dsn)
        try:
            with store._transaction() as run:
                return run(statement)
        finally:
            store.close()

    @property
    def table(self) -> str:
        return quoted(table_name(self.dataset.dataset_uuid))

    def has_table(self) -> bool:
        return self.has_column("key")

    def has_column(self, name: str) -> bool:
        """Of the table, which nobody makes by asking."""
        table = table_name(self.dataset.dataset_uuid)
        found = self.data_sql(
            f"SELECT 1 FROM information_schema.columns WHERE table_name = '{table}' AND column_name = '{name}'"
        )
        return bool(found)

    def letters(self) -> list[dict[str, Any]]:
        rows = self.harness.sql(
            "SELECT * FROM buffer_publishes WHERE dead_at IS NOT NULL AND dropped_at IS NULL AND org_id = $1 "
            "ORDER BY publish_seq",
            self.org_id(),
        )
        return [dict(row) for row in rows]

    def letters_of(self) -> DeadBatches:
        return DeadBatches(self.harness.dispatcher.ports.store, lambda: None)

    def replay(self, *publish_ids: str) -> int:
        """These, or all of them."""
        return self._letters("replay", publish_ids)

    def drop(self, *publish_ids: str) -> int:
        return self._letters("drop", publish_ids)

    def _letters(self, verb: str, publish_ids: Sequence[str]) -> int:
        request = (
            DeadBatchesRequest(publish_ids=[UUID(item) for item in publish_ids])
            if publish_ids
            else DeadBatchesRequest(dataset="large")
        )
        done: DeadBatchesChanged = self.harness.run(getattr(self.letters_of(), verb)(self.flow.actor, request))
        return done.changed

    def open_batches(self) -> int:
        """That are neither in the table nor dead letters."""
        (backlog,) = [
            item.backlog
            for item in self.harness.run(self.harness.dispatcher.buffers.list()).datasets
            if item.org == self.org
        ]
        assert backlog is not None
        return backlog.batches

    def commits(self) -> dict[int, int]:
        """Which commit each batch became visible with, as the Dispatcher knows it."""
        rows = self.harness.sql(
            "SELECT publish_seq, commit_seq FROM buffer_publishes "
            "WHERE org_id = $1 AND committed_at IS NOT NULL AND dropped_at IS NULL",
            self.org_id(),
        )
        return {row["publish_seq"]: row["commit_seq"] for row in rows}

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
