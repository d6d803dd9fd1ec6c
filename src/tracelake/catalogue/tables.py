"""How the table of a buffered dataset follows its declared schema: which changes are allowed, and which are refused.

All versions of a DAG share one table, which may hold rows already, so it only ever grows: a new column is nullable, a
type becomes wider, an index is added or dropped. Everything else is refused, with what to do instead.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from tracelake.model.dag import Column, ColumnType, Schema

RESERVED = frozenset({"org_id", "_task_id", "_publish_seq", "_line", "_commit_seq"})
"""Columns that the table of every buffered dataset has besides the declared ones."""
DIRECT_RESERVED = frozenset({"org_id", "_task_id", "_scope", "_commit_seq"})
"""Those of a table that tasks write directly."""
SYSTEM = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
"""Names that Postgres reserves in every table."""
MAX_UNIQUE = 31
"""An index has at most 32 columns, and the org is one of them."""

ORDERED_TYPES = frozenset(
    {
        ColumnType.INT16,
        ColumnType.INT32,
        ColumnType.INT64,
        ColumnType.INT256,
        ColumnType.UINT256,
        ColumnType.FLOAT64,
        ColumnType.DECIMAL,
        ColumnType.TIMESTAMP,
        ColumnType.DATE,
    }
)
"""Types of a column by which the newest row is found: numbers and times, whose order is the same everywhere."""

_WIDER = {
    ColumnType.INT16: (ColumnType.INT32, ColumnType.INT64, ColumnType.INT256),
    ColumnType.INT32: (ColumnType.INT64, ColumnType.INT256),
    ColumnType.INT64: (ColumnType.INT256,),
}
_ELSE = "Publish under another name instead."
_OR_ELSE = "or publish under another name."
_SHOWN_VALUES = 5


@dataclass(frozen=True, slots=True)
class TableRefusal:
    """Why a table cannot follow a schema."""

    text: str
    where: str
    """The part of the schema that is refused, as a path."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The migration of a table; it is possible unless there are refusals."""

    schema: Schema
    """The schema that the table has afterwards."""
    changes: tuple[str, ...]
    """The steps, in words."""
    refusals: tuple[TableRefusal, ...]


def plan_table(old: Schema | None, new: Schema) -> TablePlan:
    """The migration from the table's schema to the declared one. Rows are not read: the table may hold any."""
    if old is None:
        return TablePlan(new, (f"create the table ({len(new.columns)} columns)",), ())
    changes: list[str] = []
    refusals: list[TableRefusal] = []
    if old.unique != new.unique:
        was, is_now = ", ".join(old.unique), ", ".join(new.unique)
        text = f"`unique` was ({was}) and cannot become ({is_now}): rows are told apart by it. {_ELSE}"
        refusals.append(TableRefusal(text, "unique"))
    refusals += [
        TableRefusal(
            f"The column `{column.name}` cannot be taken away: rows may hold it. Keep it, {_OR_ELSE}", "columns"
        )
        for column in old.columns
        if new.column(column.name) is None
    ]
    implied = set(new.unique) - set(old.unique)  # they are never null because they are in `unique`
    for index, column in enumerate(new.columns):
        place = f"columns[{index}]"
        before = old.column(column.name)
        if before is not None:
            reasons = [
                TableRefusal(text, f"{place}.{field}")
                for text, field in _narrower(before, column)
                if field != "nullable" or column.name not in implied
            ]
            refusals += reasons
            changes += [] if reasons else _wider(before, column)
        elif column.nullable:
            changes.append(f"add the column `{column.name}` ({describe(column)})")
        elif column.name not in implied:
            text = f"The new column `{column.name}` must be nullable: rows without it may be there already."
            refusals.append(TableRefusal(f"{text} Leave out `nullable: false`.", f"{place}.nullable"))
    changes += [f"add an index on ({', '.join(index)})" for index in new.indexes if index not in old.indexes]
    changes += [f"drop the index on ({', '.join(index)})" for index in old.indexes if index not in new.indexes]
    return TablePlan(old if refusals else new, tuple(changes), tuple(refusals))


def grow_table(old: Schema | None, declared: Schema) -> TablePlan:
    """The migration to the smallest table that holds both its own rows and those of a version registered earlier.

    Such a version was compared with the table of its time. The table may have grown since, or have another shape if
    the version never became active. Columns that the version does not declare stay. Indexes are the version's.
    """
    if old is None:
        return plan_table(None, declared)
    columns = [
        column if (before := old.column(column.name)) is None else _widest(before, column)
        for column in declared.columns
    ]
    columns += [column for column in old.columns if declared.column(column.name) is None and column.nullable]
    grown = Schema(
        columns=tuple(columns),
        unique=declared.unique,
        indexes=declared.indexes,
        newest_wins=declared.newest_wins,
    )
    return plan_table(old, grown)


