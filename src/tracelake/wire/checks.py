"""Checks: what must hold for datasets, and what came of it; for people, and for queries of people."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.model.dag import CheckKind, CheckSeverity
from tracelake.wire.base import Cursor, Name, Reply, Request, ShortText

MAX_RESULTS_PAGE = 1000

CheckState = Literal["passed", "failed", "warned", "unknown"]
"""`warned`: a check of severity `warn` failed. `unknown`: nothing was checked yet, or not since the check was
changed."""


class CheckRow(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """A check of an active version, and what came of it in the dataset as it is now."""

    dataset: str
    name: str
    kind: CheckKind
    severity: CheckSeverity
    job: str
    """The job that writes the dataset, as `dag/job`."""
    expected: str
    """What must hold, in words."""
    state: CheckState
    """failed or warned: the newest result of some unit is that."""
    changed_at: datetime | None = None
    """When the rule was changed for the last time. Results of before are of another rule, and are not counted."""
    checked_at: datetime | None = None
    """This and what follows: of the newest result; of a unit that fails, if there is one."""
    unit: str | None = None
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
    """Of `freshness`: how old the newest commit is, or of a check of data the newest block."""
    committed_at: datetime | None = None
    """Of `freshness`: the time of the newest commit."""
    data_at: datetime | None = None
    """Of `freshness`: the time of the newest block that the dataset has, if its commits record it."""


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
    next: datetime | None = None
    """`until` of the next page, if there may be one. Results of one moment are on one page, so a page may have more
    than `limit`."""


# What the Query Service asks the Dispatcher


class CheckResultPosition(Request, frozen=True, kw_only=True):
    """Where the next page begins: behind this result, in the order from the newest to the oldest."""

    checked_at: datetime
    task_id: UUID
    attempt: Cursor
    output_index: Cursor
    name: ShortText


class OrgCheckResultsRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Asks for the results of all datasets of an org, newest first."""

    org: Name
    dataset: ShortText | None = None
    """Of datasets with this name alone."""
    check: ShortText | None = None
    """Of checks with this name alone."""
    samples: bool = True
    """False: without offending rows, which are most of a reply."""
    limit: Annotated[int, Meta(ge=1, le=MAX_RESULTS_PAGE)] = MAX_RESULTS_PAGE
    page: CheckResultPosition | None = None
    """`next` of the previous page."""


class OrgCheckResult(CheckResultRow, frozen=True, kw_only=True, omit_defaults=True):
    dataset: str
    job: str | None = None
    """As `dag/job`; absent if its versions have been deleted."""
    output_index: int = 0


class OrgCheckResultsReply(Reply, frozen=True, kw_only=True):
    results: list[OrgCheckResult]
    next: CheckResultPosition | None = None
