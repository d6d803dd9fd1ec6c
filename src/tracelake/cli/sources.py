"""`trace sources`, `trace pause` and `trace resume`: what sources do, and a person's word to them.

The Dispatcher reads no schedules; when a cron source is due is worked out here, by the same rules as the scheduler's.
"""

from datetime import UTC, datetime, timedelta

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli import text as words
from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.naming import named
from tracelake.cli.options import watch_option
from tracelake.cli.session import EXAMPLE, Session, user_command
from tracelake.cli.text import ago, clean, count, shortened, span
from tracelake.client.user import UserClient
from tracelake.dag.schedule import has_seconds
from tracelake.dag.slots import ScheduleSlots
from tracelake.wire import routes
from tracelake.wire.contract import Route
from tracelake.wire.sources_view import PauseReply, SourceRow, SourcesReply

STYLES = {
    "running": "green",
    "backing_off": "yellow",
    "paused": "yellow",
    "stopped": "yellow",
    "dead": "bold red",
    "ended": "dim",
}

_LATE = timedelta(seconds=90)
"""A slot that was not fired by then is overdue; the scheduler looks every few seconds."""

_sources_argument = click.argument("targets", nargs=-1, required=True, metavar="DAG/JOB...")


@click.command()
@click.option("--dag", metavar="DAG", help="Only those of this DAG.")
@watch_option
@user_command
def command(session: Session, dag: str | None, watch: bool) -> None:
    """List the sources of active versions: what each is doing, what it said last, and what comes next.

    Of a cron source: the last slot that was fired, and the next; when one is overdue, the scheduler is behind or away.
    Of a webhook: the last delivery. Of an always_on source: how long it has been as it is, its attempt, and its lag,
    which is the age of its last event; one that is `dead` failed for good: retry its task once the cause is mended.
    Events that are `kept` wait for the end of a pause or of a full queue, or behind a failed unit of a job that reads
    them.

    \b
    Examples:
      trace sources
      trace sources --dag pools --watch
    """
    if watch:

        async def look(client: UserClient) -> RenderableType:
            return sources_view(await _read(client, dag))

        session.watch(look)
        return
    reply = session.ask(lambda client: _read(client, dag))
    session.show(sources_view(reply))
    dead = next((source for source in reply.sources if source.state == "dead" and source.task_id), None)
    paused = next((source for source in reply.sources if source.state == "paused"), None)
    overdue = next((source for source in reply.sources if source.overdue_since is not None), None)
    idle = next((source for source in reply.sources if source.state in ("dead", "backing_off", "stopped")), None)
    stopped_source = next((source for source in reply.sources if source.held_by is not None), None)
    silent = next((source for source in reply.sources if source.silent_since is not None), None)
    if idle is not None:
        session.hint("see why it is not running", "why", f"{idle.dag}/{idle.job}")
    if stopped_source is not None:
        session.hint("see what holds the kept events", "why", f"{stopped_source.held_by}")
    if silent is not None:
        session.hint("see what becomes of it", "why", f"{silent.dag}/{silent.job}")
    if dead is not None:
        session.hint("try it again", "retry", str(dead.task_id))
    elif paused is not None:
        session.hint("let it go on", "resume", f"{paused.dag}/{paused.job}")
    elif overdue is not None:
        session.hint("see whether the scheduler runs", "status")
    elif not reply.sources and dag is None:
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
    _say(session, targets, routes.PAUSE_SOURCE)


@click.command()
@_sources_argument
@user_command
def resume(session: Session, targets: tuple[str, ...]) -> None:
    """Let paused sources go on; what was kept meanwhile makes its tasks now.

    \b
    Example:
      trace resume pools/head
    """
    _say(session, targets, routes.RESUME_SOURCE)


def _say(session: Session, targets: tuple[str, ...], route: Route[None, PauseReply]) -> None:
    for target in targets:
        _check(target)

    async def each(client: UserClient) -> list[PauseReply]:
        names = [await named(client, target) for target in targets]
        return [await client.call(route, dag=dag, job=job) for dag, job in names]

    replies = session.ask(each)
    for reply in replies:
        if reply.paused:
            done = "was paused before" if reply.duplicate else "paused"
        else:
            done = "was not paused" if reply.duplicate else "goes on"
        session.say(f"{reply.dag}/{reply.job}: {done}.")
    session.hint("see them", "sources")


def _check(target: str) -> None:
    dag, slash, job = target.partition("/")
    if not dag or (slash and not job):
        raise click.UsageError(f"A source is named DAG/JOB, or JOB alone, not {clean(target)!r}.")


async def _read(client: UserClient, dag: str | None) -> SourcesReply:
    reply = with_slots(await client.call(routes.LIST_SOURCES))
    if dag is None:
        return reply
    return msgspec.structs.replace(reply, sources=[source for source in reply.sources if source.dag == dag])


