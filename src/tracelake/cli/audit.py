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
    """List the actions of users, newest first: deploys, rollbacks, triggers, cancels, retries, skips. For admins.

    \b
    Examples:
      trace audit
      trace audit --limit 1000 --json
    """
    page = session.ask(lambda client: collect(client, routes.LIST_AUDIT_LOG, "entries", limit=limit, cursor=cursor))
    if not page.entries:
        session.say("The audit log is empty: no user has changed anything yet.")
        session.hint("deploy a DAG", "deploy", EXAMPLE)
        return
    session.show(
        Listing(
            page.entries,
            ListingColumn("entry", lambda entry: entry.audit_id, right=True),
            ListingColumn("when", lambda entry: ago(entry.at), whole=True),
            ListingColumn("user", lambda entry: entry.subject),
            ListingColumn("action", lambda entry: entry.action),
            ListingColumn("target", lambda entry: entry.target),
            ListingColumn("details", lambda entry: compact(entry.details or None)),
        )
    )
    if page.next is not None:
        session.hint("see the next page", "audit", "--limit", limit, "--cursor", page.next)
