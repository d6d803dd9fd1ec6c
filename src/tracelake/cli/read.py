"""`trace read`: rows of a dataset, for a look or as one file.

Which files are the dataset, the registry says: what lies beside them in the bucket was never committed, or was
replaced. They are read by ETag, and their hashes are checked. A buffered dataset is a table, and read as it is at one
moment. Whoever runs the stack reads from the stores themselves; whoever has a token alone, files over the public API.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import click
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.adapters.s3.access import ASKING
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.catalogue.context import NonRetryableError
from tracelake.cli.api_content import ApiContent
from tracelake.cli.export import check_target, plain, write_rows
from tracelake.cli.listing import Column, Listing
from tracelake.cli.parse import RangeType
from tracelake.cli.session import Session, user_command
from tracelake.client.stack import Stack
from tracelake.errors import TraceError
from tracelake.ports import ContentMismatchError, ObjectChangedError, ObjectMeta
from tracelake.settings import Settings
from tracelake.spark.tables import Snapshot
from tracelake.wire.content import ContentRequest
from tracelake.wire.platform import DatasetFilesReply, DatasetFilesRequest
from tracelake.wire.task_calls import DataFile, TableColumn

T = TypeVar("T")
_HEAD = 10


@click.command()
@click.argument("dataset")
@click.option(
    "--range", "blocks", type=RangeType(), help="Only units with a part in these blocks, like 0-999; of files."
)
@click.option("--head", type=click.IntRange(1, 10_000), help=f"So many rows (default {_HEAD}).")
@click.option("--columns", help="Only these columns, with commas between them.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write all rows to this file instead: .parquet, .csv or .jsonl.",
)
@click.option("--force", is_flag=True, help="Replace the file of --output if there is one.")
@user_command
def command(
    session: Session,
    dataset: str,
    blocks: Any,
    head: int | None,
    columns: str | None,
    output: Path | None,
    force: bool,
) -> None:
    """Show rows of a dataset, or write all of them to a file.

    Rows are those of the version that counts. The ending of the file is its format. In .csv and .jsonl bytes are 0x...
    and decimals are text.

    A buffered dataset is a table: its newest rows come first, there is no --range, and 256-bit numbers and json are
    text.

    \b
    Examples:
      trace read hourly_flows
      trace read transfers --range 0-499 --columns block_number,token,amount_f64
      trace read large_transfers --head 20
      trace read transfers --output transfers.parquet
      trace read large_transfers --output large.csv --force
      duckdb -c "SELECT token, count(*) FROM 'transfers.parquet' GROUP BY 1"
    """
    if output is not None and head is not None:
        raise click.UsageError("--output writes all rows: leave out --head.")
    if output is not None:
        check_target(output, force=force)
    elif force:
        raise click.UsageError("--force is for --output.")
    names = None if columns is None else [name.strip() for name in columns.split(",") if name.strip()]
    start, end = (None, None) if blocks is None else (blocks.start, blocks.end)
    try:
        with closing(_pieces(session, dataset, (start, end), names, None if output else head or _HEAD)) as pieces:
            found = _head(pieces, head or _HEAD) if output is None else write_rows(pieces, output, force=force)
    except pa.ArrowInvalid as error:
        raise click.ClickException(str(error).split(". Available", maxsplit=1)[0]) from None
    except NonRetryableError as error:
        raise click.ClickException(str(error)) from None
    if output is not None:
        if session.as_json:
            session.json({"file": str(output), "rows": found})
        else:
            session.say(f"{found:,} rows in {output}.")
        return
    assert isinstance(found, pa.Table)
    _show(session, found)


def _pieces(
    session: Session, dataset: str, blocks: tuple[int | None, int | None], names: list[str] | None, head: int | None
) -> Generator[pa.Table, None, None]:
    stack, (start, end) = session.stack, blocks
    if not os.access(stack.service_token_file, os.R_OK):
        return _over_the_api(ApiContent(session, dataset), ContentRequest(start=start, end=end), names)
    org = session.run(lambda client: client.whoami()).org
    request = DatasetFilesRequest(org=org, name=dataset, start=start, end=end)
    settings = Settings.load({"home": stack.home})
    reply, files = asyncio.run(_ask(stack, request))
    if reply.columns is None:
        return of_files(S3Transfer(settings.resolve_object_store(), ASKING), files, names)
    if start is not None:
        raise click.ClickException(f"{dataset} is a table and not kept by blocks: leave out --range.")
    columns = {column.name: column for column in reply.columns}
    _check_names(names, [*columns])
    wanted = [columns[name] for name in names or columns]
    return _of_table(settings.resolve_data_read_dsn(), reply.dataset_uuid, wanted, head)


def _over_the_api(
    content: ApiContent, request: ContentRequest, names: list[str] | None
) -> Generator[pa.Table, None, None]:
    reply, files = content.list_files(request)
    if reply.columns is not None:
        raise click.ClickException(
            f"{content.dataset} is a table, which is read on the machine of the stack: run `trace read` there, or ask"
            " whoever runs it for a role in Postgres data"
        )
    return _read_files(content.download, files, names)


async def list_files(stack: Stack, request: DatasetFilesRequest) -> list[DataFile]:
    return (await _ask(stack, request))[1]


async def _ask(stack: Stack, request: DatasetFilesRequest) -> tuple[DatasetFilesReply, list[DataFile]]:
    """The registry's answer with the files of all its pages, as a service of the platform asks for them."""
    client = stack.internal_client()
    try:
        found: list[DataFile] = []
        while True:
            reply = await client.dataset_files(request)
            found += [file for unit in reply.units for file in unit.files]
            if reply.next is None:
                return reply, found
            request = msgspec.structs.replace(request, page=reply.next)
    finally:
        await client.close()


