"""What an operator sees and what it gives back. No HTTP, no tokens, no other tasks."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from tracelake.catalogue.spec import OperatorConfig
from tracelake.model.dag import Schema
from tracelake.ports import ObjectMeta, SecretValues
from tracelake.wire.task_calls import DatasetPublished, OutputReport, SparkMetrics, TableColumn
from tracelake.wire.units import EventIn, PayloadInput, TaskOutput


class NonRetryableError(Exception):
    """Raised by an operator when another attempt would fail in the same way."""


class CanceledError(Exception):
    """Raised by an operator that stops because `cancel` was set, and by `emit` when there is nobody to speak for."""


class AttemptLostError(Exception):
    """The worker had to end this attempt for a reason that is not its own: the next one begins at once and is free."""


class EmitRefusedError(Exception):
    """The Dispatcher does not take these events, and would not take them later either."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows for a buffered dataset: JSON lines at an address below the output's buffer prefix."""

    output: TaskOutput
    uri: str
    records: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class TableInput:
    """An input that is a table in Postgres data: the columns that the job reads, of the types that it declares."""

    columns: tuple[TableColumn, ...]


def _nobody(_batch: Batch) -> None:
    raise NonRetryableError("nothing can be published from here")


def _undeclared(_output: TaskOutput) -> Schema | None:
    return None


@dataclass(frozen=True, slots=True)
class OperatorContext:
    task_id: UUID
    attempt: int
    config: OperatorConfig
    inputs: Sequence[PayloadInput]
    outputs: Sequence[TaskOutput]
    progress: Callable[[str], None]
    """Says in a few words how far the work is; goes to the log."""
    cancel: threading.Event
    """Set when the work should stop. Long work looks at it, or waits on it instead of sleeping.

    It was cancelled, or the worker has to end; then somebody else begins anew, whatever is returned."""
    paused: threading.Event
    """Set while a source should emit nothing: a queue downstream is full, or a person said so."""
    emit: Callable[[Sequence[EventIn]], None]
    """Announces updates while the work goes on; returns when they are stored. From any thread, in the order of calls.

    While the Dispatcher is away it waits and tries again. Raises `CanceledError` once the attempt was fenced or should
    stop, `EmitRefusedError` if the events are refused. The same event again is none."""
    files: Callable[[PayloadInput], list[ObjectMeta] | TableInput]
    """What an input consists of: the files that count now, exactly as they were committed; or the table that it is.
    From any thread."""
    publish: Callable[[Batch], None] = _nobody
    """Hands a batch to the sinks; returns when that is stored. From any thread. The same batch again is none."""
    schema: Callable[[TaskOutput], Schema | None] = _undeclared
    """What rows of a buffered output must fit, as declared now; None where nothing is declared. From any thread."""
    secrets: Mapping[str, str] = field(default_factory=SecretValues, repr=False)
    """What the job's `secrets` name, by those names; nothing else is in reach. They are blanked in errors, progress and
    logs, which is a net for mishaps: an operator says none of them anywhere, and writes them into no data."""
    org: str = ""
    """The org that the task belongs to, by name: what costs money or opens something is used for its own org alone."""
    traceparent: str | None = None
    """The attempt's span as W3C `traceparent`, where it is traced: spans of the operator's own belong below it."""


@dataclass(frozen=True, slots=True)
class OperatorResult:
    outputs: list[OutputReport] = field(default_factory=list)
    events: list[EventIn] = field(default_factory=list)
    datasets_published: list[DatasetPublished] = field(default_factory=list)
    spark: SparkMetrics | None = None
    """What Spark did for it; added by the worker."""
