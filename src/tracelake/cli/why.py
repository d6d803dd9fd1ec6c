"""`trace why`: one paragraph on why something is not running or not fresh, and what to do about it."""

import shlex
from uuid import UUID

import click
from rich.text import Text

from tracelake.cli.listing import Column, Listing
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import clean
from tracelake.cli.trigger import find_job
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire.why import WhyReply

STATE_STYLES = {"fine": "green", "working": "cyan", "waiting": "yellow", "blocked": "bold red"}


@click.command()
@click.argument("subject", metavar="TASK|DAG/JOB|DATASET")
@user_command
def command(session: Session, subject: str) -> None:
    """Say why a task, a job or a dataset is not running or not fresh, and what to do about it.

    A UUID is a task, DAG/JOB a job; anything else is a dataset, or a job whose name only one active DAG has.

    \b
    Examples:
      trace why 01890000-0000-7000-8000-000000000001
      trace why pools/prices
      trace why prices_out
      trace why prices_out --json
    """
    reply = session.run(lambda client: ask(client, subject))
    if session.as_json:
        session.json(reply)
        return
    session.show(Text.assemble((reply.state, STATE_STYLES.get(reply.state, "")), " ", clean(reply.summary)))
    if len(reply.reasons) > 1:
        session.show(Text(), reasons_listing(reply))
    for purpose, step in next_steps(reply):
        _hint(session, purpose, step)


async def ask(client: UserClient, subject: str) -> WhyReply:
    task_id = _uuid(subject)
    if task_id is not None:
        return await client.why_task(task_id)
    dag, slash, job = subject.partition("/")
    if slash:
        return await client.why_job(dag, job)
    try:
        return await client.why_dataset(subject)
    except TraceError as error:
        if error.code != "dataset_not_found":
            raise
    try:
        return await client.why_job(*await find_job(client, subject))
    except TraceError as error:
        if error.code != "job_not_found":
            raise
        raise TraceError(
            "job_not_found", f"There is no dataset named {subject}, and no job of an active DAG."
        ) from None


def reasons_listing(reply: WhyReply) -> Listing:
    listing = Listing([Column("state", whole=True), Column("reason", whole=True), Column("in words")])
    for item in reply.reasons:
        listing.add(Text(clean(item.state), style=STATE_STYLES.get(item.state, "")), item.code, item.text)
    return listing


def next_steps(reply: WhyReply) -> list[tuple[str, str]]:
    """Of the reasons as bad as the worst; each command once."""
    found: dict[str, str] = {}
    for item in reply.reasons:
        if item.state == reply.state:
            for step in item.steps:
                found.setdefault(step.command, step.purpose)
    return [(purpose, command) for command, purpose in found.items()]


def _hint(session: Session, purpose: str, step: str) -> None:
    try:
        words = shlex.split(step)
    except ValueError:  # nothing that could be copied
        words = []
    if words[:1] == ["trace"]:
        session.hint(clean(purpose), *words[1:])


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
