"""The content of a dataset for its own org: the pinned files, and where the bytes of one of them are.

A file is named by generation, unit, revision and its place in the unit. Manifests do not change, so the same name is
the same bytes for as long as they are kept, whatever is committed meanwhile.
"""

from dataclasses import dataclass
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.views.files import list_dataset_files
from tracelake.errors import TraceError
from tracelake.wire.content import ContentReply, ContentRequest
from tracelake.wire.platform import DatasetFilesRequest
from tracelake.wire.task_calls import DataFile

_FILE = """
    SELECT m.objects -> $6::int
    FROM datasets d JOIN manifests m USING (dataset_uuid)
    WHERE d.org_id = $1 AND d.name = $2 AND d.removed_at IS NULL
      AND m.dataset_version = $3 AND m.unit = $4 AND m.revision = $5"""


@dataclass(frozen=True, slots=True)
class FileName:
    """Names one file of a dataset: the query of the route."""

    version: UUID
    revision: int
    file: int
    start: int | None
    end: int | None

    @property
    def unit(self) -> str:
        if (self.start is None) != (self.end is None):
            raise TraceError("body_invalid", "A range needs start and end.", field="end")
        return "*" if self.start is None else f"p:{self.start}-{self.end}"


async def list_content(
    connection: Connection, _org_id: UUID, org: str, dataset: str, body: ContentRequest
) -> ContentReply:
    request = DatasetFilesRequest(
        org=org, name=dataset, start=body.start, end=body.end, page=body.page, count_rows=body.count_rows
    )
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        reply = await list_dataset_files(connection, request)
    return msgspec.convert(reply, ContentReply, from_attributes=True)


async def find_file(connection: Connection, org_id: UUID, dataset: str, name: FileName) -> DataFile:
    place = (name.version, name.unit, name.revision, name.file)
    file = await connection.fetchval(_FILE, org_id, dataset, *place)
    if file is None:
        raise TraceError("dataset_not_found", "The dataset has no such file.", field="file")
    return msgspec.json.decode(file, type=DataFile)
