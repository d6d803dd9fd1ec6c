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
    bytes: int | None = None
    """Of bodies or files, where they are known."""


class GcVersion(msgspec.Struct, frozen=True, kw_only=True):
    org: str
    dag: str
    version: int


class GcRemovedDag(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG that was removed. `is_due`: it is deleted now; otherwise it can be restored."""

    org: str
    dag: str
    removed_at: datetime
    is_due: bool
    datasets: int
    bytes: int
    restorable_until: datetime | None = None


class GcPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What would be removed. `jobs_to_sweep`, `generations_to_delete` and `tables_to_drop` are left over from earlier
    rounds."""

    rows: list[GcRows]
    versions: list[GcVersion]
    jobs_to_sweep: int
    generations_to_delete: int
    removed_dags: list[GcRemovedDag] = []
    tables_to_drop: int = 0


class GcReply(msgspec.Struct, frozen=True, kw_only=True):
    """What one bounded round removed, by kind. `more`: repeat the call."""

    removed: dict[str, int]
    more: bool
