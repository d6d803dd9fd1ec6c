"""The `trace` command.

Subcommands are imported when they are used, so that `trace --help` answers at once and the missing dependency of one
does not break the others. A failure that a person can correct is one line, without a traceback.
"""

import copy
import importlib
import sys
from collections.abc import Callable
from typing import Any

import click

from tracelake import __version__
from tracelake.doc_pages import installed_directory
from tracelake.errors import TraceError

# Sections of `trace --help`: the name of each command, where it is, and its line.
_SECTIONS = {
    "Run a stack": {
        "init": ("tracelake.cli.init:command", "Write a new project: a DAG that works, and its test."),
        "up": ("tracelake.processes.up:command", "Start the whole stack on this machine."),
        "status": ("tracelake.cli.status:status", "Show whether the stack runs, its parts and addresses."),
        "down": ("tracelake.cli.status:down", "Stop the stack."),
        "demo": ("tracelake.demo.command:command", "See a stack at work: from a recorded chain to flows of tokens."),
    },
    "DAGs": {
        "deploy": ("tracelake.cli.deploy:command", "Deploy a DAG document, or show what would change."),
        "dags": ("tracelake.cli.dags:command", "List the DAGs, the versions of one, or print a document."),
        "jobs": ("tracelake.cli.jobs:command", "List the jobs of a DAG: inputs, outputs, tasks by state."),
        "graph": ("tracelake.cli.graph:command", "Draw the jobs and datasets of a DAG, or of a document."),
        "activate": ("tracelake.cli.rollback:activate", "Make a version of a DAG active."),
        "rollback": ("tracelake.cli.rollback:command", "Activate the version that was active before."),
        "operators": ("tracelake.cli.operators:command", "List the operators that jobs can name."),
        "remove": (
            "tracelake.cli.remove:command",
            "Remove a DAG with its datasets, restore it, or delete it for good.",
        ),
        "udf": ("tracelake.cli.udf:command", "Write, build, upload and list functions: your own code."),
        "rebuild": ("tracelake.cli.rollback:rebuild", "Compute the stale outputs of a job again."),
    },
    "Sources": {
        "sources": ("tracelake.cli.sources:command", "List the sources, their state and their lag."),
        "trigger": ("tracelake.cli.trigger:command", "Emit an event of a source, or run one unit of a job."),
        "pause": ("tracelake.cli.sources:pause", "Pause sources; their events are kept."),
        "resume": ("tracelake.cli.sources:resume", "Resume paused sources."),
        "repair": ("tracelake.cli.sources:repair", "Let a source follow a reorganisation of final blocks."),
        "webhook": ("tracelake.cli.webhook:command", "Show or rotate the secret of a webhook."),
    },
    "Tasks": {
        "tasks": ("tracelake.cli.tasks:command", "List or follow tasks, or show one."),
        "logs": ("tracelake.cli.logs:command", "Show or follow the log of a task, a job or a part of the stack."),
        "retry": ("tracelake.cli.task_actions:retry", "Run failed or cancelled tasks again."),
        "skip": ("tracelake.cli.task_actions:skip", "Give up failed tasks, so that what they hold goes on."),
        "cancel": ("tracelake.cli.task_actions:cancel", "Cancel tasks."),
    },
    "Data": {
        "datasets": ("tracelake.cli.datasets:command", "List the datasets, or show one."),
        "checks": ("tracelake.cli.checks:command", "Show the checks of datasets and their results."),
        "query": ("tracelake.cli.query:command", "Query datasets with SQL."),
        "plot": ("tracelake.cli.plot:command", "Draw a chart of a query, on the terminal or in a file."),
        "read": ("tracelake.cli.read:command", "Show rows of a dataset, or write them to a file."),
        "export": ("tracelake.cli.directory_export:command", "Write a dataset as a directory that other tools read."),
        "lineage": ("tracelake.cli.lineage:command", "Show what a dataset is computed from, and by which tasks."),
        "docs": ("tracelake.cli.docs:command", "Write one HTML page about datasets and jobs."),
        "events": ("tracelake.cli.events:command", "List or follow events: updates of datasets."),
        "dlq": ("tracelake.cli.dlq:command", "List, replay or drop batches that the sink refused."),
    },
    "Watch and explain": {
        "top": ("tracelake.cli.top:command", "Watch jobs, queues and sources on one screen."),
        "why": ("tracelake.cli.why:command", "Explain why something is not running or not up to date."),
        "pressure": ("tracelake.cli.pressure:command", "Show which queues are full, and what they stop."),
        "audit": ("tracelake.cli.audit:command", "List the actions of users."),
    },
    "Access": {
        "whoami": ("tracelake.cli.token:whoami", "Show whose token your commands use."),
        "login": ("tracelake.cli.login:command", "Connect to a stack of another machine."),
        "context": ("tracelake.cli.login:context", "List and choose the stacks that you are logged in to."),
        "token": ("tracelake.cli.token:command", "Make, list and revoke tokens of users."),
        "keys": ("tracelake.cli.keys:command", "List and rotate signing keys and shared tokens."),
        "secrets": ("tracelake.cli.secrets:command", "List, set and remove the secrets of jobs."),
        "quota": ("tracelake.cli.quota:command", "Show the quotas of your org; set those of any org."),
    },
    "Maintenance": {
        "backup": ("tracelake.cli.backup:command", "Write a backup of the whole stack, or a dump of its state."),
        "restore": (
            "tracelake.cli.backup:restore_command",
            "Restore a backup of the whole stack, or a dump.",
        ),
        "gc": ("tracelake.cli.gc:command", "Remove what is past its retention, or show what would be removed."),
        "outbox": ("tracelake.cli.outbox:command", "Inspect and requeue messages that could not be sent."),
    },
    "Single processes (`trace up` starts them)": {
        "dispatcher": ("tracelake.processes.dispatcher:command", "Run one Dispatcher."),
        "worker": ("tracelake.processes.worker:command", "Run one worker."),
        "sink": ("tracelake.processes.sink:command", "Run one sink (workers have one beside them)."),
        "scheduler": ("tracelake.processes.scheduler:command", "Run one scheduler."),
        "query-service": ("tracelake.processes.query_service:command", "Run one Query Service."),
        "runner": ("tracelake.processes.runner:command", "Run one runner of users' functions."),
    },
}
_COMMANDS = {name: place for commands in _SECTIONS.values() for name, place in commands.items()}


