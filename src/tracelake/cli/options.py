"""Options that many commands share."""

from pathlib import Path

import click

home_option = click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="The home of the stack, where it keeps everything (default: TRACE_HOME, else ~/.trace).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
