"""What is removed once it was kept long enough."""

from datetime import datetime

import msgspec


class GcRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one kind that are older than they are kept. `more`: there are at least so many."""

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
    """What would go. `jobs_to_sweep` and `generations_to_delete` are what earlier rounds have left to finish."""

    rows: list[GcRows]
    versions: list[GcVersion]
    jobs_to_sweep: int
    generations_to_delete: int


class GcReply(msgspec.Struct, frozen=True, kw_only=True):
    """What one bounded round removed, by kind. `more`: call again."""

    removed: dict[str, int]
    more: bool
