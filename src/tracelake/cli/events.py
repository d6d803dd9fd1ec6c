"""`trace events`: updates of datasets that jobs and sources announced."""

from collections.abc import Sequence
from typing import Any

import click
from rich.text import Text

from tracelake.cli.follow import EVENT_STYLES, EventFollower, event_unit_text, follow, producer_text
from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.options import cursor_option, follow_option, limit_option
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, compact
from tracelake.client.paging import collect
from tracelake.wire import routes
from tracelake.wire.datasets import EventRow


@click.command()
@click.option("--dataset", help="Only events of this dataset.")
@click.option("--state", type=click.Choice(list(EVENT_STYLES), case_sensitive=False), help="Only events in this state.")
@limit_option(50)
@cursor_option
@follow_option
@user_command
def command(session: Session, limit: int, following: bool, **filters: Any) -> None:
    """List events, newest first; with --follow, print each new one as it happens.

    An event announces that one unit of a dataset was updated. Its state is `Routed` once the jobs that read the dataset
    have their tasks, `AwaitsCommit` while its data is not committed, `NotCurrent` if it belongs to a generation that is
    not the current one, and `Outdated` if the unit was since computed from newer inputs. The producer is a task and its
    attempt (`ID#ATTEMPT`), or a source. An event of a buffered dataset is one commit of its table; the producer is then
    the task of the first batch.

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
            raise click.UsageError("--follow starts now: leave out --cursor.")
        follow(session, lambda client: EventFollower(session, client, filters.get("dataset"), filters.get("state")))
        return
    page = session.ask(
        lambda client: collect(client, routes.LIST_EVENTS, "events", limit=limit, **filters),
        dataset=filters.get("dataset"),
    )
    if not page.events:
        session.say("No event matches the filters." if filters else "There is no event yet.")
        if not filters:
            session.hint("see the sources, which emit the first events", "sources")
        return
    session.show(events_listing(page.events))
    if page.next is not None:
        words = [word for name in ("dataset", "state") if name in filters for word in (f"--{name}", filters[name])]
        session.hint("see the next page", "events", *words, "--limit", limit, "--cursor", page.next)


def events_listing(events: Sequence[EventRow]) -> Listing:
    return Listing(
        events,
        ListingColumn("event", lambda row: row.event_id, right=True),
        ListingColumn("dataset", lambda row: row.dataset),
        ListingColumn("unit", event_unit_text),
        ListingColumn("revision", lambda row: row.revision),
        ListingColumn("state", lambda row: Text(row.state, style=EVENT_STYLES[row.state]), whole=True),
        ListingColumn("producer", producer_text, whole=True),
        ListingColumn("announced", lambda row: ago(row.created_at), whole=True),
        ListingColumn("invalidates", lambda row: compact(row.invalidates)),
    )
