"""The part of a feed's config that says how a document becomes rows."""

from collections.abc import Collection, Sequence
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from tracelake.catalogue.feeds.columns import FeedColumn, read_columns
from tracelake.catalogue.feeds.paths import JsonPath, PathError, parse_rows_path
from tracelake.catalogue.spec import ConfigFieldError, JobInput, OperatorConfig, ResultColumns, Writes
from tracelake.model.columns import UNKNOWN_TYPE, DatasetColumn, DatasetColumns
from tracelake.model.dag import Column, ColumnType

REJECT_COLUMNS = (
    DatasetColumn(name="origin", type="string", nullable=False),
    DatasetColumn(name="row", type="bigint", nullable=False),
    DatasetColumn(name="column", type="string"),
    DatasetColumn(name="reason", type="string", nullable=False),
    DatasetColumn(name="record", type="string"),
)
"""Of the second output: rows that do not fit, with the reason."""
BLOCK = "block_number"
_WHOLE = (ColumnType.INT32, ColumnType.INT64)
_TYPES = {
    ColumnType.BOOL: "boolean",
    ColumnType.INT16: "smallint",
    ColumnType.INT32: "int",
    ColumnType.INT64: "bigint",
    ColumnType.INT256: "string",
    ColumnType.UINT256: "string",
    ColumnType.FLOAT64: "double",
    ColumnType.TEXT: "string",
    ColumnType.BYTES: "binary",
    ColumnType.TIMESTAMP: "timestamp",
    ColumnType.DATE: "date",
    ColumnType.JSON: UNKNOWN_TYPE,  # text in files, an object for a buffered dataset
}

FeedFormat = Literal["json", "jsonl", "csv"]
FeedEncoding = Literal["utf-8", "utf-16", "iso-8859-1", "windows-1252"]


class FeedConfig(OperatorConfig, frozen=True, kw_only=True):
    specials: ClassVar[Collection[str]] = ()
    """The words that a path may name with `@`."""

    format: FeedFormat = "json"
    encoding: FeedEncoding = "utf-8"
    rows: Annotated[str, Meta(min_length=1, max_length=500)] = "$"
    """The path to the records, in JSON. In `jsonl` each line is a record, in `csv` each line after the first."""
    column_map: dict[str, Any] = field(name="columns")
    """By name: a type, or {path, type, unit, nullable}."""
    delimiter: Annotated[str, Meta(min_length=1, max_length=1)] = ","
    """Of `csv`."""
    header: bool = True
    """Of `csv`: the first line names the fields. Without it, paths are `[0]`, `[1]`, ..."""
    max_rows: Annotated[int, Meta(ge=1, le=10_000_000)] = 1_000_000

    def __post_init__(self) -> None:
        csv = self.format == "csv"
        if self.format != "json" and self.rows != "$":
            raise ConfigFieldError("rows", f"only `format: json` has a path to its records, not `{self.format}`")
        if not csv and (self.delimiter != "," or not self.header):
            raise ConfigFieldError("delimiter" if self.delimiter != "," else "header", "it is for `format: csv`")
        if csv and (not self.delimiter.isascii() or self.delimiter in '"\r\n\0' or self.delimiter.isalnum()):
            raise ConfigFieldError("delimiter", 'it must be one character like `,`, `;`, `|` or "\\t"')
        self.rows_path()
        for column in self.feed_columns():
            step = column.path.steps[0] if column.path.steps else ""
            if csv and not column.path.special and not self.header and isinstance(step, str):
                raise ConfigFieldError(f"columns.{column.name}", "without a header, a field is named by its place: [0]")
            if column.name.lower() == BLOCK and (column.column.type not in _WHOLE or column.column.nullable):
                message = f"files are read by `{BLOCK}`, so it must be int32 or int64 and never null"
                raise ConfigFieldError(f"columns.{column.name}", message, "Rename it, or change its type.")

    def rows_path(self) -> JsonPath:
        try:
            return parse_rows_path(self.rows)
        except PathError as error:
            raise ConfigFieldError("rows", str(error)) from None

    def feed_columns(self) -> tuple[FeedColumn, ...]:
        return read_columns(self.column_map, self.specials, csv=self.format == "csv")

    def writes(self) -> Writes:
        return Writes(2)

    def result(self, output_index: int, inputs: Sequence[JobInput]) -> ResultColumns:  # noqa: ARG002
        if output_index:
            return ResultColumns(DatasetColumns(columns=REJECT_COLUMNS))
        columns = tuple(
            DatasetColumn(name=item.name, type=_type_in_files(item.column), nullable=item.column.nullable)
            for item in self.feed_columns()
        )
        return ResultColumns(DatasetColumns(columns=columns), field="columns")


def _type_in_files(column: Column) -> str:
    """As Spark reads it."""
    if column.type is ColumnType.DECIMAL:
        return f"decimal({column.precision},{column.scale or 0})"
    return _TYPES[column.type]
