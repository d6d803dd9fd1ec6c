"""The fields of `checks`: one entry has one kind, and what belongs to the kind below it."""

from tracelake.dag.columns import COLUMN_NAME
from tracelake.dag.kinds import (
    INDEX,
    NAME,
    REFERENCE,
    Choice,
    DocumentPlace,
    Duration,
    Field,
    Fields,
    Integer,
    JsonSchema,
    ListOf,
    OneOrMany,
    Text,
    scalar_value,
)
from tracelake.model.dag import CheckKind

MAX_CHECKS = 100
"""Of one job or dataset."""
_MAX_VALUES = 1000
_MAX_QUERY = 20_000
_YEAR = 365 * 24 * 3600


class _CheckValue:
    """A number, a text or a boolean."""

    def read(self, place: DocumentPlace) -> object:
        return scalar_value(place)

    def schema(self) -> JsonSchema:
        return {"type": ["string", "number", "boolean"]}


_COLUMNS = OneOrMany(ListOf(COLUMN_NAME, 1, 32, distinct=True))
_COUNT = Integer(0, 2**53)

_ACCEPTED_VALUES = Fields(
    {
        "column": Field(COLUMN_NAME, "The column.", required=True),
        "values": Field(ListOf(_CheckValue(), 1, _MAX_VALUES), "The only values that it may have.", required=True),
    },
    "a map: {column, values}",
)
_RANGE = Fields(
    {
        "column": Field(COLUMN_NAME, "The column: a number, a date or a time.", required=True),
        "min": Field(_CheckValue(), "The smallest value that it may have."),
        "max": Field(_CheckValue(), "The largest value that it may have."),
    },
    "a map: {column, min, max}",
    lambda: {"anyOf": [{"required": ["min"]}, {"required": ["max"]}]},
)
_ROW_COUNT = Fields(
    {
        "min": Field(_COUNT, "The least rows that a unit may have."),
        "max": Field(_COUNT, "The most rows that a unit may have."),
    },
    "a map: {min, max}",
    lambda: {"anyOf": [{"required": ["min"]}, {"required": ["max"]}]},
)
_TARGET = Fields(
    {
        "dataset": Field(REFERENCE, "A published dataset, of this DAG or of another one.", required=True),
        "column": Field(COLUMN_NAME, "Its column.", required=True),
    },
    "a map: {dataset, column}",
)
_RELATIONSHIP = Fields(
    {
        "column": Field(COLUMN_NAME, "The column whose values are looked up.", required=True),
        "to": Field(_TARGET, "Where each of them must exist.", required=True),
    },
    "a map: {column, to}",
)
_FRESHNESS = Fields(
    {
        "max_age": Field(Duration(1, _YEAR), "How old the dataset may be.", required=True),
        "of": Field(
            Choice(("commit", "data")),
            "commit: how long ago the newest commit was. data: how old the newest block is that it has.",
            default="commit",
        ),
    },
    "a map: {max_age, of}",
)

KIND_FIELDS: dict[str, Field] = {
    CheckKind.NOT_NULL.value: Field(_COLUMNS, "These columns are never null."),
    CheckKind.UNIQUE.value: Field(
        _COLUMNS, "No two rows agree in all of these columns. Rows with a null do not count."
    ),
    CheckKind.ACCEPTED_VALUES.value: Field(_ACCEPTED_VALUES, "The column has no other values, but may be null."),
    CheckKind.RANGE.value: Field(_RANGE, "The column is within these bounds, both included, or null."),
    CheckKind.ROW_COUNT.value: Field(_ROW_COUNT, "The unit has so many rows."),
    CheckKind.RELATIONSHIP.value: Field(
        _RELATIONSHIP, "Each value of the column exists in a column of another dataset."
    ),
    CheckKind.FRESHNESS.value: Field(_FRESHNESS, "The newest commit, or the newest block, is not older than that."),
    CheckKind.SQL.value: Field(
        Text("a query", max_length=_MAX_QUERY),
        "A SELECT that returns the offending rows. The rows of the unit are the relation `output`.",
    ),
}
"""By kind: a check has exactly one of these fields."""


def _one_kind() -> JsonSchema:
    return {"oneOf": [{"required": [kind.value]} for kind in CheckKind]}


_COMMON_FIELDS = {
    "name": Field(NAME, "Its name, once for each output; by default its kind and columns."),
    "severity": Field(
        Choice(("error", "warn")),
        "error: an attempt whose rows fail it fails, and nothing of them is committed. warn: it is only reported.",
        default="error",
    ),
    "scope": Field(
        Choice(("unit", "dataset")),
        "Of `unique`: whether rows of other units count too.",
        default="unit",
    ),
}

DATASET_CHECK = Fields({**KIND_FIELDS, **_COMMON_FIELDS}, "a check: {not_null: column}, say", _one_kind)
JOB_CHECK = Fields(
    {
        **KIND_FIELDS,
        **_COMMON_FIELDS,
        "output_index": Field(INDEX, "Which output of the job it is about, counted from 0.", default=0),
    },
    "a check: {not_null: column}, say",
    _one_kind,
)
DATASET_CHECKS = ListOf(DATASET_CHECK, 0, MAX_CHECKS, whole=False)
JOB_CHECKS = ListOf(JOB_CHECK, 0, MAX_CHECKS, whole=False)
