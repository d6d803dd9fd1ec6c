"""Options that many commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

home_option = click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="The home of the stack, where it keeps everything (default: TRACE_HOME, else ~/.trace).",
)
token_file_option = click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, readable=True),
    help="A file with your token (default: TRACE_TOKEN, else the admin token of the stack).",
)
watch_option = click.option("--watch", is_flag=True, help="Show it anew every second, until Ctrl-C.")
follow_option = click.option(
    "--follow",
    "following",
    is_flag=True,
    help="Print what happens from now on, a line each, until Ctrl-C; with --json each line is a document.",
)
cursor_option = click.option("--cursor", metavar="TEXT", help="Go on where a page ended; it is what `next` said.")


def limit_option(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--limit", type=click.IntRange(1, 10_000), default=default, show_default=True, help="At most this many rows."
    )