def _documentation_note(command: click.Command) -> str | None:
    """Where the pages are that the help of the command names; None in a clone, which has them in its root."""
    directory = installed_directory()
    options = (param.help for param in command.params if isinstance(param, click.Option))
    if directory is None or not any("docs/" in (text or "") for text in (command.help, *options)):
        return None
    return f"\b\ndocs/ and examples/ are in\n{directory}"  # as it is: the path is copied, so no line ends in it


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        note = _documentation_note(command)
        if note is not None:
            command = copy.copy(command)
            command.epilog = note
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from tracelake.cli.names import suggestion

            raise click.UsageError(error.message + suggestion(args[0], _COMMANDS), ctx) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        note = _documentation_note(self)
        if note is not None:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(note)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", "-V", prog_name="trace")
def trace() -> None:
    """Trace: an event-driven data platform for on-chain research.

    A DAG is a YAML document of jobs, and of the datasets that they read and write. A source is a job that starts work
    from outside: by hand, on a schedule, by a webhook, or all the time. Its events, and every update of a dataset,
    create tasks for the jobs that read it. A task computes one unit: a range of blocks, a partition, or the updates up
    to a cursor. docs/glossary.md explains every term.

    \b
    A first session:
      trace init my_project && cd my_project          a DAG that works, and its test
      trace up --detach --set recorded_chain=example  with a chain to try it on, until `trace down`
      trace deploy activity.yaml
      trace why daily_activity                        what it waits for
      trace read daily_activity                       its rows

    `trace login` connects to a stack of another machine; `trace context` says which one commands use.

    Everything a stack stores is in its HOME (--home, TRACE_HOME, else ~/.trace). Settings come from HOME/settings.toml,
    TRACE_* variables and options; the later one wins. docs/reference/settings.md lists them.
    """


def one_line(error: Exception) -> str | None:
    """The line that a person sees for an expected failure; None for a bug."""
    if isinstance(error, TraceError):
        from tracelake.cli.error_text import error_line

        return error_line(error)
    # Imported here: a command that works does not pay for them.
    from tracelake.client.stack import NoStackError
    from tracelake.db.migrate import MigrationError
    from tracelake.settings import SettingsError
    from tracelake.settings.home import HomeError
    from tracelake.stack.dumps import BackupError
    from tracelake.stack.lock import AlreadyRunningError
    from tracelake.stack.machine import PostgresError
    from tracelake.stack.seaweedfs import ObjectStoreError
    from tracelake.stack.supervisor import StartError

    expected = (
        AlreadyRunningError,
        BackupError,
        HomeError,
        MigrationError,
        NoStackError,
        ObjectStoreError,
        PostgresError,
        SettingsError,
        StartError,
    )
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) if isinstance(error, expected) else None


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