def _widest(before: Column, declared: Column) -> Column:
    """A column that holds the values of both; the declared one if there is none, which `plan_table` then refuses."""
    nullable = before.nullable or declared.nullable
    if before.type is not declared.type:
        wider = before if before.type in _WIDER.get(declared.type, ()) else declared
        return msgspec.structs.replace(wider, nullable=nullable)
    max_length, enum = None, None
    if before.max_length is not None and declared.max_length is not None:
        max_length = max(before.max_length, declared.max_length)
    if before.enum is not None and declared.enum is not None:
        enum = tuple(dict.fromkeys((*declared.enum, *before.enum)))
    digits = before if before.type is ColumnType.DECIMAL and not any(_narrower(declared, before)) else declared
    return msgspec.structs.replace(
        declared,
        nullable=nullable,
        max_length=max_length,
        enum=enum,
        precision=digits.precision,
        scale=digits.scale,
    )


def describe(column: Column) -> str:
    """The column as a document would declare it."""
    words = type_text(column)
    if column.enum is not None:
        words += f" of {len(column.enum)} values"
    return words if column.nullable else f"{words}, never null"


def type_text(column: Column) -> str:
    """The type as a document declares it."""
    if column.type is ColumnType.DECIMAL:
        return f"{column.type}({column.precision},{column.scale or 0})"
    if column.nested is not None:
        return column.nested
    return str(column.type) if column.max_length is None else f"{column.type}({column.max_length})"


def _values(values: Iterable[str]) -> str:
    words = ["`" + "".join(letter if letter.isprintable() else "?" for letter in value[:80]) + "`" for value in values]
    more = len(words) - _SHOWN_VALUES
    return ", ".join(words[:_SHOWN_VALUES]) + (f" and {more} more" if more > 0 else "")


def _wider(before: Column, after: Column) -> Iterator[str]:
    """The changes of a column that still holds all of its values, in words."""
    name = f"the column `{before.name}`"
    if type_text(before) != type_text(after):
        yield f"widen {name} from {type_text(before)} to {type_text(after)}"
    if before.enum is not None and after.enum is None:
        yield f"allow any text in {name}"
    elif added := [value for value in after.enum or () if value not in (before.enum or ())]:
        yield f"allow {_values(added)} in {name}"
    if after.nullable and not before.nullable:
        yield f"let {name} be null"


def _narrower(before: Column, after: Column) -> Iterator[tuple[str, str]]:
    """What the column may hold before but not after the change, and the field that forbids it."""
    name = f"The column `{before.name}`"
    if before.nullable and not after.nullable:
        yield f"{name} may be null, also in rows that are there. Leave it nullable, {_OR_ELSE}", "nullable"
    if before.type is not after.type:
        if after.type not in _WIDER.get(before.type, ()):
            yield f"{name} is {before.type} and cannot become {after.type}. {_ELSE}", "type"
        return
    if before.nested != after.nested:
        yield f"{name} is {type_text(before)} and cannot become {type_text(after)}. {_ELSE}", "type"
        return
    if after.max_length is not None and before.max_length is None:
        yield (
            f"{name} may hold values of any length; it cannot be limited to {after.max_length}. "
            f"Leave the length out, {_OR_ELSE}",
            "max_length",
        )
    elif after.max_length is not None and before.max_length is not None and before.max_length > after.max_length:
        longest = f"{name} may hold values of up to {before.max_length}"
        yield f"{longest}; it cannot become shorter. Keep the length, {_OR_ELSE}", "max_length"
    if before.type is ColumnType.DECIMAL:
        old_scale, new_scale = before.scale or 0, after.scale or 0
        old_whole, new_whole = (before.precision or 0) - old_scale, (after.precision or 0) - new_scale
        if new_scale < old_scale or new_whole < old_whole:
            holds = f"it may hold {old_whole} digits before the point and {old_scale} after it"
            yield (
                f"{name} is {type_text(before)}, which {type_text(after)} cannot hold: {holds}. "
                f"Keep that many, {_OR_ELSE}",
                "precision" if new_whole < old_whole else "scale",
            )
    if after.enum is not None and before.enum is None:
        yield f"{name} may hold any text; it cannot be limited by an `enum`. Leave it out, {_OR_ELSE}", "enum"
    elif removed_values := [value for value in before.enum or () if after.enum is not None and value not in after.enum]:
        them = "Keep it" if len(removed_values) == 1 else "Keep them"
        yield (
            f"{name} may hold {_values(removed_values)}, which the new `enum` does not have. {them}, {_OR_ELSE}",
            "enum",
        )
