"""`trace sources`, `trace pause` and `trace resume`: the state of sources, and pausing them.

The Dispatcher reads no schedules, so this module computes when a cron source is due, by the rules of the scheduler.
"""

from datetime import UTC, datetime, timedelta

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli import text as words
from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.names import resolve_job
from tracelake.cli.options import watch_option
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, clean, count, shortened, span
from tracelake.client.user import UserClient
from tracelake.dag.schedule import has_seconds
from tracelake.dag.slots import ScheduleSlots
from tracelake.wire import routes
from tracelake.wire.contract import Route
from tracelake.wire.head_progress import HeadProgressRow
from tracelake.wire.sources_view import PauseReply, RepairReply, RepairRequest, SourceRow, SourcesReply

STYLES = {
    "running": "green",
    "backing_off": "yellow",
    "paused": "yellow",
    "stopped": "yellow",
    "dead": "bold red",
    "ended": "dim",
}

_OLD = timedelta(seconds=60)
"""The age of an observation that is shown; a follower tells of its head with every heartbeat."""
_LATE = timedelta(seconds=90)
"""A slot is overdue if it was not fired by then; the scheduler looks every few seconds."""

_sources_argument = click.argument("targets", nargs=-1, required=True, metavar="DAG/JOB...")


@click.command()
@click.option("--dag", metavar="DAG", help="Only sources of this DAG.")
@watch_option
@user_command
def command(session: Session, dag: str | None, watch: bool) -> None:
    """List the sources of active versions: the state of each, its last event, and when the next is due.

    A source starts work from outside. A `manual` one waits for `trace trigger`. A `cron` one fires at the times (slots)
    of its schedule; if it is overdue, the scheduler is late or down. A `webhook` takes deliveries over HTTP. An
    `always_on` one runs all the time; its lag is the age of its last event, and a `dead` one failed (no retries left):
    correct the cause, then retry its task. Of one that follows a chain, `chain` shows how its last look ended, its
    newest block with its age, and its reorganisations.

    Kept events create their tasks later: after the pause, when a full queue has emptied, or when the failed unit
    before them is retried or skipped.

    \b
    Examples:
      trace sources
      trace sources --dag pools --watch
    """
    reply = session.view(lambda client: _read(client, dag), sources_view, watch=watch)
    dead = next((source for source in reply.sources if source.state == "dead" and source.task_id), None)
    paused = next((source for source in reply.sources if source.state == "paused"), None)
    overdue = next((source for source in reply.sources if source.overdue_since is not None), None)
    idle = next((source for source in reply.sources if source.state in ("dead", "backing_off", "stopped")), None)
    stopped_source = next((source for source in reply.sources if source.held_by is not None), None)
    silent = next((source for source in reply.sources if source.silent_since is not None), None)
    if idle is not None:
        session.hint("see why it is not running", "why", f"{idle.dag}/{idle.job}")
    if stopped_source is not None:
        session.hint("see why events are kept", "why", f"{stopped_source.held_by}")
    if silent is not None:
        session.hint("see why it is silent", "why", f"{silent.dag}/{silent.job}")
    if dead is not None:
        session.hint("try it again", "retry", str(dead.task_id))
    elif paused is not None:
        session.hint("resume it", "resume", f"{paused.dag}/{paused.job}")
    elif overdue is not None:
        session.hint("see whether the scheduler runs", "status")
    elif not reply.sources and dag is None:
        session.hint_first_dag("deploy a DAG with one")


@click.command()
@_sources_argument
@user_command
def pause(session: Session, targets: tuple[str, ...]) -> None:
    """Pause sources: their events are kept and create no tasks until `trace resume`.

    An always_on source is also told to emit nothing. A pause lasts through deploys and restarts.

    \b
    Example:
      trace pause pools/head
    """
    _pause_or_resume(session, targets, routes.PAUSE_SOURCE)


@click.command()
@_sources_argument
@user_command
def resume(session: Session, targets: tuple[str, ...]) -> None:
    """Resume paused sources: the events kept meanwhile create their tasks now.

    \b
    Example:
      trace resume pools/head
    """
    _pause_or_resume(session, targets, routes.RESUME_SOURCE)


