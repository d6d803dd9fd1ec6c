"""What a sink does in a second, and how long a small batch takes from its publish until its rows are there.

    python -m benchmarks.sink [--rows 400_000] [--pairs 7] [--quick | --smoke]

A real stack: two durable Postgres clusters, an object store, a Dispatcher, a worker with its sink. The last line is one
JSON object.

- `rows_per_s`: large batches of JSON lines, fetched, judged and loaded by a warm Spark session, then merged into an
  empty table with its key. `adbc_rows_per_s`: the same rows, ready as Arrow, ingested by ADBC on one connection into
  the same unlogged staging table, then the same merge. Both take turns, ABBA; `floor_ratio` is the median of the pairs'
  ratios, `spread` its quartiles.
- `publish_to_visible_p50_ms`, `_p99_ms`: batches of 20 rows, one at a time, from the call of buffer-publish until
  another connection sees a row of it. The writer is an always_on source, whose batches go to the sinks at once.
- `small_batches_per_s`: such batches published at once, until the last of them is there.
- `swap_rows_per_s`: a table of these rows whose writer changed: the rows of the new one take the place of all old ones.
  `copy_rows_per_s`: one INSERT of the same rows into an empty table with the same key. `swap_ratio`: the median of the
  pairs' ratios.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.support.options import make_parser, parse, say
from benchmarks.support.routing_stack import RoutingStack, job_id
from benchmarks.support.stack import Clients
from benchmarks.support.stats import interleave, percentile, ratio
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.model.buffered import hidden_name, quoted, table_name
from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.rows.reader import BatchReader
from tracelake.settings import Settings
from tracelake.sink.outcomes import Loaded
from tracelake.sink.spark_load import SparkLoader
from tracelake.sink.store import TableStore
from tracelake.spark.session import SharedSession, SparkConfig
from tracelake.wire import routes
from tracelake.wire.buffers import BatchUnit, BufferBatch, BufferedDataset, Producer
from tracelake.wire.claims import ClaimReply, ClaimRequest
from tracelake.wire.task_calls import BufferPublishRequest

ROWS_OF_A_BATCH = 50_000
WRITERS = "by_hand"
COLUMNS = """
        - { name: tx, type: bytes, nullable: false }
        - { name: log_index, type: int32, nullable: false }
        - { name: token, type: text }
        - { name: sender, type: bytes }
        - { name: value, type: uint256 }
        - { name: block_number, type: int64 }
        - { name: at, type: timestamp }"""
DAG = f"""name: transfers
jobs:
  - name: write
    activation: source
    source: {{ kind: always_on }}
    runtime: {WRITERS}
    operator: noop
publish:
  large:
    from: {{ job: write }}
    storage: postgres
    write_mode: buffered
    schema:
      columns:{COLUMNS}
      unique: [tx, log_index]
