"""The input and the result of an operator. It sees no HTTP, no tokens and no other tasks."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from tracelake.catalogue.spec import OperatorConfig
from tracelake.model.dag import OutputCheck, Schema
from tracelake.ports import ObjectMeta, SecretValues
from tracelake.ports.direct_tables import OutputTables
from tracelake.wire.direct import DirectTable
from tracelake.wire.head_progress import HeadProgress
from tracelake.wire.task_calls import CheckReport, DatasetPublished, OutputReport, SparkMetrics, TableColumn
from tracelake.wire.units import EventIn, PayloadInput, TaskOutput


class NonRetryableError(Exception):
    """Raised by an operator if another attempt would fail in the same way."""


class CanceledError(Exception):
    """Raised by an operator that stops because `cancel` was set, and by `emit` if the attempt is no longer current."""


class AttemptLostError(Exception):
    """The worker had to end the attempt for an external reason: the next one starts at once and costs no attempt."""


class EmitRefusedError(Exception):
    """The Dispatcher refuses these events, and would refuse them again."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows for a buffered dataset: JSON lines at an address below the output's buffer prefix."""

    output: TaskOutput
    uri: str
    records: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class TableInput:
    """An input that is a table in Postgres data, with the columns that the job reads, as it declares them."""

    columns: tuple[TableColumn, ...]
    by_position: bool = False
    """Units are ranges of positions, such as blocks; else of commits."""


@dataclass(frozen=True, slots=True)
class LiveInput:
    """An input that is files up to a boundary and a table above it."""

    files: list[ObjectMeta]
    """None of them has a row above the boundary."""
    table: TableInput
    boundary: int | None
    """Rows of the table at or below it are left out; None: there are none in any file."""


@dataclass(frozen=True, slots=True)
class LiveOutput:
    """An output that is a live dataset: files of rows of this table."""

    table: DirectTable
    boundary: int | None
    """Up to this position, committed files have the rows of the table; None: none of them. As of the claim."""


@dataclass(frozen=True, slots=True)
class StoredDelivery:
    """What a webhook source was sent, as it came."""

    number: int
    delivery_id: str
    received_at: datetime
    content_type: str
    body: bytes


def _no_deliveries(_item: PayloadInput) -> "list[StoredDelivery]":
    raise NonRetryableError("deliveries cannot be read from here")


def _nobody(_batch: Batch) -> None:
    raise NonRetryableError("nothing can be published from here")


def _undeclared(_output: TaskOutput) -> Schema | None:
    return None


def _no_tables(_scope: str) -> OutputTables:
    raise NonRetryableError("tables cannot be written directly from here")


def _no_live_output(output: TaskOutput) -> LiveOutput:
    raise NonRetryableError(f"the output {output.name} is not a live dataset")


def _no_removal(_output: LiveOutput, _to: int) -> int:
    raise NonRetryableError("rows of tables cannot be removed from here")


@dataclass(frozen=True, slots=True)
class OperatorContext:
    task_id: UUID
    attempt: int
    config: OperatorConfig
    inputs: Sequence[PayloadInput]
    outputs: Sequence[TaskOutput]
    progress: Callable[[str], None]
    """Reports progress in a few words, for the log."""
    cancel: threading.Event
    """Set when the work should stop; long work checks it, or waits on it instead of sleeping.

    Either the task was cancelled, or the worker stops; then another worker starts over, whatever is returned."""
    paused: threading.Event
    """Set while a source should emit nothing: a downstream queue is full, or a person paused it."""
    emit: Callable[[Sequence[EventIn]], None]
    """Announces updates during the work; returns when they are durable. Thread-safe, in the order of calls, idempotent.

    It retries while the Dispatcher is away. Raises `CanceledError` once the attempt was fenced or should stop, and
    `EmitRefusedError` if the events are refused."""
    files: Callable[[PayloadInput], list[ObjectMeta] | TableInput | LiveInput]
    """The content of an input: its current files, exactly as they were committed, its table, or both. Thread-safe."""
    report: Callable[[HeadProgress], None] = lambda _progress: None
    """Says how far a follower of a chain is; the next heartbeat tells the Dispatcher the latest. Thread-safe."""
    publish: Callable[[Batch], None] = _nobody
    """Publishes a batch to the sinks; returns when that is durable. Thread-safe and idempotent."""
    schema: Callable[[TaskOutput], Schema | None] = _undeclared
    """The current schema of a buffered output; None if none is declared. Thread-safe."""
    deliveries: Callable[[PayloadInput], list[StoredDelivery]] = _no_deliveries
    """The deliveries of an input that is a webhook source: those of the unit, in their order. Thread-safe."""
    open_tables: Callable[[str], OutputTables] = _no_tables
    """Opens the outputs that are tables in Postgres data for writes of one scope (`WHOLE_TABLE` for all of them), and
    announces what an earlier attempt of the scope had written and not announced. Every earlier writer of the scope is
    stale from then on. The caller closes what it gets."""
    live_output: Callable[[TaskOutput], LiveOutput] = _no_live_output
    """The table of an output that is a live dataset, and the boundary of its files. Thread-safe."""
    remove_rows: Callable[[LiveOutput, int], int] = _no_removal
    """Removes rows up to a position from the table of an output, and returns how many these were: at or below its
    boundary, so that committed files have them. Idempotent."""
    secrets: Mapping[str, str] = field(default_factory=SecretValues, repr=False)
    """The values of the job's `secrets` by name, and no others. Errors, progress and logs blank them as a safety net:
    an operator must neither report them nor write them into data."""
    org: str = ""
    """The name of the task's org: paid or protected resources are used only for their own org."""
    checks: Sequence[OutputCheck] = ()
    """Of the rows that it writes. Whoever runs the operator evaluates them."""
    references: Sequence[PayloadInput] = ()
    """What the checks read besides."""
    traceparent: str | None = None
    """The attempt's span as W3C `traceparent`, if it is traced: the parent of the operator's own spans."""


@dataclass(frozen=True, slots=True)
class OperatorResult:
    outputs: list[OutputReport] = field(default_factory=list)
    events: list[EventIn] = field(default_factory=list)
    datasets_published: list[DatasetPublished] = field(default_factory=list)
    spark: SparkMetrics | None = None
    """Added by the worker."""
    checks: list[CheckReport] = field(default_factory=list)
    """Added by whoever evaluates them."""
