"""What the platform knows of an operator: its config, where it may run, what its outputs are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from tracelake.model.runtime import DISPATCHER, LAMBDA


class OperatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A config is strict: a field nobody knows is a mistake, not a wish."""


class ConfigFieldError(ValueError):
    """Raised by a config's `__post_init__`: what is wrong with one of its fields, and what to do."""

    def __init__(self, field: str, message: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.suggestion = suggestion


@dataclass(frozen=True, slots=True)
class Writes:
    """How many tables an operator writes with a config: a job has an output for each, or for some of them."""

    most: int
    least: int = 1
    because: str = ""
    """What in the config says so."""
    field: str = ""
    """Of the config, with that."""


@dataclass(frozen=True, slots=True)
class ResultColumns:
    """What is known of a result before anything has run."""

    places: Mapping[str, str]
    """Names of columns, and in words where in the config they are."""
    complete: bool
    """False: there are others too, such as those of `*`."""
    field: str
    """Of the config, which says so."""


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
    """Where an output lives that its DAG does not publish. `none`: it is events and no rows, and never files."""
    only_files: bool = False
    """It works on blocks in files and nothing else: no input or output of it can be a table."""
    only_events: bool = False
    """It makes events and no rows: nothing of it ever comes to a buffered dataset."""
    fills_tables: bool = False
    """Its tasks may write a table themselves (`storage: postgres` that is not buffered). Never untrusted code."""
    trusted: bool = False
    """It runs the platform's own code, and to it users' words are data: tasks of several orgs may share a process."""
    check_inputs: Callable[[Any, Sequence[str | None]], None] | None = None
    """Raises ConfigFieldError when a config does not fit the job's inputs, given by their datasets' names, if known."""

    writes: Callable[[Any], Writes] | None = None
    """By its config; None: as many outputs as the job has."""
    result: Callable[[Any], ResultColumns] | None = None
    """The columns of what it writes, by its config; None: nobody knows before it runs."""

    columns: Callable[[Any, int], Sequence[str] | None] | None = None
    """The names of all columns of an output, by config and output_index, where they are known before it runs."""

    def runs_on(self, runtime: str) -> bool:
        if runtime == DISPATCHER and not self.control:
            return False
        return self.runtimes is None or runtime in self.runtimes

    @property
    def for_workers(self) -> bool:
        """Whether a worker must have a function for it. The Dispatcher and the runner of UDFs have their own."""
        return self.runtimes is None or bool(self.runtimes - {DISPATCHER, LAMBDA})
