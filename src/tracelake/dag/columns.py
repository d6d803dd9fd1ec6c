"""The schema of a published dataset: columns in their long or short form, the unique key, indexes."""

import re
from dataclasses import dataclass, field

import msgspec

from tracelake.dag.kinds import (
    INVALID,
    Boolean,
    Choice,
    DocumentPlace,
    Field,
    Fields,
    Integer,
    JsonSchema,
    ListOf,
    OneOrMany,
    Record,
    Text,
)
from tracelake.dag.nodes import ListNode, MapNode, ScalarNode
from tracelake.dag.problems import one_of, shown
from tracelake.model.dag import Column, ColumnType, Schema

MAX_COLUMNS = 1000
MAX_LENGTH = 10 * 2**20
MAX_PRECISION = 38

_TYPES = tuple(ColumnType)
_SIZED = {ColumnType.TEXT, ColumnType.BYTES}
_WITH_NUMBERS = re.compile(r"([a-z0-9]+)\s*\(\s*([0-9]{1,9})\s*(?:,\s*([0-9]{1,9})\s*)?\)")
COLUMN_NAME = Text(
    "a column name", "[A-Za-z_][A-Za-z0-9_]{0,62}", 63, "A column name is letters, digits and _, at most 63 of them."
)


@dataclass(frozen=True, slots=True)
class _Type:
    kind: ColumnType
    numbers: tuple[int, ...] = ()


class TypeKind:
    """`int64`, or with numbers: `text(100)`, `bytes(32)`, `decimal(38,18)`."""

    def read(self, place: DocumentPlace) -> object:
        node = place.node
        if not isinstance(node, ScalarNode):
            return place.wrong_type("a type")
        match = _WITH_NUMBERS.fullmatch(node.text)
        if match is None:
            word = Choice(_TYPES).read(place)
            return INVALID if word is INVALID else _Type(ColumnType(word))
        name, numbers = match[1], tuple(int(number) for number in match.groups()[1:] if number is not None)
        if name not in _TYPES:
            hint = place.problems.did_you_mean(name, _TYPES)
            place.problem("unknown_value", f"There is no type {shown(name)}. Types are {one_of(_TYPES)}.", hint)
            return INVALID
        kind = ColumnType(name)
        if (kind in _SIZED and len(numbers) == 1) or kind is ColumnType.DECIMAL:
            return _Type(kind, numbers)
        place.problem("invalid_value", f"{shown(node.text)} is not a type.", "Write text(100) or decimal(38,18).")
        return INVALID

    def schema(self) -> JsonSchema:
        numbers = r"^(text|bytes) *\( *[0-9]+ *\)$|^decimal *\( *[0-9]+ *(, *[0-9]+ *)?\)$"
        return {"anyOf": [{"enum": list(_TYPES)}, {"type": "string", "pattern": numbers}]}


_COLUMN = Fields(
    {
        "name": Field(COLUMN_NAME, "Name of the column.", required=True),
        "type": Field(TypeKind(), "Its type; `text(100)` and `decimal(38,18)` carry their limits.", required=True),
        "nullable": Field(Boolean(), "Whether it may be null. Columns of `unique` never are.", default=True),
        "max_length": Field(Integer(1, MAX_LENGTH), "Longest value of text (characters) or bytes."),
        "precision": Field(Integer(1, MAX_PRECISION), "Digits of a decimal, all told."),
        "scale": Field(Integer(0, MAX_PRECISION), "Digits of a decimal after the point; 0 when left out."),
        "enum": Field(ListOf(Text(), 1, 1000, distinct=True), "The only values that a text column may have."),
    },
    "a column: {name, type}",
)


