"""`trace init`: a new project, with a DAG that computes something real, its test, and the schema for editors."""

import shlex
from pathlib import Path

import click
import msgspec

from tracelake.cli.init_project import DAG_FILE, DirectoryInUseError, write_project
from tracelake.cli.json_output import json_option
from tracelake.cli.session import NEW_PROJECT, Session
from tracelake.cli.text import count
from tracelake.wire.base import ErrorBody, ErrorInfo

NOT_EMPTY = "directory_not_empty"
"""The error code with --json when the directory holds something else."""
_DATASET = "daily_activity"


class NextStep(msgspec.Struct, frozen=True, kw_only=True):
    purpose: str
    command: str


class ProjectReply(msgspec.Struct, frozen=True, kw_only=True):
    """What `trace init --json` prints."""

    directory: str
    files: list[str]
    next: list[NextStep]


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), default=Path())
@json_option
def command(directory: Path, as_json: bool) -> None:
    """Write a new project into DIRECTORY (default: this one), which must be new or empty.

    The project is a DAG over the chain that comes with Trace, which computes transactions and active senders of each
    day; its test, which needs no stack; the DAG language as a schema for editors; a README and a .gitignore. The same
    command again changes nothing, and completes what a crash left unfinished.

    \b
    Examples:
      trace init my_project
      cd my_project
      trace up --detach --set recorded_chain=example      until `trace down`
      trace deploy activity.yaml
      trace read daily_activity
    """
    session = Session(as_json=as_json)
    try:
        names = write_project(directory)
    except DirectoryInUseError as error:
        message = f"{error}. Name a directory that is new or empty: trace init {NEW_PROJECT}"
        if as_json:
            session.json(ErrorBody(error=ErrorInfo(code=NOT_EMPTY, message=message)))
        raise click.ClickException(message) from None
    steps = _next_steps(directory)
    session.answer(ProjectReply(directory=str(directory.absolute()), files=names, next=steps))
    session.say(f"Wrote {count(len(names), 'file')} to ", (str(directory), "bold"), ": ", ", ".join(names))
    for step in steps:
        session.say_to_copy(step.purpose, step.command)


def _next_steps(directory: Path) -> list[NextStep]:
    steps = {} if directory.resolve() == Path.cwd() else {"go there": f"cd {shlex.quote(str(directory))}"}
    steps |= {
        "start a stack, in the background": "trace up --detach --set recorded_chain=example",
        "deploy the DAG": f"trace deploy {DAG_FILE}",
        "see what it waits for": f"trace why {_DATASET}",
        "see its rows": f"trace read {_DATASET}",
        "after a change, test it": "python -m unittest",
    }
    return [NextStep(purpose=purpose, command=line) for purpose, line in steps.items()]
