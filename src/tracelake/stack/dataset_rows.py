"""Rows of a dataset, read from the stores of a stack on its own machine.

Files are read by ETag, and their hashes are checked. A table is read as it is at one moment. A live dataset is both
(`client/live_reading.py`).
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from uuid import UUID

import msgspec
import pyarrow as pa

from tracelake.adapters.s3.access import ASKING, S3Access, StorePatience
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.catalogue.context import NonRetryableError
from tracelake.client.pinned_rows import read_downloads
from tracelake.client.stack import LocalStack
from tracelake.errors import TraceError
from tracelake.model.buffered import quoted
from tracelake.ports import ContentMismatchError, ObjectChangedError, ObjectMeta
from tracelake.storage.live_rows import position_conditions
from tracelake.storage.snapshots import Snapshot, SnapshotTable
from tracelake.wire import routes
from tracelake.wire.content import COUNT_KEY, MOST_COUNTED, LiveRows
from tracelake.wire.platform import DatasetFilesReply, DatasetFilesRequest
from tracelake.wire.task_calls import DataFile, TableColumn

_BATCH_BYTES = 2**20


async def list_files(stack: LocalStack, request: DatasetFilesRequest) -> list[DataFile]:
    return (await find_files(stack, request))[1]


async def find_files(stack: LocalStack, request: DatasetFilesRequest) -> tuple[DatasetFilesReply, list[DataFile]]:
    """The registry's answer with the files and the rows of all its pages, as a service of the platform asks for it."""
    client = stack.internal_client()
    try:
        files: list[DataFile] = []
        rows: int | None = 0
        while True:
            reply = await client.call(routes.LIST_DATASET_FILES, request)
            files += [file for unit in reply.units for file in unit.files]
            rows = None if rows is None or reply.rows is None else rows + reply.rows
            if reply.next is None:
                return msgspec.structs.replace(reply, rows=rows), files
            request = msgspec.structs.replace(request, page=reply.next)
    finally:
        await client.close()


def read_files(
    access: S3Access,
    files: Sequence[DataFile],
    names: list[str] | None,
    patience: StorePatience = ASKING,
    *,
    lacking: bool = False,
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

    return read_downloads(download, files, names, lacking=lacking)


def read_table(
    dsn: str,
    dataset_uuid: UUID,
    columns: Sequence[TableColumn],
    head: int | None,
    seconds: float | None = None,
    live: LiveRows | None = None,
) -> Generator[pa.Table, None, None]:
    """First an empty table with the columns. The newest rows come first; all of them in no order, which a large table
    would have to be sorted for. With `head`, the metadata of the columns have the number of all rows (`COUNT_KEY`).
    `seconds`: how long the database may take. `live`: the rows that a list of files of a
    live dataset does not have, all of them in the order of their positions; raises `boundary_moved` first if some are
    in newer files."""
    is_live = live is not None
    with closing(Snapshot(dsn, [dataset_uuid], statement_seconds=seconds, skip_missing=is_live)) as snapshot:
        if live is not None:
            snapshot.check_boundary(dataset_uuid, live.boundary)
            if dataset_uuid not in snapshot.tables:  # nothing was written to it yet
                yield empty_table(columns)
                return
        table = snapshot.table(dataset_uuid, columns, newest_only=True)
        rest = f"{table.newest_first} LIMIT {head}" if head else ""
        if live is not None:
            rest = live_rows_of(table, live, rest)
        schema = table.schema
        if head and live is None:
            schema = schema.with_metadata({COUNT_KEY: str(snapshot.count_up_to(table, MOST_COUNTED + 1)).encode()})
        yield schema.empty_table()
        for batch in snapshot.rows(table, rest, batch_bytes=_BATCH_BYTES):
            yield pa.Table.from_batches([batch])


def empty_table(columns: Sequence[TableColumn]) -> pa.Table:
    return SnapshotTable(UUID(int=0), tuple(columns), (None,) * len(columns)).schema.empty_table()


def live_rows_of(table: SnapshotTable, live: LiveRows, newest: str) -> str:
    """What follows FROM: rows above the boundary. `newest`: their order and number, if not all are asked for."""
    if table.position is None:
        raise NonRetryableError("the table of a live dataset has no positions")
    conditions = position_conditions(table.position, live.boundary, live.start, live.end)
    order = newest or f"ORDER BY {quoted(table.position)}"
    return f"WHERE {conditions} {order}" if conditions else order
