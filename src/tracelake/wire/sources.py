"""Calls of the scheduler: list the cron sources, and fire one that is due."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from tracelake.wire.base import Reply, Request


class CronSource(Reply, frozen=True, kw_only=True):
    """A cron source of an active version. Slots after both `since` and `last_slot` are still to be fired."""

    org: str
    dag: str
    job: str
    job_id: UUID
    schedule: str
    time_zone: str
    catch_up: Literal["none", "last", "all"]
    since: datetime
    """Since when the source has been active with this schedule, without a break."""
    last_slot: datetime | None = None


class CronSourcesReply(msgspec.Struct, frozen=True, kw_only=True):
    now: datetime
    """The time of the store, which decides what is due."""
    sources: list[CronSource]


class FireRequest(Request, frozen=True, kw_only=True):
    slot: Annotated[datetime, Meta(tz=True)]
    """Whole seconds."""


class FireReply(Reply, frozen=True, kw_only=True):
    slot: datetime
    events: int
    """The number of events that this call created: one for each output of the source."""
    duplicate: bool = False
    """The slot was fired before."""
