"""Gauges: what the metrics say about the stores, refreshed now and then, so that a scrape costs no query."""

from collections import Counter
from typing import get_args

from tracelake.db.transaction import Store
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.outbox import admin as outbox
from tracelake.dispatcher.views.sources import Health, read_health
from tracelake.errors import StoreUnavailableError
from tracelake.ports import Queue, QueueUnavailableError
from tracelake.wire.sources_view import RunState

_IN_FLIGHT = """
    SELECT j.operator, count(*) AS running FROM tasks t JOIN jobs j USING (job_id)
    WHERE t.status = 'Running' GROUP BY j.operator"""


class Gauges:
    def __init__(self, store: Store, queue: Queue, metrics: Metrics) -> None:
        self._store = store
        self._queue = queue
        self._metrics = metrics

    async def run_once(self) -> int:
        await self._read_state()
        await self._read_queue()
        return 0

    async def _read_state(self) -> None:
        pending, failed, lag = await outbox.summary(self._store)
        self._metrics.outbox_pending.set(pending)
        self._metrics.outbox_failed.set(failed)
        self._metrics.outbox_lag.set(lag)
        async with self._store.connection() as connection:
            rows = await connection.fetch(_IN_FLIGHT)
            sources = await read_health(connection)
        self._metrics.in_flight.clear()
        for row in rows:
            self._metrics.in_flight.labels(row["operator"]).set(row["running"])

        self._set_sources(sources)

    def _set_sources(self, sources: list[Health]) -> None:
        states = Counter(source.state for source in sources)
        for state in get_args(RunState):
            self._metrics.always_on.labels(state).set(states[state])
        self._metrics.source_lag.clear()
        for source in sources:
            if source.lag_seconds is not None:
                self._metrics.source_lag.labels(source.org, source.dag, source.job).set(source.lag_seconds)

    async def _read_queue(self) -> None:
        try:
            depths = await self._queue.depths()
        except QueueUnavailableError as away:
            raise StoreUnavailableError("The queue is not available right now.") from away
        self._metrics.queue_depth.clear()
        self._metrics.queue_oldest.clear()
        for depth in depths:
            self._metrics.queue_depth.labels(depth.queue, "ready").set(depth.ready)
            self._metrics.queue_depth.labels(depth.queue, "in_flight").set(depth.in_flight)
            self._metrics.queue_depth.labels(depth.queue, "dead").set(depth.dead)
            self._metrics.queue_oldest.labels(depth.queue).set(depth.oldest_ready_seconds)
