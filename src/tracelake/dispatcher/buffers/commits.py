"""What sinks ask and say: tables to keep, batches that are in them, batches that cannot be.

A commit is announced as an event whose cursor is the commit's number: who reads the table up to it reads every row of
it. Sinks may repeat everything they say.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.transaction import Store, unavailable_when_held_up
from tracelake.dispatcher.engine.commit_metrics import count_written
from tracelake.dispatcher.engine.plan import NewEvent, WritePlan, WriteResult, event_key
from tracelake.dispatcher.engine.pressure.backlog import CAP
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.predicates import awaits_sink
from tracelake.dispatcher.records import affected, columns, to_struct
from tracelake.errors import TraceError
from tracelake.model.dag import Schema
from tracelake.model.job import buffer_queue
from tracelake.wire.buffers import (
    Backlog,
    BufferCommittedReply,
    BufferCommittedRequest,
    BufferedDataset,
    BufferOpenReply,
    BufferOpenRequest,
    BufferRejectedReply,
    BufferRejectedRequest,
    BuffersReply,
    TablesDroppedReply,
    TablesDroppedRequest,
    TablesMeasuredReply,
    TablesMeasuredRequest,
)
from tracelake.wire.units import EventIn, Invalidates

_TABLES = f"""
    SELECT t.dataset_uuid, o.name AS org, d.name, t.schema, t.on_conflict, t.version_column, t.on_change, t.writers,
           t.retired, b.batches,
           b.size_bytes, b.oldest, (extract(epoch FROM t.changed_at) * 1000000)::bigint AS revision
    FROM buffered_tables t JOIN datasets d USING (dataset_uuid) JOIN orgs o ON o.org_id = t.org_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS batches, coalesce(sum(p.size_bytes), 0)::bigint AS size_bytes,
               coalesce(extract(epoch FROM trace_now() - min(p.released_at)), 0)::float8 AS oldest
        FROM (SELECT p.size_bytes, p.released_at FROM buffer_publishes p
              WHERE p.dataset_uuid = t.dataset_uuid
                AND {awaits_sink("p")}
              ORDER BY p.released_at LIMIT {CAP}) p) b
    ORDER BY o.name, d.name"""  # noqa: S608 - constants only

# Tables that a sink is to drop, in part: the next look lists others.
_REMOVED = """
    SELECT dataset_uuid FROM removed_tables WHERE dropped_at IS NULL ORDER BY removed_at, dataset_uuid LIMIT 100"""

_DROPPED = "UPDATE removed_tables SET dropped_at = trace_now() WHERE dataset_uuid = ANY($1) AND dropped_at IS NULL"

_OPEN = f"""
    SELECT publish_id, dropped_at IS NOT NULL AS dropped FROM buffer_publishes
    WHERE publish_id = ANY($1) AND {awaits_sink()}"""  # noqa: S608

# Noted now and then, not at every question.
_SEEN = """
    INSERT INTO sinks_seen AS s (one, at) VALUES (true, trace_now())
    ON CONFLICT (one) DO UPDATE SET at = excluded.at WHERE s.at < excluded.at - interval '5 seconds'"""

_FIND = """
    SELECT d.org_id, d.current_version, o.routing_epoch FROM datasets d JOIN orgs o USING (org_id)
    WHERE d.dataset_uuid = $1"""

# In the order of their ids: two sinks may say the same at once.
_LOCK = """
    SELECT publish_id, dataset_version, committed_at, commit_seq, dead_at FROM buffer_publishes
    WHERE dataset_uuid = $1 AND publish_id = ANY($2) ORDER BY publish_id FOR UPDATE"""

# What a sink found in its table is there, also if somebody once said that it could not be, or dropped it meanwhile.
_COMMIT = """
    UPDATE buffer_publishes
    SET committed_at = trace_now(), commit_seq = $2, released_at = coalesce(released_at, trace_now()),
        dead_at = NULL, dead_code = NULL, dead_reason = NULL, dead_line = NULL, dead_excerpt = NULL,
        dropped_at = CASE WHEN publish_id = ANY($3) THEN coalesce(dropped_at, trace_now()) END
    WHERE publish_id = ANY($1) AND committed_at IS NULL"""

_MEASURED = "UPDATE buffered_tables SET table_bytes = $2 WHERE dataset_uuid = $1 AND table_bytes <> $2"

# A table of sinks tells its size with each commit.
_COUNTED = """
    WITH m AS (SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS m(dataset_uuid, rows, bytes)),
    kept AS (
        UPDATE buffered_tables t SET table_rows = m.rows FROM m
        WHERE t.dataset_uuid = m.dataset_uuid AND t.table_rows IS DISTINCT FROM m.rows RETURNING 1),
    direct AS (
        UPDATE direct_tables t SET table_rows = m.rows, table_bytes = m.bytes FROM m
        WHERE t.dataset_uuid = m.dataset_uuid
          AND (t.table_rows, t.table_bytes) IS DISTINCT FROM (m.rows, m.bytes) RETURNING 1)
    SELECT (SELECT count(*) FROM kept) + (SELECT count(*) FROM direct)"""

_REJECT = """
    UPDATE buffer_publishes
    SET dead_at = trace_now(), dead_code = $2, dead_reason = $3, dead_line = $4, dead_excerpt = $5,
        released_at = coalesce(released_at, trace_now())
    WHERE publish_id = $1 AND committed_at IS NULL AND dead_at IS NULL"""


@dataclass(eq=False, kw_only=True)
class BufferCommits:
    store: Store
    writer: Writer
    metrics: Metrics
    on_outbox: Callable[[], None]

    async def list(self) -> BuffersReply:
        """Every table that sinks keep, of every org, with what waits for it. Whoever asks is a sink."""
        async with self.store.connection() as connection:
            rows = await connection.fetch(_TABLES)
            removed = await connection.fetch(_REMOVED)
            await connection.execute(_SEEN)
        return BuffersReply(datasets=[_dataset(row) for row in rows], removed=[row["dataset_uuid"] for row in removed])

    async def tables_dropped(self, request: TablesDroppedRequest) -> TablesDroppedReply:
        async with self.store.transaction() as connection:
            tag = await connection.execute(_DROPPED, request.dataset_uuids)
        return TablesDroppedReply(recorded=affected(tag))

    async def tables_measured(self, request: TablesMeasuredRequest) -> TablesMeasuredReply:
        rows = [(item.dataset_uuid, item.rows, item.bytes) for item in request.tables]
        async with self.store.connection() as connection:
            recorded: int = await connection.fetchval(_COUNTED, *columns(rows))
        return TablesMeasuredReply(recorded=recorded)

    async def open(self, request: BufferOpenRequest) -> BufferOpenReply:
        async with self.store.connection() as connection:
            rows = await connection.fetch(_OPEN, request.publish_ids)
        return BufferOpenReply(
            publish_ids=[row["publish_id"] for row in rows],
            dropped=[row["publish_id"] for row in rows if row["dropped"]],
        )

    async def committed(self, request: BufferCommittedRequest) -> BufferCommittedReply:
        with unavailable_when_held_up("The commit conflicts with a concurrent change; repeat it."):
            reply, applied = await self._committed(request)
            if request.table_bytes is not None:  # the next commit tells it again, so it may be lost
                async with self.store.connection() as connection:
                    await connection.execute(_MEASURED, request.dataset_uuid, request.table_bytes)
        count_written(self.metrics, applied)
        self.on_outbox()
        return reply

    async def _committed(self, request: BufferCommittedRequest) -> tuple[BufferCommittedReply, WriteResult]:
        async with self.store.connection() as connection:
            org_id = await connection.fetchval(
                "SELECT org_id FROM datasets WHERE dataset_uuid = $1", request.dataset_uuid
            )
        if org_id is None:
            raise TraceError("dataset_not_found")
        plan = WritePlan()
        async with self.store.transaction(routing=[org_id]) as connection:
            dataset = await connection.fetchrow(_FIND, request.dataset_uuid)
            assert dataset is not None
            rows = await connection.fetch(_LOCK, request.dataset_uuid, request.publish_ids)
            if len(rows) != len(set(request.publish_ids)):
                raise TraceError("publish_not_found", field="publish_ids")
            if any(row["commit_seq"] not in (None, request.commit_seq) for row in rows):
                raise TraceError("commit_conflict", field="commit_seq")
            duplicate = bool(rows) and all(row["committed_at"] is not None for row in rows)
            await connection.execute(_COMMIT, [row["publish_id"] for row in rows], request.commit_seq, request.dropped)
            plan.epochs = {org_id: dataset["routing_epoch"]}
            # Of the current generation, since everybody reads the one table; and of those that are being built.
            versions = {dataset["current_version"], *(row["dataset_version"] for row in rows)}
            producer = _producer(request)
            for version in sorted(versions):
                for event in _events(request, version):
                    key = event_key(producer, event)
                    plan.events.append(NewEvent(key, org_id, None, event, waits=False, starts=True))
            applied = await self.writer.write(connection, plan)
        self.writer.committed(plan)
        return BufferCommittedReply(duplicate=duplicate), applied

    async def rejected(self, request: BufferRejectedRequest) -> BufferRejectedReply:
        async with self.store.transaction() as connection:
            row = await connection.fetchrow(
                "SELECT committed_at, dead_at FROM buffer_publishes WHERE publish_id = $1 FOR UPDATE",
                request.publish_id,
            )
            if row is None:
                raise TraceError("publish_not_found", field="publish_id")
            if row["committed_at"] is not None:
                return BufferRejectedReply(status="committed")
            await connection.execute(
                _REJECT, request.publish_id, request.code, request.reason, request.line, request.excerpt
            )
        if row["dead_at"] is None:
            self.metrics.buffer_dead.inc()
        return BufferRejectedReply(status="dead")


def _producer(request: BufferCommittedRequest) -> str:
    """The same in every report of one commit; a change of writers has no batch."""
    if request.publish_ids:
        return f"publish:{min(request.publish_ids)}"
    return f"writers:{request.dataset_uuid}:{request.commit_seq}"


def _events(request: BufferCommittedRequest, version: UUID) -> Iterator[EventIn]:
    """The commit, if there is something to read of it; and the units of readers that held rows which went."""
    make_event = partial(EventIn, dataset_uuid=request.dataset_uuid, dataset_version=version)
    if not request.hidden:
        yield make_event(cursor=request.commit_seq)
    for item in request.gone:
        reason = f"rows went with commit {request.commit_seq}"
        wrong = Invalidates(start=item.first, end=item.last, reason=reason)
        yield make_event(cursor=item.last, revision=f"commit:{request.commit_seq}", invalidates=wrong)


def _dataset(row: asyncpg.Record) -> BufferedDataset:
    schema = msgspec.json.decode(row["schema"], type=Schema)
    backlog = to_struct(Backlog, row, oldest_seconds=max(0.0, row["oldest"]))
    return to_struct(BufferedDataset, row, queue=buffer_queue(row["dataset_uuid"]), schema=schema, backlog=backlog)
