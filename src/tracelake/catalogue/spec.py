"""The description of an operator: its config, where it may run, what its outputs are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import msgspec

from tracelake.model.columns import UNKNOWN_COLUMNS, DatasetColumns
from tracelake.model.dag import Schema
from tracelake.model.runtime import DISPATCHER, LAMBDA

WORKERS = frozenset({"ecs_platform"})
"""The runtimes of operators that workers run."""


class ConfigFieldError(ValueError):
    """Raised by a config's own checks: what is wrong with one of its fields, and what to do."""

    def __init__(self, field: str, message: str, suggestion: str = "", offset: int | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.suggestion = suggestion
        self.offset = offset
        """Where in the text of the field; None: the whole of it."""


@dataclass(frozen=True, slots=True)
class Writes:
    """How many tables an operator writes: a job has an output for each, or for some of them."""

    most: int
    least: int = 1
    because: str = ""
    """The part of the config that determines the number."""
    field: str = ""
    """The field of the config with that part."""


@dataclass(frozen=True, slots=True)
class JobInput:
    """An input of a job: the name of its dataset, if it has one, and its columns."""

    name: str | None
    columns: DatasetColumns = UNKNOWN_COLUMNS


@dataclass(frozen=True, slots=True)
class ResultFinding:
    """A mistake in the text of a config, which the operator would report when it runs."""

    code: str
    """A code of problems of documents."""
    message: str
    offset: int
    suggestion: str = ""


@dataclass(frozen=True, slots=True)
class ResultColumns:
    """The columns of an output that are known before the operator runs."""

    columns: DatasetColumns
    field: str = ""
    """The field of the config that names them, if one does."""
    places: tuple[tuple[str, int], ...] = ()
    """Columns that are named in the text of that field, and where."""
    findings: tuple[ResultFinding, ...] = ()


class OperatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The config of an operator. It is strict: an unknown field is an error.

    The methods tell a deploy what follows from the config before anything runs."""

    def check_inputs(self, names: Sequence[str | None]) -> None:
        """Raises ConfigFieldError if the config does not fit the inputs, given by their datasets' names, if known."""

    @property
    def joins_inputs(self) -> bool:
        """Whether a task needs all inputs of its job. A task of `PerUpdate` has the one whose event created it."""
        return False

    def writes(self) -> Writes | None:
        """None: as many tables as the job has outputs."""

    def result(self, output_index: int, inputs: Sequence[JobInput]) -> ResultColumns | None:
        """The columns of an output, from those of the inputs; None: unknown before the operator runs."""

    def table(self, output_index: int) -> Schema | None:  # noqa: ARG002
        """The table that the operator writes directly as this output, if its columns are fixed. `unique` begins with
        the position of a row, a whole number such as a block number; ranges of it are replaced and read."""
        return None

    tuning: ClassVar[frozenset[str]] = frozenset()
    """Fields that change no row, only how rows are read. A change of them makes files of a live dataset not anew."""

    @property
    def seals_units(self) -> bool:
        """Whether the tables that it writes are those of live datasets: rows become final, and then files."""
        return False

    def named_columns(self) -> Mapping[str, Sequence[str]]:
        """Fields of the config that name columns of the one output, with the names."""
        return {}

    def secret_names(self) -> Mapping[str, str]:
        """The secrets that the config uses, each with the field that names it; the job must list them."""
        return {}


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    name: str
    config_type: type[OperatorConfig]
    summary: str
    runtimes: frozenset[str] | None = None
    """Where it can run; None: everywhere."""
    control: bool = False
    """A platform control operator: the Dispatcher may run it itself (`runtime: dispatcher`)."""
    output_storage: Literal["none", "s3"] = "none"
    """The storage of an output that its DAG does not publish. `none`: events without rows or files."""
    windows: Literal["none", "blocks", "all"] = "none"
    """Whether a job may choose `units` and `read` more than the unit of its task. `blocks`: windows of blocks, and of
    each input just these. `all`: it reads its inputs by `work.read` alone, which knows windows, history and the rest.
    """
    only_files: bool = False
    """It works only on blocks in files: none of its inputs or outputs can be a table."""
    only_events: bool = False
    """It emits events and no rows, so none of its outputs can be a buffered dataset."""
    fills_tables: bool = False
    """Its tasks may write a table themselves (`write_mode: direct`). Never code or SQL of users: such an operator is
    `trusted` if it has a table (`OperatorConfig.table`)."""
    trusted: bool = False
    """It runs the platform's own code and treats users' text as data: tasks of several orgs may share a process."""

    checks: Literal["none", "unit", "rows", "sql"] = "none"
    """What `checks` its outputs may have, besides those about time. `unit`: those that need nothing but the rows of the
    unit, since it runs without Spark. `rows`: those without SQL of users, since it runs in a process that orgs share.
    """
    reads_deliveries: bool = False
    """Its input is a webhook source of the same DAG with `unit: delivery`: it reads the bodies."""
    internal: bool = False
    """The platform makes its tasks, and no document may name it."""

    def runs_on(self, runtime: str) -> bool:
        if runtime == DISPATCHER and not self.control:
            return False
        return self.runtimes is None or runtime in self.runtimes

    @property
    def for_workers(self) -> bool:
        """Whether workers need a function for it: not if only the Dispatcher or the runner of UDFs runs it."""
        return self.runtimes is None or bool(self.runtimes - {DISPATCHER, LAMBDA})