@click.command()
@click.argument("target", metavar="DAG/JOB")
@click.option("--from", "block", type=click.IntRange(0), help="Read files again from this block on, or from one below.")
@user_command
def repair(session: Session, target: str, block: int | None) -> None:
    """Let a source follow a reorganisation of final blocks.

    A follower stops at a reorganisation that is deeper than `max_reorg_depth`, or reaches blocks that are in files
    (`reorg_too_deep`). If the new chain is right, this command lets it follow once, within a day. Blocks in the table
    are replaced, files of units that changed are read again, and what was computed from them is computed again. The
    source finds which ones changed. `--from` has more of them read again, and is needed if the first one is older
    than the hashes that are stored; a block that is too high is refused (`trace sources`).

    \b
    Example:
      trace repair mainnet/mainnet_head
    """
    _check(target)

    async def ask(client: UserClient) -> RepairReply:
        dag, job = await resolve_job(client, target)
        return await client.call(routes.REPAIR_SOURCE, RepairRequest(from_block=block), dag=dag, job=job)

    reply = session.ask(ask)
    files = "that changed" if reply.from_block is None else f"from block {reply.from_block} on"
    session.say(f"{reply.dag}/{reply.job}: follows the nodes, and has files {files} read again.")
    session.hint("see it", "sources")


def _pause_or_resume(session: Session, targets: tuple[str, ...], route: Route[None, PauseReply]) -> None:
    for target in targets:
        _check(target)

    async def each(client: UserClient) -> list[PauseReply]:
        names = [await resolve_job(client, target) for target in targets]
        return [await client.call(route, dag=dag, job=job) for dag, job in names]

    replies = session.ask(each)
    for reply in replies:
        if reply.paused:
            done = "was already paused" if reply.duplicate else "paused"
        else:
            done = "was not paused" if reply.duplicate else "resumed"
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
    """The reply with the slots of its cron sources; a schedule that only a newer release understands has none."""
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
    now = reply.now or words.current_time()
    sources = Listing(
        reply.sources,
        ListingColumn("source", lambda source: Text(clean(f"{source.dag}/{source.job}"), style="bold")),
        ListingColumn("kind", lambda source: source.kind, whole=True),
        ListingColumn("state", lambda source: _state(source, now)),
        ListingColumn("last event", lambda source: _last(source, now)),
        ListingColumn("next", lambda source: _next(source, now)),
        ListingColumn(
            "lag", lambda source: "" if source.lag_seconds is None else _seconds(source.lag_seconds), right=True
        ),
        ListingColumn("chain", lambda source: "" if source.progress is None else _chain(source, source.progress, now)),
        ListingColumn("kept events", _kept),
        ListingColumn("task", lambda source: "" if source.task_id is None else str(source.task_id), whole=True),
        ListingColumn("error", lambda source: "" if source.error is None else shortened(source.error)),
    )
    return Group(Text(f"{count(len(reply.sources), 'source')} of active versions"), sources)


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
        text.append(f", no heartbeat for {span((now - source.silent_since).total_seconds())}", style="bold red")
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


def _chain(source: SourceRow, progress: HeadProgressRow, now: datetime) -> str:
    """How far the follower of a chain is; of an observation that is old, or that an event has overtaken, its age."""
    place = "no block yet" if progress.stored is None else f"block {progress.stored}"
    overtaken = source.last_event_at is not None and source.last_event_at > progress.at
    age = f" {ago(progress.at, now)}" if overtaken or now - progress.at >= _OLD else ""
    parts = [f"{progress.state.replace('_', ' ')}{age}: {place}"]
    if progress.lag_blocks:
        parts.append(f"{count(progress.lag_blocks, 'block')} behind")
    if progress.lag_seconds is not None:
        parts.append(f"{_seconds(progress.lag_seconds)} old")
    if progress.reorgs:
        parts.append(f"{count(progress.reorgs, 'reorganisation')}, deepest {progress.max_reorg_depth}")
    return clean(", ".join(parts))


def _next(source: SourceRow, now: datetime) -> str:
    return "" if source.next_slot is None else _slot(source, source.next_slot, now)


def _slot(source: SourceRow, slot: datetime, now: datetime) -> str:
    """A time and how far away it is, to the second only where the schedule has seconds."""
    to_the_second = slot.second or (source.schedule is not None and has_seconds(source.schedule))
    return f"{slot.astimezone(UTC):{'%Y-%m-%d %H:%M:%SZ' if to_the_second else '%Y-%m-%d %H:%MZ'}}, {ago(slot, now)}"


def _seconds(seconds: float) -> str:
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{letter}"
    return f"{int(seconds)}s"
