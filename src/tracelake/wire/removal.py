"""The removal of DAGs: what one holds and who reads it, and the DAGs that were removed."""

from datetime import datetime
from typing import Literal

from tracelake.wire.base import Reply


class HeldDataset(Reply, frozen=True, kw_only=True):
    """A dataset that goes with its DAG. `rows` are those of the current generation (None: not counted, as of tables),
    `bytes` those of all its files, or of its table as last measured."""

    name: str
    storage: str
    generations: int
    rows: int | None = None
    bytes: int | None = None


class DagReader(Reply, frozen=True, kw_only=True):
    """A job of another DAG that needs a dataset of this one: it reads or writes it, or one of its checks does."""

    dataset: str
    dag: str
    job: str
    how: Literal["reads", "writes", "checks"]


class RemovalPlan(Reply, frozen=True, kw_only=True):
    """What a DAG holds, and who needs it. `more_tasks`: the number of open tasks is a lower bound."""

    dag: str
    versions: int
    active_version: int | None = None
    building_version: int | None = None
    jobs: int
    open_tasks: int
    more_tasks: bool
    datasets: list[HeldDataset]
    sources: list[str]
    webhooks: list[str]
    functions: list[str]
    readers: list[DagReader]
    more_readers: int = 0
    """Readers in DAGs that the caller's token does not reach. They prevent a removal, too."""
    kept_days: int
    """How long it can be restored; 0: until somebody purges it."""


class RemovedDag(Reply, frozen=True, kw_only=True):
    """A DAG that was removed. `restorable_until` is None if it is kept until somebody purges it."""

    dag: str
    removed_at: datetime
    removed_by: str
    state: Literal["removed", "purging"]
    restorable_until: datetime | None = None
    datasets: int = 0


class RemovedDagsReply(Reply, frozen=True, kw_only=True):
    dags: list[RemovedDag]


class RemovalReply(Reply, frozen=True, kw_only=True):
    """The DAG after the call. `duplicate`: it was so before."""

    dag: str
    state: Literal["removed", "restored", "purging", "purged"]
    duplicate: bool = False
    removed_at: datetime | None = None
    restorable_until: datetime | None = None
    version: int | None = None
    """The version that is active again, or that is built again; None if there is none."""
