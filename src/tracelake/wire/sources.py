"""Calls of the services that work sources: which cron sources there are, and that one is due."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from tracelake.wire.base import Reply, Request


class CronSource(Reply, frozen=True, kw_only=True):
    """A source of an active version. Slots after `since` and after `last_slot` are still to be fired."""

    org: str
    dag: str
    job: str
    job_id: UUID
    schedule: str
    time_zone: str
    catch_up: Literal["none", "last", "all"]
    since: datetime
    """From when on it has counted, with this schedule and without a break."""
    last_slot: datetime | None = None


class CronSourcesReply(msgspec.Struct, frozen=True, kw_only=True):
    now: datetime
    """The store's time, by which slots are due."""
    sources: list[CronSource]


class FireRequest(Request, frozen=True, kw_only=True):
    slot: Annotated[datetime, Meta(tz=True)]
    """Whole seconds."""


class FireReply(Reply, frozen=True, kw_only=True):
    slot: datetime
    events: int
    """How many this call made: one for each output of the source."""
    duplicate: bool = False
    """It was fired before."""
