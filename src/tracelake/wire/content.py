"""The content of a dataset in the user API: its files and their bytes in pieces, or the rows of its table."""

from typing import Annotated
from uuid import UUID

import msgspec

from tracelake.wire.base import Cursor, Reply, Request
from tracelake.wire.platform import FilesPage
from tracelake.wire.task_calls import TableColumn, check_range

PIECE_BYTES = 2**20
"""The largest piece of one reply."""


class ContentRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Asks for the files of the current generation, all or those of a range."""

    start: Cursor | None = None
    end: Cursor | None = None
    page: FilesPage | None = None
    """`next` of the previous page."""

    def __post_init__(self) -> None:
        check_range(self.start, self.end)


class ContentFile(Reply, frozen=True, kw_only=True):
    """A Parquet file, identified by its position in its unit."""

    size: int
    sha256: str | None = None
    """In hex; check it when all pieces are read. Absent if the file was committed without one."""


class ContentUnit(Reply, frozen=True, kw_only=True):
    """A committed unit. Without a range it is the whole dataset."""

    start: int | None = None
    end: int | None = None
    revision: int
    files: list[ContentFile]


class ContentReply(Reply, frozen=True, kw_only=True):
    """A page of files. All pages of a list show one generation at one moment."""

    dataset_version: UUID
    units: list[ContentUnit]
    next: FilesPage | None = None
    """Present if there are more: repeat the call with this as `page`."""
    columns: list[TableColumn] | None = None
    """The columns of a buffered dataset, which is a table and has no files."""


class RowsRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Asks for rows of a buffered dataset, all as of one moment."""

    columns: Annotated[list[str], msgspec.Meta(min_length=1, max_length=1000)] | None = None
    """Only these, in this order."""
    head: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    """Only this many of the newest rows, newest first. Without it all rows, in no order."""