def of_files(
    transfer: S3Transfer, files: Sequence[DataFile], names: list[str] | None
) -> Generator[pa.Table, None, None]:
    """Fetched by calls that block: those that do not may outlive the command by a moment, and then abort it."""

    def download(file: DataFile, path: Path) -> None:
        try:
            transfer.download(ObjectMeta(file.uri, file.size, file.etag, file.sha256), path)
        except ContentMismatchError:
            raise TraceError("content_mismatch") from None
        except ObjectChangedError:
            message = "A file of the dataset is not there, or not what was committed."
            raise TraceError("artifact_missing", message) from None

    return _read_files(download, files, names)


def _read_files(
    download: Callable[[T, Path], None], files: Sequence[T], names: list[str] | None
) -> Generator[pa.Table, None, None]:
    with tempfile.TemporaryDirectory(prefix="trace-read-") as directory:
        path = Path(directory, "file.parquet")
        for file in files:
            download(file, path)
            with pq.ParquetFile(path) as parquet:
                _check_names(names, parquet.schema_arrow.names)
                yield parquet.read(columns=names)


def _of_table(
    dsn: str, dataset_uuid: UUID, columns: list[TableColumn], head: int | None
) -> Generator[pa.Table, None, None]:
    """The newest rows first; all of them in no order, which a large table would have to be sorted for."""
    rest = f"ORDER BY _commit_seq DESC, _publish_seq DESC, _line DESC LIMIT {head}" if head else ""
    with closing(Snapshot(dsn, [dataset_uuid])) as snapshot:
        table = snapshot.table(dataset_uuid, columns)
        yield table.schema.empty_table()
        for batch in snapshot.rows(table, rest):
            yield pa.Table.from_batches([batch])


def _check_names(names: list[str] | None, there: Sequence[str]) -> None:
    if missing := [name for name in names or () if name not in there]:
        raise click.ClickException(f"there is no column {', '.join(missing)}; there are {', '.join(there)}")


def _head(pieces: Iterator[pa.Table], head: int) -> pa.Table:
    parts: list[pa.Table] = []
    for piece in pieces:
        parts.append(piece)
        if sum(part.num_rows for part in parts) >= head:
            break
    return pa.concat_tables(parts, promote_options="permissive").slice(0, head) if parts else pa.table({})


def _show(session: Session, table: pa.Table) -> None:
    rows = [[plain(value) for value in row.values()] for row in table.to_pylist()]
    if session.as_json:
        session.json([dict(zip(table.column_names, row, strict=True)) for row in rows])
        return
    if not rows:
        session.say("It has no rows.")
        return
    listing = Listing([Column(name, right=_is_number(table, name)) for name in table.column_names])
    for row in rows:
        listing.add(*("" if value is None else str(value) for value in row))
    session.show(listing)


def _is_number(table: pa.Table, name: str) -> bool:
    kind = table.schema.field(name).type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