@dataclass(slots=True)
class SchemaColumns:
    """The columns as far as they are valid."""

    columns: list[Column] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The written name by its case-folded form: SQL does not tell names apart by case."""
    complete: bool = True
    """Every name could be read."""


class ColumnsKind:
    def read(self, place: DocumentPlace) -> object:
        if isinstance(place.node, ListNode):
            read = ListOf(_COLUMN, 1, MAX_COLUMNS, whole=False).read(place)
            records = [] if read is INVALID else read
        elif isinstance(place.node, MapNode):
            records = self._short_form(place)
        else:
            return place.wrong_type("a list of columns, or a map of name to type")
        columns = SchemaColumns(complete=bool(records))
        for record in records:
            if record is INVALID or "name" not in record.values:
                columns.complete = False
            elif (name := record.values["name"]).casefold() in columns.names:
                message = f"There is a column {shown(name)} already."
                record.at("name").problem("duplicate_item", message, "Names differ in more than their case.")
            else:
                columns.names[name.casefold()] = name
                columns.records[name] = record
                if (column := _column(record)) is not None:
                    columns.columns.append(column)
        return columns

    @staticmethod
    def _short_form(place: DocumentPlace) -> list[Record]:
        entries = place.entries()
        if not 1 <= len(entries) <= MAX_COLUMNS:
            place.problem("out_of_range", f"{place.title} takes 1 to {MAX_COLUMNS} columns.")
            return []
        records = []
        for key, value in entries.values():
            record = Record(DocumentPlace(key.node, value.path, value.problems), places={"name": key, "type": value})
            for name, kind, where in (("name", COLUMN_NAME, key), ("type", TypeKind(), value)):
                if (read := kind.read(where)) is not INVALID:
                    record.values[name] = read
            records.append(record)
        return records

    def schema(self) -> JsonSchema:
        full = {"type": "array", "items": _COLUMN.schema(), "minItems": 1, "maxItems": MAX_COLUMNS}
        short = {
            "type": "object",
            "propertyNames": COLUMN_NAME.schema(),
            "additionalProperties": TypeKind().schema(),
            "minProperties": 1,
        }
        return {"anyOf": [full, short]}


def _column(record: Record) -> Column | None:
    """None if the type is unknown, or a field does not apply to it."""
    if "type" not in record.values:
        return None
    kind, numbers = record.values["type"].kind, record.values["type"].numbers
    max_length, precision, scale = record.get("max_length"), record.get("precision"), record.get("scale")
    good = True
    for name in ("max_length", "precision", "scale", "enum"):
        fits = {"max_length": kind in _SIZED, "enum": kind is ColumnType.TEXT}.get(name, kind is ColumnType.DECIMAL)
        if record.has(name) and not fits:
            record.at(name).problem("invalid_value", f"A column of type {kind} has no `{name}`.", "Leave it out.")
            good = False
        elif record.has(name) and numbers and name != "enum":
            record.at(name).problem("invalid_value", f"The type says `{name}` already.", "Say it once.")
            good = False
        good = good and not record.bad(name)
    if not good:
        return None
    if kind in _SIZED and numbers:
        max_length = numbers[0]
    if kind is ColumnType.DECIMAL:
        precision, scale = (*numbers, 0)[:2] if numbers else (precision, scale or 0)
        if precision is None:
            record.missing("precision", "Write decimal(38,18), say.")
            return None
    if not _in_range(record, max_length, precision, scale):
        return None
    return Column(
        name=record.values["name"],
        type=kind,
        nullable=record.get("nullable", True),
        max_length=max_length,
        precision=precision,
        scale=scale,
        enum=tuple(record.values["enum"]) if record.has("enum") else None,
    )


def _in_range(record: Record, max_length: int | None, precision: int | None, scale: int | None) -> bool:
    place = record.at("type")
    if max_length is not None and not 1 <= max_length <= MAX_LENGTH:
        place.problem("out_of_range", f"A length is 1 to {MAX_LENGTH}.")
    elif precision is not None and not 1 <= precision <= MAX_PRECISION:
        place.problem("out_of_range", f"A precision is 1 to {MAX_PRECISION}.", "int256 and uint256 hold more digits.")
    elif precision is not None and scale is not None and scale > precision:
        (record.at("scale") if record.has("scale") else place).problem(
            "out_of_range", f"The scale {scale} is larger than the precision {precision}."
        )
    elif max_length is not None and any(len(value) > max_length for value in record.get("enum", ())):
        record.at("enum").problem("out_of_range", f"A value is longer than {max_length} characters.")
    else:
        return True
    return False


SCHEMA = Fields(
    {
        "columns": Field(ColumnsKind(), "The columns in their order, as a list or as a map of name to type.", True),
        "unique": Field(ListOf(COLUMN_NAME, 0, 32, distinct=True), "The columns that tell rows apart; never null."),
        "indexes": Field(
            ListOf(OneOrMany(ListOf(COLUMN_NAME, 1, 32, distinct=True)), 0, 32, distinct=True),
            "Further indexes, each a list of columns.",
        ),
    },
    "a map with `columns`",
)


def check_schema(record: Record) -> None:
    """Check that `unique` and `indexes` name columns that exist and can be compared."""
    columns = record.get("columns")
    if columns is None:
        return
    for name, place in _named_columns(record):
        column_record = columns.records.get(name)
        if column_record is None:
            check_column(name, place, columns)
        elif "type" in column_record.values and column_record.values["type"].kind is ColumnType.JSON:
            place.problem("invalid_value", f"The column `{name}` is json, which has no order.", "Leave it out.")
        elif column_record.get("nullable") is True and place.path.startswith(record.place.below("unique")):
            column_record.at("nullable").problem("unique_nullable", f"`{name}` is in `unique` and cannot be null.")


def check_column(name: str, place: DocumentPlace, columns: SchemaColumns) -> bool:
    """Whether the schema may have such a column."""
    if columns.complete and name not in columns.records:
        names = list(columns.records)
        hint = place.problems.did_you_mean(name, names) or f"It has {one_of(names[:20])}."
        place.problem("unknown_column", f"The schema has no column {shown(name)}.", hint)
        return False
    return True


def _named_columns(record: Record) -> list[tuple[str, DocumentPlace]]:
    references: list[tuple[str, DocumentPlace]] = []
    if "unique" in record.values:
        references += zip(record.values["unique"], record.at("unique").items(), strict=True)
    if "indexes" in record.values:
        for index, place in zip(record.values["indexes"], record.at("indexes").items(), strict=True):
            places = place.items() if isinstance(place.node, ListNode) else [place]
            references += zip(index, places, strict=True)
    return references


def build_schema(record: Record) -> Schema | None:
    """None if a column is invalid."""
    columns: SchemaColumns | None = record.get("columns")
    if columns is None or not columns.complete or len(columns.columns) != len(columns.records):
        return None
    unique = tuple(record.get("unique", ()))
    return Schema(
        columns=tuple(
            msgspec.structs.replace(column, nullable=column.nullable and column.name not in unique)
            for column in columns.columns
        ),
        unique=unique,
        indexes=tuple(tuple(index) for index in record.get("indexes", ())),
    )
