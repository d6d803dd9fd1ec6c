"""The `trace` command.

Subcommands are imported when they are used, so that `trace --help` answers at once and one part's missing
dependency does not break the others. A failure that a person can do something about is one line, without a
traceback.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import click

from tracelake import __version__
from tracelake.errors import TraceError

# name: where the command is, and the line that `trace --help` shows.
_COMMANDS = {
    "up": ("tracelake.processes.up:command", "Start the whole stack on this machine."),
    "status": ("tracelake.cli.status:status", "Show whether the stack runs, and its parts."),
    "down": ("tracelake.cli.status:down", "Stop the stack."),
    "top": ("tracelake.cli.top:command", "Watch everything that goes on, on one screen."),
    "deploy": ("tracelake.cli.deploy:command", "Deploy a DAG document, or show what would change."),
    "dags": ("tracelake.cli.dags:command", "List DAGs, the versions of one, or a document."),
    "activate": ("tracelake.cli.rollback:activate", "Make a version of a DAG active."),
    "rebuild": ("tracelake.cli.rebuild:command", "Make the stale outputs of a job again."),
    "rollback": ("tracelake.cli.rollback:command", "Go back to the version that was active before."),
    "jobs": ("tracelake.cli.jobs:command", "List the jobs of a DAG."),
    "sources": ("tracelake.cli.sources:command", "List the sources, their health and their lag."),
    "pause": ("tracelake.cli.sources:pause", "Pause sources."),
    "resume": ("tracelake.cli.sources:resume", "Let paused sources go on."),
    "trigger": ("tracelake.cli.trigger:command", "Set off a source, or one unit of a job."),
    "webhook": ("tracelake.cli.webhook:command", "Show or rotate the secret of a webhook."),
    "tasks": ("tracelake.cli.tasks:command", "List tasks, or show one."),
    "cancel": ("tracelake.cli.task_actions:cancel", "Cancel tasks."),
    "retry": ("tracelake.cli.task_actions:retry", "Run tasks again that failed for good."),
    "skip": ("tracelake.cli.task_actions:skip", "Go on without tasks that failed for good."),
    "events": ("tracelake.cli.events:command", "List updates of datasets."),
    "datasets": ("tracelake.cli.datasets:command", "List datasets, or show one."),
    "read": ("tracelake.cli.read:command", "Show rows of a dataset, or write them to a file."),
    "lineage": ("tracelake.cli.lineage:command", "Show what a dataset is made from."),
    "pressure": ("tracelake.cli.pressure:command", "Show which queues are full, and what they stop."),
    "quota": ("tracelake.cli.quota:command", "Show what your org may use, and what it uses; set it."),
    "dlq": ("tracelake.cli.dlq:command", "Batches that could not be taken: list, show, replay, drop."),
    "why": ("tracelake.cli.why:command", "Say why something is not running or not fresh."),
    "audit": ("tracelake.cli.audit:command", "List who did what."),
    "whoami": ("tracelake.cli.whoami:command", "Show whose token is used."),
    "backup": ("tracelake.cli.backup:command", "Write a dump of the state database."),
    "restore": ("tracelake.cli.restore:command", "Replace the state database by a dump."),
    "demo": ("tracelake.demo.command:command", "See it work: from a chain to flows of tokens."),
    "keys": ("tracelake.cli.keys:command", "Rotate signing keys and tokens."),
    "secrets": ("tracelake.cli.secrets:command", "List, set and remove secrets that jobs name."),
    "token": ("tracelake.cli.token:command", "Print a user token of this stack."),
    "gc": ("tracelake.cli.gc:command", "Remove what was kept long enough, or show what would go."),
    "outbox": ("tracelake.cli.outbox:command", "List and requeue side effects that could not be sent."),
    "dispatcher": ("tracelake.processes.dispatcher:command", "Run one Dispatcher (trace up does)."),
    "worker": ("tracelake.processes.worker:command", "Run one worker (trace up does)."),
    "sink": ("tracelake.processes.sink:command", "Run one sink (workers have one beside them)."),
    "scheduler": ("tracelake.processes.scheduler:command", "Run one scheduler (trace up does)."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from tracelake.cli.missing import meant

            raise click.UsageError(error.message + meant(args[0], _COMMANDS), ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", "-V", prog_name="trace")
def trace() -> None:
    """Trace: an event-driven data platform for on-chain research.

    Start with `trace up`; it runs until Ctrl-C. Settings come from HOME/settings.toml, TRACE_* variables and
    options, in this order.
    """


def one_line(error: Exception) -> str | None:
    """The sentence a person sees for an expected failure; None for a bug."""
    if isinstance(error, TraceError):
        from tracelake.cli.text import clean

        message = error.message if error.message.endswith((".", "!", "?")) else f"{error.message}."
        return clean(f"{error.code}: {message} {_remedy(error)}".rstrip())
    # Imported here: a command that works does not pay for them.
    from tracelake.client.stack import NoStackError
    from tracelake.db.migrate import MigrationError
    from tracelake.settings import SettingsError
    from tracelake.settings.home import HomeError
    from tracelake.stack.dumps import BackupError
    from tracelake.stack.lock import AlreadyRunningError
    from tracelake.stack.machine import PostgresError
    from tracelake.stack.supervisor import StartError

    expected = (
        AlreadyRunningError,
        BackupError,
        HomeError,
        MigrationError,
        NoStackError,
        PostgresError,
        SettingsError,
        StartError,
    )
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) if isinstance(error, expected) else None


def _remedy(error: TraceError) -> str:
    """For people: the field itself, where the catalogue says in which detail a program finds it."""
    field = error.details.get("field")
    if not isinstance(field, str):
        return error.kind.remedy
    remedy = error.kind.remedy.replace("the field that `details.field` names", f"`{field}`")
    return remedy.replace("See `details.field`", f"Look at `{field}`")


def main(argv: list[str] | None = None) -> None:
    sys.exit(_guarded(trace.main, args=argv, prog_name="trace", standalone_mode=True))


def _guarded(run: Callable[..., Any], **arguments: Any) -> Any:
    try:
        return run(**arguments)
    except Exception as error:
        text = one_line(error)
        if text is None:
            raise
        click.echo(f"error: {text}", err=True)
        return 1
