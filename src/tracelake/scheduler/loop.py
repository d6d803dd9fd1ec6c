"""The scheduler's loop: list the cron sources, fire what is due, sleep until the next slot.

It keeps no durable state. The Dispatcher records what was fired (`last_slot`) and provides the time: a slot is due by
the clock of the store. After an outage the scheduler continues from there. Two schedulers fire the same slots in the
same order, and the Dispatcher accepts each slot once.

`catch_up` of a source decides about missed slots:

- `none`: a slot is fired only if it is seen within `tolerance_seconds` after its time; it is then retried until the
  Dispatcher accepts it.
- `last`: only the newest of the slots since the last one that was fired.
- `all`: every slot, in order.

One round fires at most `batch` slots of a source, and holds no more than that in memory: pending slots are kept as
stretches of time, however many slots lie in them.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Protocol
from uuid import UUID

from tracelake.dag.slots import ScheduleSlots
from tracelake.errors import TraceError
from tracelake.model.backoff import Backoff
from tracelake.wire.sources import CronSource, CronSourcesReply, FireReply

logger = logging.getLogger(__name__)

_SHORTEST_WAIT = 0.01
_AT_ONCE = 16
"""Number of sources that are fired concurrently; the slots of one source are fired in sequence."""


class SourceCalls(Protocol):
    async def cron_sources(self) -> CronSourcesReply: ...
    async def fire_cron(self, job_id: UUID, slot: datetime) -> FireReply: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    poll_seconds: float
    """How often the scheduler asks for new sources."""
    tolerance_seconds: float
    batch: int
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, 10.0))


@dataclass(frozen=True, slots=True)
class _Coming:
    """The first slot after `floor`, and hence after any later floor that is before the slot."""

    slots: ScheduleSlots
    floor: datetime
    slot: datetime | None

    def holds_for(self, slots: ScheduleSlots, floor: datetime) -> bool:
        return self.slots is slots and self.floor <= floor and (self.slot is None or floor < self.slot)


@dataclass(frozen=True, slots=True, order=True)
class _Seen:
    """A stretch of time whose slots, after `after` up to and including `until`, were seen in time."""

    after: datetime
    until: datetime


class Scheduler:
    def __init__(self, config: SchedulerConfig, *, calls: SourceCalls) -> None:
        self._config = config
        self._calls = calls
        self._coming: dict[UUID, _Coming] = {}
        self._owed: dict[UUID, list[_Seen]] = {}
        """Of `none`: stretches with slots that the Dispatcher has not accepted yet."""
        self._refused: set[UUID] = set()
        self._tries = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            wait = await self.run_once()
            try:
                async with asyncio.timeout(wait):
                    await stop.wait()
            except TimeoutError:
                continue

    async def run_once(self) -> float:
        """Runs one round; returns the seconds until the next one."""
        try:
            reply = await self._calls.cron_sources()
        except TraceError as error:
            return self._failed(error)
        self._forget_others({source.job_id for source in reply.sources})
        due = [(source, slots) for source in reply.sources if (slots := self._due(source, reply.now))]
        room = asyncio.Semaphore(_AT_ONCE)

        async def fire(source: CronSource, slots: Sequence[datetime]) -> TraceError | None:
            async with room:
                return await self._fire(source, slots)

        failures = [error for error in await asyncio.gather(*(fire(*item) for item in due)) if error is not None]
        away = next((error for error in failures if error.retryable), None)
        if away is not None:
            return self._failed(away)
        self._tries = 0
        if len(failures) < len(due):
            return 0.0  # sources have advanced and time has passed: look again
        coming = [item.slot for item in self._coming.values() if item.slot is not None and item.slot > reply.now]
        until_next = min(((slot - reply.now).total_seconds() for slot in coming), default=self._config.poll_seconds)
        return max(_SHORTEST_WAIT, min(self._config.poll_seconds, until_next))

    def _due(self, source: CronSource, now: datetime) -> list[datetime]:
        """The slots to fire in this round, oldest first."""
        slots = self._slots(source)
        if slots is None:
            return []
        floor = source.since if source.last_slot is None else max(source.since, source.last_slot)
        if source.catch_up == "none":
            return self._seen_in_time(source, slots, floor, now)
        first = self._next(source.job_id, slots, floor)
        if first is None or first > now:
            return []
        if source.catch_up == "last":
            newest = slots.last(floor, now)
            return [] if newest is None else [newest]
        return list(islice(slots.between(floor, now), self._config.batch))

    def _seen_in_time(self, source: CronSource, slots: ScheduleSlots, floor: datetime, now: datetime) -> list[datetime]:
        last_slot = source.last_slot
        recent = max(floor, now - timedelta(seconds=self._config.tolerance_seconds))
        first = self._next(source.job_id, slots, recent)
        owed = [
            stretch if last_slot is None else _Seen(max(stretch.after, last_slot), stretch.until)
            for stretch in self._owed.pop(source.job_id, ())
            if last_slot is None or stretch.until > last_slot
        ]
        if first is not None and first <= now:
            owed = _joined([*owed, _Seen(recent, now)])
        seen_slots = chain.from_iterable(slots.between(stretch.after, stretch.until) for stretch in owed)
        due_slots = list(islice(seen_slots, self._config.batch))
        if due_slots:
            self._owed[source.job_id] = owed
        return due_slots

    def _next(self, job_id: UUID, slots: ScheduleSlots, floor: datetime) -> datetime | None:
        coming = self._coming.get(job_id)
        if coming is None or not coming.holds_for(slots, floor):
            coming = self._coming[job_id] = _Coming(slots, floor, slots.after(floor))
        return coming.slot

    def _slots(self, source: CronSource) -> ScheduleSlots | None:
        try:
            return ScheduleSlots.of(source.schedule, source.time_zone)
        except (ValueError, KeyError, OSError):
            # A newer Dispatcher may accept schedules that this scheduler cannot read. Other sources are not affected.
            if source.job_id not in self._refused:
                self._refused.add(source.job_id)
                logger.error("a schedule cannot be read", extra=_context(source))
            self._coming.pop(source.job_id, None)
            return None

    async def _fire(self, source: CronSource, slots: Sequence[datetime]) -> TraceError | None:
        for slot in slots:
            try:
                reply = await self._calls.fire_cron(source.job_id, slot)
            except TraceError as error:
                if error.status != 404:  # a 404 means that the source is no longer active
                    logger.warning("not fired", extra=_context(source) | {"slot": slot.isoformat(), "code": error.code})
                return error
            if not reply.duplicate:
                logger.info("fired", extra=_context(source) | {"slot": slot.isoformat()})
        return None

    def _failed(self, error: TraceError) -> float:
        self._tries += 1
        if self._tries == 1 or self._tries % 10 == 0:
            logger.warning("the Dispatcher cannot be asked", extra={"code": error.code, "tries": self._tries})
        return self._config.backoff.seconds(self._tries)

    def _forget_others(self, job_ids: set[UUID]) -> None:
        for table in (self._coming, self._owed):
            for job_id in table.keys() - job_ids:
                del table[job_id]
        self._refused &= job_ids


def _joined(stretches: Sequence[_Seen]) -> list[_Seen]:
    """Sorted, with overlapping stretches joined."""
    joined: list[_Seen] = []
    for stretch in sorted(stretches):
        if joined and stretch.after <= joined[-1].until:
            joined[-1] = _Seen(joined[-1].after, max(joined[-1].until, stretch.until))
        else:
            joined.append(stretch)
    return joined


def _context(source: CronSource) -> dict[str, str]:
    return {"org": source.org, "dag": source.dag, "job": source.job, "job_id": str(source.job_id)}
