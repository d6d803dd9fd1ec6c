"""`trace query --batch`: queries that run by themselves, on Spark."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import click
from rich.table import Table

from tracelake.cli.export import check_target
from tracelake.cli.query_shell import parse_parameter
from tracelake.cli.query_table import render, show_result
from tracelake.cli.session import Session
from tracelake.cli.text import clean
from tracelake.client.batch_query import BatchQuery, await_query, batch_request, check_done, save
from tracelake.client.query import QueryClient, find_source
from tracelake.wire.batch_query import FINAL_STATES, BatchQueryReply

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_SHOWN_ROWS = 1_000
_EXIT_INTERRUPTED = 130


def batch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of batch queries to `trace query`, and answers where one of them is given."""

    @click.option("--batch", is_flag=True,
                  help="Run it on Spark, in Spark SQL: for what is too large to be answered at once.")  # fmt: skip
    @click.option("--detach", is_flag=True, help="With --batch: print the query's id and do not wait for it.")
    @click.option("--status", "status_id", type=click.UUID, metavar="ID",
                  help="Show a batch query, and its result once it is done.")  # fmt: skip
    @click.option("--cancel", "cancel_id", type=click.UUID, metavar="ID", help="Cancel a batch query.")
    @click.option("--list", "is_list", is_flag=True, help="List your batch queries, newest first.")
    @functools.wraps(function)
    def with_batch(
        session: Session,
        *,
        batch: bool,
        detach: bool,
        status_id: UUID | None,
        cancel_id: UUID | None,
        is_list: bool,
        **options: Any,
    ) -> Any:
        requests = [batch, status_id is not None, cancel_id is not None, is_list]
        if sum(requests) > 1:
            raise click.UsageError("--batch, --status, --cancel and --list exclude each other.")
        if detach and not batch:
            raise click.UsageError("--detach is for --batch.")
        if not any(requests):
            return function(session, **options)
        if not batch and options.get("sql") is not None:
            raise click.UsageError("--status, --cancel and --list take no SQL.")
        output = _check_output(options)
        if is_list:
            return _list(session)
        if cancel_id is not None:
            return _cancel(session, cancel_id)
        if status_id is not None:
            return _show(session, status_id, output)
        return _submit(session, options, output, detach=detach)

    return with_batch


def _check_output(options: dict[str, Any]) -> Path | None:
    output: Path | None = options.get("output")
    if output is not None:
        check_target(output, force=options.get("force", False), endings=(".parquet",))
    return output


def _submit(session: Session, options: dict[str, Any], output: Path | None, *, detach: bool) -> None:
    if options.get("sql") is None:
        raise click.UsageError("--batch needs the SQL of the query.")
    if options.get("timeout") is not None:
        raise click.UsageError("--timeout is for queries that are answered at once; batch queries have a setting.")
    parameters = dict(parse_parameter(text) for text in options.get("parameters", ()))
    request = batch_request(options["sql"], parameters, options.get("limit"))
    query = _ask(session, lambda client: client.submit(request))
    if detach:
        session.answer(query)
        click.echo(str(query.query_id))
        return
    _note(f"Batch query {query.query_id}: `trace query --status {query.query_id}` shows it from anywhere.")
    _present(session, _wait(session, query.query_id), output)


def _wait(session: Session, query_id: UUID) -> BatchQueryReply:
    """Until it is done. Ctrl-C cancels the query, or leaves it running if it is pressed again."""
    words = ""

    def tell(query: BatchQueryReply) -> None:
        nonlocal words
        current = query.state if query.state != "queued" else query.progress
        if current != words and query.state not in FINAL_STATES:
            _note(query.progress)
        words = current

    try:
        return _ask(session, lambda client: await_query(client, query_id, None, tell))
    except KeyboardInterrupt:
        _note("Canceling it; press Ctrl-C again to leave it running.")
        _ask(session, lambda client: client.cancel(query_id))
        raise click.exceptions.Exit(_EXIT_INTERRUPTED) from None


def _note(text: str) -> None:
    """Beside the result, which may go into a pipe."""
    click.echo(text, err=True)


def _show(session: Session, query_id: UUID, output: Path | None) -> None:
    query = _ask(session, lambda client: client.show(query_id))
    if query.state == "done":
        _present(session, query, output)
        return
    session.answer(query)
    if query.state in FINAL_STATES:
        check_done(query)
    session.say(f"{query.state}: {query.progress}")


def _cancel(session: Session, query_id: UUID) -> None:
    reply = _ask(session, lambda client: client.cancel(query_id))
    session.answer(reply)
    session.say("It is canceled." if reply.canceled else "It had ended before.")


def _list(session: Session) -> None:
    page = session.answer(_ask(session, lambda client: client.list_own()))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("query", "state", "submitted", "reads"):
        table.add_column(name)
    for query in page.queries:
        names = ", ".join(clean(dataset.name) for dataset in query.datasets)
        table.add_row(str(query.query_id), query.state, f"{query.submitted_at:%Y-%m-%d %H:%M:%S}", names)
    session.show(table)


def _present(session: Session, query: BatchQueryReply, output: Path | None) -> None:
    if output is not None:
        save(query.downloads, output, find_source(session.stack, session.token_file))
        session.answer({"file": str(output), "rows": query.row_count, "query_id": str(query.query_id)})
        session.say(f"{query.row_count:,} rows in {output}.")
        return
    session.answer(query)
    rows = query.row_count or 0
    if rows > _SHOWN_ROWS:
        session.say(f"{rows:,} rows, {query.size_bytes or 0:,} bytes. Write them to a file:")
        session.say(f"trace query --status {query.query_id} --output FILE.parquet")
        return
    table = BatchQuery(query.query_id, session.home, session.token_file, session.context).table()
    width = session.console.width if session.console.is_terminal else None
    show_result(session.console, render(query.columns, _rows(table), width))
    session.say("1 row" if rows == 1 else f"{rows:,} rows")


def _rows(table: "pa.Table") -> list[list[Any]]:
    columns = [column.to_pylist() for column in table.columns]
    return [[_plain(value) for value in row] for row in zip(*columns, strict=True)]


def _plain(value: Any) -> Any:
    """As JSON has it in replies of interactive queries."""
    match value:
        case bytes():
            return "0x" + value.hex()
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if value.tzinfo else value.isoformat()
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _ask(session: Session, work: Callable[[QueryClient], Awaitable[T]]) -> T:
    async def run() -> T:
        client = QueryClient(session.stack, session.token_file)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())
