"""How the table of a buffered dataset follows its declared schema: what may change, and what is refused.

A table is one for all versions, and rows may be there already: it only ever grows. A new column is nullable, a type
becomes wider, an index comes or goes. Everything else is refused with what to do instead.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from tracelake.model.dag import Column, ColumnType, Schema

RESERVED = frozenset({"org_id", "_task_id", "_publish_seq", "_line", "_commit_seq"})
"""Columns that every table has, beside the declared ones."""
SYSTEM = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
"""Names that Postgres keeps for itself in every table."""
MAX_UNIQUE = 31
"""An index has at most 32 columns, and the org is one of them."""

_WIDER = {
    ColumnType.INT16: (ColumnType.INT32, ColumnType.INT64, ColumnType.INT256),
    ColumnType.INT32: (ColumnType.INT64, ColumnType.INT256),
    ColumnType.INT64: (ColumnType.INT256,),
}
_ELSE = "Publish under another name instead."
_OR_ELSE = "or publish under another name."
_SHOWN_VALUES = 5


@dataclass(frozen=True, slots=True)
class TableChange:
    """One step of a migration, in words."""

    text: str


@dataclass(frozen=True, slots=True)
class TableRefusal:
    text: str
    where: str
    """What it is about, as a path below the schema."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    changes: tuple[TableChange, ...]
    refusals: tuple[TableRefusal, ...]
    """Why it cannot be. Empty: it can."""


def plan_table(old: Schema | None, new: Schema) -> TablePlan:
    """From the table as it is to the schema as it is declared now. Nobody looks at rows: any may be there."""
    if old is None:
        return TablePlan((TableChange(f"create the table ({len(new.columns)} columns)"),), ())
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
    implied = set(new.unique) - set(old.unique)  # that they are never null follows from `unique`
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
    return TablePlan(tuple(TableChange(text) for text in changes), tuple(refusals))


@dataclass(frozen=True, slots=True)
class TableGrowth:
    """What becomes of a table when a version is activated."""

    schema: Schema
    """Of the table afterwards; what it was if the version is refused."""
    changes: tuple[TableChange, ...]
    refusals: tuple[TableRefusal, ...]


def grow_table(old: Schema | None, declared: Schema) -> TableGrowth:
    """The smallest table that holds the rows it may have and those of a version that was registered before.

    Such a version was compared with the table of its own time: the table may have grown since, or taken another shape
    if the version never became active. Columns that the version does not declare stay. Indexes are the version's.
    """
    if old is None:
        return TableGrowth(declared, plan_table(None, declared).changes, ())
    columns = [
        column if (before := old.column(column.name)) is None else _widest(before, column)
        for column in declared.columns
    ]
    columns += [column for column in old.columns if declared.column(column.name) is None and column.nullable]
    merged = Schema(columns=tuple(columns), unique=declared.unique, indexes=declared.indexes)
    plan = plan_table(old, merged)
    return TableGrowth(old if plan.refusals else merged, plan.changes, plan.refusals)


def _widest(before: Column, declared: Column) -> Column:
    """A column that holds the values of both; as it is declared if there is none, which `plan_table` then refuses."""
    nullable = before.nullable or declared.nullable
    if before.type is not declared.type:
        wider = before if before.type in _WIDER.get(declared.type, ()) else declared
        return msgspec.structs.replace(wider, nullable=nullable)
    merged = msgspec.structs.replace(declared, nullable=nullable)
    if before.max_length is None or declared.max_length is None:
        merged = msgspec.structs.replace(merged, max_length=None)
    else:
        merged = msgspec.structs.replace(merged, max_length=max(before.max_length, declared.max_length))
    if before.enum is None or declared.enum is None:
        merged = msgspec.structs.replace(merged, enum=None)
    else:
        removed_values = [value for value in before.enum if value not in declared.enum]
        merged = msgspec.structs.replace(merged, enum=(*declared.enum, *removed_values))
    if before.type is ColumnType.DECIMAL and not any(True for _ in _narrower(declared, before)):
        merged = msgspec.structs.replace(merged, precision=before.precision, scale=before.scale)
    return merged


def describe(column: Column) -> str:
    """As it is written in a document."""
    words = _type(column)
    if column.enum is not None:
        words += f" of {len(column.enum)} values"
    return words if column.nullable else f"{words}, never null"


def _type(column: Column) -> str:
    if column.type is ColumnType.DECIMAL:
        return f"{column.type}({column.precision},{column.scale or 0})"
    return str(column.type) if column.max_length is None else f"{column.type}({column.max_length})"


def _values(values: Iterable[str]) -> str:
    words = ["`" + "".join(letter if letter.isprintable() else "?" for letter in value[:80]) + "`" for value in values]
    more = len(words) - _SHOWN_VALUES
    return ", ".join(words[:_SHOWN_VALUES]) + (f" and {more} more" if more > 0 else "")


def _wider(before: Column, after: Column) -> Iterator[str]:
    """What becomes of a column whose values all stay."""
    name = f"the column `{before.name}`"
    if _type(before) != _type(after):
        yield f"widen {name} from {_type(before)} to {_type(after)}"
    if before.enum is not None and after.enum is None:
        yield f"allow any text in {name}"
    elif added := [value for value in after.enum or () if value not in (before.enum or ())]:
        yield f"allow {_values(added)} in {name}"
    if after.nullable and not before.nullable:
        yield f"let {name} be null"


def _narrower(before: Column, after: Column) -> Iterator[tuple[str, str]]:
    """What the column may hold now and could not hold then, and the field that says so."""
    name = f"The column `{before.name}`"
    if before.nullable and not after.nullable:
        yield f"{name} may be null, also in rows that are there. Leave it nullable, {_OR_ELSE}", "nullable"
    if before.type is not after.type:
        if after.type not in _WIDER.get(before.type, ()):
            yield f"{name} is {before.type} and cannot become {after.type}. {_ELSE}", "type"
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
                f"{name} is {_type(before)}, which {_type(after)} cannot hold: {holds}. Keep that many, {_OR_ELSE}",
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
