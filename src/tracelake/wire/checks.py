"""Checks in the user API: what must hold for datasets, and what came of it."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from tracelake.model.dag import CheckKind, CheckSeverity
from tracelake.wire.base import Reply

CheckState = Literal["passed", "failed", "warned", "unknown"]
"""`warned`: a check of severity `warn` failed. `unknown`: nothing was checked yet."""


class CheckRow(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """A check of an active version, and its newest result."""

    dataset: str
    name: str
    kind: CheckKind
    severity: CheckSeverity
    job: str
    """The job that writes the dataset, as `dag/job`."""
    expected: str
    """What must hold, in words."""
    state: CheckState
    """failed or warned: of the newest result, or of a unit whose newest result is that."""
    checked_at: datetime | None = None
    unit: str | None = None
    """Of the newest result."""
    rows: int | None = None
    offending_rows: int | None = None
    message: str = ""
    sample: list[dict[str, str | None]] = []
    task_id: UUID | None = None
    units: int = 0
    """Units with a result; counted up to 10,000 results."""
    failing_units: int = 0
    """Those whose newest result is that the check failed."""
    age_seconds: int | None = None
    """Of `freshness`: how old the newest commit is."""


class ChecksReply(Reply, frozen=True, kw_only=True):
    checks: list[CheckRow]


class CheckResultRow(Reply, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    kind: CheckKind
    severity: CheckSeverity
    passed: bool
    unit: str | None = None
    rows: int | None = None
    offending_rows: int | None = None
    message: str = ""
    sample: list[dict[str, str | None]] = []
    checked_at: datetime
    task_id: UUID
    attempt: int
    dataset_version: UUID


class CheckResultsReply(Reply, frozen=True, kw_only=True):
    results: list[CheckResultRow]