"""
SCHEMA = Schema(
    columns=(
        Column(name="tx", type=ColumnType.BYTES, nullable=False),
        Column(name="log_index", type=ColumnType.INT32, nullable=False),
        Column(name="token", type=ColumnType.TEXT),
        Column(name="sender", type=ColumnType.BYTES),
        Column(name="value", type=ColumnType.UINT256),
        Column(name="block_number", type=ColumnType.INT64),
        Column(name="at", type=ColumnType.TIMESTAMP),
    ),
    unique=("tx", "log_index"),
)


def lines(first: int, count: int) -> bytes:
    return b"".join(
        b'{"tx":"0x%064x","log_index":%d,"token":"USDC","sender":"0x%040x","value":"%d","block_number":%d,'
        b'"at":"2026-01-%02dT%02d:00:00Z"}\n'
        % (number // 3, number % 3, number * 7, number * 10**18, number // 100, number % 28 + 1, number % 24)
        for number in range(first, first + count)
    )


class Large:
    """The same rows as JSON lines in the object store, and as Arrow in memory."""

    def __init__(self, settings: Settings, scratch: Path, rows: int) -> None:
        self.rows = rows
        access = settings.resolve_object_store()
        self.objects = S3ObjectStore(access)
        self.store = TableStore(settings.resolve_data_dsn())
        self.shared = SharedSession(SparkConfig(scratch / "session", log_level="error"))
        self.loader = SparkLoader(self.shared.use, S3Transfer(access), settings.resolve_data_dsn)
        self.batches: list[BufferBatch] = []
        self.arrow: list[pa.RecordBatch] = []

    async def make(self) -> None:
        reader = BatchReader(SCHEMA)
        for number, first in enumerate(range(0, self.rows, ROWS_OF_A_BATCH), 1):
            data = lines(first, min(ROWS_OF_A_BATCH, self.rows - first))
            meta = await self.objects.put(f"s3://trace-scratch/bench/{uuid4()}", data)
            batch = BufferBatch(
                publish_id=uuid4(),
                publish_seq=number,
                org_id=UUID(int=1),
                dataset_uuid=UUID(int=2),
                dataset_version=UUID(int=3),
                batch_uri=meta.uri,
                size_bytes=meta.size,
                etag=meta.etag,
                content_type="application/jsonl",
                producer=Producer(task_id=UUID(int=number), attempt=1),
                unit=BatchUnit(node_id=UUID(int=5), unit=f"p:{number}-{number}", batches=1),
            )
            self.batches.append(batch)
            self.arrow.append(reader.read(data, publish_seq=number, org_id=batch.org_id, record_count=None))

    def fresh(self) -> tuple[BufferedDataset, list[BufferBatch]]:
        """An empty table; the batches under new ids, since a batch is taken once."""
        dataset = BufferedDataset(
            dataset_uuid=uuid4(), org="bench", name=f"t{uuid4().hex}", queue="", on_conflict="update", schema=SCHEMA
        )
        self.store.follow(dataset)
        return dataset, [msgspec.structs.replace(batch, publish_id=uuid4()) for batch in self.batches]

    def forget(self, dataset: BufferedDataset) -> None:
        with self.store._transaction() as run:
            run(f"DROP TABLE {quoted(table_name(dataset.dataset_uuid))} CASCADE")
            run(f"DROP TABLE {quoted(hidden_name(dataset.dataset_uuid))}")
            run("DELETE FROM buffer_parts WHERE dataset_uuid = $1::text::uuid", str(dataset.dataset_uuid))
            run("DELETE FROM buffer_changes WHERE dataset_uuid = $1::text::uuid", str(dataset.dataset_uuid))
            run("DELETE FROM buffer_commits WHERE dataset_uuid = $1::text::uuid", str(dataset.dataset_uuid))

    async def _measure(self, load: Callable[[BufferedDataset, str, list[BufferBatch]], list[Any]]) -> float:
        dataset, batches = self.fresh()
        began = time.perf_counter()
        staging = self.store.open_staging(dataset)
        loaded = load(dataset, staging, batches)
        self.store.commit_staged(dataset, staging, loaded)
        self.store.drop_staging(staging)
        lasted = time.perf_counter() - began
        assert sum(item.rows for item in loaded) == self.rows
        self.forget(dataset)
        return self.rows / lasted

    async def by_sink(self) -> float:
        return await self._measure(lambda dataset, staging, batches: self.loader.load(dataset, staging, batches))

    async def by_adbc(self) -> float:
        def ingest(_dataset: BufferedDataset, staging: str, batches: list[BufferBatch]) -> list[Loaded]:
            self.store.load(staging, self.arrow)
            return [Loaded(batch, rows.num_rows) for batch, rows in zip(batches, self.arrow, strict=True)]

        return await self._measure(ingest)

    async def by_swap(self) -> float:
        """The rows of one writer in the table, those of another beside them; then the other is the active one."""
        dataset, batches = self.fresh()
        old, new = UUID(int=5), UUID(int=6)
        dataset = msgspec.structs.replace(dataset, on_change="rebuild", writers=[old], revision=1)
        self.store.follow(dataset)
        for number, node_id in enumerate((old, new)):
            loaded = [
                Loaded(
                    msgspec.structs.replace(
                        batch,
                        publish_id=uuid4(),
                        publish_seq=batch.publish_seq + number * len(batches),
                        unit=BatchUnit(node_id=node_id, unit=f"p:{batch.publish_seq}", batches=1),
                    ),
                    rows.num_rows,
                )
                for batch, rows in zip(batches, self.arrow, strict=True)
            ]
            arrow = [_numbered(rows, number * len(batches)) for rows in self.arrow]
            staging = self.store.open_staging(dataset)
            self.store.load(staging, arrow)
            self.store.commit_staged(dataset, staging, loaded)
            self.store.drop_staging(staging)
        began = time.perf_counter()
        assert self.store.follow(msgspec.structs.replace(dataset, writers=[new], revision=2))
        lasted = time.perf_counter() - began
        self.forget(dataset)
        return self.rows / lasted

    async def by_copy(self) -> float:
        dataset, batches = self.fresh()
        staging = self.store.open_staging(dataset)
        self.store.load(staging, self.arrow)
        loaded = [Loaded(batch, rows.num_rows) for batch, rows in zip(batches, self.arrow, strict=True)]
        self.store.commit_staged(dataset, staging, loaded)
        self.store.drop_staging(staging)
        table = quoted(table_name(dataset.dataset_uuid))
        with self.store._transaction() as run:
            run(f"CREATE TABLE copied (LIKE {table} INCLUDING INDEXES)")
        began = time.perf_counter()
        with self.store._transaction() as run:
            run(f"INSERT INTO copied SELECT * FROM {table}")
        lasted = time.perf_counter() - began
        with self.store._transaction() as run:
            run("DROP TABLE copied")
        self.forget(dataset)
        return self.rows / lasted

    def close(self) -> None:
        self.store.close()
        self.shared.close()


def _numbered(rows: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    """The same rows in batches with other numbers."""
    index = rows.schema.get_field_index("_publish_seq")
    numbers = pc.add(rows.column(index), pa.scalar(offset, rows.schema.field(index).type))
    return rows.set_column(index, rows.schema.field(index), numbers)


class Small:
    """One attempt that publishes batches of 20 rows."""

    def __init__(self, stack: RoutingStack, settings: Settings) -> None:
        self.stack = stack
        self.objects = S3ObjectStore(settings.resolve_object_store())
        self.data_dsn = settings.resolve_data_dsn()
        self.next = 0

    async def begin(self) -> None:
        self.clients: Clients = self.stack.clients()
        self.data = await asyncpg.connect(self.data_dsn)
        await self.stack.deploy(DAG)
        task = await self._run()
        self.claim: ClaimReply = await self.clients.internal.call(
            routes.CLAIM_TASK, ClaimRequest(task_id=task, worker_id="bench")
        )
        assert self.claim.task is not None
        (output,) = self.claim.task.outputs
        self.output = output
        self.table = quoted(table_name(output.dataset_uuid))
        deadline = time.monotonic() + 60
        while await self.data.fetchval("SELECT to_regclass($1)", self.table) is None:
            assert time.monotonic() < deadline, "no sink made the table"
            await asyncio.sleep(0.1)

    async def _run(self) -> UUID:
        """The one task of the source, once the Dispatcher has made it."""
        state = await asyncpg.connect(self.stack.state_dsn)
        job = await job_id(state, "transfers", "write")
        deadline = time.monotonic() + 60
        while (task := await state.fetchval("SELECT task_id FROM tasks WHERE job_id = $1", job)) is None:
            assert time.monotonic() < deadline, "the source has no run"
            await asyncio.sleep(0.1)
        await state.close()
        run: UUID = task
        return run

    async def put(self) -> tuple[BufferPublishRequest, int]:
        first = self.next
        self.next += 20
        uri = f"{self.output.storage.buffer_prefix}{first}.jsonl"
        await self.objects.put(uri, lines(first, 20))
        assert self.claim.task is not None
        assert self.claim.attempt is not None
        assert self.claim.lease_token is not None
        request = BufferPublishRequest(
            task_id=self.claim.task.task_id,
            attempt=self.claim.attempt,
            lease_token=self.claim.lease_token,
            dataset_uuid=self.output.dataset_uuid,
            batch_uri=uri,
            record_count=20,
        )
        return request, first + 19

    async def publish(self, request: BufferPublishRequest) -> None:
        assert self.claim.capability_token is not None
        await self.clients.task.buffer_publish(self.claim.capability_token, request)

    async def visible(self, number: int) -> None:
        key = (number // 3).to_bytes(32, "big")
        statement = f"SELECT 1 FROM {self.table} WHERE org_id = $1 AND tx = $2 AND log_index = $3"
        if not hasattr(self, "org"):
            while (org := await self.data.fetchval(f"SELECT org_id FROM {self.table} LIMIT 1")) is None:
                await asyncio.sleep(0.001)
            self.org = org
        while await self.data.fetchval(statement, self.org, key, number % 3) is None:
            await asyncio.sleep(0.001)

    async def one(self) -> float:
        request, last = await self.put()
        began = time.perf_counter()
        await self.publish(request)
        await self.visible(last)
        return (time.perf_counter() - began) * 1000

    async def many(self, count: int) -> float:
        ready = [await self.put() for _ in range(count)]
        limit = asyncio.Semaphore(32)

        async def say_it(request: BufferPublishRequest) -> None:
            async with limit:
                await self.publish(request)

        began = time.perf_counter()
        await asyncio.gather(*(say_it(request) for request, _ in ready))
        for _, last in ready:
            await self.visible(last)
        return count / (time.perf_counter() - began)

    async def close(self) -> None:
        await self.data.close()
        await self.clients.close()


async def measure(rows: int, pairs: int, batches: int) -> dict[str, Any]:
    with RoutingStack((WRITERS,)) as stack, tempfile.TemporaryDirectory(prefix="trace-bench-") as scratch:
        settings = Settings.load({"home": stack.home}, environ={})
        stack.start_worker()
        small = Small(stack, settings)
        await small.begin()
        try:
            for _ in range(10):
                await small.one()
            waits = [await small.one() for _ in range(batches)]
            say(f"one small batch: p50 {percentile(waits, 0.5):.0f} ms, p99 {percentile(waits, 0.99):.0f} ms")
            rates = [await small.many(batches) for _ in range(3)]
            say(f"many small batches: {sorted(rates)[1]:.0f}/s")
        finally:
            await small.close()
            stack.stop_worker()
        large = Large(settings, Path(scratch), rows)
        try:
            await large.make()
            await large.by_sink()  # warm
            subjects: dict[str, Callable[[], Awaitable[float]]] = {"sink": large.by_sink, "adbc": large.by_adbc}
            series = await interleave(subjects, pairs, say)
            swaps: dict[str, Callable[[], Awaitable[float]]] = {"swap": large.by_swap, "copy": large.by_copy}
            swapped = await interleave(swaps, pairs, say)
        finally:
            large.close()
    share = ratio(series["sink"], series["adbc"])
    swap_share = ratio(swapped["swap"], swapped["copy"])
    return {
        "rows_per_s": round(series["sink"].median),
        "adbc_rows_per_s": round(series["adbc"].median),
        "floor_ratio": round(share.median, 3),
        "spread": share.spread,
        "publish_to_visible_p50_ms": round(percentile(waits, 0.5), 1),
        "publish_to_visible_p99_ms": round(percentile(waits, 0.99), 1),
        "small_batches_per_s": round(sorted(rates)[1], 1),
        "swap_rows_per_s": round(swapped["swap"].median),
        "copy_rows_per_s": round(swapped["copy"].median),
        "swap_ratio": round(swap_share.median, 3),
        "swap_spread": swap_share.spread,
        "rows": rows,
        "pairs": pairs,
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--pairs", type=int, default=7)
    options = parse(parser)
    asked = (options.more.rows, options.more.pairs, 200)
    rows, pairs, batches = options.scale.pick(asked, (50_000, 3, 30), (2_000, 1, 3))
    print(json.dumps(asyncio.run(measure(rows, pairs, batches))))


if __name__ == "__main__":
    main()
