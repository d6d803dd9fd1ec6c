"""The retry scheduler: due retries become ready, each with its wake-up in the same transaction."""

from dataclasses import dataclass

from tracelake.db.transaction import Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.plan import StateChange, WritePlan, wake_of
from tracelake.dispatcher.engine.tables import task_rows
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.metrics import Metrics
from tracelake.model import lifecycle

BATCH = 500


@dataclass(eq=False)
class RetryScheduler:
    store: Store
    writer: Writer
    definitions: Definitions
    config: DispatcherConfig
    metrics: Metrics

    async def run_once(self) -> int:
        async with self.store.transaction() as connection:
            records = await task_rows.take_due(connection, BATCH)
            plan = WritePlan()
            await self.definitions.load_jobs(connection, (record["job_id"] for record in records))
            for record in records:
                task = task_rows.snapshot(record)
                wake = wake_of(self.config.runtimes, self.definitions.job(task.job_id).runtime)
                plan.changes.append(StateChange(task, lifecycle.requeue(task, record["now"]), wake=wake))
            await self.writer.write(connection, plan)
        self.metrics.retries.inc(len(plan.changes))
        return len(plan.changes)
