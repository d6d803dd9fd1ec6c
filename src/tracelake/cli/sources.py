"""`trace sources`, `trace pause` and `trace resume`: what sources do, and a person's word to them."""

from collections.abc import Awaitable, Callable

import click
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli.listing import Column, Listing
from tracelake.cli.options import watch_option
from tracelake.cli.session import EXAMPLE, Session, user_command
from tracelake.cli.text import ago, clean, count, shortened
from tracelake.client.user import UserClient
from tracelake.wire.sources_view import PauseReply, SourceRow, SourcesReply

STYLES = {
    "running": "green",
    "backing_off": "yellow",
    "paused": "yellow",
    "stopped": "yellow",
    "dead": "bold red",
    "ended": "dim",
}

_sources_argument = click.argument("targets", nargs=-1, required=True, metavar="DAG/JOB...")


@click.command()
@watch_option
@user_command
def command(session: Session, watch: bool) -> None:
    """List the sources of active versions: what each is doing, its last event, and how long ago that was.

    An always_on source that is `dead` failed for good: retry its task once the cause is mended.

    \b
    Examples:
      trace sources
      trace sources --watch
    """
    if watch:
        session.watch(_look)
        return
    reply = session.run(UserClient.sources)
    if session.as_json:
        session.json(reply)
        return
    session.show(sources_view(reply))
    dead = next((source for source in reply.sources if source.state == "dead" and source.task_id), None)
    paused = next((source for source in reply.sources if source.state == "paused"), None)
    idle = next((source for source in reply.sources if source.state in ("dead", "backing_off", "stopped")), None)
    if idle is not None:
        session.hint("see why it is not running", "why", f"{idle.dag}/{idle.job}")
    if dead is not None:
        session.hint("try it again", "retry", str(dead.task_id))
    elif paused is not None:
        session.hint("let it go on", "resume", f"{paused.dag}/{paused.job}")
    elif not reply.sources:
        session.hint("deploy one", "deploy", EXAMPLE)


@click.command()
@_sources_argument
@user_command
def pause(session: Session, targets: tuple[str, ...]) -> None:
    """Pause sources: what they say meanwhile is kept and makes no tasks.

    An always_on source is also told to emit nothing. It lasts until `trace resume`, also through deploys and restarts.

    \b
    Example:
      trace pause pools/head
    """
    _say(session, targets, UserClient.pause)


@click.command()
@_sources_argument
@user_command
def resume(session: Session, targets: tuple[str, ...]) -> None:
    """Let paused sources go on; what was kept meanwhile makes its tasks now.

    \b
    Example:
      trace resume pools/head
    """
    _say(session, targets, UserClient.resume)


def _say(
    session: Session, targets: tuple[str, ...], word: Callable[[UserClient, str, str], Awaitable[PauseReply]]
) -> None:
    names = [_names(target) for target in targets]

    async def each(client: UserClient) -> list[PauseReply]:
        return [await word(client, dag, job) for dag, job in names]

    replies = session.run(each)
    if session.as_json:
        session.json(replies)
        return
    for reply in replies:
        before = "was before" if reply.duplicate else "now"
        session.say(f"{reply.dag}/{reply.job}: {'paused' if reply.paused else 'goes on'} ({before}).")
    session.hint("see them", "sources")


def _names(target: str) -> tuple[str, str]:
    dag, slash, job = target.partition("/")
    if not (dag and slash and job):
        raise click.UsageError(f"A source is named DAG/JOB, not {clean(target)!r}.")
    return dag, job


async def _look(client: UserClient) -> RenderableType:
    return sources_view(await client.sources())


def sources_view(reply: SourcesReply) -> RenderableType:
    listing = Listing(
        [
            Column("source"),
            Column("kind", whole=True),
            Column("state"),
            Column("last event"),
            Column("lag", right=True),
            Column("attempt", right=True),
            Column("task", whole=True),
            Column("error"),
        ]
    )
    for source in reply.sources:
        listing.add(
            Text(clean(f"{source.dag}/{source.job}"), style="bold"),
            source.kind,
            _state(source),
            _last(source),
            "" if source.lag_seconds is None else _seconds(source.lag_seconds),
            source.attempt or "",
            "" if source.task_id is None else str(source.task_id),
            "" if source.error is None else shortened(source.error),
        )
    return Group(Text(f"{count(len(reply.sources), 'source')} of active versions"), listing)


def _state(source: SourceRow) -> Text:
    text = Text(clean(source.state.replace("_", " ")), style=STYLES.get(source.state, ""))
    if source.state == "paused" and source.paused_by:
        text.append(clean(f" by {source.paused_by}, {ago(source.paused_at)}"), style="dim")
    if source.state == "backing_off" and source.until is not None:
        text.append(f", again {ago(source.until)}", style="dim")
    return text


def _last(source: SourceRow) -> str:
    if source.last_event_at is None:
        return ""
    unit = source.last_partition if source.last_cursor is None else str(source.last_cursor)
    return f"{unit or ''}, {ago(source.last_event_at)}"


def _seconds(seconds: float) -> str:
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{letter}"
    return f"{int(seconds)}s"
