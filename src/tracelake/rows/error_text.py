"""Explains the validation errors of msgspec in the terms of the schema."""

import re
from collections.abc import Mapping

from tracelake.model.dag import Column

_PLACE = " - at `$"
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)
_GOT = re.compile(r"Expected `[^`]*`, got `(\w+)`")
_ENUM = re.compile(r"Invalid enum value ('.*')", re.DOTALL)
_LENGTH = re.compile(r"Expected `str(?: \| null)?` of length <= (\d+)")
_RANGE = re.compile(r"Expected `int(?: \| null)?` [<>]= -?\d+|Integer value out of range")
_MOST_VALUES = 10
_JSON = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number with a fraction",
    "int": "a whole number",
    "null": "null",
    "object": "an object",
    "str": "text",
}


def explain(message: str, columns: Mapping[str, Column]) -> str:
    """Explain the message of a ValidationError to people; a message of an unknown form is returned as it is."""
    what, _, place = message.partition(_PLACE)
    column = columns.get(place.strip("`").removeprefix("."))
    if column is not None:
        return f"{column.name}: {_of_column(what, column)}"
    if match := _FIELD.fullmatch(what):
        kind, name = match.groups()
        return (
            f"{name}: required column is missing"
            if kind.startswith("missing")
            else f"{name}: is not a column of the schema"
        )
    if match := _GOT.fullmatch(what):
        return f"the line is {_JSON.get(match[1], match[1])}, not an object"
    return f"{place.strip('`').removeprefix('.') or 'the line'}: {what}"


def _of_column(what: str, column: Column) -> str:
    if match := _ENUM.fullmatch(what):
        values = column.enum or ()
        rest = f" and {len(values) - _MOST_VALUES} more" if len(values) > _MOST_VALUES else ""
        return f"{match[1]} is not one of {', '.join(values[:_MOST_VALUES])}{rest}"
    if match := _LENGTH.fullmatch(what):
        return f"is longer than {match[1]} characters"
    if _RANGE.fullmatch(what):
        return f"does not fit {column.type}"
    if match := _GOT.fullmatch(what):
        if match[1] == "null":
            return "must not be null"
        return f"is {_JSON.get(match[1], match[1])} instead of {column.type}"
    return what
