"""DAGs in the user API: deploys and their plans, versions, activation."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.model.dag import Problem
from tracelake.wire.base import Reply, Request


class FieldChange(Reply, frozen=True, kw_only=True):
    """A single value that differs; without `before` or `after` it is not said there."""

    field: str
    """Its name, or its path one level down: `config.size`."""
    before: str | int | float | bool | None = None
    after: str | int | float | bool | None = None


class JobChange(Reply, frozen=True, kw_only=True):
    job: str
    change: Literal["added", "changed", "limits", "removed", "unchanged"]
    """`changed`: it writes other data, so its outputs are rebuilt. `limits`: only how it runs differs."""
    fields: list[str] = []
    """What differs; `upstream` when only something before it does."""
    values: list[FieldChange] = []
    """Those of the differences that are single values."""


class DatasetChange(Reply, frozen=True, kw_only=True):
    dataset: str
    change: Literal["added", "rebuilt", "removed", "unchanged", "restored"]
    """`restored`: a generation of an earlier version becomes the current one again."""
    job: str
    output_index: int = 0
    because: str = ""
    table: list[str] = []
    """What becomes of its table, in words; of buffered datasets alone."""


class Plan(Reply, frozen=True, kw_only=True):
    """What a deploy would change, as data; `deploy` applies exactly this."""

    dag: str
    version: int
    """The number that the version has, or will have."""
    new_version: bool
    active_version: int | None = None
    jobs: list[JobChange]
    datasets: list[DatasetChange]
    subscribers: list[str] = []
    """Jobs of other DAGs, as `dag/job`, that read a dataset this plan moves or removes."""
    needs_build: bool = False
    """Work must be done beside the active version before the cutover."""
    changes: bool = True
    """False: the active version is this very document."""
    notes: list[str] = []
    """What is allowed, but hardly meant."""


class DeployReply(Reply, frozen=True, kw_only=True):
    plan: Plan
    dag_version_id: UUID | None = None
    duplicate: bool = False
    """The version was there before."""
    state: Literal["Planned", "Created", "Building", "Active"] = "Planned"


class InvalidDag(Reply, frozen=True, kw_only=True):
    """`details` of the error `dag_invalid`."""

    problems: list[Problem]


class DagRow(Reply, frozen=True, kw_only=True):
    name: str
    active_version: int | None = None
    building_version: int | None = None
    versions: int
    jobs: int
    activated_at: datetime | None = None
    open_tasks: int
    failed_tasks: int
    """Failed for good, and neither retried nor skipped."""
    more: bool = False
    """There are more tasks than were counted: both numbers are at least that."""


class DagsReply(Reply, frozen=True, kw_only=True):
    dags: list[DagRow]


class BuildProgress(Reply, frozen=True, kw_only=True):
    done: int
    open: int
    failed: int
    draining_edges: int
    """Edges that have not yet seen all of their history."""
    more: bool = False
    """There are more tasks than were counted: each number is at least that."""


class DagVersionRow(Reply, frozen=True, kw_only=True):
    number: int
    dag_version_id: UUID
    state: Literal["Inactive", "Building", "Active"]
    created_by: str
    created_at: datetime
    activated_at: datetime | None = None
    jobs: int
    build: BuildProgress | None = None
    """While it is built."""


class DagVersionsReply(Reply, frozen=True, kw_only=True):
    dag: str
    versions: list[DagVersionRow]


class ActivateRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Which version becomes active: a number, or `previous` for the one that was active before."""

    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | Literal["previous"]
    now: bool = False
    """Cut over at once, also when the build is not finished."""
