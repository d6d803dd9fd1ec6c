"""`trace plot`: a chart of a query, on the terminal or in a file."""

import os
from pathlib import Path
from typing import Any, cast

import click
from rich.text import Text

from tracelake.cli.characters import draws_ascii
from tracelake.cli.chart_data import ChartData, ChartKind, PlotChoices, make_chart
from tracelake.cli.chart_svg import draw_svg
from tracelake.cli.chart_text import draw_chart
from tracelake.cli.export import check_target, new_file
from tracelake.cli.query_runner import QueryRunner
from tracelake.cli.query_shell import QueryShell, ShellSettings, count_rows, parse_parameter
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import clean
from tracelake.client.query import read_table
from tracelake.errors import TraceError
from tracelake.query.results import encode_rows
from tracelake.wire.base import Reply
from tracelake.wire.query import QueryRequest, ResultColumn

MOST_ROWS = 200_000
_ANY_SIZE = 2**62
_ENDINGS = (".svg",)
_PAGE_WIDTH = 80
"""Of a chart that does not go to a terminal."""
_EXIT_INTERRUPTED = 130


class ChartSeries(Reply, frozen=True, kw_only=True):
    name: str
    points: list[list[Any]]
    """Pairs of x and y. Integers beyond 2^53 and fractions are text; a time is in seconds since 1970."""


class ChartReply(Reply, frozen=True, kw_only=True):
    """What `--json` prints."""

    kind: str
    x: str
    x_kind: str
    series: list[ChartSeries]
    notes: list[str] = []


@click.command()
@click.argument("sql")
@click.option(
    "--x", metavar="COLUMN", help="The column of the x axis (default: the first time, else the first column)."
)
@click.option("--y", "y", multiple=True, metavar="COLUMN",
              help="A column of values (default: all numbers but x). Can be repeated.")  # fmt: skip
@click.option("--by", metavar="COLUMN", help="A column whose every value is a series of its own.")
@click.option("--kind", type=click.Choice(["bar", "line"]), help="Default: bar for texts, line for times and numbers.")
@click.option("--title", metavar="TEXT", help="The title (default: the names of the columns).")
@click.option("--unit", metavar="TEXT", default="", help="The unit of the values, for the axis of a file.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write a picture to this file: .svg.")
@click.option("--force", is_flag=True, help="Replace the file of --output if it exists.")
@click.option("--limit", type=click.IntRange(1, MOST_ROWS), help="Use the first rows of the result alone.")
@click.option("--timeout", type=click.IntRange(1, 3600), help="Seconds that the query may take.")
@click.option(
    "--param", "parameters", multiple=True, metavar="NAME:TYPE=VALUE", help="A value for $NAME, as in `trace query`."
)
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters alone.")
@user_command
def command(
    session: Session,
    sql: str,
    x: str | None,
    y: tuple[str, ...],
    by: str | None,
    kind: str | None,
    title: str | None,
    unit: str,
    output: Path | None,
    force: bool,
    limit: int | None,
    timeout: int | None,
    parameters: tuple[str, ...],
    ascii_only: bool,
) -> None:
    """Draw a chart of a query: bars of categories, lines over times and numbers.

    Nulls leave gaps. A text of digits, as 256-bit amounts often are, can be named with --y. Long lines are drawn with
    fewer points, and the chart says so; values beside bars are exact. docs/pictures.md has examples.

    \b
    Examples:
      trace plot "SELECT token, sum(transfers) AS transfers FROM hourly_flows GROUP BY 1 ORDER BY 2 DESC"
      trace plot "SELECT hour, token, amount FROM hourly_flows" --by token
      trace plot "SELECT block_number, gas_used FROM blocks ORDER BY 1" --output gas.svg --unit gas

    Exit status: 0 if the chart was drawn, 1 if not, 130 after Ctrl-C.
    """
    if output is not None:
        check_target(output, force=force, endings=_ENDINGS)
    elif force:
        raise click.UsageError("--force is for --output.")
    choices = PlotChoices(x=x, y=y, by=by, kind=cast("ChartKind | None", kind))
    columns, rows = _run_query(session, sql, parameters, limit, timeout)
    data = make_chart(columns, rows, choices)
    if session.as_json:
        session.json(_to_reply(data))
        return
    if output is not None:
        with new_file(output, force=force, endings=_ENDINGS) as path:
            path.write_text(draw_svg(data, title or data.title, unit), encoding="utf-8")
        session.say(f"{count_rows(len(rows))} as a {data.kind} chart in {output}.")
    else:
        _show(session, data, title, ascii_only=ascii_only)
    for note in data.notes:
        session.show(Text(clean(note), style="dim"))


def _run_query(
    session: Session, sql: str, parameters: tuple[str, ...], limit: int | None, timeout: int | None
) -> tuple[list[ResultColumn], list[list[Any]]]:
    request = QueryRequest(
        sql=sql,
        parameters=dict(parse_parameter(text) for text in parameters),
        limit=limit or MOST_ROWS + 1,
        timeout_seconds=timeout,
        format="arrow",
    )
    with QueryRunner(session) as runner:
        try:
            result = runner.run(request)
        except TraceError as error:
            QueryShell(session, runner, ShellSettings()).show_error(error, sql)
            raise click.exceptions.Exit(_EXIT_INTERRUPTED if error.code == "query_canceled" else 1) from None
    rows = encode_rows(read_table(result), _ANY_SIZE)
    if len(rows) > MOST_ROWS:
        raise click.ClickException(
            f"the result has more than {MOST_ROWS:,} rows: aggregate them in SQL (date_trunc, GROUP BY), or draw the "
            "first ones with --limit"
        )
    return result.reply.columns, rows


def _show(session: Session, data: ChartData, title: str | None, *, ascii_only: bool) -> None:
    console = session.console
    width = console.width if console.is_terminal or "COLUMNS" in os.environ else _PAGE_WIDTH
    has_colours = console.color_system is not None and not console.no_color
    lines = draw_chart(data, width, ascii_only=ascii_only or draws_ascii(console), has_colours=has_colours)
    session.show(Text(clean(title or data.title), style="bold"), *lines)


def _to_reply(data: ChartData) -> ChartReply:
    return ChartReply(
        kind=data.kind,
        x=data.x_name,
        x_kind=data.x_kind,
        series=[
            ChartSeries(name=series.name, points=[[_plain(x), _plain(value)] for x, value in series.points])
            for series in data.series
        ],
        notes=data.notes,
    )


def _plain(value: Any) -> Any:
    """What JSON holds exactly, else text."""
    if value is None or isinstance(value, str | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)
    as_float = float(value)
    return as_float if value == as_float else _decimal(value)


def _decimal(value: Any) -> str:
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 250
        return format(Decimal(value.numerator) / Decimal(value.denominator), "f")
