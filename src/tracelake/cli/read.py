"""`trace read`: rows of a dataset, on the screen or as one file.

The registry names the files of the dataset; other files in the bucket were never committed, or were replaced. On the
machine of the stack rows are read from the stores themselves, elsewhere over the public API.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import msgspec
import pyarrow as pa

from tracelake.catalogue.context import NonRetryableError
from tracelake.cli.export import check_target, plain, write_rows
from tracelake.cli.gaps import find_gaps, tell_gaps
from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.options import RANGE
from tracelake.cli.session import Session, user_command
from tracelake.client.errors import RemoteError
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.settings import Settings
from tracelake.stack.dataset_rows import (
    NoColumnError,
    check_columns,
    find_files,
    read_downloads,
    read_files,
    read_table,
)
from tracelake.wire import routes
from tracelake.wire.content import ContentReply, ContentRequest, ContentUnit, RowsRequest
from tracelake.wire.platform import DatasetFilesRequest
from tracelake.wire.task_calls import TableColumn

_HEAD = 10


@click.command()
@click.argument("dataset")
@click.option("--range", "blocks", type=RANGE, help="Only units that touch these blocks, like 0-999 (not for tables).")
@click.option("--head", type=click.IntRange(1, 10_000), help=f"Show this many rows (default {_HEAD}).")
@click.option("--columns", help="Only these columns, separated by commas.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write all rows to this file instead: .parquet, .csv or .jsonl.",
)
@click.option("--force", is_flag=True, help="Replace the file of --output if it exists.")
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

    The rows are those of the current generation. The ending of the file chooses its format. In .csv and .jsonl, bytes
    are written as 0x... and decimals as text.

    A buffered dataset is a table: its newest rows come first, it takes no --range, and 256-bit numbers and json are
    text.

    Gaps (units that are missing, were skipped or canceled) are named on standard error. A unit that was computed and
    has no rows is no gap.

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
            count = _head(pieces, head or _HEAD) if output is None else write_rows(pieces, output, force=force)
    except pa.ArrowInvalid as error:
        raise click.ClickException(str(error).split(". Available", maxsplit=1)[0]) from None
    except (NoColumnError, NonRetryableError) as error:
        raise click.ClickException(str(error)) from None
    except TraceError as error:
        if error.code != "dataset_not_committed":
            raise
        # The advice of the catalogue is for programs, which may name another generation.
        message = f"{dataset} has no data yet: no task has committed a unit of it. See why: `trace why {dataset}`."
        raise RemoteError(error.code, error.status, message) from None
    gaps = find_gaps(session, dataset, start, end)
    tell_gaps(gaps)
    if output is not None:
        session.answer({"file": str(output), "rows": count, "gaps": gaps})
        session.say(f"{count:,} rows in {output}.")
        return
    assert isinstance(count, pa.Table)
    _show(session, count)


def _pieces(
    session: Session, dataset: str, blocks: tuple[int | None, int | None], names: list[str] | None, head: int | None
) -> Generator[pa.Table, None, None]:
    stack, (start, end) = session.stack, blocks
    if not os.access(stack.service_token_file, os.R_OK):
        return _over_the_api(ApiContent(session, dataset), ContentRequest(start=start, end=end), names, head)
    org = session.run(lambda client: client.call(routes.WHOAMI)).org
    request = DatasetFilesRequest(org=org, name=dataset, start=start, end=end)
    settings = Settings.load({"home": stack.home})
    reply, files = session.run(lambda _: find_files(stack, request), dataset=dataset)
    if reply.columns is None:
        return read_files(settings.resolve_object_store(), files, names)
    columns = _choose_columns(dataset, reply.columns, names, start)
    return read_table(settings.resolve_data_read_dsn(), reply.dataset_uuid, columns, head)


def _over_the_api(
    content: "ApiContent", request: ContentRequest, names: list[str] | None, head: int | None
) -> Generator[pa.Table, None, None]:
    reply, files = content.list_files(request)
    if reply.columns is None:
        return read_downloads(content.download, files, names)
    columns = _choose_columns(content.dataset, reply.columns, names, request.start)
    return _read_rows(content, RowsRequest(columns=[column.name for column in columns], head=head))


def _choose_columns(
    dataset: str, declared: Sequence[TableColumn], names: list[str] | None, start: int | None
) -> list[TableColumn]:
    if start is not None:
        raise click.ClickException(f"{dataset} is a table, which has no block ranges: leave out --range.")
    columns = {column.name: column for column in declared}
    check_columns(names, [*columns])
    return [columns[name] for name in names or columns]


def _read_rows(content: "ApiContent", request: RowsRequest) -> Generator[pa.Table, None, None]:
    """Yields rows by way of an unnamed file, so that nothing is shown or written before all of it has arrived."""
    with tempfile.TemporaryFile(prefix="trace-read-") as file:
        content.download_rows(request, file.write)
        file.seek(0)
        with pa.ipc.open_stream(file) as stream:
            yield stream.schema.empty_table()
            for batch in stream:
                yield pa.Table.from_batches([batch])


def _head(pieces: Iterator[pa.Table], head: int) -> pa.Table:
    parts: list[pa.Table] = []
    for piece in pieces:
        parts.append(piece)
        if sum(part.num_rows for part in parts) >= head:
            break
    return pa.concat_tables(parts, promote_options="permissive").slice(0, head) if parts else pa.table({})


def _show(session: Session, table: pa.Table) -> None:
    rows = [[plain(value) for value in row.values()] for row in table.to_pylist()]
    session.answer([dict(zip(table.column_names, row, strict=True)) for row in rows])
    if not rows:
        # A unit without rows has a file with its columns.
        computed = table.num_columns > 0
        session.say("It has no rows." if computed else "No unit of it is there.")
        return
    session.show(Listing(rows, *(_column(place, field) for place, field in enumerate(table.schema))))


def _column(place: int, field: pa.Field) -> ListingColumn[list[Any]]:
    is_number = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return ListingColumn(
        field.name,
        lambda row: "" if row[place] is None else str(row[place]),
        right=any(is_one(field.type) for is_one in is_number),
    )


# --- over the API


@dataclass(frozen=True, slots=True)
class ApiFile:
    version: UUID
    unit: ContentUnit
    number: int
    """Its index in the unit."""


@dataclass(frozen=True, slots=True)
class ApiContent:
    """The files and rows of a dataset over the public API, for callers without the files of the stack's machine."""

    session: Session
    dataset: str

    def list_files(self, request: ContentRequest) -> tuple[ContentReply, list[ApiFile]]:
        """The first page of the reply, and the files of all pages."""
        return self.session.run(lambda client: self._list(client, request))

    def download(self, file: ApiFile, path: Path) -> None:
        """Downloads the committed bytes; raises TraceError if others arrive."""
        self.session.run(lambda client: self._download(client, file, path))

    def download_rows(self, request: RowsRequest, sink: Callable[[bytes], object]) -> None:
        """Downloads the rows of a table, as an Arrow stream."""
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
