"""A job definition: immutable, so that every process may cache it for ever."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from uuid import UUID

from tracelake.model.dag import Input, OutputCheck, Strategy, Udf, UnitGrid

FUNCTION_OPERATOR = "udf"
UNTRUSTED_OPERATORS = frozenset({FUNCTION_OPERATOR})
"""Operators that run code of users."""


class Storage(StrEnum):
    S3 = "s3"
    POSTGRES = "postgres"
    BUFFERED = "buffered"
    LIVE = "live"
    """Files up to a boundary, and a table above it. An output of such a dataset is either."""
    NONE = "none"

    @property
    def routes_at_once(self) -> bool:
        """Rows that are durable before the event is said. The others route with the commit of their unit."""
        return self in (Storage.POSTGRES, Storage.NONE)

    @property
    def has_files(self) -> bool:
        return self in (Storage.S3, Storage.LIVE)

    @property
    def has_table(self) -> bool:
        return self in (Storage.POSTGRES, Storage.BUFFERED, Storage.LIVE)


@dataclass(frozen=True, slots=True)
class Dataset:
    dataset_uuid: UUID
    org_id: UUID
    name: str
    storage: Storage


@dataclass(frozen=True, slots=True)
class Output:
    output_index: int
    dataset_version: UUID
    dataset: Dataset
    fills_table: bool = False
    """Its job writes tables, not files."""

    @property
    def dataset_uuid(self) -> UUID:
        return self.dataset.dataset_uuid

    @property
    def storage(self) -> Storage:
        """How the job writes it: the part of a live dataset that is its own."""
        if self.dataset.storage is not Storage.LIVE:
            return self.dataset.storage
        return Storage.POSTGRES if self.fills_table else Storage.S3


@dataclass(frozen=True)
class Job:
    job_id: UUID
    org_id: UUID
    dag_name: str
    name: str
    runtime: str
    operator: str
    config: bytes
    config_hash: str
    lease_seconds: int
    timeout_seconds: int | None
    max_attempts: int | None
    outputs: tuple[Output, ...]
    node_id: UUID | None = None
    """None for a job that no DAG made."""
    strategy: Strategy = Strategy.PER_UPDATE
    max_concurrency: int | None = None
    counted: bool = False
    """It has a threshold for its queue."""
    org: str = ""
    """The name of its org."""
    secrets: tuple[str, ...] = ()
    """Names; no part of the control plane ever has a value."""
    udf: Udf | None = None
    """The function that its tasks run."""
    units: UnitGrid | None = None
    """The units that it chose; None: those of its inputs."""
    inputs: tuple[Input, ...] = ()
    """As its document has them, in the order of `input_index`; none for a job that no DAG made."""
    checks: tuple[OutputCheck, ...] = ()
    """Of its outputs. Attempts evaluate those that are active when they begin (`Definitions.current_checks`)."""

    @cached_property
    def by_dataset(self) -> dict[UUID, Output]:
        return {output.dataset_uuid: output for output in self.outputs}

    @cached_property
    def writes_batches(self) -> bool:
        """It publishes batches of a buffered dataset."""
        return any(output.storage is Storage.BUFFERED for output in self.outputs)

    @property
    def is_untrusted(self) -> bool:
        """Its code is a user's. Such an attempt may mint credentials, and never writes where committed files are."""
        return self.operator in UNTRUSTED_OPERATORS

    @property
    def limit_key(self) -> str:
        """The counter of `max_concurrency`: of the job by name, so that versions share it."""
        return f"job:{self.org_id}:{self.dag_name}:{self.name}"


BUFFER_QUEUES = "buffers."
"""What the names of all buffer queues begin with."""


def buffer_queue(dataset_uuid: UUID) -> str:
    """Where pointers to batches of a buffered dataset go: one queue for each, so that none waits for another."""
    return f"{BUFFER_QUEUES}{dataset_uuid}"
