"""Sends noted starts and ends of attempts to the receiver: at least once, in their order, by one Dispatcher at a time.

No transaction is open while a receiver is asked, and no task waits for it. A receiver that is away or slow leaves rows
in `lineage_events`, and the sender backs off; beyond `openlineage_backlog` rows the oldest are dropped and counted. An
event that the receiver rejects is dropped and counted, so that one event never blocks the others.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.openlineage.receiver import LineageReceiver, SendOutcome
from tracelake.dispatcher.openlineage.run_events import AttemptNote, make_event
from tracelake.dispatcher.records import affected, columns
from tracelake.errors import StoreUnavailableError
from tracelake.model.backoff import Backoff
from tracelake.model.columns import DatasetColumns
from tracelake.wire.units import TaskInput, Unit

logger = logging.getLogger(__name__)

BATCH = 100
SEND_SECONDS = 1.0
_ROUND_SECONDS = 10.0
_HOLD_SECONDS = 30
"""Longer than a round: whoever sends renews it with each one. After a crash another Dispatcher goes on."""
_DROP_AT_ONCE = 10_000
_AWAY = Backoff(1.0, 60.0)

_HOLD = """
    UPDATE lineage_sender SET holder = $1, held_until = trace_now() + make_interval(secs => $2)
    WHERE holder = $1 OR held_until < trace_now() RETURNING only_row"""

_RELEASE = "UPDATE lineage_sender SET held_until = '-infinity' WHERE holder = $1"

_TAKE = """
    SELECT e.event_id, e.task_id, e.attempt, e.event_type, e.event_time, e.error,
           t.job_id, t.inputs, t.unit, t.max_attempts, trace_now() AS now,
           (SELECT routing_epoch FROM orgs o WHERE o.org_id = t.org_id) AS epoch, t.org_id
    FROM lineage_events e LEFT JOIN tasks t USING (task_id) ORDER BY e.event_id LIMIT $1"""

_COLUMNS = """
    SELECT dataset_uuid, dataset_version, columns FROM dataset_versions
    WHERE columns IS NOT NULL AND (dataset_uuid, dataset_version) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[]))"""

_DONE = "DELETE FROM lineage_events WHERE event_id = ANY($1)"

_OLDEST = """
    SELECT f.event_id AS first, l.event_id AS last, extract(epoch FROM trace_now() - f.event_time)::float8 AS lag
    FROM (SELECT event_id, event_time FROM lineage_events ORDER BY event_id LIMIT 1) f,
         (SELECT event_id FROM lineage_events ORDER BY event_id DESC LIMIT 1) l"""

# Of the rows beyond the newest $1, the oldest $2.
_DROP = """
    DELETE FROM lineage_events WHERE event_id IN (
        SELECT event_id FROM lineage_events
        WHERE event_id <= (SELECT event_id FROM lineage_events ORDER BY event_id DESC OFFSET $1 LIMIT 1)
        ORDER BY event_id LIMIT $2)"""

_INPUTS = msgspec.json.Decoder(list[TaskInput])
_UNIT = msgspec.json.Decoder(Unit | None)
_KNOWN_COLUMNS = msgspec.json.Decoder(DatasetColumns)


@dataclass(eq=False)
class LineageSender:
    store: Store
    definitions: Definitions
    config: DispatcherConfig
    metrics: Metrics
    holder: UUID = field(default_factory=uuid4)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._receiver = LineageReceiver(self.config.openlineage_url, self.config.openlineage_key_file)
        self._failures = 0
        self._retry_at = 0.0
        logger.info("lineage events are on, and sent to %s", self._receiver.address)

    async def run_once(self) -> int:
        """Sends up to `BATCH` events; returns how many rows it settled."""
        is_empty = await self._bound()
        if is_empty or self.clock() < self._retry_at:
            return 0
        async with self.store.transaction() as connection:
            if await connection.fetchval(_HOLD, self.holder, _HOLD_SECONDS) is None:
                return 0
            rows = await connection.fetch(_TAKE, BATCH)
            present = [row for row in rows if row["job_id"] is not None]
            events = await self._make_events(connection, present)
        lost_rows = [row["event_id"] for row in rows if row["job_id"] is None]
        outcomes = await asyncio.to_thread(self._receiver.send, events, _ROUND_SECONDS) if events else []
        settled = [
            row["event_id"] for row, outcome in zip(present, outcomes, strict=False) if outcome is not SendOutcome.LATER
        ]
        if lost_rows or settled:
            async with self.store.transaction() as connection:
                await connection.execute(_DONE, [*lost_rows, *settled])
        self._count(outcomes, len(lost_rows))
        return len(lost_rows) + len(settled)

    async def close(self) -> None:
        """Lets another Dispatcher send at once, if the store answers."""
        await asyncio.to_thread(self._receiver.close)
        with suppress(StoreUnavailableError):
            async with self.store.transaction() as connection:
                await connection.execute(_RELEASE, self.holder)

    async def _bound(self) -> bool:
        """Drops what is too much; True if nothing waits."""
        async with self.store.transaction() as connection:
            oldest = await connection.fetchrow(_OLDEST)
            self.metrics.lineage_lag.set(0.0 if oldest is None else max(0.0, oldest["lag"]))
            most = self.config.openlineage_backlog
            if oldest is None or oldest["last"] - oldest["first"] < most:
                return oldest is None
            dropped = affected(await connection.execute(_DROP, most, _DROP_AT_ONCE))
        if dropped:
            self.metrics.lineage_events.labels("dropped").inc(dropped)
            logger.warning("more than %s lineage events wait; the oldest %s were dropped", most, dropped)
        return False

    async def _make_events(self, connection: Connection, rows: Sequence[asyncpg.Record]) -> list[dict[str, Any]]:
        if not rows:
            return []
        await self.definitions.follow(connection, {row["org_id"]: row["epoch"] for row in rows})
        await self.definitions.load_jobs(connection, (row["job_id"] for row in rows))
        notes = [_note(row) for row in rows]
        await self.definitions.load_datasets(connection, (item.dataset_uuid for note in notes for item in note.inputs))
        jobs = [self.definitions.job(row["job_id"]) for row in rows]
        generations = {(item.dataset_uuid, item.dataset_version) for note in notes for item in note.inputs}
        generations |= {(output.dataset_uuid, output.dataset_version) for job in jobs for output in job.outputs}
        dataset_columns = {
            (row["dataset_uuid"], row["dataset_version"]): _KNOWN_COLUMNS.decode(row["columns"])
            for row in await connection.fetch(_COLUMNS, *columns(sorted(generations)))
        } if generations else {}  # fmt: skip
        events = []
        for row, note, job in zip(rows, notes, jobs, strict=True):
            names = self._names(job.org_id, [key for key, _ in generations])
            endless = row["max_attempts"] is None
            events.append(
                make_event(note, job, names, dataset_columns, self.config.openlineage_namespace, endless=endless)
            )
        return events

    def _names(self, org_id: UUID, datasets: Sequence[UUID]) -> Mapping[UUID, str]:
        """Of datasets of this org alone."""
        pairs = ((key, self.definitions.dataset(key)) for key in datasets)
        return {key: dataset.name for key, dataset in pairs if dataset is not None and dataset.org_id == org_id}

    def _count(self, outcomes: Sequence[SendOutcome], lost_rows: int) -> None:
        self.metrics.lineage_events.labels("sent").inc(outcomes.count(SendOutcome.RECEIVED))
        self.metrics.lineage_events.labels("rejected").inc(outcomes.count(SendOutcome.REJECTED))
        self.metrics.lineage_events.labels("dropped").inc(lost_rows)
        if SendOutcome.REJECTED in outcomes:
            logger.warning("%s rejects lineage events (%s)", self._receiver.address, self._receiver.failure)
        if outcomes and outcomes[-1] is SendOutcome.LATER:
            self._failures += 1
            self.metrics.lineage_failures.inc()
            self._retry_at = self.clock() + _AWAY.seconds(self._failures)
            if self._failures == 1:
                logger.warning(
                    "%s takes no lineage events (%s); they are kept and sent later",
                    self._receiver.address,
                    self._receiver.failure,
                )
        elif outcomes:
            if self._failures:
                logger.info("%s takes lineage events again", self._receiver.address)
            self._failures = 0


def _note(row: asyncpg.Record) -> AttemptNote:
    return AttemptNote(
        task_id=row["task_id"],
        attempt=row["attempt"],
        event_type=row["event_type"],
        event_time=row["event_time"],
        error=row["error"],
        inputs=_INPUTS.decode(row["inputs"] or "[]"),
        unit=_UNIT.decode(row["unit"] or "null"),
    )
