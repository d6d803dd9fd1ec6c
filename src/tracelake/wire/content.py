"""The content of a dataset in the user API: its files and their bytes in pieces, or the rows of its table."""

from typing import Annotated
from uuid import UUID

import msgspec

from tracelake.wire.base import Cursor, Reply, Request
from tracelake.wire.platform import FilesPage
from tracelake.wire.task_calls import TableColumn, check_range

PIECE_BYTES = 2**20
"""The largest piece of one reply."""
LOOKS = 5
"""How often a reader of a live dataset lists its files at most. A removal follows the commit of the next unit, so a
second look nearly always succeeds."""
MOVED = "boundary_moved"
COUNT_KEY = b"trace.rows"
"""In the metadata of an Arrow stream with the newest rows of a table: how many rows the table has, counted up to
`MOST_COUNTED + 1`. `trace read` keeps the number of rows of files there, too."""
MOST_COUNTED = 100_000
MOST_HEAD = 10_000
"""How many rows `trace read` shows at most. It asks for one more, which tells whether there are others."""


class ContentRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Asks for the files of the current generation, all or those of a range."""

    start: Cursor | None = None
    end: Cursor | None = None
    page: FilesPage | None = None
    """`next` of the previous page."""
    count_rows: bool = False
    """Have each page say how many rows its units have."""

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
    rows: int | None = None
    """With `count_rows`, the rows of all units of this page, as the tasks that wrote them report; absent if one of them
    does not, and of a live dataset."""
    columns: list[TableColumn] | None = None
    """The columns of a dataset with a table. Without `live` it has no files."""
    live: bool = False
    """The dataset is files and a table at once."""
    boundary: int | None = None
    """Of a live dataset: up to this position its rows are in the files, above it in the table. Absent: rows of the
    table are in no file yet, and both are read whole."""


class LiveRows(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Which rows of the table of a live dataset belong to a list of its files."""

    boundary: Cursor | None = None
    """That of the list: only rows above it."""
    start: Cursor | None = None
    end: Cursor | None = None
    """Only rows of these positions."""

    def __post_init__(self) -> None:
        check_range(self.start, self.end)


class RowsRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Asks for rows of the table of a dataset, all as of one moment."""

    columns: Annotated[list[str], msgspec.Meta(min_length=1, max_length=1000)] | None = None
    """Only these, in this order."""
    head: Annotated[int, msgspec.Meta(ge=1, le=MOST_HEAD + 1)] | None = None
    """Only this many of the newest rows, newest first; the metadata `trace.rows` of the stream then has the number of
    all rows, or 100,001 if there are more than 100,000. Without it all rows, in no order."""
    live: LiveRows | None = None
    """Required of a live dataset, whose files are listed first. If rows of the table have moved to newer files since,
    the reply is `boundary_moved`: list the files again."""
