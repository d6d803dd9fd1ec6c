"""`trace why`: explains why a task, job or dataset is not running or not up to date, and what to do about it."""

import shlex
from uuid import UUID

import click
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli.listing import Listing, ListingColumn, whole_line
from tracelake.cli.names import find_job
from tracelake.cli.options import watch_option
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import clean
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.why import WhyReason, WhyReply

STATE_STYLES = {"fine": "green", "working": "cyan", "waiting": "yellow", "blocked": "bold red"}


@click.command()
@click.argument("subject", metavar="TASK|DAG/JOB|DATASET")
@watch_option
@user_command
def command(session: Session, subject: str, watch: bool) -> None:
    """Explain why a task or job is not running, or why a dataset is not up to date, and what to do about it.

    A UUID is a task and DAG/JOB a job; any other name is a dataset, or a job whose name only one active DAG has.

    The state is `fine` (nothing to do), `working`, `waiting` (it goes on by itself) or
    `blocked` (somebody has to act, or a full queue has to empty).

    \b
    Examples:
      trace why 01890000-0000-7000-8000-000000000001
      trace why pools/prices
      trace why prices_out
      trace why prices_out --json
      trace why pools/prices --watch
    """
    session.view(lambda client: ask(client, subject), lambda reply: Group(*_lines(session, reply)), watch=watch)


def _lines(session: Session, reply: WhyReply) -> list[RenderableType]:
    steps = next_steps(reply)
    hints = [whole_line(session.hint_text(clean(purpose), *shlex.split(step)[1:])) for purpose, step in steps]
    return [why_view(reply), *hints]


def why_view(reply: WhyReply) -> RenderableType:
    summary = Text.assemble((reply.state, STATE_STYLES.get(reply.state, "")), " ", clean(reply.summary))
    others = [item for item in reply.reasons if item.text not in reply.summary]
    return Group(summary, Text(), reasons_listing(others)) if others else summary


async def ask(client: UserClient, subject: str) -> WhyReply:
    task_id = _uuid(subject)
    if task_id is not None:
        return await client.call(routes.EXPLAIN_TASK, task_id=task_id)
    dag, slash, job = subject.partition("/")
    if slash:
        return await client.call(routes.EXPLAIN_JOB, dag=dag, job=job)
    try:
        return await client.call(routes.EXPLAIN_DATASET, name=subject)
    except TraceError as error:
        if error.code != "dataset_not_found":
            raise
    try:
        dag, job = await find_job(client, subject)
        return await client.call(routes.EXPLAIN_JOB, dag=dag, job=job)
    except TraceError as error:
        if error.code != "job_not_found":
            raise
        raise TraceError(
            "job_not_found", f"There is no dataset named {subject}, and no job of an active DAG."
        ) from None


def reasons_listing(reasons: list[WhyReason]) -> Listing:
    return Listing(
        reasons,
        ListingColumn(
            "state", lambda item: Text(clean(item.state), style=STATE_STYLES.get(item.state, "")), whole=True
        ),
        ListingColumn("reason", lambda item: item.code, whole=True),
        ListingColumn("explanation", lambda item: item.text),
    )


def next_steps(reply: WhyReply) -> list[tuple[str, str]]:
    """The commands that the worst reasons advise, each once, with their purposes."""
    steps: dict[str, str] = {}
    for item in reply.reasons:
        if item.state == reply.state:
            for step in item.steps:
                if _is_command(step.command):
                    steps.setdefault(step.command, step.purpose)
    return [(purpose, command) for command, purpose in steps.items()]


def _is_command(step: str) -> bool:
    """Whether the step is a `trace` command that can be copied."""
    try:
        return shlex.split(step)[:1] == ["trace"]
    except ValueError:
        return False


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
