"""`trace query`: SQL over the datasets of the org."""

import asyncio
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table
from rich.text import Text

from tracelake.cli.export import check_target
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import clean
from tracelake.client.query import QueryClient, download, format_of
from tracelake.errors import TraceError
from tracelake.wire.query import ParameterValue, QueryReply, QueryRequest, ResultFormat

_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "BIGNUM")


@click.command()
@click.argument("sql")
@click.option("--format", "result_format", type=click.Choice(["table", "csv", "json"]), default="table",
              help="How rows are printed (default: table).")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), help="Write all rows to this file: .parquet, .csv, .arrow "
              "or .json.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file of --output if it exists.")
@click.option("--limit", type=click.IntRange(1), help="Rows of the result at most.")
@click.option("--timeout", type=click.IntRange(1, 3600), help="Seconds that the query may take.")
@click.option("--param", "parameters", multiple=True, metavar="NAME:TYPE=VALUE",
              help="A value for $NAME, like low:int64=5 or who:bytes=0xff.")  # fmt: skip
@user_command
def command(
    session: Session,
    sql: str,
    result_format: str,
    output: Path | None,
    force: bool,
    limit: int | None,
    timeout: int | None,
    parameters: tuple[str, ...],
) -> None:
    """Query the published datasets of your org with SQL.

    The SQL is DuckDB's; every published dataset is a relation, files and tables alike. A query reads the datasets as
    they were when it began.

    \b
    Examples:
      trace query "SELECT token, count(*) FROM transfers GROUP BY 1 ORDER BY 2 DESC"
      trace query "SELECT * FROM transfers WHERE block_number > $low" --param low:int64=17000000
      trace query "SELECT * FROM hourly_flows" --output flows.parquet
    """
    wire_format: ResultFormat = "json"
    if output is not None:
        check_target(output, force=force)
        file_format = format_of(output)
        if file_format is None:
            raise click.UsageError(f"--output: expected .parquet, .csv, .arrow or .json, received {output.name}.")
        wire_format = file_format
    elif result_format == "csv":
        wire_format = "csv"
    request = QueryRequest(
        sql=sql,
        parameters=dict(_parameter(text) for text in parameters),
        limit=limit,
        format=wire_format,
        timeout_seconds=timeout,
    )
    reply, body = asyncio.run(_run(session, request))
    if output is not None:
        _write(session, output, request.format, reply, body)
        return
    session.answer(reply)
    if result_format == "csv":
        click.echo(body, nl=False)
    elif result_format == "json":
        click.echo(msgspec.json.encode(reply))
    else:
        session.show(_table(reply))
        session.say(_summary(reply))
    if reply.truncated and reply.download is not None:
        session.say(f"Not all rows are shown. The whole result until {reply.download.expires_at:%H:%M} UTC:")
        session.say(reply.download.url)


async def _run(session: Session, request: QueryRequest) -> tuple[QueryReply, bytes]:
    client = QueryClient(session.stack, session.token_file)
    try:
        if request.format == "json":
            return await client.run(request), b""
        result = await client.fetch(request)
        return result.reply, result.body
    finally:
        await client.close()


def _write(session: Session, output: Path, result_format: ResultFormat, reply: QueryReply, body: bytes) -> None:
    if reply.truncated:
        if result_format != "parquet":
            message = f"The result has {reply.row_count:,} rows. Large results are Parquet: use --output FILE.parquet."
            raise TraceError("query_too_large", message)
        body = download(reply)
    content = msgspec.json.encode(reply) if result_format == "json" else body
    output.write_bytes(content)
    session.answer({"file": str(output), "rows": reply.row_count})
    session.say(f"{reply.row_count:,} rows in {output}.")


def _parameter(text: str) -> tuple[str, ParameterValue]:
    head, separator, value = text.partition("=")
    name, colon, kind = head.partition(":")
    if not (separator and colon and name and kind):
        raise click.UsageError(f"--param: expected NAME:TYPE=VALUE, received {text!r}.")
    typed: Any = value
    if kind == "bool":
        typed = value.lower() == "true"
    elif kind == "float64":
        try:
            typed = float(value)
        except ValueError:
            raise click.UsageError(f"--param {name}: {value!r} is no number.") from None
    return name, ParameterValue(type=kind, value=typed)


def _table(reply: QueryReply) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for column in reply.columns:
        header = Text(clean(column.name), style="bold")
        header.append(f"\n{clean(column.type.lower())}", style="dim")
        is_number = column.type.upper().startswith(_NUMBERS) or "INT" in column.type.upper()
        table.add_column(header, justify="right" if is_number else "left", no_wrap=True)
    for row in reply.rows:
        table.add_row(*(_cell(value) for value in row))
    return table


def _cell(value: Any) -> Text:
    if value is None:
        return Text("null", style="dim")
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return Text(clean(text))


def _summary(reply: QueryReply) -> str:
    rows = "1 row" if reply.row_count == 1 else f"{reply.row_count:,} rows"
    return f"{rows}, {reply.bytes_read:,} bytes read, {reply.elapsed_ms:,} ms"
