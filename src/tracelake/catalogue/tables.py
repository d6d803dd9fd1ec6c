"""How the table of a buffered dataset follows its declared schema: what may change, and what is refused.

A table is one for all generations, and rows are there already: it only ever grows. A new column is nullable, a type
becomes wider, an index comes or goes. Everything else is refused with what to do instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class TableChange:
    """One step of a migration, in words."""

    text: str


@dataclass(frozen=True, slots=True)
class TablePlan:
    changes: tuple[TableChange, ...]
    refusals: tuple[str, ...]
    """Why it cannot be. Empty: it can."""


def plan_table(old: Schema | None, new: Schema) -> TablePlan:
    """From the table as it is to the schema as it is declared now."""
    if old is None:
        return TablePlan((TableChange(f"create the table ({len(new.columns)} columns)"),), ())
    changes: list[TableChange] = []
    refusals: list[str] = []
    if old.unique != new.unique:
        was, is_now = ", ".join(old.unique), ", ".join(new.unique)
        refusals.append(f"`unique` was ({was}) and cannot become ({is_now}): rows are told apart by it. {_ELSE}")
    refusals += [
        f"The column `{column.name}` cannot be taken away: rows hold it. Keep it, or publish under another name."
        for column in old.columns
        if new.column(column.name) is None
    ]
    for column in new.columns:
        before = old.column(column.name)
        if before is None:
            if column.nullable:
                changes.append(TableChange(f"add the column `{column.name}` ({describe(column)})"))
            else:
                refusals.append(f"The new column `{column.name}` must be nullable: rows without it are there already.")
        elif before != column:
            reasons = list(_narrower(before, column))
            refusals += reasons
            if not reasons:
                changes.append(
                    TableChange(f"widen the column `{column.name}` from {describe(before)} to {describe(column)}")
                )
    changes += [
        TableChange(f"add an index on ({', '.join(index)})") for index in new.indexes if index not in old.indexes
    ]
    changes += [
        TableChange(f"drop the index on ({', '.join(index)})") for index in old.indexes if index not in new.indexes
    ]
    return TablePlan(tuple(changes), tuple(refusals))


def describe(column: Column) -> str:
    """As it is written in a document."""
    words = str(column.type)
    if column.type is ColumnType.DECIMAL:
        words += f"({column.precision},{column.scale or 0})"
    elif column.max_length is not None:
        words += f"({column.max_length})"
    if column.enum is not None:
        words += f" of {len(column.enum)} values"
    return words if column.nullable else f"{words}, never null"


def _narrower(before: Column, after: Column) -> Iterator[str]:
    """What the column holds now and could not hold then."""
    name = f"The column `{before.name}`"
    if before.type is not after.type:
        if after.type not in _WIDER.get(before.type, ()):
            yield f"{name} is {before.type} and cannot become {after.type}. {_ELSE}"
        return
    if before.nullable and not after.nullable:
        yield f"{name} may be null and cannot become one that may not."
    if after.max_length is not None and (before.max_length is None or before.max_length > after.max_length):
        yield f"{name} holds longer values than {after.max_length}."
    if before.type is ColumnType.DECIMAL:
        old_scale, new_scale = before.scale or 0, after.scale or 0
        whole = (after.precision or 0) - new_scale >= (before.precision or 0) - old_scale
        if new_scale < old_scale or not whole:
            yield f"{name} is {describe(before)}, which {describe(after)} cannot hold."
    if after.enum is not None and (before.enum is None or not set(before.enum) <= set(after.enum)):
        yield f"{name} holds values that the new `enum` does not have."
