"""`trace audit`: who did what."""

import click

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.options import cursor_option, limit_option
from tracelake.cli.paging import collect
from tracelake.cli.session import EXAMPLE, Session, user_command
from tracelake.cli.text import ago, compact
from tracelake.wire import routes


@click.command()
@limit_option(50)
@cursor_option
@user_command
def command(session: Session, limit: int, cursor: str | None) -> None:
    """List what people did, newest first: deploys, rollbacks, triggers, cancels, retries, skips.

    \b
    Examples:
      trace audit
      trace audit --limit 1000 --json
    """
    page = session.ask(lambda client: collect(client, routes.LIST_AUDIT_LOG, "entries", limit=limit, cursor=cursor))
    if not page.entries:
        session.say("Nobody has done anything yet.")
        session.hint("be the first", "deploy", EXAMPLE)
        return
    listing = Listing(
        [
            ListingColumn("entry", right=True),
            ListingColumn("when", whole=True),
            ListingColumn("who"),
            ListingColumn("did"),
            ListingColumn("to"),
            ListingColumn("details"),
        ]
    )
    for entry in page.entries:
        details = compact(entry.details) if entry.details else ""
        listing.add(entry.audit_id, ago(entry.at), entry.subject, entry.action, entry.target, details)
    session.show(listing)
    if page.next is not None:
        session.hint("see the next page", "audit", "--limit", limit, "--cursor", page.next)
