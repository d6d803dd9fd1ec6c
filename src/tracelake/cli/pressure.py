"""`trace pressure`: which queues are full, and what they stop."""

from collections.abc import Collection

import click
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.options import watch_option
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, clean, count
from tracelake.client.user import UserClient
from tracelake.wire import routes
from tracelake.wire.pressure import PressureEdgeRow, PressureReply

_QUEUE_WORDS = {"stopped": "full", "bulk_stopped": "filling"}
"""What a queue is that stops everything, or what is bulk alone."""
STATE_STYLES = {"open": "green", "bulk_stopped": "yellow", "stopped": "bold red", "paused": "magenta"}


@click.command()
@watch_option
@user_command
def command(session: Session, watch: bool) -> None:
    """Show every queue that has a threshold, and every input that such a queue stops or could stop.

    At 80 % of max_queue_depth or max_queue_age a queue is `filling` and stops what is marked bulk before it; at 100 %
    it is `full` and stops everything, up to the sources; below 50 % all goes on. Events that come meanwhile are kept.

    Every queued task counts. `held` are those of them that wait for a limit on running work (max_concurrency). A job
    that is marked (bulk) is among the first to stop.

    A row that is marked (backlog) is no job but a buffered dataset: batches that wait for a sink. It stops the jobs
    that write the dataset.

    Nothing is passed on of a dataset while everybody who writes it is stopped. So a queue can stop an input of a job
    that does not lead to it: it is marked `through its writers`.

    \b
    Examples:
      trace pressure
      trace pressure --watch
      trace pressure --json
    """
    if watch:
        session.watch(_look)
        return
    reply = session.ask(lambda client: client.call(routes.SHOW_PRESSURE))
    session.show(pressure_view(reply))
    stopped = next((edge for edge in reply.edges if edge.state != "open"), None)
    if stopped is not None and stopped.state == "paused":
        session.hint("see why", "why", f"{stopped.dag}/{stopped.job}")
    elif stopped is not None and stopped.queue is not None:
        _, _, dataset = stopped.queue.partition("/")
        session.hint("see why it is slow", "why", dataset if stopped.queue_is_backlog else stopped.queue)


async def _look(client: UserClient) -> RenderableType:
    return pressure_view(await client.call(routes.SHOW_PRESSURE))


def pressure_view(reply: PressureReply) -> RenderableType:
    if not reply.queues and not reply.edges:
        return Text("No job of an active version has max_queue_depth or max_queue_age, and no source is paused.")
    stopped = sum(edge.state != "open" for edge in reply.edges)
    title = f"{count(len(reply.queues), 'queue')} with a threshold; {count(stopped, 'input')} stopped"
    return Group(Text(title, style="bold"), queues_listing(reply), Text(), edges_listing(reply))


def queues_listing(reply: PressureReply) -> Listing:
    listing = Listing(
        [
            ListingColumn("queue"),
            ListingColumn("state", whole=True),
            ListingColumn("queued", right=True),
            ListingColumn("held", right=True),
            ListingColumn("oldest", right=True),
            ListingColumn("since", whole=True),
            ListingColumn("build", whole=True),
        ]
    )
    for row in reply.queues:
        listing.add(
            Text.assemble((clean(f"{row.dag}/{row.job}"), "bold"), " (backlog)" if row.backlog else ""),
            Text(_QUEUE_WORDS.get(row.state, row.state), style=STATE_STYLES.get(row.state, "")),
            _of(f"{row.depth}", row.max_depth) + (" batches" if row.backlog else ""),
            row.held or "",
            _of(f"{int(row.age_seconds)}s", None if row.max_age_seconds is None else f"{row.max_age_seconds}s"),
            ago(row.since),
            "building" if row.building else "",
        )
    return listing


def edges_listing(reply: PressureReply) -> Listing:
    listing = Listing(
        [
            ListingColumn("job"),
            ListingColumn("input"),
            ListingColumn("state", whole=True),
            ListingColumn("waiting", right=True),
            ListingColumn("since", whole=True),
            ListingColumn("because"),
            ListingColumn("could be stopped by"),
        ]
    )
    backlogs = {f"{row.dag}/{row.job}" for row in reply.queues if row.backlog}
    for row in reply.edges:
        listing.add(
            Text.assemble((clean(f"{row.dag}/{row.job}"), "bold"), " (bulk)" if row.bulk else ""),
            f"{row.dataset} (building)" if row.building else row.dataset,
            _state(row.state),
            row.backlog,
            ago(row.since),
            row.because,
            ", ".join(_queue(row, name, backlogs) for name in row.queues),
        )
    return listing


def _queue(row: PressureEdgeRow, name: str, backlogs: Collection[str]) -> str:
    """A queue that could stop an input; if the job does not lead to it, by stopping those who write the dataset."""
    backlog = " (backlog)" if name in backlogs else ""
    return f"{name}{backlog}{' through its writers' if name in row.queues_of_writers else ''}"


def _state(state: str) -> Text:
    """Of an input: what stops it is told beside it."""
    return Text("stopped" if state == "bulk_stopped" else state, style=STATE_STYLES.get(state, ""))


def _of(number: str, most: object) -> str:
    return number if most is None else f"{number} of {most}"
