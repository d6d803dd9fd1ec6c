"""`trace why`: one paragraph on why something is not running or not fresh, and what to do about it."""

import shlex
from uuid import UUID

import click
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.naming import find_job
from tracelake.cli.options import watch_option
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import clean
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.why import WhyReply

STATE_STYLES = {"fine": "green", "working": "cyan", "waiting": "yellow", "blocked": "bold red"}


@click.command()
@click.argument("subject", metavar="TASK|DAG/JOB|DATASET")
@watch_option
@user_command
def command(session: Session, subject: str, watch: bool) -> None:
    """Say why a task, a job or a dataset is not running or not fresh, and what to do about it.

    A UUID is a task, DAG/JOB a job; anything else is a dataset, or a job whose name only one active DAG has.

    \b
    Examples:
      trace why 01890000-0000-7000-8000-000000000001
      trace why pools/prices
      trace why prices_out
      trace why prices_out --json
      trace why pools/prices --watch
    """
    if watch:
        session.watch(lambda client: _look(client, subject))
        return
    reply = session.ask(lambda client: ask(client, subject))
    session.show(why_view(reply))
    for purpose, step in next_steps(reply):
        session.hint(clean(purpose), *shlex.split(step)[1:])


async def _look(client: UserClient, subject: str) -> RenderableType:
    reply = await ask(client, subject)
    steps = [
        Text.assemble((f"{clean(purpose)}: ", "dim"), (clean(step), "bold")) for purpose, step in next_steps(reply)
    ]
    return Group(why_view(reply), *steps)


def why_view(reply: WhyReply) -> RenderableType:
    summary = Text.assemble((reply.state, STATE_STYLES.get(reply.state, "")), " ", clean(reply.summary))
    return Group(summary, Text(), reasons_listing(reply)) if len(reply.reasons) > 1 else summary


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


def reasons_listing(reply: WhyReply) -> Listing:
    listing = Listing(
        [ListingColumn("state", whole=True), ListingColumn("reason", whole=True), ListingColumn("in words")]
    )
    for item in reply.reasons:
        listing.add(Text(clean(item.state), style=STATE_STYLES.get(item.state, "")), item.code, item.text)
    return listing


def next_steps(reply: WhyReply) -> list[tuple[str, str]]:
    """Commands of the reasons that are as bad as the worst, each once."""
    steps: dict[str, str] = {}
    for item in reply.reasons:
        if item.state == reply.state:
            for step in item.steps:
                if _is_command(step.command):
                    steps.setdefault(step.command, step.purpose)
    return [(purpose, command) for command, purpose in steps.items()]


def _is_command(step: str) -> bool:
    """Something of ours that can be copied."""
    try:
        return shlex.split(step)[:1] == ["trace"]
    except ValueError:
        return False


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
