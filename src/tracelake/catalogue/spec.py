"""What the platform knows of an operator: its config, where it may run, what its outputs are."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from tracelake.model.runtime import DISPATCHER, LAMBDA


class OperatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A config is strict: a field nobody knows is a mistake, not a wish."""


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
    """Where an output lives that its DAG does not publish. `none`: it is events and no rows."""

    def runs_on(self, runtime: str) -> bool:
        if runtime == DISPATCHER and not self.control:
            return False
        return self.runtimes is None or runtime in self.runtimes

    @property
    def for_workers(self) -> bool:
        """Whether a worker must have a function for it. The Dispatcher and the runner of UDFs have their own."""
        return self.runtimes is None or bool(self.runtimes - {DISPATCHER, LAMBDA})
