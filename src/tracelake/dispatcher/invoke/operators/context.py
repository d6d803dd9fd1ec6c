"""What a control operator sees."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracelake.catalogue import OperatorConfig
from tracelake.db.transaction import Store
from tracelake.wire.units import PayloadInput, TaskOutput

MAX_UNITS = 1_000_000


class BadInputError(Exception):
    """The operator can do nothing with this unit, however often it is tried; the message is for people."""


@dataclass(frozen=True, slots=True)
class ControlContext:
    config: OperatorConfig
    inputs: Sequence[PayloadInput]
    outputs: Sequence[TaskOutput]
    revision: str
    """The task's: what of the unit's history it was made for."""
    max_units: int = field(default=MAX_UNITS, kw_only=True)
    """That the org may make of one range."""
    store: Store
    """To read, never to write: what an operator has to say, it says by events."""

    def block_range(self) -> tuple[PayloadInput, int, int]:
        """The first input, and the blocks of its unit."""
        if not self.inputs:
            raise BadInputError("this operator needs an input, and the task has none")
        first = self.inputs[0]
        if first.unit.start is None or first.unit.end is None:
            raise BadInputError("this operator needs units with a block range, and the task's unit has none")
        return first, first.unit.start, first.unit.end
