"""What deploy and workers must know of each operator without importing it: name, config, where it runs, a line of help.

The registry is data. `worker.operators` holds the functions that workers run, and a test pairs the two.
"""

from typing import Any

import msgspec

from tracelake.catalogue.operators import (
    SPECS,
    NoopConfig,
    RangeAggregatorConfig,
    RangeSplitterConfig,
    SleepConfig,
    TickerConfig,
    UdfConfig,
)
from tracelake.catalogue.spec import OperatorConfig, OperatorSpec
from tracelake.errors import TraceError

__all__ = [
    "CATALOGUE",
    "NoopConfig",
    "OperatorConfig",
    "OperatorSpec",
    "RangeAggregatorConfig",
    "RangeSplitterConfig",
    "SleepConfig",
    "TickerConfig",
    "UdfConfig",
    "check_config",
    "read_config",
]

CATALOGUE: dict[str, OperatorSpec] = {spec.name: spec for spec in SPECS}


def check_config(operator: str, config: dict[str, Any]) -> None:
    """Raises TraceError `job_invalid`; `details.field` says where."""
    read_config(operator, config)


def read_config(operator: str, config: dict[str, Any]) -> OperatorConfig:
    spec = CATALOGUE.get(operator)
    if spec is None:
        raise TraceError("job_invalid", f"There is no operator {operator!r}.", field="operator")
    if spec.config_type is UdfConfig:
        return UdfConfig(values=config)
    try:
        return msgspec.convert(config, spec.config_type)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `")
        field = "config" + where.removesuffix("`").removeprefix("$")
        raise TraceError("job_invalid", f"The config of {operator} is not valid: {what}.", field=field) from None
