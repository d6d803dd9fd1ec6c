"""The quotas of orgs, and their usage."""

from datetime import datetime

import msgspec

from tracelake.wire.base import Name, Request


class QuotaRow(msgspec.Struct, frozen=True, kw_only=True):
    """One quota. Without `limit` it is unlimited; `used` is absent where nothing is counted (units per range)."""

    kind: str
    limit: int | None = None
    used: int | None = None
    own: bool = False
    """The operator has set it for this org; otherwise it is the platform's default."""
    exceeded: bool = False
    """The quota is used up: new work is refused or held until usage falls."""


class QuotaReply(msgspec.Struct, frozen=True, kw_only=True):
    org: str
    weight: float
    quotas: list[QuotaRow]


class QuotasReply(msgspec.Struct, frozen=True, kw_only=True):
    orgs: list[QuotaReply]


class QuotaRequest(Request, frozen=True, kw_only=True):
    """Changes the quotas of an org: `values` by kind (and `weight`); `defaults` names those to reset."""

    org: Name
    values: dict[str, float] = {}
    defaults: list[str] = []


class QuotaChange(msgspec.Struct, frozen=True, kw_only=True):
    quota: QuotaReply
    changed_at: datetime
