"""Between rows of Postgres and values: structs from rows, arrays for `unnest`, counts of changed rows."""

from collections.abc import Iterable
from typing import Any, TypeVar

import asyncpg
import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def to_struct(struct: type[T], row: asyncpg.Record, /, **computed: object) -> T:
    """A struct from the columns that have the names of its fields; `computed` holds what is no column as it is."""
    return msgspec.convert({**row, **computed}, struct)


def columns(rows: Iterable[Iterable[Any]], width: int = 0) -> list[list[Any]]:
    """The columns of these rows: the arrays that `unnest` takes. `width` is their number if there may be no row."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def affected(tag: str) -> int:
    """How many rows a statement changed, by its command tag."""
    return int(tag.rpartition(" ")[2])
