"""DAGs in the user API: deploys and their plans, versions, activation."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.model.dag import Problem
from tracelake.wire.base import Reply, Request


class FieldChange(Reply, frozen=True, kw_only=True):
    """A value that differs; `before` or `after` is absent if the document does not set it."""

    field: str
    """The name of the field, or its path one level down: `config.size`."""
    before: str | int | float | bool | None = None
    after: str | int | float | bool | None = None


class TextChange(Reply, frozen=True, kw_only=True):
    """The change of a text that has several lines, or a long one, such as a query."""

    field: str
    """Like `config.query`."""
    diff: list[str]
    """Its lines as a unified diff, without a header; at most 200 of them."""
    more: int = 0
    """The number of lines that are left out."""


class JobChange(Reply, frozen=True, kw_only=True):
    job: str
    change: Literal["added", "changed", "limits", "removed", "unchanged"]
    """`changed`: it writes other data, so its outputs are rebuilt. `limits`: only how it runs differs."""
    fields: list[str] = []
    """The fields that differ; `upstream` if only an upstream job does."""
    values: list[FieldChange] = []
    """The differences that are single values."""
    texts: list[TextChange] = []
    """The differences of texts."""


class JobRebuild(Reply, frozen=True, kw_only=True):
    """How much a job computes, estimated from what is committed now."""

    job: str
    units: int
    more: bool = False
    """Counting stopped at a limit: there are more."""
    about: bool = False
    """The number is an estimate: the windows from the first to the last time or block of the job's inputs."""
    unknown: bool = False
    """The number cannot be known before tasks run; `units` is 0."""
    added: bool = False
    """The active version does not have the job: nothing is rebuilt, everything is computed for the first time."""


class ReaderRebuild(Reply, frozen=True, kw_only=True):
    """How much a job of another DAG computes after the cutover, estimated from what is committed now."""

    dag: str
    job: str
    units: int
    more: bool = False
    """Counting stopped at a limit: there are more."""
    about: bool = False
    """The number is an estimate."""
    unknown: bool = False
    """The number cannot be known before tasks run; `units` is 0."""
    stale: bool = False
    """The cutover computes none of them: they stay as they are until `trace rebuild`."""


class DatasetChange(Reply, frozen=True, kw_only=True):
    dataset: str
    change: Literal["added", "rebuilt", "removed", "unchanged", "restored"]
    """`restored`: a generation of an earlier version becomes the current one again."""
    job: str
    output_index: int = 0
    because: str = ""
    table: list[str] = []
    """The changes of its table in words; only for buffered datasets."""


class Plan(Reply, frozen=True, kw_only=True):
    """The changes of a deploy as data; `deploy` applies exactly these."""

    dag: str
    version: int
    """The number of the version, existing or new."""
    new_version: bool
    active_version: int | None = None
    jobs: list[JobChange]
    datasets: list[DatasetChange]
    subscribers: list[str] = []
    """Jobs of other DAGs, as `dag/job`, that read a dataset this plan moves or removes."""
    readers: list[ReaderRebuild] = []
    """Jobs of other DAGs that read a dataset this plan moves, or what is made from one; a token that is limited to DAGs
    gets those of its DAGs."""
    reader_tasks: int = 0
    """The units that the cutover computes in all other DAGs together, without those that become stale."""
    needs_build: bool = False
    """A build beside the active version must finish before the cutover."""
    changes: bool = True
    """False: the document is the same as that of the active version."""
    rebuilds: list[JobRebuild] = []
    """Jobs that compute units from what is committed already; each unit is a task at least."""
    rebuild_tasks: int = 0
    """The units of all of them together."""
    notes: list[str] = []
    """Warnings about what is allowed but probably not intended."""


class DeployReply(Reply, frozen=True, kw_only=True):
    plan: Plan
    dag_version_id: UUID | None = None
    duplicate: bool = False
    """The version existed before."""
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
    """Tasks of the active version that failed, have no retry left, and were not skipped."""
    failed_building: int = 0
    """The same of jobs that only the version has that is being built."""
    gaps: int = 0
    """Units of the active version that were skipped or cancelled, so that nothing will compute them; of each job up to
    1,000 such tasks are looked at."""
    dead_letters: int = 0
    """Batches that sinks rejected, of tables that the active version writes."""
    more: bool = False
    """Counting stopped at 10,000: the numbers are lower bounds."""


class DagsReply(Reply, frozen=True, kw_only=True):
    dags: list[DagRow]


class BuildProgress(Reply, frozen=True, kw_only=True):
    done: int
    open: int
    failed: int
    draining_edges: int
    """Edges that have not processed all of their history yet."""
    waiting_batches: int = 0
    """Batches for tables that no sink has taken yet."""
    dead_letters: int = 0
    """Batches that sinks rejected: the build ends when they are replayed or dropped."""
    old_dead_letters: int = 0
    """Those of them that were rejected before this build began: for an earlier schema, it may be."""
    rejected_datasets: list[str] = []
    """The datasets of these batches."""
    more: bool = False
    """Counting stopped at a limit: the numbers are lower bounds."""


class DagVersionRow(Reply, frozen=True, kw_only=True):
    number: int
    dag_version_id: UUID
    state: Literal["Inactive", "Building", "Active"]
    created_by: str
    created_at: datetime
    activated_at: datetime | None = None
    jobs: int
    build: BuildProgress | None = None
    """Present while the version is being built."""


class DagVersionsReply(Reply, frozen=True, kw_only=True):
    dag: str
    versions: list[DagVersionRow]


class ActivateRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Activates a version: a number, or `previous` for the one that was active before."""

    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | Literal["previous"]
    now: bool = False
    """Cut over at once, even if the build is not finished."""
