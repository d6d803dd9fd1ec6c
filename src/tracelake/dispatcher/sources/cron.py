"""Cron sources: which of them count, and the events of a slot.

Nothing here reads a schedule: when a source is due is the scheduler's business. What is promised here is that a slot is
taken once, with all that it sets off, or not at all; and that what was taken is known (`last_slot`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.transaction import Connection, Store, unavailable_when_held_up
from tracelake.dispatcher.engine.commit_metrics import count_written
from tracelake.dispatcher.engine.plan import WritePlan, WriteResult, source_event
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.records import to_struct
from tracelake.errors import TraceError
from tracelake.model.dag import JobDocument, SourceKind
from tracelake.model.job import Job
from tracelake.wire.sources import CronSource, CronSourcesReply, FireReply, FireRequest

AHEAD = timedelta(minutes=1)
"""How far a slot may lie in the future of the store's clock."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END = datetime(9999, 12, 31, tzinfo=UTC)

# From when on a source counts without a break: after the last cutover to a version where the job was not there, or
# another node, or had another schedule. `d` is its DAG, `v` its place in the active version, `j` the job.
COUNTS_SINCE = """
    (SELECT min(a.cutover_at) FROM activations a
     WHERE a.org_id = d.org_id AND a.dag_name = d.dag_name AND a.cutover_at IS NOT NULL
       AND a.activation_id > coalesce(
           (SELECT max(b.activation_id) FROM activations b
            LEFT JOIN dag_version_jobs w ON w.dag_version_id = b.dag_version_id AND w.job_name = v.job_name
            LEFT JOIN jobs i ON i.job_id = w.job_id
            WHERE b.org_id = d.org_id AND b.dag_name = d.dag_name AND b.cutover_at IS NOT NULL
              AND (i.node_id IS DISTINCT FROM j.node_id
                   OR i.document #>> '{source,kind}' IS DISTINCT FROM 'cron'
                   OR i.document #>> '{source,schedule}' IS DISTINCT FROM j.document #>> '{source,schedule}'
                   OR i.document #>> '{source,time_zone}'
                      IS DISTINCT FROM j.document #>> '{source,time_zone}')), 0))"""

# Sources of orgs whose pointers have moved since the last look.
_CHANGED = f"""
    WITH changed AS (
        SELECT o.org_id, o.name, o.routing_epoch FROM orgs o
        LEFT JOIN unnest($1::uuid[], $2::bigint[]) AS known(org_id, epoch) USING (org_id)
        WHERE o.routing_epoch IS DISTINCT FROM known.epoch)
    SELECT c.org_id, c.name AS org, c.routing_epoch, s.dag_name AS dag, s.job_name AS job, s.job_id, s.node_id,
           s.document, s.since
    FROM changed c LEFT JOIN LATERAL (
        SELECT d.dag_name, v.job_name, j.job_id, j.node_id, j.document, {COUNTS_SINCE} AS since
        FROM dags d JOIN dag_version_jobs v ON v.dag_version_id = d.active_version JOIN jobs j USING (job_id)
        WHERE d.org_id = c.org_id AND j.document #>> '{{source,kind}}' = 'cron') s ON true
    ORDER BY c.org_id, s.dag_name, s.job_name"""  # noqa: S608 - constants only

_LAST_SLOTS = """
    SELECT trace_now() AS now, s.node_id, s.last_slot
    FROM (SELECT) one LEFT JOIN source_state s ON s.node_id = ANY($1) AND s.last_slot IS NOT NULL"""

_ORG_OF_JOB = "SELECT org_id FROM jobs WHERE job_id = $1 AND document #>> '{source,kind}' = 'cron'"

_ACTIVE = """
    SELECT j.document, o.routing_epoch, trace_now() AS now
    FROM jobs j JOIN orgs o USING (org_id)
    JOIN dags d ON d.org_id = j.org_id AND d.dag_name = j.dag_name
    JOIN dag_version_jobs v ON v.dag_version_id = d.active_version AND v.job_id = j.job_id
    WHERE j.job_id = $1"""

_TAKEN = """
    INSERT INTO source_state AS s (node_id, org_id, last_slot) VALUES ($1, $2, $3)
    ON CONFLICT (node_id) DO UPDATE
        SET last_slot = greatest(s.last_slot, excluded.last_slot), updated_at = trace_now()
        WHERE s.last_slot IS DISTINCT FROM greatest(s.last_slot, excluded.last_slot)"""


