"""A stack with a Query Service, and datasets that were committed to it as tasks do it."""

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import UUID, uuid4

import msgspec

from benchmarks.support.query_data import HOLDERS, DataUnit, SampleDataset
from benchmarks.support.stack import BenchStack, Clients
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.adapters.shared_secrets import utc_now
from tracelake.client.query import QueryClient
from tracelake.client.stack import LocalStack
from tracelake.client.user import UserClient
from tracelake.rows.reader import BatchReader
from tracelake.settings import Settings
from tracelake.settings.configs import user_token_rules
from tracelake.settings.home import write_private
from tracelake.sink.outcomes import Loaded
from tracelake.sink.store import TableStore
from tracelake.stack.credentials import LiteCredentials, user_token
from tracelake.wire import routes
from tracelake.wire.buffers import BufferBatch, BufferedDataset, Producer
from tracelake.wire.claims import ClaimReply, ClaimRequest
from tracelake.wire.jobs import BlockRange, TriggerRequest
from tracelake.wire.task_calls import CompleteRequest, DatasetPublished, StorageRef
from tracelake.wire.units import EventIn

RUNTIME = "ecs_platform"
"""Its tasks are claimed here: there is no worker."""
_WAKEUP = msgspec.json.Decoder(dict[str, UUID])
_SECONDS = 120.0
_AT_ONCE = 8

_FILES = """
name: {name}
defaults: {{runtime: {runtime}}}
jobs:
  - {{name: begin, activation: source, source: {{kind: manual}}}}
  - name: write
    activation: reactive
    operator: decode_logs
    execution_strategy: PerPartition
    inputs: [{{from: {{job: begin}}}}]
publish:
  {name}: {{from: {{job: write}}, storage: s3}}
"""
_NOTES = f"""
name: annotations
defaults: {{runtime: {RUNTIME}}}
jobs:
  - {{name: begin, activation: source, source: {{kind: manual}}}}
  - name: write
    activation: reactive
    operator: noop
    execution_strategy: PerPartition
    inputs: [{{from: {{job: begin}}}}]
publish:
  notes:
    from: [{{job: write}}]
    storage: postgres
    write_mode: buffered
    schema:
      columns:
        - {{name: holder, type: int32, nullable: false}}
        - {{name: note, type: text}}
        - {{name: remark, type: text}}
        - {{name: weight, type: int64}}
      unique: [holder]
"""


