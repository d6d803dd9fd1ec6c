"""A DAG document after reading: typed, complete, with every default filled in. Equal meaning, equal value."""

from enum import StrEnum
from typing import Any, Literal, TypeAlias

import msgspec

Scalar = str | int | float | bool | None
Where = dict[str, Scalar | list[Scalar]]
"""Field to scalar (equality) or list (IN), joined by AND."""
SECRET_NAME = "[A-Za-z_][A-Za-z0-9_.-]{0,127}"  # noqa: S105 - the form of one
"""What a job may call a secret, and so what somebody may keep one under."""


class Activation(StrEnum):
    SOURCE = "source"
    REACTIVE = "reactive"


class Strategy(StrEnum):
    PER_UPDATE = "PerUpdate"
    PER_PARTITION = "PerPartition"
    PER_WINDOW = "PerWindow"
    """Of jobs that choose their own units or read more than one unit of an input; no document names it."""

    @property
    def is_of_all_inputs(self) -> bool:
        """A task belongs to all inputs of its job, not to the one whose event made it."""
        return self is not Strategy.PER_UPDATE


DOCUMENT_STRATEGIES = (Strategy.PER_UPDATE, Strategy.PER_PARTITION)


class SourceKind(StrEnum):
    CRON = "cron"
    WEBHOOK = "webhook"
    MANUAL = "manual"
    ALWAYS_ON = "always_on"


class CatchUp(StrEnum):
    NONE = "none"
    LAST = "last"
    ALL = "all"


class ColumnType(StrEnum):
    BOOL = "bool"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    INT256 = "int256"
    UINT256 = "uint256"
    FLOAT64 = "float64"
    DECIMAL = "decimal"
    TEXT = "text"
    BYTES = "bytes"
    TIMESTAMP = "timestamp"
    DATE = "date"
    JSON = "json"


class DocumentPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of everything in a document. Fields at their default are left out of the canonical form."""


class Column(DocumentPart, frozen=True, kw_only=True):
    name: str
    type: ColumnType
    nullable: bool = True
    max_length: int | None = None
    """Of text (characters) and bytes."""
    precision: int | None = None
    scale: int | None = None
    """Of decimal."""
    enum: tuple[str, ...] | None = None
    """The values that a text column may have."""
    nested: str | None = None
    """Of json: the type of Spark of lists and structs, as which it is written and read. Only tables of operators with
    fixed columns have it; no document declares it."""


class Schema(DocumentPart, frozen=True, kw_only=True):
    columns: tuple[Column, ...]
    unique: tuple[str, ...] = ()
    indexes: tuple[tuple[str, ...], ...] = ()
    newest_wins: bool = False
    """Of a table that tasks write directly, whose `unique` is a position and a key: of the rows of a key only the one
    with the highest position is shown. Rows below it are kept, and are shown again when it is replaced."""

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)


class OutputAddress(DocumentPart, frozen=True, kw_only=True):
    """One output of one job of the same DAG."""

    job: str
    output_index: int = 0


class ReadMode(StrEnum):
    """What of a dataset a task reads."""

    UNIT = "unit"
    """The unit of the task."""
    WINDOW = "window"
    """All units that overlap the unit of the task, and `lookback` grains before it."""
    HISTORY = "history"
    """Everything up to the end of the unit of the task."""
    ALL = "all"
    LATEST = "latest"
    """The newest unit that begins before the unit of the task ends."""
    PREVIOUS = "previous"
    """The unit before, of the job's own output."""


class Input(DocumentPart, frozen=True, kw_only=True):
    """`output` for an edge within the DAG (also when it was written as the dataset that this DAG publishes), `dataset`
    for a dataset of another DAG. Exactly one of them is there."""

    output: OutputAddress | None = None
    dataset: str | None = None
    where: Where | None = None
    read: ReadMode = ReadMode.UNIT
    lookback: int = 0
    """Of `window`: how many grains before the unit of the task are read as well."""
    by: str | None = None
    """The column by which rows belong to a window: a block number, or a time."""
    columns: dict[str, str] | None = None
    """Of `previous`: the columns of the empty relation that the first unit reads."""


class UnitGrid(DocumentPart, frozen=True, kw_only=True):
    """The units that a job chooses: ranges of `size` blocks, or windows of time by the clock of a zone."""

    by: Literal["blocks", "time"]
    size: int | None = None
    grain: Literal["hour", "day", "week", "month"] | None = None
    time_zone: str = "UTC"
    when: Literal["complete", "updated"] = "complete"
    """complete: computed once its inputs cover it and have passed its end. updated: computed as its inputs grow."""


class CheckKind(StrEnum):
    """What a check says of the rows of an output."""

    NOT_NULL = "not_null"
    UNIQUE = "unique"
    ACCEPTED_VALUES = "accepted_values"
    RANGE = "range"
    ROW_COUNT = "row_count"
    RELATIONSHIP = "relationship"
    FRESHNESS = "freshness"
    SQL = "sql"

    @property
    def is_of_rows(self) -> bool:
        """An attempt evaluates it on the rows that it wrote; the others are about time."""
        return self is not CheckKind.FRESHNESS


CheckSeverity = Literal["error", "warn"]
AgeOf = Literal["commit", "data"]
"""What `freshness` is about: when something was committed, or how new the blocks are that it has."""


