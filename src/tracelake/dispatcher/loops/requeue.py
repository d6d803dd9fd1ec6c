"""The retry scheduler: due retries become ready, each with its wake-up in the same transaction."""

from tracelake.db.transaction import Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.plan import StateChange, WritePlan
from tracelake.dispatcher.engine.tables import task_rows
from tracelake.dispatcher.engine.wakeups import wake_of
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.metrics import Metrics
from tracelake.model import lifecycle

BATCH = 500


class RetryScheduler:
    def __init__(
        self, store: Store, writer: Writer, definitions: Definitions, config: DispatcherConfig, metrics: Metrics
    ) -> None:
        self._store = store
        self._writer = writer
        self._runtimes = config.runtimes
        self._definitions = definitions
        self._metrics = metrics

    async def run_once(self) -> int:
        async with self._store.transaction() as connection:
            records = await task_rows.take_due(connection, BATCH)
            plan = WritePlan()
            await self._definitions.load_jobs(connection, (record["job_id"] for record in records))
            for record in records:
                task = task_rows.snapshot(record)
                wake = wake_of(self._runtimes, self._definitions.job(task.job_id).runtime)
                plan.changes.append(StateChange(task, lifecycle.requeue(task, record["now"]), wake=wake))
            await self._writer.write(connection, plan)
        self._metrics.retries.inc(len(plan.changes))
        return len(plan.changes)
