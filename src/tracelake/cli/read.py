"""`trace read`: rows of a dataset, on the screen, as one file, or for a program.

The registry names the files of the dataset; other files in the bucket were never committed, or were replaced. On the
machine of the stack rows are read from the stores themselves; elsewhere, and with a token that somebody gives, over the
public API (`client/content.py`).
"""

import io
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, BinaryIO
from uuid import UUID

import click
import pyarrow as pa

from tracelake.catalogue.context import NonRetryableError
from tracelake.cli.export import check_target, write_rows
from tracelake.cli.gaps import ask_open_work, list_gaps, tell_gaps, tell_open_work
from tracelake.cli.options import RANGE_OR_WINDOWS
from tracelake.cli.row_formats import BINARY_ENDINGS, ENDINGS, unique_names, with_hex, write_pieces
from tracelake.cli.row_table import show_rows
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import clean_lines
from tracelake.client.content import ApiContent, choose_columns, pin_content
from tracelake.client.errors import ClientError, RemoteError
from tracelake.client.live_reading import LiveFiles, read_live
from tracelake.client.pinned_rows import with_count
from tracelake.client.stack import LocalStack
from tracelake.client.user import is_own_token
from tracelake.errors import TraceError
from tracelake.query.results import encode_rows
from tracelake.settings import Settings
from tracelake.stack.dataset_rows import find_files, read_files, read_table
from tracelake.wire import routes
from tracelake.wire.content import COUNT_KEY, MOST_HEAD, ContentRequest, LiveRows
from tracelake.wire.datasets import DatasetDetail
from tracelake.wire.platform import DatasetFilesRequest
from tracelake.wire.task_calls import DataFile, TableColumn

_HEAD = 10
_ANY_SIZE = 2**62
_STDOUT = Path("-")
_FORMATS = [ending.removeprefix(".") for ending in ENDINGS if ending != ".feather"]


@click.command()
@click.argument("dataset")
@click.option(
    "--range",
    "blocks",
    type=RANGE_OR_WINDOWS,
    help="Only units that touch these blocks, like 0-999; or these windows, like 2026-03-03 (for datasets with files).",
)
@click.option(
    "--head", "--limit", "head", type=click.IntRange(1, MOST_HEAD), help=f"Show this many rows (default {_HEAD})."
)
@click.option("--columns", help="Only these columns, separated by commas.")
@click.option("--wide", is_flag=True, help="Show all columns and whole values, wider than the terminal.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help=f"Write all rows to this file; its ending chooses the format: {', '.join(ENDINGS)}. `-` is standard output.",
)
@click.option(
    "--format", "stdout_format", type=click.Choice(_FORMATS), help="The format of `--output -` (default: csv)."
)
@click.option("--force", is_flag=True, help="Replace the file of --output if it exists.")
@click.option("--hex", "as_hex", is_flag=True, help="In .parquet and .arrow too, write bytes as text (0x...).")
@user_command
def command(
    session: Session,
    dataset: str,
    blocks: Any,
    head: int | None,
    columns: str | None,
    wide: bool,
    output: Path | None,
    stdout_format: str | None,
    force: bool,
    as_hex: bool,
) -> None:
    """Show rows of a dataset, or write all of them to a file.

    The rows are those of the current generation. On a terminal, long values are shortened and columns that do not fit
    are left out, which the last line says; --wide shows everything.

    Bytes, such as addresses and hashes, are shown and written as 0x..., but stay bytes in .parquet and .arrow, unless
    --hex is given. Numbers keep all their digits: in .json and .jsonl, decimals and integers beyond 2^53 are text.
    The file of --output is readable by you alone (mode 0600), replaces no file without --force, and appears when it
    is whole; links, devices and pipes are refused.

    A buffered dataset is a table: its newest rows come first, it takes no --range, and 256-bit numbers and json are
    text. Its rows are counted up to 100,000; those of files are counted by the tasks that wrote them.

    A live dataset is files with a table above them, read as one: its newest rows come first, and --output has all of
    them in the order of their blocks. Of the table, --range takes exactly these blocks.

    Gaps (units that are missing, were skipped or canceled) are named on standard error. A unit that was computed and
    has no rows is no gap. A dataset that is still being computed is named there, too.

    \b
    Examples:
      trace read hourly_flows
      trace read transfers --range 0-499 --columns block_number,token,amount_f64
      trace read daily_activity --range 2026-03-03
      trace read large_transfers --head 20 --wide
      trace read transfers --output transfers.parquet
      trace read large_transfers --output large.csv --force
      trace read transfers --output - --format jsonl | head
      duckdb -c "SELECT token, count(*) FROM 'transfers.parquet' GROUP BY 1"

    `trace export` writes a directory that other tools read, and updates it.
    """
    _check_options(output, head, stdout_format, force=force, as_hex=as_hex)
    if output == _STDOUT and session.as_json:
        raise click.UsageError("--output - writes rows alone: leave out --json, or choose --format json.")
    names = None if columns is None else [name.strip() for name in columns.split(",") if name.strip()]
    start: int | None = None
    end: int | None = None
    limit = head or _HEAD
    rows: int | pa.Table
    # Programs ask `trace why --json`, and may read both streams as one.
    open_work = None if session.as_json else ask_open_work(session, dataset)
    try:
        start, end = ApiContent(session.run, dataset).find_ends(blocks)
        # One row more than is shown tells whether there are others.
        with closing(_pieces(session, dataset, (start, end), names, None if output else limit + 1)) as pieces:
            if output is None:
                rows = _head(pieces, limit + 1)
            else:
                all_pieces = map(with_hex, pieces) if as_hex else pieces
                rows = _write(all_pieces, output, f".{stdout_format or 'csv'}", force=force)
    except pa.ArrowInvalid as error:
        raise click.ClickException(str(error).split(". Available", maxsplit=1)[0]) from None
    except NonRetryableError as error:
        raise click.ClickException(str(error)) from None
    except TraceError as error:
        if isinstance(error, ClientError):
            raise click.ClickException(error.message.replace("leave out the range", "leave out --range")) from None
        raise no_data_yet(error, dataset) from None
    detail = _find_detail(session, dataset)
    gaps = [] if detail is None else list_gaps(detail, start, end)
    tell_gaps(gaps)
    tell_open_work(open_work)
    if not isinstance(rows, int):
        is_cut = rows.num_rows > limit
        page = rows.slice(0, limit) if is_cut else rows
        total = _total(None if blocks is not None else detail, page)
        _show(session, page, total, more=is_cut, wide=wide)
        # A unit without rows has a file with its columns.
        if not page.num_rows:
            is_covered = blocks is None or page.num_columns > 0
            session.say("It has no rows." if is_covered else f"No unit of {dataset} covers this range.")
    elif output != _STDOUT:
        session.answer({"file": str(output), "rows": rows, "gaps": gaps})
        session.say(f"{rows:,} rows in {output}.")


