"""The monitor of always_on sources: each one that counts has exactly one task, its run, for as long as its node lives.

The run is a task like any other, made for the unit `run` of its node; the index that keeps units unique keeps it the
only one, however many Dispatchers look. The rest is the usual machinery: a worker claims it, a dead attempt is tried
again with backoff and without end (the same task_id, the next attempt), a cutover that drops the node asks it to stop,
and one that brings the node back makes it ready again. What ended by itself stays ended, and what failed (no retries
left) waits for a person.

A version that differs in limits alone keeps the node, and with it the run: it goes on under the new definition.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from tracelake.db.routing_gate import RoutingBusyError
from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.limits import limit_keys_of
from tracelake.dispatcher.engine.plan import NewTask, WritePlan, wake_of
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.predicates import is_run
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.records import columns
from tracelake.dispatcher.sources.pause import inherit_pauses
from tracelake.model.ids import new_id

RUN = "run"
"""The unit of an always_on source's task."""

IS_RUN = f"t.node_id = j.node_id AND {is_run('t')} AND t.revision = ''"

# Only an always_on source has attempts without end; an index knows these jobs, so that asking for none costs nothing.
ALWAYS_ON = f"""
    jobs j JOIN dag_version_jobs v ON v.job_id = j.job_id
    JOIN dags d ON d.org_id = j.org_id AND d.dag_name = j.dag_name AND d.active_version = v.dag_version_id
    LEFT JOIN tasks t ON {IS_RUN}
    WHERE j.timeout_seconds IS NULL AND j.max_attempts IS NULL
      AND j.document #>> '{{source,kind}}' = 'always_on'"""

_TO_DO = f"""
    SELECT j.org_id, j.job_id, t.task_id FROM {ALWAYS_ON}
      AND t.job_id IS DISTINCT FROM j.job_id"""  # noqa: S608 - constants only

_TO_DO_IN_ORG = f"{_TO_DO} AND j.org_id = $1 ORDER BY j.job_id"

_ADOPT = """
    UPDATE tasks t SET job_id = u.job_id FROM unnest($1::uuid[], $2::uuid[]) AS u(task_id, job_id)
    WHERE t.task_id = u.task_id"""

_LOCK = "SELECT FROM tasks WHERE task_id = ANY($1) ORDER BY task_id FOR UPDATE"


@dataclass(eq=False)
class SourceMonitor:
    store: Store
    writer: Writer
    definitions: Definitions
    config: DispatcherConfig
    metrics: Metrics
    quotas: QuotaBook = field(default_factory=QuotaBook)

    async def run_once(self) -> int:
        """Answers how many runs it started or gave another definition."""
        async with self.store.connection() as connection:
            orgs = {row["org_id"] for row in await connection.fetch(_TO_DO)}
        done = 0
        for org_id in sorted(orgs):
            with suppress(RoutingBusyError):  # the next round has it again, and the others do not wait for it
                done += await self._settle(org_id)
        return done

    async def _settle(self, org_id: UUID) -> int:
        """Under the org's lock nothing that counts can change; what was seen without it is looked at again."""
        async with self.store.transaction(routing=[org_id], wait=False) as connection:
            rows = await connection.fetch(_TO_DO_IN_ORG, org_id)
            started = await self._start(connection, [row["job_id"] for row in rows if row["task_id"] is None])
            adopted = [(row["task_id"], row["job_id"]) for row in rows if row["task_id"] is not None]
            if adopted:
                await connection.execute(_LOCK, [task_id for task_id, _ in adopted])
                await connection.execute(_ADOPT, *columns(adopted))
        self.metrics.created_tasks.labels("run").inc(started)
        return started + len(adopted)

    async def _start(self, connection: Connection, job_ids: Iterable[UUID]) -> int:
        pending_ids = list(job_ids)
        if not pending_ids:
            return 0
        await self.definitions.load_jobs(connection, pending_ids)
        jobs = [self.definitions.job(job_id) for job_id in pending_ids]
        await inherit_pauses(connection, [job.node_id for job in jobs if job.node_id is not None])
        runs = [
            NewTask(
                task_id=new_id(),
                org_id=job.org_id,
                job_id=job.job_id,
                max_attempts=None,
                inputs="[]",
                unit=None,
                wake=wake_of(self.config.runtimes, job.runtime),
                limit_keys=limit_keys_of(self.config.runtimes, job, org_limited=self.quotas.limits_running(job.org_id)),
                node_id=job.node_id,
                edge=-1,
                unit_key=RUN,
            )
            for job in jobs
        ]
        return len(await self.writer.create(connection, WritePlan(), runs))
