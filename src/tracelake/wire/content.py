"""The content of a dataset over the user API: which files there are, and their bytes piece by piece; or the rows of its
table."""

from typing import Annotated
from uuid import UUID

import msgspec

from tracelake.wire.base import Cursor, Reply, Request
from tracelake.wire.platform import FilesPage
from tracelake.wire.task_calls import TableColumn, check_range

PIECE_BYTES = 2**20
"""Of one answer at most."""


class ContentRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """The files of the current generation; of a range, or all of them."""

    start: Cursor | None = None
    end: Cursor | None = None
    page: FilesPage | None = None
    """What `next` of the page before said."""

    def __post_init__(self) -> None:
        check_range(self.start, self.end)


class ContentFile(Reply, frozen=True, kw_only=True):
    """A Parquet file, known by its place in its unit."""

    size: int
    sha256: str | None = None
    """In hex: check it when all pieces are there. Absent for what was committed without."""


class ContentUnit(Reply, frozen=True, kw_only=True):
    """A committed unit. Without a range it is all of the dataset."""

    start: int | None = None
    end: int | None = None
    revision: int
    files: list[ContentFile]


class ContentReply(Reply, frozen=True, kw_only=True):
    """All pages of a list are of one generation and one moment."""

    dataset_version: UUID
    units: list[ContentUnit]
    next: FilesPage | None = None
    """There are more: ask again with this as `page`."""
    columns: list[TableColumn] | None = None
    """Of a buffered dataset, which is a table and has no files."""


class RowsRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Rows of a buffered dataset, all of one moment."""

    columns: Annotated[list[str], msgspec.Meta(min_length=1, max_length=1000)] | None = None
    """Only these, in this order."""
    head: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    """So many of the newest, newest first. Without it all rows, in no order."""
