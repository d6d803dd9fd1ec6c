"""`trace pressure`: which queues are full, and what they stop."""

from collections.abc import Collection

import click
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.options import watch_option
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, clean, count
from tracelake.wire import routes
from tracelake.wire.pressure import PressureEdgeRow, PressureReply

_QUEUE_WORDS = {"stopped": "full", "bulk_stopped": "filling"}
"""The states of a queue that stops everything, and of one that stops bulk work alone."""
STATE_STYLES = {"open": "green", "bulk_stopped": "yellow", "stopped": "bold red", "paused": "magenta"}


@click.command()
@watch_option
@user_command
def command(session: Session, watch: bool) -> None:
    """Show the queues that have a threshold, and the inputs that they stop or could stop.

    The thresholds are `max_queue_depth` and `max_queue_age` of a job or a buffered dataset. At 80 % of one the queue is
    `filling` and stops work marked bulk; at 100 % it is `full` and stops everything upstream, up to the sources; below
    50 % all goes on. Events that come meanwhile are kept.

    Every queued task counts towards a threshold, also those `held` back by a concurrency limit (max_concurrency). A
    queue marked (backlog) belongs to a buffered dataset: it holds batches that wait for the sink, and stops
    the jobs that write the dataset. A job marked (bulk) is among the first to stop.

    A queue can also stop a job that does not lead to it: while every job that writes a dataset is stopped, its other
    readers get nothing either. Such a queue is marked `through its writers`.

    \b
    Examples:
      trace pressure
      trace pressure --watch
      trace pressure --json
    """
    reply = session.view(lambda client: client.call(routes.SHOW_PRESSURE), pressure_view, watch=watch)
    stopped = next((edge for edge in reply.edges if edge.state != "open"), None)
    if stopped is not None and stopped.state == "paused":
        session.hint("see why", "why", f"{stopped.dag}/{stopped.job}")
    elif stopped is not None and stopped.queue is not None:
        _, _, dataset = stopped.queue.partition("/")
        session.hint("see why it is slow", "why", dataset if stopped.queue_is_backlog else stopped.queue)


def pressure_view(reply: PressureReply) -> RenderableType:
    if not reply.queues and not reply.edges:
        return Text("Nothing is stopped: no active job sets max_queue_depth or max_queue_age, and no source is paused.")
    stopped = sum(edge.state != "open" for edge in reply.edges)
    title = f"{count(len(reply.queues), 'queue')} with a threshold; {count(stopped, 'input')} stopped"
    return Group(Text(title, style="bold"), queues_listing(reply), Text(), edges_listing(reply))


def queues_listing(reply: PressureReply) -> Listing:
    return Listing(
        reply.queues,
        ListingColumn(
            "queue",
            lambda row: Text.assemble((clean(f"{row.dag}/{row.job}"), "bold"), " (backlog)" if row.backlog else ""),
        ),
        ListingColumn(
            "state",
            lambda row: Text(_QUEUE_WORDS.get(row.state, row.state), style=STATE_STYLES.get(row.state, "")),
            whole=True,
        ),
        ListingColumn(
            "queued",
            lambda row: _of(f"{row.depth}", row.max_depth) + (" batches" if row.backlog else ""),
            right=True,
        ),
        ListingColumn("held", lambda row: row.held or "", right=True),
        ListingColumn(
            "oldest",
            lambda row: _of(
                f"{int(row.age_seconds)}s", None if row.max_age_seconds is None else f"{row.max_age_seconds}s"
            ),
            right=True,
        ),
        ListingColumn("since", lambda row: ago(row.since), whole=True),
        ListingColumn("build", lambda row: "building" if row.building else "", whole=True),
    )


def edges_listing(reply: PressureReply) -> Listing:
    backlogs = {f"{row.dag}/{row.job}" for row in reply.queues if row.backlog}
    return Listing(
        reply.edges,
        ListingColumn(
            "job", lambda row: Text.assemble((clean(f"{row.dag}/{row.job}"), "bold"), " (bulk)" if row.bulk else "")
        ),
        ListingColumn("input", lambda row: f"{row.dataset} (building)" if row.building else row.dataset),
        ListingColumn("state", lambda row: _state(row.state), whole=True),
        ListingColumn("kept events", lambda row: row.backlog, right=True),
        ListingColumn("since", lambda row: ago(row.since), whole=True),
        ListingColumn("because", lambda row: row.because),
        ListingColumn("could be stopped by", lambda row: ", ".join(_queue(row, name, backlogs) for name in row.queues)),
    )


def _queue(row: PressureEdgeRow, name: str, backlogs: Collection[str]) -> str:
    """A queue that could stop an input, directly or by stopping the jobs that write its dataset."""
    backlog = " (backlog)" if name in backlogs else ""
    return f"{name}{backlog}{' through its writers' if name in row.queues_of_writers else ''}"


def _state(state: str) -> Text:
    """The state of an input; another column names what stops it."""
    return Text("stopped" if state == "bulk_stopped" else state, style=STATE_STYLES.get(state, ""))


def _of(number: str, most: object) -> str:
    return number if most is None else f"{number} of {most}"
