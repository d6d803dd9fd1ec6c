"""The catalogue of operators: what a deploy and a worker must know of each without importing it.

The catalogue is data. `worker.operators` holds the functions that workers run, and a test pairs the two.
"""

import re
from typing import Any, Literal, get_args, get_origin, get_type_hints

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
from tracelake.catalogue.spec import ConfigFieldError, OperatorConfig, OperatorSpec
from tracelake.catalogue.sql.config import SparkSqlConfig
from tracelake.errors import TraceError

__all__ = [
    "CATALOGUE",
    "NoopConfig",
    "OperatorConfig",
    "OperatorSpec",
    "RangeAggregatorConfig",
    "RangeSplitterConfig",
    "SleepConfig",
    "SparkSqlConfig",
    "TickerConfig",
    "UdfConfig",
    "document_operators",
    "read_config",
]

CATALOGUE: dict[str, OperatorSpec] = {spec.name: spec for spec in SPECS}


def document_operators() -> dict[str, OperatorSpec]:
    """Those that a job of a DAG can name."""
    return {name: spec for name, spec in CATALOGUE.items() if not spec.internal}


def read_config(operator: str, config: dict[str, Any]) -> OperatorConfig:
    """Raises TraceError `job_invalid`; `details.field` names the place."""
    spec = CATALOGUE.get(operator)
    if spec is None:
        raise TraceError("job_invalid", f"There is no operator {operator!r}.", field="operator")
    if spec.config_type is UdfConfig:
        return UdfConfig(values=config)
    try:
        return msgspec.convert(config, spec.config_type)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigFieldError):
            raise _field_refused(operator, error.__cause__) from None
        what, _, where = str(error).partition(" - at `")
        path = where.removesuffix("`").removeprefix("$")
        detail = _explain_enum(what, path, spec.config_type) or _explain(what)
        raise TraceError(
            "job_invalid", f"The config of {operator} is not valid: {detail}.", field=f"config{path}"
        ) from None


def _field_refused(operator: str, error: ConfigFieldError) -> TraceError:
    details: dict[str, Any] = {"suggestion": error.suggestion} if error.suggestion else {}
    if error.offset is not None:
        details["offset"] = error.offset
    message = f"The config of {operator} is not valid: {error}."
    return TraceError("job_invalid", message, field=f"config.{error.field}", **details)


_TYPES = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "nothing",
    "object": "a map",
    "str": "text",
}
_BOUNDS = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}


def _explain_enum(what: str, path: str, config_type: type[OperatorConfig]) -> str:
    """Lists the allowed values, which the decoder's message does not."""
    value = re.fullmatch("Invalid enum value '(.*)'", what)
    field = re.match(r"\.(\w+)", path)
    if not value or not field:
        return ""
    values = _literals(get_type_hints(config_type).get(field[1]))
    return f"there is no `{value[1]}`; there are {', '.join(f'`{each}`' for each in values)}" if values else ""


def _literals(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [str(value) for value in get_args(hint)]
    return [value for inner in get_args(hint) for value in _literals(inner)]


def _explain(what: str) -> str:
    """The decoder's message in plain words; an unknown message is returned as it is."""
    if match := re.fullmatch("Object missing required field `(.+)`", what):
        return f"the field `{match[1]}` is missing"
    if match := re.fullmatch("Object contains unknown field `(.+)`", what):
        return f"there is no field `{match[1]}`"
    if match := re.fullmatch(r"Expected `([\w |]+)`, got `(\w+)`", what):
        expected = " or ".join(_TYPES.get(name, name) for name in match[1].split(" | "))
        return f"it must be {expected}, not {_TYPES.get(match[2], match[2])}"
    if match := re.fullmatch(r"Expected `\w+` ([<>]=?) (\S+)", what):
        return f"it must be {_BOUNDS[match[1]]} {match[2].removesuffix('.0')}"
    if match := re.fullmatch(r"Expected `\w+` of length ([<>]=?) (\d+)", what):
        return f"its length must be {_BOUNDS[match[1]]} {match[2]}"
    return what
