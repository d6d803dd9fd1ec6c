"""`trace events`: updates of datasets that jobs and sources announced."""

from collections.abc import Sequence
from typing import Any

import click
from rich.text import Text

from tracelake.cli.follow import EventFollower, follow, producer_text
from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.missing import explained
from tracelake.cli.options import cursor_option, follow_option, limit_option
from tracelake.cli.paging import collect
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, compact
from tracelake.client.user import UserClient
from tracelake.wire import routes
from tracelake.wire.datasets import EventRow, EventsPage

_STYLES = {"Routed": "green", "AwaitsCommit": "yellow", "NotCurrent": "dim", "Outdated": "dim"}


@click.command()
@click.option("--dataset", help="Only of this dataset.")
@click.option("--state", type=click.Choice(list(_STYLES), case_sensitive=False), help="Only in this state.")
@limit_option(50)
@cursor_option
@follow_option
@user_command
def command(session: Session, limit: int, following: bool, **filters: Any) -> None:
    """List events, newest first; with --follow, print each new one as it happens.

    `Routed` events have reached the jobs that read their dataset. One that `AwaitsCommit` waits for its data;
    one that is `NotCurrent` belongs to a generation that is not the current one; an `Outdated` one was said for older
    inputs than its unit was completed with. Of a buffered dataset each event is
    a commit of its table, and its producer the task that wrote the first batch of it.

    \b
    Examples:
      trace events --dataset blocks
      trace events --state AwaitsCommit --json
      trace events --follow --dataset blocks
      trace events --follow --json | jq -r .dataset
    """
    filters = {name: value for name, value in filters.items() if value is not None}
    if following:
        if "cursor" in filters:
            raise click.UsageError("--follow starts now; there is no --cursor with it.")
        follow(session, lambda client: EventFollower(session, client, filters.get("dataset"), filters.get("state")))
        return
    page = session.ask(lambda client: _page(client, limit, filters))
    if not page.events:
        session.say("No events match." if filters else "There is no event yet.")
        if not filters:
            session.hint("see which sources could emit one", "dags")
        return
    session.show(events_listing(page.events))
    if page.next is not None:
        words = [word for name in ("dataset", "state") if name in filters for word in (f"--{name}", filters[name])]
        session.hint("see the next page", "events", *words, "--limit", limit, "--cursor", page.next)


async def _page(client: UserClient, limit: int, filters: dict[str, Any]) -> EventsPage:
    pages = collect(client, routes.LIST_EVENTS, "events", limit=limit, **filters)
    return await explained(client, pages, dataset=filters.get("dataset"))


def events_listing(events: Sequence[EventRow]) -> Listing:
    listing = Listing(
        [
            ListingColumn("event", right=True),
            ListingColumn("dataset"),
            ListingColumn("unit"),
            ListingColumn("revision"),
            ListingColumn("state", whole=True),
            ListingColumn("producer", whole=True),
            ListingColumn("announced", whole=True),
            ListingColumn("invalidates"),
        ]
    )
    for row in events:
        listing.add(
            row.event_id,
            row.dataset,
            row.partition_key if row.cursor is None else str(row.cursor),
            row.revision,
            Text(row.state, style=_STYLES[row.state]),
            producer_text(row),
            ago(row.created_at),
            compact(row.invalidates),
        )
    return listing
