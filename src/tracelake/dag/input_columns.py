"""Compares the columns that an input names with those that it has: `by`, and the columns of `self: previous`."""

from tracelake.catalogue.sql.columns.operators import TypeMismatchError, compare
from tracelake.catalogue.sql.columns.types import POSITIONS, parse_type
from tracelake.dag.draft import InputDraft
from tracelake.dag.problems import one_of, shown
from tracelake.model.columns import DatasetColumn, DatasetColumns
from tracelake.model.dag import ReadMode

SPARK_NAMES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
"""Types that have two names, by the one that Spark does not write."""
_SHOWN = 20


def check_by(item: InputDraft, columns: DatasetColumns) -> None:
    """Check that `by` names a column that can tell whether a row is in a window."""
    is_ranged = item.read in (ReadMode.WINDOW, ReadMode.HISTORY)
    if item.record is None or not is_ranged or (name := item.record.get("by")) is None:
        return
    place = item.record.at("by")
    fitting = [column.name for column in columns.columns if _is_position(column)]
    column = next((item for item in columns.columns if item.name == name), None)
    if column is None:
        if columns.complete:
            names = fitting or [column.name for column in columns.columns]
            hint = place.problems.did_you_mean(name, names) or _list_positions(fitting)
            place.problem("unknown_column", f"The input has no column {shown(name)}.", hint)
    elif not _is_position(column):
        message = (
            f"The column {shown(name)} is {parse_type(column.type)}, and `by` takes a time, a date or a whole number."
        )
        place.problem("by_type", message, _list_positions(fitting))


def check_previous(item: InputDraft, columns: DatasetColumns) -> None:
    """Compare the columns that the first unit reads with those that the job writes, which all other units read."""
    if item.record is None or item.record.get("columns") is None:
        return
    places = item.record.at("columns").entries()
    own = {column.name.lower(): column for column in columns.columns}  # SQL does not tell names apart by case
    for name, kind in item.record.values["columns"].items():
        key, value = places[name]
        own_column = own.get(name.lower())
        if own_column is None:
            if columns.complete:
                names = [column.name for column in columns.columns]
                hint = key.problems.did_you_mean(name, names) or f"It writes {one_of(names[:_SHOWN])}."
                key.problem("unknown_column", f"The job writes no column {shown(name)}.", hint)
        elif isinstance(kind, str):
            own_type = parse_type(own_column.type)
            try:
                compare(parse_type(SPARK_NAMES.get(kind, kind)), own_type)
            except TypeMismatchError:
                message = (
                    f"The job writes the column {shown(name)} as {own_type}, which cannot be compared with {kind}."
                )
                value.problem("previous_type", message, f"Write `{name}: {_declare(str(own_type))}`.")


def _is_position(column: DatasetColumn) -> bool:
    kind = parse_type(column.type)
    return not kind.is_known or kind.kind in POSITIONS


def _list_positions(names: list[str]) -> str:
    return f"Columns that fit: {one_of(names[:_SHOWN])}." if names else "It has no column that fits: leave `by` out."


def _declare(kind: str) -> str:
    return f'"{kind}"' if "," in kind else kind
