"""The removal of data whose retention has ended."""

from datetime import datetime

import msgspec


class GcRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one kind whose retention has ended. `more`: the number is a lower bound."""

    kind: str
    rows: int
    more: bool
    kept_days: int
    oldest: datetime | None = None


class GcVersion(msgspec.Struct, frozen=True, kw_only=True):
    org: str
    dag: str
    version: int


class GcPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What would be removed. `jobs_to_sweep` and `generations_to_delete` are left over from earlier rounds."""

    rows: list[GcRows]
    versions: list[GcVersion]
    jobs_to_sweep: int
    generations_to_delete: int


class GcReply(msgspec.Struct, frozen=True, kw_only=True):
    """What one bounded round removed, by kind. `more`: repeat the call."""

    removed: dict[str, int]
    more: bool
