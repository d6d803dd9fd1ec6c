"""The content of a dataset over the public API: its files, the rows of its table, or both, as of one moment.

A caller needs a token and nothing of the stack's machine. Bytes that differ from the committed ones are an error.
"""

import hashlib
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, TypeVar
from uuid import UUID

import msgspec
import pyarrow as pa

from tracelake.client.errors import ClientError
from tracelake.client.live_reading import LiveFiles, PinnedLive
from tracelake.client.pinned_rows import PinnedFiles, PinnedRows, SpooledRows, check_columns, read_downloads
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.model.windows import parse_range
from tracelake.wire import routes
from tracelake.wire.content import ContentReply, ContentRequest, ContentUnit, LiveRows, RowsRequest
from tracelake.wire.jobs import BlockRange
from tracelake.wire.task_calls import TableColumn

T = TypeVar("T")


class CallRunner(Protocol):
    def __call__(self, work: Callable[[UserClient], Awaitable[T]], /) -> T:
        """Runs calls to their end, on an event loop of its own."""
        ...


@dataclass(frozen=True, slots=True)
class ApiFile:
    version: UUID
    unit: ContentUnit
    number: int
    """Its index in the unit."""

    @property
    def size(self) -> int:
        return self.unit.files[self.number].size

    @property
    def sha256(self) -> str | None:
        return self.unit.files[self.number].sha256


@dataclass(frozen=True, slots=True)
class ApiContent:
    """The files and rows of a dataset, fetched over the public API."""

    run: CallRunner
    dataset: str

    def find_ends(self, units: BlockRange | str | None) -> tuple[int | None, int | None]:
        """The first and the last position of a range; the seconds of windows of time that dates name."""
        if units is None or isinstance(units, BlockRange):
            return (None, None) if units is None else (units.start, units.end)
        grid = self.run(lambda client: client.call(routes.SHOW_DATASET, name=self.dataset)).units
        if grid is None or grid.by != "time":
            message = (
                f"expected a range of blocks like 1000-2000, received {units}: {self.dataset} has no windows of time"
            )
            raise ClientError("range_not_supported", message)
        try:
            return parse_range(grid, units)
        except ValueError as error:
            raise ClientError("range_not_supported", f"{self.dataset}: {error}") from None

    def list_files(self, request: ContentRequest) -> tuple[ContentReply, list[ApiFile]]:
        """The first page of the reply, with the rows of all pages, and the files of all pages."""
        return self.run(lambda client: self._list(client, request))

    def download(self, file: ApiFile, path: Path) -> None:
        """Downloads the committed bytes; raises TraceError if others arrive."""
        self.run(lambda client: self._download(client, file, path))

    def download_rows(self, request: RowsRequest, sink: Callable[[bytes], object]) -> None:
        """Downloads the rows of a table, as an Arrow stream."""
        self.run(lambda client: client.stream(routes.READ_ROWS, request, sink, name=self.dataset))

    async def _list(self, client: UserClient, request: ContentRequest) -> tuple[ContentReply, list[ApiFile]]:
        first = reply = await client.call(routes.LIST_CONTENT, request, name=self.dataset)
        files, rows = _files(first), first.rows
        while reply.next is not None:
            reply = await client.call(
                routes.LIST_CONTENT, msgspec.structs.replace(request, page=reply.next), name=self.dataset
            )
            files += _files(reply)
            rows = None if rows is None or reply.rows is None else rows + reply.rows
        return msgspec.structs.replace(first, rows=rows), files

    async def _download(self, client: UserClient, file: ApiFile, path: Path) -> None:
        content, offset = hashlib.sha256(), 0
        with path.open("wb") as target:
            while offset < file.size:
                piece = await client.call(
                    routes.READ_CONTENT,
                    name=self.dataset,
                    version=file.version,
                    start=file.unit.start,
                    end=file.unit.end,
                    revision=file.unit.revision,
                    file=file.number,
                    offset=offset,
                )
                if not piece:
                    raise TraceError("content_mismatch")
                content.update(piece)
                target.write(piece)
                offset += len(piece)
        if offset != file.size or file.sha256 not in (None, content.hexdigest()):
            raise TraceError("content_mismatch")


def _files(reply: ContentReply) -> list[ApiFile]:
    return [ApiFile(reply.dataset_version, unit, number) for unit in reply.units for number in range(len(unit.files))]


def pin_content(content: ApiContent, request: ContentRequest, names: list[str] | None, head: int | None) -> PinnedRows:
    """The rows as they are now. With `head`, at least so many of a table's newest rows, newest first."""
    reply, files = content.list_files(request)
    if reply.columns is None:
        return PinnedFiles(content.download, files, names, reply.rows)
    if reply.live:
        columns = choose_columns(content.dataset, reply.columns, names, None)
        source = ApiLiveSource(content, request, LiveFiles(files, reply.boundary))
        return PinnedLive(source, columns, (request.start, request.end), head)
    columns = choose_columns(content.dataset, reply.columns, names, request.start)
    rows = RowsRequest(columns=[column.name for column in columns], head=head)
    return SpooledRows(lambda file: content.download_rows(rows, file.write))


def choose_columns(
    dataset: str, declared: Sequence[TableColumn], names: list[str] | None, start: int | None
) -> list[TableColumn]:
    """Of a table, these columns or all of them; a table has no ranges."""
    if start is not None:
        message = f"{dataset} is a table, which has no block ranges: leave out the range."
        raise ClientError("range_not_supported", message)
    columns = {column.name: column for column in declared}
    check_columns(names, [*columns])
    return [columns[name] for name in names or columns]


@dataclass(slots=True)
class ApiLiveSource:
    """A live dataset over the public API."""

    content: ApiContent
    request: ContentRequest
    listed: LiveFiles[ApiFile] | None
    """What was listed already; the first look takes it."""

    def list_files(self) -> LiveFiles[ApiFile]:
        listed, self.listed = self.listed, None
        if listed is None:
            reply, files = self.content.list_files(self.request)
            listed = LiveFiles(files, reply.boundary)
        return listed

    def read_files(self, files: Sequence[ApiFile], names: list[str]) -> Generator[pa.Table, None, None]:
        return read_downloads(self.content.download, files, names, lacking=True)

    def store_rows(self, columns: Sequence[TableColumn], rows: LiveRows, head: int | None, file: IO[bytes]) -> None:
        request = RowsRequest(columns=[column.name for column in columns], head=head, live=rows)
        self.content.download_rows(request, file.write)
