"""Submission: a query becomes a task, with the generations that it reads pinned, all in one transaction.

A repeated submission is the same query. Submissions of an org wait for each other, so that two of one id, or two for
the last free place, cannot both succeed.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from tracelake.catalogue.sql.query_config import BatchParameter, BatchQueryConfig, result_unit
from tracelake.db.transaction import Connection, Store, unavailable_when_held_up
from tracelake.dispatcher import audit
from tracelake.dispatcher.batch_queries.query_job import QueryJobs
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.commit_metrics import count_written
from tracelake.dispatcher.engine.limits import limit_keys_of
from tracelake.dispatcher.engine.plan import NewTask, WritePlan, wake_of
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.quotas.checks import check_queued
from tracelake.dispatcher.records import columns
from tracelake.dispatcher.views.relations import list_published
from tracelake.errors import TraceError
from tracelake.model.ids import new_id
from tracelake.model.job import Job
from tracelake.wire.base import MAX_CURSOR
from tracelake.wire.batch_query import BatchSubmission
from tracelake.wire.query import QueriedDataset, QueryAuditRecord, ReadableRelation
from tracelake.wire.units import CursorRange, TaskInput, Unit

SUBMITTED = "submitted"
"""The outcome in the audit of a query that was accepted; its own outcome comes later."""
RETRY_SECONDS = 10

_LOCK_ORG = "SELECT routing_epoch FROM orgs WHERE org_id = $1 FOR NO KEY UPDATE"

_EXISTING = "SELECT subject, request_hash FROM batch_queries WHERE org_id = $1 AND query_id = $2"

_OPEN = """
    SELECT count(*) AS org, count(*) FILTER (WHERE q.subject = $2) AS person
    FROM batch_queries q JOIN tasks t USING (task_id)
    WHERE q.org_id = $1 AND q.ended_at IS NULL AND t.finished_at IS NULL"""

# One statement, so one moment: what was committed by then is what the query reads, in each of its attempts.
_COMMITTED = """
    SELECT u.dataset_uuid, max(m.created_at) AS as_of, sum(manifest_bytes(m.objects))::bigint AS all_bytes,
           sum(manifest_bytes(m.objects)) FILTER (
               WHERE u.range_start IS NULL OR (u.range_end >= g.first AND u.range_start <= g.last))::bigint AS bytes
    FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[]) AS g(dataset_uuid, dataset_version, first, last)
    JOIN dataset_units u ON u.dataset_uuid = g.dataset_uuid AND u.dataset_version = g.dataset_version
    JOIN manifests m ON m.manifest_id = u.manifest_id GROUP BY u.dataset_uuid"""

_INSERT = """
    INSERT INTO batch_queries (org_id, query_id, task_id, subject, request_hash, config, sql_sha256, datasets,
                               input_bytes)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"""

_PIN = """
    INSERT INTO batch_query_inputs (task_id, dataset_uuid, dataset_version, as_of)
    SELECT $1, * FROM unnest($2::uuid[], $3::uuid[], $4::timestamptz[])"""

_WHOLE = Unit(partition_key="*")
_ALL_COMMITS = Unit(cursor=CursorRange(after=-1, to=MAX_CURSOR))


@dataclass(frozen=True, slots=True)
class _PinnedReading:
    """What a query reads, resolved at one moment."""

    relations: Sequence[ReadableRelation]
    moments: dict[UUID, Any]
    """By dataset of files: the newest commit."""
    input_bytes: int
    blocks: dict[UUID, tuple[int, int]]
    """By dataset of files: the blocks that are read, if not all."""

    @property
    def datasets(self) -> list[QueriedDataset]:
        return [
            QueriedDataset(name=item.name, dataset_uuid=item.dataset_uuid, dataset_version=item.dataset_version)
            for item in self.relations
        ]

    def inputs(self) -> list[TaskInput]:
        return [
            TaskInput(
                input_index=index,
                dataset_uuid=item.dataset_uuid,
                dataset_version=item.dataset_version,
                unit=self._unit(item),
            )
            for index, item in enumerate(self.relations)
        ]

    def _unit(self, item: ReadableRelation) -> Unit:
        if item.storage != "s3":
            return _ALL_COMMITS
        if item.dataset_uuid not in self.blocks:
            return _WHOLE
        first, last = self.blocks[item.dataset_uuid]
        return Unit(partition_key=f"{first}-{last}", start=first, end=last)

    def pins(self) -> list[tuple[UUID, UUID, Any]]:
        return [
            (item.dataset_uuid, item.dataset_version, self.moments.get(item.dataset_uuid)) for item in self.relations
        ]


@dataclass(eq=False, kw_only=True)
class BatchSubmissions:
    store: Store
    jobs: QueryJobs
    writer: Writer
    config: DispatcherConfig
    metrics: Metrics
    quotas: QuotaBook
    on_outbox: Callable[[], None]

    async def submit(self, body: BatchSubmission) -> bool:
        """Returns whether the query had been submitted before."""
        job = await self.jobs.find(body.org)
        request_hash = hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()
        plan = WritePlan()
        with unavailable_when_held_up("The submission conflicts with a concurrent change; repeat it."):
            async with self.store.transaction(routing=[job.org_id]) as connection:
                plan.epochs = {job.org_id: await connection.fetchval(_LOCK_ORG, job.org_id)}
                existing = await connection.fetchrow(_EXISTING, job.org_id, body.query_id)
                if existing is not None:
                    if (existing["subject"], existing["request_hash"]) != (body.subject, request_hash):
                        raise TraceError("query_id_taken", field="query_id")
                    return True
                await check_queued(connection, job.org_id, self.quotas)
                await self._check_open(connection, job.org_id, body.subject)
                reading = await _resolve(connection, body)
                task = self._task(job, reading)
                plan.new_tasks.append(task)
                applied = await self.writer.write(connection, plan)
                await self._insert(connection, job, body, request_hash, task.task_id, reading)
                await audit.record_query(connection, _audit_record(body, reading))
        self.writer.committed(plan)
        count_written(self.metrics, applied)
        self.on_outbox()
        return False

    async def _check_open(self, connection: Connection, org_id: UUID, subject: str) -> None:
        row = await connection.fetchrow(_OPEN, org_id, subject)
        assert row is not None
        for whose, count, most in (
            ("You have", row["person"], self.config.query_batch_user_open),
            ("Your organisation has", row["org"], self.config.query_batch_org_open),
        ):
            if count >= most:
                message = f"{whose} {count} batch queries that have not ended: wait for one of them, or cancel it."
                raise TraceError("rate_limited", message, retry_after_seconds=RETRY_SECONDS)

    def _task(self, job: Job, reading: _PinnedReading) -> NewTask:
        task_id = new_id()
        number = result_unit(task_id)
        unit = Unit(partition_key=f"{number}-{number}", start=number, end=number)
        return NewTask(
            task_id=task_id,
            org_id=job.org_id,
            job_id=job.job_id,
            max_attempts=job.max_attempts,
            inputs=msgspec.json.encode(reading.inputs(), order="deterministic").decode(),
            unit=msgspec.json.encode(unit).decode(),
            wake=wake_of(self.config.runtimes, job.runtime),
            limit_keys=limit_keys_of(self.config.runtimes, job, org_limited=self.quotas.limits_running(job.org_id)),
        )

    async def _insert(
        self,
        connection: Connection,
        job: Job,
        body: BatchSubmission,
        request_hash: str,
        task_id: UUID,
        reading: _PinnedReading,
    ) -> None:
        config = {
            "query": body.sql,
            "inputs": {item.name: index for index, item in enumerate(reading.relations)},
            "parameters": {
                name: BatchParameter(type=item.type, value=item.value)
                for name, item in body.parameters.items()
                if not isinstance(item.value, list)  # the gate has refused those
            },
            "max_bytes": self.config.query_batch_result_bytes,
        } | ({} if body.limit is None else {"limit": body.limit})
        assert config.keys() <= set(BatchQueryConfig.__struct_fields__)
        await connection.execute(
            _INSERT,
            job.org_id,
            body.query_id,
            task_id,
            body.subject,
            request_hash,
            msgspec.json.encode(config).decode(),
            body.sql_sha256,
            msgspec.json.encode(reading.datasets).decode(),
            reading.input_bytes,
        )
        if pins := reading.pins():
            await connection.execute(_PIN, task_id, *columns(pins))


async def _resolve(connection: Connection, body: BatchSubmission) -> _PinnedReading:
    """The generations that are current now. The caller holds the org's routing lock: none stops being current."""
    published = {item.name: item for item in (await list_published(connection, body.org)).relations}
    names = list(dict.fromkeys(body.relations))
    for name in names:
        if name not in published:
            raise TraceError("query_unknown_relation", name=name)
    relations = [published[name] for name in names]
    files = [item for item in relations if item.storage == "s3"]
    ranges = [(item.dataset_uuid, item.dataset_version, *body.blocks.get(item.name, (0, MAX_CURSOR))) for item in files]
    rows = await connection.fetch(_COMMITTED, *columns(ranges)) if files else []
    moments = {row["dataset_uuid"]: row["as_of"] for row in rows}
    for item in files:
        if item.dataset_uuid not in moments:
            raise TraceError("dataset_not_committed", f"Nothing of the dataset {item.name} has been committed yet.")
    # Nothing in the range: all files are read then, since the columns of a relation are those of its files.
    pruned = {row["dataset_uuid"] for row in rows if row["bytes"] is not None}
    blocks = {
        item.dataset_uuid: body.blocks[item.name]
        for item in files
        if item.name in body.blocks and item.dataset_uuid in pruned
    }
    size = sum(row["all_bytes"] if row["bytes"] is None else row["bytes"] for row in rows)
    return _PinnedReading(relations, moments, size, blocks)


def _audit_record(body: BatchSubmission, reading: _PinnedReading) -> QueryAuditRecord:
    return QueryAuditRecord(
        run_id=new_id(),
        query_id=body.query_id,
        org=body.org,
        subject=body.subject,
        datasets=reading.datasets,
        duration_ms=0,
        outcome=SUBMITTED,
        sql_sha256=body.sql_sha256,
    )
