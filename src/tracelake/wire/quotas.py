"""Quotas of orgs, and what they use."""

from datetime import datetime

import msgspec

from tracelake.wire.base import Name, Request


class QuotaRow(msgspec.Struct, frozen=True, kw_only=True):
    """One quota. Without `limit` there is none; `used` is missing where nothing is counted, as of one range."""

    kind: str
    limit: int | None = None
    used: int | None = None
    own: bool = False
    """The operator has set it for this org; else it is the platform's default."""
    exceeded: bool = False
    """It is used up: new work is refused or held back until less is used."""


class QuotaReply(msgspec.Struct, frozen=True, kw_only=True):
    org: str
    weight: float
    quotas: list[QuotaRow]


class QuotasReply(msgspec.Struct, frozen=True, kw_only=True):
    orgs: list[QuotaReply]


class QuotaRequest(Request, frozen=True, kw_only=True):
    """Change what an org may use: `values` by kind (and `weight`); `defaults` names those that go back."""

    org: Name
    values: dict[str, float] = {}
    defaults: list[str] = []


class QuotaChange(msgspec.Struct, frozen=True, kw_only=True):
    quota: QuotaReply
    changed_at: datetime
