"""The catalogue of operators: what a deploy and a worker must know of each without importing it.

The catalogue is data. `worker.operators` holds the functions that workers run, and a test pairs the two. Operators of
installed packages (`catalogue/plugins.py`) are part of it.
"""

import re
from collections.abc import Iterator, MutableMapping
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
from tracelake.catalogue.plugins import InstalledPlugin, installed_plugins
from tracelake.catalogue.spec import ConfigFieldError, OperatorConfig, OperatorSpec
from tracelake.catalogue.sql.config import SparkSqlConfig
from tracelake.errors import TraceError

__all__ = [
    "CATALOGUE",
    "NoopConfig",
    "OperatorCatalogue",
    "OperatorConfig",
    "OperatorSpec",
    "RangeAggregatorConfig",
    "RangeSplitterConfig",
    "SleepConfig",
    "SparkSqlConfig",
    "TickerConfig",
    "UdfConfig",
    "document_operators",
    "missing_operator",
    "read_config",
]


class OperatorCatalogue(MutableMapping[str, OperatorSpec]):
    """The operators by name. Packages are searched for plugins when a name is not built in, or all are asked for."""

    def __init__(self) -> None:
        self._specs = {spec.name: spec for spec in SPECS}
        self._plugins: dict[str, InstalledPlugin] | None = None

    def __getitem__(self, name: str) -> OperatorSpec:
        spec = self._specs.get(name)
        if spec is None and (item := self.plugins.get(name)) is not None and item.plugin is not None:
            spec = item.plugin.spec
        if spec is None:
            raise KeyError(name)
        return spec

    def __setitem__(self, name: str, spec: OperatorSpec) -> None:
        self._specs[name] = spec

    def __delitem__(self, name: str) -> None:
        del self._specs[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._specs
        yield from (name for name, item in self.plugins.items() if item.plugin is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def plugins(self) -> dict[str, InstalledPlugin]:
        """The plugins of this environment by name, also those that cannot be used."""
        if self._plugins is None:
            self._plugins = {item.name: item for item in installed_plugins()}
        return self._plugins

    def package_of(self, name: str) -> str | None:
        """The package and version that an operator comes from; None if it is built in, or there is none."""
        if name in self._specs or (item := self.plugins.get(name)) is None:
            return None
        return item.label


CATALOGUE = OperatorCatalogue()


def document_operators() -> dict[str, OperatorSpec]:
    """Those that a job of a DAG can name."""
    return {name: spec for name, spec in CATALOGUE.items() if not spec.internal}


def read_config(operator: str, config: dict[str, Any]) -> OperatorConfig:
    """Raises TraceError `job_invalid`; `details.field` names the place."""
    spec = CATALOGUE.get(operator)
    if spec is None:
        raise TraceError("job_invalid", missing_operator(operator), field="operator")
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


def missing_operator(name: str) -> str:
    """Why there is no such operator. The reason for a plugin that cannot be used is in the log of its process."""
    if (item := CATALOGUE.plugins.get(name)) is not None:
        return f"The operator {name!r} of the package {item.label} could not be loaded."
    return f"There is no operator {name!r}."


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
