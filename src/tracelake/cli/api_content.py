"""Files and rows of a dataset over the public API, for people who have a token and none of the files of the stack's
machine."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import msgspec

from tracelake.cli.session import Session
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.content import ContentReply, ContentRequest, ContentUnit, RowsRequest


@dataclass(frozen=True, slots=True)
class ApiFile:
    version: UUID
    unit: ContentUnit
    number: int
    """Its place in the unit."""


@dataclass(frozen=True, slots=True)
class ApiContent:
    session: Session
    dataset: str

    def list_files(self, request: ContentRequest) -> tuple[ContentReply, list[ApiFile]]:
        """The first page, and the files of all."""
        return self.session.run(lambda client: self._list(client, request))

    def download(self, file: ApiFile, path: Path) -> None:
        """The committed bytes, checked; TraceError for any others."""
        self.session.run(lambda client: self._download(client, file, path))

    def download_rows(self, request: RowsRequest, sink: Callable[[bytes], object]) -> None:
        """Of a table, as an Arrow stream."""
        self.session.run(lambda client: client.stream(routes.READ_ROWS, request, sink, name=self.dataset))

    async def _list(self, client: UserClient, request: ContentRequest) -> tuple[ContentReply, list[ApiFile]]:
        first = reply = await client.call(routes.LIST_CONTENT, request, name=self.dataset)
        files = _files(first)
        while reply.next is not None:
            reply = await client.call(
                routes.LIST_CONTENT, msgspec.structs.replace(request, page=reply.next), name=self.dataset
            )
            files += _files(reply)
        return first, files

    async def _download(self, client: UserClient, file: ApiFile, path: Path) -> None:
        pinned = file.unit.files[file.number]
        content, offset = hashlib.sha256(), 0
        with path.open("wb") as target:
            while offset < pinned.size:
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
        if offset != pinned.size or pinned.sha256 not in (None, content.hexdigest()):
            raise TraceError("content_mismatch")


def _files(reply: ContentReply) -> list[ApiFile]:
    return [ApiFile(reply.dataset_version, unit, number) for unit in reply.units for number in range(len(unit.files))]