def no_data_yet(error: TraceError, dataset: str) -> TraceError:
    """The error; of a dataset without data one for people. The advice of the catalogue is for programs, which may name
    another generation."""
    if error.code != "dataset_not_committed":
        return error
    message = f"{dataset} has no data yet: no task has committed a unit of it. See why: `trace why {dataset}`."
    return RemoteError(error.code, error.status, message)


def _check_options(
    output: Path | None, head: int | None, stdout_format: str | None, *, force: bool, as_hex: bool
) -> None:
    if output is None:
        for name, is_given in (("--force", force), ("--format", stdout_format is not None), ("--hex", as_hex)):
            if is_given:
                raise click.UsageError(f"{name} is for --output.")
        return
    if head is not None:
        raise click.UsageError("--output writes all rows: leave out --head.")
    if output != _STDOUT:
        if stdout_format is not None:
            raise click.UsageError("--format is for `--output -`: the ending of a file chooses its format.")
        check_target(output, force=force)
    elif f".{stdout_format}" in BINARY_ENDINGS and sys.stdout.isatty():
        raise click.UsageError(f"--format {stdout_format} is not for a terminal: redirect standard output to a file.")


def _write(pieces: Iterator[pa.Table], output: Path, ending: str, *, force: bool) -> int:
    if output != _STDOUT:
        return write_rows(pieces, output, force=force)
    first = next(pieces, None)
    if first is None:
        raise click.ClickException("the dataset has no files yet, so there is nothing to write")
    stream: BinaryIO = sys.stdout.buffer
    sink = _CleanedText(stream) if stream.isatty() else stream
    rows = write_pieces(chain([first], pieces), ending, sink)
    sink.flush()
    return rows


class _CleanedText(io.BytesIO):
    """A terminal: no value may write control characters to it."""

    def __init__(self, terminal: BinaryIO) -> None:
        super().__init__()
        self._terminal = terminal

    def write(self, data: Any, /) -> int:
        # The writers pass on whole lines, never a part of a character.
        return self._terminal.write(clean_lines(bytes(data).decode()).encode())

    def flush(self) -> None:
        self._terminal.flush()


