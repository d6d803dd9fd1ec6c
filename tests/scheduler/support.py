"""A scheduler's counterpart: a Dispatcher in memory with a clock of its own, and the way to a real one with faults."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias
from uuid import UUID, uuid4

import msgspec

from tests.support.dispatcher import DispatcherHarness
from tracelake.client import DispatcherUnavailableError, FileCredential, InternalClient
from tracelake.errors import TraceError
from tracelake.wire.sources import CronSource, CronSourcesReply, FireReply

START = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)


def at(text: str) -> datetime:
    """A time of the first of March, in UTC."""
    return datetime.fromisoformat(f"2026-03-01T{text}").replace(tzinfo=UTC)


CatchUp: TypeAlias = Literal["none", "last", "all"]


@dataclass
class FakeDispatcher:
    now: datetime = START
    sources: dict[UUID, CronSource] = field(default_factory=dict)
    fired: list[datetime] = field(default_factory=list)
    """Without repeats."""
    calls: int = 0
    away: bool = False
    refuses: dict[UUID, TraceError] = field(default_factory=dict)

    def add(self, catch_up: CatchUp, schedule: str = "* * * * *", *, time_zone: str = "UTC") -> UUID:
        job_id = uuid4()
        self.sources[job_id] = CronSource(
            org="acme", dag="d", job="tick", job_id=job_id, schedule=schedule, time_zone=time_zone,
            catch_up=catch_up, since=self.now,
        )  # fmt: skip
        return job_id

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    async def cron_sources(self) -> CronSourcesReply:
        self.calls += 1
        if self.away:
            raise DispatcherUnavailableError("away")
        return CronSourcesReply(now=self.now, sources=list(self.sources.values()))

    async def fire_cron(self, job_id: UUID, slot: datetime) -> FireReply:
        self.calls += 1
        if self.away:
            raise DispatcherUnavailableError("away")
        if job_id in self.refuses:
            raise self.refuses[job_id]
        source = self.sources.get(job_id)
        if source is None:
            raise TraceError("source_not_found")
        if source.last_slot is not None and slot <= source.last_slot:
            return FireReply(slot=slot, events=0, duplicate=True)
        self.fired.append(slot)
        self.sources[job_id] = msgspec.structs.replace(source, last_slot=slot)
        return FireReply(slot=slot, events=1)


class Faulty:
    """A real Dispatcher behind a bad line. `fault` is asked before each call: what is lost, if anything."""

    def __init__(self, harness: DispatcherHarness, fault: Callable[[], str | None] = lambda: None) -> None:
        self._harness = harness
        self._fault = fault

    @property
    def _client(self) -> InternalClient:
        # A Dispatcher that was started again has other addresses.
        token = FileCredential(self._harness.credentials.service.token_file)
        return InternalClient(self._harness.clients["internal"], service=token)

    async def cron_sources(self) -> CronSourcesReply:
        if self._fault():
            raise DispatcherUnavailableError("the line is down")
        return await self._client.cron_sources()

    async def fire_cron(self, job_id: UUID, slot: datetime) -> FireReply:
        fault = self._fault()
        if fault == "request":
            raise DispatcherUnavailableError("the request was lost")
        reply = await self._client.fire_cron(job_id, slot)
        if fault == "answer":
            raise DispatcherUnavailableError("the answer was lost")
        return reply
