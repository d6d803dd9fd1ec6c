"""Rows of a dataset, read from the stores of a stack on its own machine.

Files are read by ETag, and their hashes are checked. A buffered dataset is a table, read as it is at one moment.
"""

import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.adapters.s3.access import ASKING, S3Access, StorePatience
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.client.stack import Stack
from tracelake.errors import TraceError
from tracelake.ports import ContentMismatchError, ObjectChangedError, ObjectMeta
from tracelake.storage.snapshots import Snapshot
from tracelake.wire import routes
from tracelake.wire.platform import DatasetFilesReply, DatasetFilesRequest
from tracelake.wire.task_calls import DataFile, TableColumn

T = TypeVar("T")
_BATCH_BYTES = 2**20


class NoColumnError(Exception):
    """The dataset has no such column; the message names those that it has."""


async def list_files(stack: Stack, request: DatasetFilesRequest) -> list[DataFile]:
    return (await find_files(stack, request))[1]


async def find_files(stack: Stack, request: DatasetFilesRequest) -> tuple[DatasetFilesReply, list[DataFile]]:
    """The registry's answer with the files of all its pages, as a service of the platform asks for them."""
    client = stack.internal_client()
    try:
        files: list[DataFile] = []
        while True:
            reply = await client.call(routes.LIST_DATASET_FILES, request)
            files += [file for unit in reply.units for file in unit.files]
            if reply.next is None:
                return reply, files
            request = msgspec.structs.replace(request, page=reply.next)
    finally:
        await client.close()


def read_files(
    access: S3Access, files: Sequence[DataFile], names: list[str] | None, patience: StorePatience = ASKING
) -> Generator[pa.Table, None, None]:
    """Fetched by calls that block: those that do not may outlive the command by a moment, and then abort it."""
    transfer = S3Transfer(access, patience)

    def download(file: DataFile, path: Path) -> None:
        try:
            transfer.download(ObjectMeta(file.uri, file.size, file.etag, file.sha256), path)
        except ContentMismatchError:
            raise TraceError("content_mismatch") from None
        except ObjectChangedError:
            message = "A file of the dataset is missing, or differs from the committed one."
            raise TraceError("artifact_missing", message) from None

    return read_downloads(download, files, names)


def read_downloads(
    download: Callable[[T, Path], None], files: Sequence[T], names: list[str] | None
) -> Generator[pa.Table, None, None]:
    with tempfile.TemporaryDirectory(prefix="trace-read-") as directory:
        path = Path(directory, "file.parquet")
        for file in files:
            download(file, path)
            with pq.ParquetFile(path) as parquet:
                check_columns(names, parquet.schema_arrow.names)
                yield parquet.read(columns=names)


def read_table(
    dsn: str, dataset_uuid: UUID, columns: Sequence[TableColumn], head: int | None, seconds: float | None = None
) -> Generator[pa.Table, None, None]:
    """First an empty table with the columns. The newest rows come first; all of them in no order, which a large table
    would have to be sorted for. `seconds`: how long the database may take."""
    rest = f"ORDER BY _commit_seq DESC, _publish_seq DESC, _line DESC LIMIT {head}" if head else ""
    with closing(Snapshot(dsn, [dataset_uuid], statement_seconds=seconds)) as snapshot:
        table = snapshot.table(dataset_uuid, columns)
        yield table.schema.empty_table()
        for batch in snapshot.rows(table, rest, batch_bytes=_BATCH_BYTES):
            yield pa.Table.from_batches([batch])


def check_columns(names: list[str] | None, columns: Sequence[str]) -> None:
    if missing := [name for name in names or () if name not in columns]:
        raise NoColumnError(f"there is no column {', '.join(missing)}; there are {', '.join(columns)}")
