"""The config of `query`: a person's query, as a task runs it. Reading it passes the query through the gate."""

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from tracelake.catalogue.spec import WORKERS, ConfigFieldError, OperatorConfig, OperatorSpec, Writes
from tracelake.catalogue.sql.findings import MAX_LENGTH, SqlRefusedError

if TYPE_CHECKING:
    from tracelake.catalogue.sql.gate import GatedQuery

QUERY = "query"
_UNIT_BITS = 62
_Name = Annotated[str, Meta(pattern="^[a-z_][a-z0-9_]{0,127}$")]


class BatchParameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value for `$name`, as the Query Service accepts it."""

    type: str
    value: bool | int | float | str | None


class BatchQueryConfig(OperatorConfig, frozen=True, kw_only=True):
    query: Annotated[str, Meta(min_length=1, max_length=MAX_LENGTH)]
    """One SELECT."""
    inputs: dict[_Name, Annotated[int, Meta(ge=0, le=63)]] = {}
    """The names of inputs in the query, with their index."""
    parameters: Annotated[dict[_Name, BatchParameter], Meta(max_length=100)] = {}
    limit: Annotated[int, Meta(ge=1)] | None = None
    """Rows of the result at most."""
    max_bytes: Annotated[int, Meta(ge=1)] | None = None
    """A larger result fails the task."""

    def __post_init__(self) -> None:
        try:
            self.gated()
        except SqlRefusedError as error:
            raise ConfigFieldError("query", str(error.finding), error.finding.suggestion) from None
        self.values()

    def gated(self) -> "GatedQuery":
        """The query as written anew for Spark."""
        from tracelake.catalogue.sql.gate import gate_with_values

        return gate_with_values(self.query, frozenset(self.inputs), self.values())

    def values(self) -> dict[str, Any]:
        """What Spark binds to the names. A value never becomes a part of the text."""
        return {name: read_value(name, parameter) for name, parameter in self.parameters.items()}

    def writes(self) -> Writes:
        return Writes(1)


def result_unit(task_id: UUID) -> int:
    """The unit of the dataset of results that the task writes, from its first to its last block. Of the random bits of
    its id: numbers in a row would tell how many queries there are."""
    return task_id.int & ((1 << _UNIT_BITS) - 1)


def read_value(name: str, parameter: BatchParameter) -> Any:
    """The value as Spark takes it. Raises ConfigFieldError."""
    if parameter.type not in _READERS:
        raise ConfigFieldError("parameters", f"there is no type of parameters {parameter.type!r}")
    if parameter.value is None:
        return None
    try:
        return _READERS[parameter.type](parameter.value)
    except (ValueError, TypeError, OverflowError, InvalidOperation):
        raise ConfigFieldError("parameters", f"the value of `${name}` is no {parameter.type}") from None


def _digits(value: Any) -> str:
    """Integers of 256 bits are texts of digits, as columns of them are in Spark."""
    return str(int(value))


_READERS: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int16": int,
    "int32": int,
    "int64": int,
    "int256": _digits,
    "uint256": _digits,
    "float64": float,
    "decimal": lambda value: Decimal(str(value)),
    "text": str,
    "bytes": lambda value: bytes.fromhex(value.removeprefix("0x")),
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
}

SPEC = OperatorSpec(
    QUERY,
    BatchQueryConfig,
    "Runs a batch query of a person; the platform makes its tasks.",
    runtimes=WORKERS,
    output_storage="s3",
    internal=True,
)