@dataclass(frozen=True, slots=True)
class _Known:
    """The sources of one org, as long as its pointers stay where they are."""

    epoch: int
    sources: tuple[tuple[UUID, CronSource], ...]
    """With their nodes."""


@dataclass(eq=False, kw_only=True)
class CronSources:
    store: Store
    definitions: Definitions
    writer: Writer
    metrics: Metrics
    on_outbox: Callable[[], None]

    def __post_init__(self) -> None:
        self._sources: dict[UUID, _Known] = {}

    async def list(self) -> CronSourcesReply:
        """Every cron source of an active version, of every org."""
        self.metrics.cron_asked.inc()
        async with self.store.connection() as connection:
            sources_by_job = dict(self._sources)
            epochs = [item.epoch for item in sources_by_job.values()]
            rows = await connection.fetch(_CHANGED, [*sources_by_job], epochs)
            sources_by_job |= _read(rows)
            self._sources = sources_by_job
            sources = [item for org in sources_by_job.values() for item in org.sources]
            states = await connection.fetch(_LAST_SLOTS, [node_id for node_id, _ in sources])
        last = {row["node_id"]: row["last_slot"] for row in states}
        return CronSourcesReply(
            now=states[0]["now"],
            sources=[msgspec.structs.replace(source, last_slot=last.get(node_id)) for node_id, source in sources],
        )

    async def fire(self, job_id: UUID, request: FireRequest) -> FireReply:
        """One event on each output, routed; the same slot again is a duplicate."""
        # Compared before it is turned into UTC, which the first and the last day of all have no room for.
        if not _EPOCH <= request.slot < _END or request.slot.microsecond:
            raise TraceError("body_invalid", "Expected a slot of whole seconds, not before 1970.", field="slot")
        slot = request.slot.astimezone(UTC)
        with unavailable_when_held_up("The slot conflicts with a concurrent change; repeat it."):
            reply, late = await self._fire(job_id, slot)
        self.metrics.cron_fires.labels("duplicate" if reply.duplicate else "fired").inc()
        if not reply.duplicate:
            self.metrics.cron_lateness.observe(max(0.0, late.total_seconds()))
            self.on_outbox()
        return reply

    async def _fire(self, job_id: UUID, slot: datetime) -> tuple[FireReply, timedelta]:
        plan = WritePlan()
        async with self.store.connection() as connection:
            org_id = await connection.fetchval(_ORG_OF_JOB, job_id)
        if org_id is None:
            raise TraceError("source_not_found")
        async with self.store.transaction(routing=[org_id]) as connection:
            row = await connection.fetchrow(_ACTIVE, job_id)
            if row is None:
                raise TraceError("source_not_found")
            if slot > row["now"] + AHEAD:
                raise TraceError("body_invalid", "The slot is in the future.", field="slot")
            await self.definitions.load_jobs(connection, [job_id])
            job = self.definitions.job(job_id)
            plan.epochs = {org_id: row["routing_epoch"]}
            applied = await self._emit(connection, plan, job, slot)
            assert job.node_id is not None
            await connection.execute(_TAKEN, job.node_id, org_id, slot)
        self.writer.committed(plan)
        count_written(self.metrics, applied)
        events = sum(not duplicate for duplicate, _ in applied.events.values())
        # A source without outputs has nothing to say, and nothing that could tell the second time from the first.
        return FireReply(slot=slot, events=events, duplicate=bool(job.outputs) and not events), row["now"] - slot

    async def _emit(self, connection: Connection, plan: WritePlan, job: Job, slot: datetime) -> WriteResult:
        producer = f"cron:{slot:%Y-%m-%dT%H:%M:%SZ}"
        cursor = int(slot.timestamp())
        plan.events += [source_event(producer, job.org_id, output, cursor=cursor) for output in job.outputs]
        return await self.writer.write(connection, plan) if plan.events else WriteResult()


def _read(rows: list[asyncpg.Record]) -> dict[UUID, _Known]:
    sources: dict[UUID, _Known] = {}
    for row in rows:
        org = sources.get(row["org_id"], _Known(row["routing_epoch"], ()))
        if row["job_id"] is not None:
            org = _Known(org.epoch, (*org.sources, (row["node_id"], _source(row))))
        sources[row["org_id"]] = org
    return sources


def _source(row: asyncpg.Record) -> CronSource:
    source = msgspec.json.decode(row["document"], type=JobDocument).source
    assert source is not None
    assert source.kind is SourceKind.CRON
    assert source.schedule is not None
    schedule = {"schedule": source.schedule, "time_zone": source.time_zone, "catch_up": source.catch_up.value}
    return to_struct(CronSource, row, **schedule)