def _pieces(
    session: Session, dataset: str, blocks: tuple[int | None, int | None], names: list[str] | None, head: int | None
) -> Generator[pa.Table, None, None]:
    stack, (start, end) = session.stack, blocks
    # Without a range, the dataset itself says how many rows it has.
    count_rows = head is not None and start is not None
    if not isinstance(stack, LocalStack) or not _reads_stores(session, stack):
        content = ContentRequest(start=start, end=end, count_rows=count_rows)
        return _over_the_api(ApiContent(session.run, dataset), content, names, head)
    org = session.run(lambda client: client.call(routes.WHOAMI)).org
    request = DatasetFilesRequest(org=org, name=dataset, start=start, end=end, count_rows=count_rows)
    settings = Settings.load({"home": stack.home})
    reply, files = session.run(lambda _: find_files(stack, request), dataset=dataset)
    if reply.columns is None:
        return with_count(read_files(settings.resolve_object_store(), files, names), reply.rows)
    if reply.live:
        local = LocalLiveSource(session, stack, settings, request, reply.dataset_uuid, LiveFiles(files, reply.boundary))
        return read_live(local, choose_columns(dataset, reply.columns, names, None), blocks, head)
    columns = choose_columns(dataset, reply.columns, names, start)
    return read_table(settings.resolve_data_read_dsn(), reply.dataset_uuid, columns, head)


def _reads_stores(session: Session, stack: LocalStack) -> bool:
    """Whether the stores may be read for the caller: as the operator of this machine's stack, who gave no token. A
    token may be limited to DAGs, which only the API checks."""
    return is_own_token(stack, session.token_file) and os.access(stack.service_token_file, os.R_OK)


def _over_the_api(
    content: ApiContent, request: ContentRequest, names: list[str] | None, head: int | None
) -> Generator[pa.Table, None, None]:
    with closing(pin_content(content, request, names, head)) as pinned:
        yield from pinned.pieces()


def _head(pieces: Iterator[pa.Table], head: int) -> pa.Table:
    parts: list[pa.Table] = []
    for piece in pieces:
        parts.append(piece)
        if sum(part.num_rows for part in parts) >= head:
            break
    return pa.concat_tables(parts, promote_options="permissive").slice(0, head) if parts else pa.table({})


def _find_detail(session: Session, dataset: str) -> DatasetDetail | None:
    """What the registry tells of the dataset. Rows that can be read are shown, even if nobody tells their number."""
    try:
        return session.run(lambda client: client.call(routes.SHOW_DATASET, name=dataset))
    except TraceError:
        return None


def _total(detail: DatasetDetail | None, table: pa.Table) -> int | None:
    row_count = (table.schema.metadata or {}).get(COUNT_KEY)
    if row_count is not None and row_count.isdigit() and int(row_count) >= table.num_rows:
        return int(row_count)
    content = None if detail is None else detail.content
    if content is None or content.more or content.estimated or content.rows is None or content.rows < table.num_rows:
        return None
    return content.rows


def _show(session: Session, table: pa.Table, total: int | None, *, more: bool, wide: bool) -> None:
    names = unique_names(table.column_names)
    session.answer([dict(zip(names, row, strict=True)) for row in encode_rows(table, _ANY_SIZE)])
    if table.num_rows:
        show_rows(session, table, total, more=more, wide=wide)


@dataclass(slots=True)
class LocalLiveSource:
    """A live dataset in the stores of this machine's stack."""

    session: Session
    stack: LocalStack
    settings: Settings
    request: DatasetFilesRequest
    dataset_uuid: UUID
    listed: LiveFiles[DataFile] | None
    """What was listed already; the first look takes it."""

    def list_files(self) -> LiveFiles[DataFile]:
        listed, self.listed = self.listed, None
        if listed is None:
            reply, files = self.session.run(lambda _: find_files(self.stack, self.request))
            listed = LiveFiles(files, reply.boundary)
        return listed

    def read_files(self, files: Sequence[DataFile], names: list[str]) -> Generator[pa.Table, None, None]:
        return read_files(self.settings.resolve_object_store(), files, names, lacking=True)

    def store_rows(self, columns: Sequence[TableColumn], rows: LiveRows, head: int | None, file: IO[bytes]) -> None:
        dsn = self.settings.resolve_data_read_dsn()
        with (
            closing(read_table(dsn, self.dataset_uuid, columns, head, live=rows)) as pieces,
            pa.ipc.new_stream(file, next(pieces).schema) as writer,
        ):
            for piece in pieces:
                writer.write_table(piece)