class QueryStack(BenchStack):
    """Calls are not limited to a person's pace, and a person may have as many queries as there are callers."""

    query_service = True

    def __init__(self, **settings: str) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="trace-bench-"))
        super().__init__(
            TRACE_LEASE_SECONDS="3600",
            TRACE_RECONCILE_SECONDS="3600",
            TRACE_USER_RATE_PER_SECOND="100000",
            TRACE_USER_RATE_BURST="100000",
            **settings,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def stack(self) -> LocalStack:
        return msgspec.convert(self.info, LocalStack)

    @property
    def settings(self) -> Settings:
        return Settings.load({"home": self.home}, environ={})

    def token_file(self, org: str, subject: str) -> Path:
        """A token of anybody: the stack's own keys sign it."""
        path = self._scratch / f"{org}.{subject}.jwt"
        if not path.exists():
            keys = LiteCredentials.ensure(self.settings.layout.keys).user_keys
            rules = user_token_rules(self.settings)
            roles = ["admin", "writer", "reader"]
            token = user_token(keys, rules, subject=subject, org=org, roles=roles, now=utc_now())
            write_private(path, token + "\n")
        return path

    def queries(self, org: str, subject: str = "ann") -> QueryClient:
        return QueryClient(self.stack, self.token_file(org, subject))

    def empty_cache(self) -> None:
        for path in (self.settings.layout.query / "cache").glob("*.parquet"):
            path.unlink()

    # Datasets

    async def publish(self, org: str, dataset: SampleDataset) -> None:
        """A DAG with the dataset, and a task for each of its units that has written its files."""
        user = UserClient.of_stack(self.stack, self.token_file(org, "writer"))
        clients = self.clients()
        try:
            text = _FILES.format(name=dataset.name, runtime=RUNTIME)
            await user.call(routes.DEPLOY, text.encode(), dag=dataset.name, activate=True)
            for unit in dataset.units:
                order = TriggerRequest(range=BlockRange(start=unit.start, end=unit.end))
                await user.call(routes.TRIGGER, order, dag=dataset.name, job="begin")
            units = {unit.start: unit for unit in dataset.units}
            limit = asyncio.Semaphore(_AT_ONCE)
            async with asyncio.timeout(_SECONDS), asyncio.TaskGroup() as group:
                while units:
                    deliveries = await clients.queue.receive(f"tasks.{RUNTIME}", 10, 3600.0, wait_seconds=5.0)
                    for delivery in deliveries:
                        task_id = _WAKEUP.decode(delivery.body)["task_id"]
                        claim = await clients.internal.call(
                            routes.CLAIM_TASK, ClaimRequest(task_id=task_id, worker_id="bench")
                        )
                        assert claim.task is not None
                        start = claim.task.inputs[0].unit.blocks[0]
                        assert start is not None
                        group.create_task(self._complete(clients, claim, units.pop(start), limit))
        finally:
            await clients.close()
            await user.close()

    async def _complete(self, clients: Clients, claim: ClaimReply, unit: DataUnit, limit: asyncio.Semaphore) -> None:
        assert claim.task is not None
        assert claim.capability_token is not None
        (output,) = claim.task.outputs
        prefix = output.storage.write_prefix
        assert prefix is not None
        async with limit:
            await asyncio.to_thread(self._upload, unit.files, prefix)
        bucket, _, key = prefix.removeprefix("s3://").partition("/")
        version: dict[str, Any] = {
            "dataset_uuid": output.dataset_uuid,
            "dataset_version": output.dataset_version,
        }
        body = CompleteRequest(
            task_id=claim.task.task_id,
            attempt=claim.attempt or 1,
            lease_token=claim.lease_token or UUID(int=0),
            status="Completed",
            datasets_published=[
                DatasetPublished(
                    **version,
                    storage_ref=StorageRef(scheme="s3", bucket=bucket, prefix=key, glob="*.parquet"),
                    range_start=unit.start,
                    range_end=unit.end,
                )
            ],
            events=[EventIn(**version, partition_key=f"{unit.start}-{unit.end}", start=unit.start, end=unit.end)],
        )
        reply = await clients.task.complete(claim.capability_token, body)
        assert reply.status == "Completed"

    def _upload(self, files: Sequence[Path], prefix: str) -> None:
        transfer = S3Transfer(self.settings.resolve_object_store())
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda path: transfer.upload(path, f"{prefix}{path.name}"), files))
        success = self._scratch / "_SUCCESS"
        success.touch()
        transfer.upload(success, f"{prefix}_SUCCESS")

    async def publish_notes(self, org: str) -> UUID:
        """The table `notes`, with a row for each holder, merged as a sink does it."""
        user = UserClient.of_stack(self.stack, self.token_file(org, "writer"))
        await user.call(routes.DEPLOY, _NOTES.encode(), dag="annotations", activate=True)
        await user.close()
        clients = self.clients()
        (dataset,) = [item for item in (await clients.internal.buffers()).datasets if item.name == "notes"]
        await clients.close()
        await asyncio.to_thread(self._fill, dataset)
        return dataset.dataset_uuid

    def _fill(self, dataset: BufferedDataset) -> None:
        text = b"".join(
            msgspec.json.encode({"holder": number, "note": f"note {number % 50}", "remark": "x" * 40, "weight": number})
            + b"\n"
            for number in range(HOLDERS)
        )
        batch = BufferBatch(
            publish_id=uuid4(),
            publish_seq=1,
            org_id=UUID(int=1),
            dataset_uuid=dataset.dataset_uuid,
            dataset_version=UUID(int=3),
            batch_uri="s3://trace-scratch/bench",
            size_bytes=len(text),
            etag="",
            content_type="application/jsonl",
            producer=Producer(task_id=UUID(int=4), attempt=1),
        )
        rows = BatchReader(dataset.schema).read(text, publish_seq=1, org_id=batch.org_id, record_count=None)
        store = TableStore(self.settings.resolve_data_dsn())
        try:
            store.follow(dataset)
            store.commit_direct(dataset, [Loaded(batch, rows.num_rows)], [rows])
        finally:
            store.close()
