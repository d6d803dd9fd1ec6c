"""What deploy and workers must know of each operator without importing it: name, config, a line of help.

The registry is data. `worker.operators` holds the functions, and a test pairs the two.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tracelake.errors import TraceError

__all__ = ["CATALOGUE", "NoopConfig", "OperatorConfig", "OperatorSpec", "SleepConfig", "check_config", "read_config"]


class OperatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A config is strict: a field nobody knows is a mistake, not a wish."""


class NoopConfig(OperatorConfig, frozen=True):
    pass


class SleepConfig(OperatorConfig, frozen=True, kw_only=True):
    seconds: Annotated[float, Meta(ge=0, le=7 * 24 * 3600)]
    fail_attempts: Annotated[int, Meta(ge=0, le=1000)] = 0
    """The first N attempts fail and may be retried."""


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    name: str
    config_type: type[OperatorConfig]
    summary: str


_SPECS = (
    OperatorSpec("noop", NoopConfig, "Does nothing and completes; for measuring and for demonstrations."),
    OperatorSpec("sleep", SleepConfig, "Waits `seconds`, then completes; fails its first `fail_attempts` attempts."),
)

CATALOGUE: dict[str, OperatorSpec] = {spec.name: spec for spec in _SPECS}


def check_config(operator: str, config: dict[str, Any]) -> None:
    """Raises TraceError `job_invalid`; `details.field` says where."""
    read_config(operator, config)


def read_config(operator: str, config: dict[str, Any]) -> OperatorConfig:
    spec = CATALOGUE.get(operator)
    if spec is None:
        raise TraceError("job_invalid", f"There is no operator {operator!r}.", field="operator")
    try:
        return msgspec.convert(config, spec.config_type)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `")
        field = "config" + where.removesuffix("`").removeprefix("$")
        raise TraceError("job_invalid", f"The config of {operator} is not valid: {what}.", field=field) from None