def with_slots(reply: SourcesReply) -> SourcesReply:
    """With the slots of the cron sources. A schedule that only a newer Dispatcher understands has none."""
    now = reply.now or words.current_time()
    return msgspec.structs.replace(reply, sources=[_with_slots(source, now) for source in reply.sources])


def _with_slots(source: SourceRow, now: datetime) -> SourceRow:
    if source.schedule is None or source.time_zone is None:
        return source
    try:
        slots = ScheduleSlots.of(source.schedule, source.time_zone)
    except (ValueError, KeyError, OSError):
        return source
    fired = max((at for at in (source.last_slot, source.counts_since) if at is not None), default=now)
    due = slots.after(min(fired, now))
    late = due is not None and now - due > _LATE
    return msgspec.structs.replace(source, next_slot=slots.after(now), overdue_since=due if late else None)


def sources_view(reply: SourcesReply) -> RenderableType:
    listing = Listing(
        [
            ListingColumn("source"),
            ListingColumn("kind", whole=True),
            ListingColumn("state"),
            ListingColumn("last said"),
            ListingColumn("next"),
            ListingColumn("lag", right=True),
            ListingColumn("kept"),
            ListingColumn("task", whole=True),
            ListingColumn("error"),
        ]
    )
    now = reply.now or words.current_time()
    for source in reply.sources:
        listing.add(
            Text(clean(f"{source.dag}/{source.job}"), style="bold"),
            source.kind,
            _state(source, now),
            _last(source, now),
            _next(source, now),
            "" if source.lag_seconds is None else _seconds(source.lag_seconds),
            _kept(source),
            "" if source.task_id is None else str(source.task_id),
            "" if source.error is None else shortened(source.error),
        )
    return Group(Text(f"{count(len(reply.sources), 'source')} of active versions"), listing)


def _kept(source: SourceRow) -> str:
    if not source.kept:
        return ""
    return f"{source.kept}, by a failed unit of {clean(source.held_by)}" if source.held_by else str(source.kept)


def _state(source: SourceRow, now: datetime) -> Text:
    text = Text(clean(source.state.replace("_", " ")), style=STYLES.get(source.state, ""))
    if source.overdue_since is not None and source.state == "waiting":
        text = Text(f"overdue, {ago(source.overdue_since, now)}", style="bold red")
    elif source.state == "paused" and source.paused_by:
        text.append(clean(f" by {source.paused_by}, {ago(source.paused_at, now)}"), style="dim")
    elif source.state == "stopped" and source.because:
        text.append(clean(f": {source.because}"), style="dim")
    elif source.state == "backing_off" and source.until is not None:
        text.append(f", again {ago(source.until, now)}", style="dim")
    elif source.since is not None and source.state in ("dead", "ended"):
        text.append(f", {ago(source.since, now)}", style="dim")
    elif source.since is not None and (lasted := span((now - source.since).total_seconds())):
        text.append(f" for {lasted}", style="dim")
    if source.silent_since is not None:
        text.append(f", last heard of {ago(source.silent_since, now)}", style="bold red")
    if source.attempt > 1:
        text.append(f" (attempt {source.attempt})", style="dim")
    return text


def _last(source: SourceRow, now: datetime) -> str:
    if source.kind == "cron" and source.last_slot is not None:
        return _slot(source, source.last_slot, now)
    if source.kind == "webhook" and source.deliveries:
        at = source.last_delivery_at or source.last_event_at
        return f"delivery {source.deliveries}" + ("" if at is None else f", {ago(at, now)}")
    if source.last_event_at is None:
        return ""
    unit = source.last_partition if source.last_cursor is None else str(source.last_cursor)
    return clean(f"{unit or ''}, {ago(source.last_event_at, now)}")


def why_kept(source: SourceRow) -> str | None:
    """What keeps the events of a source from making tasks; None if nothing does."""
    name = clean(f"{source.dag}/{source.job}")
    if source.state == "paused":
        since = "" if source.paused_at is None else f" since {source.paused_at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
        return f"{name} is paused by {clean(source.paused_by or 'somebody')}{since}"
    if source.state == "stopped":
        return f"{name} is stopped by a full queue" + (f": {clean(source.because)}" if source.because else "")
    if source.kept and source.held_by:
        return f"a failed unit of {clean(source.held_by)} holds {count(source.kept, 'event')} of {name}"
    return f"{name} works off {count(source.kept, 'kept event')}" if source.kept else None


def _next(source: SourceRow, now: datetime) -> str:
    return "" if source.next_slot is None else _slot(source, source.next_slot, now)


def _slot(source: SourceRow, slot: datetime, now: datetime) -> str:
    """To the second only where that says something."""
    to_the_second = slot.second or (source.schedule is not None and has_seconds(source.schedule))
    return f"{slot.astimezone(UTC):{'%Y-%m-%d %H:%M:%SZ' if to_the_second else '%Y-%m-%d %H:%MZ'}}, {ago(slot, now)}"


def _seconds(seconds: float) -> str:
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{letter}"
    return f"{int(seconds)}s"