class OutputCheck(DocumentPart, frozen=True, kw_only=True):
    """A statement about an output of a job, which each attempt has to make true before its unit is committed."""

    name: str
    kind: CheckKind
    severity: CheckSeverity = "error"
    output_index: int = 0
    columns: tuple[str, ...] = ()
    """Of `not_null`, `unique`, `accepted_values`, `range` and `relationship`."""
    values: tuple[Scalar, ...] = ()
    """Of `accepted_values`."""
    min: Scalar = None
    max: Scalar = None
    """Of `range` and `row_count`, both included."""
    scope: Literal["unit", "dataset"] = "unit"
    """Of `unique`: whether rows of other units count."""
    dataset: str | None = None
    """Of `relationship`: the dataset that has the values."""
    target: str | None = None
    """Of `relationship`: its column."""
    max_age_seconds: int | None = None
    """Of `freshness`."""
    age_of: AgeOf = "commit"
    """Of `freshness`."""
    query: str | None = None
    """Of `sql`: a SELECT that returns the offending rows."""


class Source(DocumentPart, frozen=True, kw_only=True):
    kind: SourceKind
    schedule: str | None = None
    time_zone: str = "UTC"
    """Of cron, by its IANA name."""
    catch_up: CatchUp = CatchUp.LAST
    """Of cron: which of the slots that were missed are made up for."""
    webhook_path: str | None = None
    unit: Literal["body", "delivery"] = "body"
    """Of webhook: whether a body may name the unit of its event, or each delivery is a unit by its number."""


class Udf(DocumentPart, frozen=True, kw_only=True):
    bundle_id: str
    entrypoint: str | None = None
    memory_mb: int | None = None
    """A limit, on which no row depends. None: the stack's default."""

    @property
    def code(self) -> "Udf":
        """What its rows depend on."""
        return Udf(bundle_id=self.bundle_id, entrypoint=self.entrypoint)


class JobDocument(DocumentPart, frozen=True, kw_only=True):
    name: str
    activation: Activation
    runtime: str | None = None
    """None for sources that only emit (cron, webhook, manual): nothing runs for them."""
    operator: str | None = None
    outputs: int = 1
    inputs: tuple[Input, ...] = ()
    execution_strategy: Strategy = Strategy.PER_UPDATE
    update_strategy: Literal["append", "replace"] = "replace"
    unique_key: tuple[str, ...] = ()
    source: Source | None = None
    config: dict[str, Any] = {}
    udf: Udf | None = None
    secrets: tuple[str, ...] = ()
    max_concurrency: int | None = None
    timeout_seconds: int | None = None
    heartbeat_timeout_seconds: int | None = None
    max_attempts: int | None = None
    priority: Literal["normal", "bulk"] = "normal"
    max_queue_depth: int | None = None
    max_queue_age_seconds: int | None = None
    reset_outputs: bool = False
    units: UnitGrid | None = None
    checks: tuple[OutputCheck, ...] = ()
    """Of its outputs, also those that a document has at the published dataset. No row depends on them."""

    @property
    def only_emits(self) -> bool:
        """Its events come from outside: it never has tasks, and its history does not depend on its config."""
        return self.source is not None and self.source.kind is not SourceKind.ALWAYS_ON


OnConflict: TypeAlias = Literal["update", "nothing", "newest"]
"""Which of the rows with one key stays: the last one published, the first one, or that of the highest version."""


OnChange: TypeAlias = Literal["rebuild", "keep"]
"""What a table shows after a change of its writers: the rows of the new definition alone, or the old ones as well."""


class Publish(DocumentPart, frozen=True, kw_only=True):
    name: str
    sources: tuple[OutputAddress, ...]
    """One, or several for a buffered or a live dataset."""
    storage: Literal["none", "postgres", "s3", "live"]
    write_mode: Literal["buffered", "direct"] = "direct"
    owner: str | None = None
    """The DAG that owns the dataset, if it is another one that grants writing it; None: this one."""
    schema: Schema | None = None
    on_conflict: OnConflict = "update"
    """Of a buffered dataset: which of the rows with one key stays."""
    version_column: str | None = None
    """The column whose highest value stays under `newest`."""
    on_change: OnChange = "rebuild"
    """Of a buffered dataset: what becomes of the rows of a job that changes."""
    writers: tuple[str, ...] = ()
    """Other DAGs that may write it, if it is buffered."""
    max_queue_depth: int | None = None
    max_queue_age_seconds: int | None = None
    """Of its backlog."""
    description: str = ""
    contact: str = ""
    """Who answers for it: `owner` in a document."""
    column_descriptions: dict[str, str] = {}

    @property
    def is_shared(self) -> bool:
        """Several jobs may write it, and it has one generation for good, whoever they are."""
        return self.write_mode == "buffered" or self.storage == "live"


class Dag(DocumentPart, frozen=True, kw_only=True):
    name: str
    jobs: tuple[JobDocument, ...]
    publish: tuple[Publish, ...] = ()

    def job(self, name: str) -> JobDocument:
        return next(job for job in self.jobs if job.name == name)


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong with a document, and where. Lines and columns count from 1."""

    code: str
    message: str
    line: int
    column: int
    path: str
    """Like `jobs[2].inputs[0].where.severity`; empty for the document itself."""
    suggestion: str = ""


def unlocated(code: str, message: str, path: str, suggestion: str = "") -> Problem:
    """A problem that was found without the text: its place is the document's first line until somebody looks."""
    return Problem(code=code, message=message, line=1, column=1, path=path, suggestion=suggestion)
