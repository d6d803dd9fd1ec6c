"""The lease reaper: the timeout verdict on Running tasks whose lease ran out.

After an outage it waits one lease period, from its own start or from the store's recovery, before it
judges: workers that could not reach anybody get the time to say they are alive. A process that was stopped
and goes on counts as one too.
"""

import logging
import time
from dataclasses import dataclass
from datetime import datetime

from tracelake.db.transaction import Store
from tracelake.dispatcher.clock import StoreClock
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.commit_metrics import count_failed
from tracelake.dispatcher.engine.plan import StateChange, WritePlan
from tracelake.dispatcher.engine.tables import task_rows
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.metrics import Metrics
from tracelake.errors import StoreUnavailableError
from tracelake.model import lifecycle

logger = logging.getLogger(__name__)

BATCH = 500
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _awake_clock() -> float:
    """Monotonic, and going on while the machine is suspended: a laptop's sleep is an outage too."""
    return time.clock_gettime(_CLOCK)


@dataclass(eq=False)
class Reaper:
    store: Store
    writer: Writer
    config: DispatcherConfig
    metrics: Metrics
    clock: StoreClock

    def __post_init__(self) -> None:
        self._judging_since: datetime | None = None
        self._last_round: float | None = None

    async def run_once(self) -> int:
        if self._slept_through():
            self._judging_since = None
        try:
            return await self._reap()
        except StoreUnavailableError:
            self._judging_since = None
            raise

    async def _reap(self) -> int:
        async with self.store.transaction() as connection:
            now: datetime = await connection.fetchval("SELECT trace_now()")
            self.clock.observe(now)
            if self._judging_since is None:
                self._judging_since = now
            records = await task_rows.take_expired(connection, self._judging_since, BATCH)
            plan = WritePlan()
            for record in records:
                task = task_rows.snapshot(record)
                retry = lifecycle.next_retry(task, record["now"], self.config.retry)
                verdict = lifecycle.expire(task, record["now"], retry=retry)
                plan.changes.append(StateChange(task, verdict))
            await self.writer.write(connection, plan)
        self.writer.committed(plan)
        self._last_round = _awake_clock()
        count_failed(self.metrics, plan.changes)
        for change in plan.changes:
            self.metrics.lease_expiries.labels(change.after.status.value).inc()
            logger.info(
                "lease ran out",
                extra={
                    "task_id": str(change.after.task_id),
                    "attempt": change.after.attempt,
                    "status": change.after.status.value,
                },
            )
        return len(plan.changes)

    def _slept_through(self) -> bool:
        pause = 0.0 if self._last_round is None else _awake_clock() - self._last_round
        return pause > 5.0 + 10.0 * self.config.reaper_seconds
