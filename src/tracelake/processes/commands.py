"""The commands that start, show and stop a stack."""

from pathlib import Path
from typing import Any

import click

from tracelake.cli.json_output import json_flag, json_option
from tracelake.cli.options import home_option
from tracelake.client.stack import default_home
from tracelake.settings import Settings, SettingsError
from tracelake.settings.home import Home


@click.command()
@home_option
@click.option("--workers", type=int, help="How many worker processes to start (default: 1).")
@click.option("--no-workers", is_flag=True, help="Start no worker.")
@click.option("--bind-host", help="The address that the public and the task listener bind (default: 127.0.0.1).")
@click.option(
    "--public-port", type=int, help="Port of the public listener (default: that of the last run, or a free one)."
)
@click.option("--task-port", type=int, help="Port of the task listener (default: that of the last run, or a free one).")
@click.option(
    "--internal-port", type=int, help="Port of the internal listener (default: that of the last run, or a free one)."
)
@click.option("--state-port", type=int, help="Port of the state cluster (default: a free one).")
@click.option("--data-port", type=int, help="Port of the data cluster (default: a free one).")
@click.option("--log-level", help="debug, info, warning or error.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Any other setting.")
@json_flag("Print stack.json as one line when ready, no more.")
def up(*, no_workers: bool, assignments: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Start the whole stack on this machine: Postgres, the object store, Dispatcher, scheduler, workers.

    It runs until Ctrl-C or SIGTERM; a second Ctrl-C hurries. HOME/stack.json tells programs how to reach it. Ports
    stay the same from one start to the next, unless somebody else has taken one meanwhile; name those that must not
    change.
    """
    from tracelake.cli.stack_screen import choose_screen
    from tracelake.processes.up import run_up

    overrides = dict(_assignment(text) for text in assignments)
    overrides |= {name: value for name, value in options.items() if value is not None}
    if no_workers:
        overrides["workers"] = 0
    run_up(Settings.load(overrides), lambda home: choose_screen(home, json=as_json))


@click.command()
@home_option
@json_option
def status(home: Path | None, as_json: bool) -> None:
    """Show whether the stack runs, and its parts.

    Exit status: 0 ready, 1 running but not ready, 3 not running.
    """
    from tracelake.cli.status import show_status

    click.get_current_context().exit(show_status(Home(home or default_home()), json=as_json))


@click.command()
@home_option
def down(home: Path | None) -> None:
    """Stop the stack; it is fine if none runs."""
    from tracelake.cli.status import stop_stack

    click.get_current_context().exit(stop_stack(Home(home or default_home())))


def _assignment(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise SettingsError(f"--set takes NAME=VALUE, not {text!r}")
    return name, value
