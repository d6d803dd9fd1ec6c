"""Names of options in errors: a person gave `--range`, where the API read `window`, `unit`, `start` or `end`."""

from typing import Any

import click
from click.core import ParameterSource

_OPTIONS = {
    "window": "--range",
    "start": "--range",
    "end": "--range",
    "unit": "--range",
    "partition_key": "--partition",
    "input_index": "--input",
    "output_index": "--output",
    "idempotency_key": "--key",
}
"""From a field of a call to the option that sets it, where that has another name."""


def name_option(details: dict[str, Any]) -> dict[str, Any]:
    """The details of an error with the option that was given in place of the field that is wrong."""
    context = click.get_current_context(silent=True)
    field = details.get("field")
    if context is None or not isinstance(field, str):
        return details
    options = {
        name
        for parameter in context.command.params
        if parameter.name and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
        for name in parameter.opts
    }
    name = field.partition(".")[0]
    for option_name in (f"--{name.replace('_', '-')}", _OPTIONS.get(name)):
        if option_name in options:
            return details | {"field": option_name}
    return details
