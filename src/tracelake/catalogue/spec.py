"""The description of an operator: its config, where it may run, what its outputs are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from tracelake.model.runtime import DISPATCHER, LAMBDA

WORKERS = frozenset({"ecs_platform"})
"""The runtimes of operators that workers run."""


class ConfigFieldError(ValueError):
    """Raised by a config's own checks: what is wrong with one of its fields, and what to do."""

    def __init__(self, field: str, message: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.suggestion = suggestion


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
class ResultColumns:
    """The columns of a result that are known before the operator runs."""

    places: Mapping[str, str]
    """Where in the config each column is named, in words."""
    complete: bool
    """False: there are further columns, such as those of `*`."""
    field: str
    """The field of the config that names them."""


class OperatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The config of an operator. It is strict: an unknown field is an error.

    The methods tell a deploy what follows from the config before anything runs."""

    def check_inputs(self, names: Sequence[str | None]) -> None:
        """Raises ConfigFieldError if the config does not fit the inputs, given by their datasets' names, if known."""

    def writes(self) -> Writes | None:
        """None: as many tables as the job has outputs."""

    def result(self) -> ResultColumns | None:
        """The columns of the one output; None: unknown before the operator runs."""

    def columns(self, output_index: int) -> Sequence[str] | None:
        """The names of all columns of an output; None: unknown before the operator runs."""


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
    only_files: bool = False
    """It works only on blocks in files: none of its inputs or outputs can be a table."""
    only_events: bool = False
    """It emits events and no rows, so none of its outputs can be a buffered dataset."""
    fills_tables: bool = False
    """Its tasks may write a table themselves (`storage: postgres` that is not buffered). Never untrusted code."""
    trusted: bool = False
    """It runs the platform's own code and treats users' text as data: tasks of several orgs may share a process."""

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
