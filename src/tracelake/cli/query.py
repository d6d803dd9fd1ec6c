"""`trace query`: SQL over the datasets of the org, once or at a prompt."""

import sys
from pathlib import Path
from typing import Any

import click

from tracelake.cli.batch_query import batch_options
from tracelake.cli.export import check_target
from tracelake.cli.query_runner import QueryRunner
from tracelake.cli.query_shell import QueryShell, ScreenFormat, ShellSettings, parse_parameter, run_script
from tracelake.cli.row_formats import ENDINGS
from tracelake.cli.session import Session, user_command
from tracelake.errors import TraceError

_EXIT_INTERRUPTED = 130
_SHOWN_ROWS = 200
"""Of a table at the prompt, where more would scroll away what was entered."""


@click.command()
@click.argument("sql", required=False)
@click.option("--format", "screen_format", type=click.Choice(["table", "csv", "json", "jsonl"]), default="table",
              help="How rows are printed (default: table). csv, json and jsonl have all rows of a result.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE",
              help=f"Write all rows to this file; its ending chooses the format: {', '.join(ENDINGS)}.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file of --output if it exists.")
@click.option("-x", "--expanded", is_flag=True, help="Show each column on a line of its own, with whole values.")
@click.option("--limit", type=click.IntRange(1, 2**31 - 1), help="Rows of the result at most.")
@click.option("--timeout", type=click.IntRange(1, 3600), help="Seconds that the query may take.")
@click.option("--param", "parameters", multiple=True, metavar="NAME:TYPE=VALUE",
              help="A value for $NAME, like low:int64=5, since:timestamp=2026-03-01T00:00:00Z or who:bytes=0xff. "
              "Can be repeated.")  # fmt: skip
@user_command
@batch_options
def command(
    session: Session,
    sql: str | None,
    screen_format: ScreenFormat,
    output: Path | None,
    force: bool,
    expanded: bool,
    limit: int | None,
    timeout: int | None,
    parameters: tuple[str, ...],
) -> None:
    """Query the published datasets of your org with SQL.

    The SQL is DuckDB's; every published dataset is a relation, files and tables alike. A query reads the datasets as
    they were when it began. Ctrl-C cancels it.

    Without SQL, this is a prompt: Tab completes names, \\d lists datasets, \\? lists the commands. Statements that come
    from a file or a program (`trace query < FILE`) are run in turn, up to the first that fails.

    In a shell, put SQL that has a $NAME into single quotes. Names that DuckDB reserves, like "at", need double quotes.

    \b
    Examples:
      trace query
      trace query "SELECT token, count(*) FROM transfers GROUP BY 1 ORDER BY 2 DESC"
      trace query 'SELECT * FROM transfers WHERE block_number > $low' --param low:int64=17000000
      trace query "SELECT * FROM hourly_flows" --output flows.parquet
      trace query "SELECT * FROM large_transfers" --format csv | head
      trace query --batch "SELECT token, sum(amount_f64) AS total FROM transfers GROUP BY token" --output totals.parquet

    Exit status: 0 if every query was answered, 1 if not, 130 after Ctrl-C.
    """
    if output is not None:
        check_target(output, force=force, endings=ENDINGS)
    elif force:
        raise click.UsageError("--force is for --output.")
    settings = ShellSettings(
        parameters=dict(parse_parameter(text) for text in parameters),
        limit=limit,
        timeout=timeout,
        screen_format=screen_format,
        expanded=expanded,
        target=output,
        force=force,
    )
    with QueryRunner(session) as runner:
        shell = QueryShell(session, runner, settings)
        if sql is not None:
            _run_one(shell, sql)
        elif not _is_terminal(sys.stdin):
            _run_script(shell)
        elif session.as_json:
            raise click.UsageError("--json is for programs: give the SQL as an argument, or on standard input.")
        else:
            _run_prompt(shell, runner)


def _run_one(shell: QueryShell, sql: str) -> None:
    try:
        shell.show(shell.fetch(sql))
    except TraceError as error:
        shell.show_error(error, sql)
        raise click.exceptions.Exit(_EXIT_INTERRUPTED if error.code == "query_canceled" else 1) from None


def _run_script(shell: QueryShell) -> None:
    if not run_script(shell, sys.stdin):
        raise click.exceptions.Exit(1)


def _run_prompt(shell: QueryShell, runner: QueryRunner) -> None:
    from tracelake.cli.query_prompt import run_prompt  # what it needs takes time to import

    runner.wait(runner.connect())  # says at once that no stack runs
    shell.settings.shown_rows = _SHOWN_ROWS
    run_prompt(shell, runner)


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()
