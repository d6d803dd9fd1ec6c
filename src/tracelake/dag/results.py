"""Compares the columns that a job writes with those of its dataset, so that a mismatch is reported at deploy and not
batch by batch.
"""

from collections import Counter
from collections.abc import Callable

from tracelake.catalogue.column_fit import cast_hint, fits_column, fits_files
from tracelake.catalogue.spec import ResultColumns
from tracelake.catalogue.sql.columns.types import INTEGRAL, SqlType, parse_type
from tracelake.dag.columns import SchemaColumns
from tracelake.dag.kinds import DocumentPlace
from tracelake.dag.problems import one_of, shown
from tracelake.model.columns import UNKNOWN_TYPE
from tracelake.model.dag import Column, Schema

OWNER = "org_id"
"""A row may have this column if it names the org of the publisher."""
BLOCK = "block_number"
_SHOWN = 20


def check_files(name: str, schema: Schema, columns: SchemaColumns, result: ResultColumns, place: DocumentPlace) -> None:
    """Compare a result with the schema of its dataset in files, which may leave columns out."""
    _check_types(name, schema, result, place, fits_files)
    if not result.columns.complete:
        return
    names = [column.name for column in result.columns.columns]
    declared = {column.name for column in schema.columns}
    for column in schema.columns:
        if column.name not in names:
            key = columns.records[column.name].at("name")
            hint = key.problems.did_you_mean(column.name, [item for item in names if item not in declared])
            message = f"The job writes no column {shown(column.name)}."
            key.problem("unknown_column", message, hint or f"It writes {one_of(names[:_SHOWN])}.")


def check_result(name: str, schema: Schema, result: ResultColumns, place: DocumentPlace) -> None:
    """Compare a result with the schema of its buffered dataset."""
    misspelled = _check_unknown(name, schema, result, place)
    _check_types(name, schema, result, place, fits_column)
    if result.columns.complete:
        _check_missing(name, schema, result, misspelled, place)


def check_stored_result(result: ResultColumns, place: DocumentPlace) -> None:
    """Check what every result must be: each column once, and blocks as whole numbers."""
    places = dict(result.places)
    names = Counter(column.name.lower() for column in result.columns.columns)
    for name in [name for name, count in names.items() if count > 1][:_SHOWN]:
        spellings = [column.name for column in result.columns.columns if column.name.lower() == name]
        message = f"The result has {len(spellings)} columns {shown(spellings[-1])}."
        place.problem_inside("duplicate_column", message, "Rename one, or name the columns.", places.get(spellings[-1]))
    for column in result.columns.columns:
        kind = parse_type(column.type)
        whole = kind in INTEGRAL or (kind.kind == "decimal" and kind.digits[1] == 0)
        if column.name == BLOCK and kind.is_known and not whole:
            message = f"The column `{BLOCK}` must be a whole number, and here it is {kind}."
            place.problem_inside("column_type", message, "CAST it to BIGINT, or rename it.", places.get(BLOCK))


def _check_unknown(name: str, schema: Schema, result: ResultColumns, place: DocumentPlace) -> set[str]:
    """Report unknown columns; returns the columns that the suggestions name."""
    names = [column.name for column in schema.columns]
    result_names = {column.name for column in result.columns.columns}
    places = dict(result.places)
    free = [column for column in names if column not in result_names]
    misspelled: set[str] = set()
    expected_names = {*names, OWNER}
    columns = result.columns.columns
    if result.findings and not result.columns.complete:  # a misspelled column, which was reported, has no type
        columns = tuple(column for column in columns if column.type != UNKNOWN_TYPE)
    unknown = dict.fromkeys(column.name for column in columns if column.name not in expected_names)
    for column in list(unknown)[:_SHOWN]:
        hint = place.problems.did_you_mean(column, free)
        misspelled |= {candidate for candidate in free if f"`{candidate}`" in hint}
        message = f"The schema of {shown(name)} has no column {shown(column)}."
        place.problem_inside("unknown_column", message, hint or f"It has {one_of(names[:_SHOWN])}.", places.get(column))
    return misspelled


def _check_types(
    name: str, schema: Schema, result: ResultColumns, place: DocumentPlace, fits: Callable[[Column, SqlType], bool]
) -> None:
    declared = {column.name: column for column in schema.columns}
    places = dict(result.places)
    for column in result.columns.columns:
        target, kind = declared.get(column.name), parse_type(column.type)
        if target is not None and not fits(target, kind):
            message = f"The column {shown(column.name)} is {kind} here, and {target.type} in {shown(name)}."
            place.problem_inside("column_type", message, cast_hint(target, kind), places.get(column.name))


def _check_missing(
    name: str, schema: Schema, result: ResultColumns, misspelled: set[str], place: DocumentPlace
) -> None:
    result_names = {column.name for column in result.columns.columns}
    missing = [
        column.name
        for column in schema.columns
        if not column.nullable and column.name not in result_names and column.name not in misspelled
    ]
    if not missing:
        return
    one = len(missing) == 1
    columns, are, them = ("column", "is", "it") if one else ("columns", "are", "them")
    message = f"The result has no {columns} {one_of(missing[:_SHOWN])}, which {are} never null in {shown(name)}."
    nullable = "" if set(missing) & set(schema.unique) else f", or let {them} be null"
    place.problem("missing_column", message, f"Add {them} to the query{nullable}.")
