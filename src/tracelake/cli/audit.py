"""`trace audit`: who did what."""

import click

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.options import cursor_option, limit_option
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, compact
from tracelake.client.paging import collect
from tracelake.wire import routes


@click.command()
@click.option("--queries", is_flag=True, help="List queries instead: who read which datasets, never the text.")
@limit_option(50)
@cursor_option
@user_command
def command(session: Session, queries: bool, limit: int, cursor: str | None) -> None:
    """List the actions of users, newest first: deploys, rollbacks, triggers, cancels, retries, skips. For admins.

    \b
    Examples:
      trace audit
      trace audit --limit 1000 --json
      trace audit --queries
    """
    if queries:
        _list_queries(session, limit, cursor)
        return
    page = session.ask(lambda client: collect(client, routes.LIST_AUDIT_LOG, "entries", limit=limit, cursor=cursor))
    if not page.entries:
        session.say("The audit log is empty: no user has changed anything yet.")
        session.hint_first_dag("deploy a DAG")
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


def _list_queries(session: Session, limit: int, cursor: str | None) -> None:
    page = session.ask(lambda client: collect(client, routes.LIST_QUERIES, "entries", limit=limit, cursor=cursor))
    if not page.entries:
        session.say("Nobody has queried anything yet.")
        session.hint("query a dataset", "query", "SELECT 1")
        return
    session.show(
        Listing(
            page.entries,
            ListingColumn("when", lambda entry: ago(entry.at), whole=True),
            ListingColumn("caller", lambda entry: entry.subject),
            ListingColumn("outcome", lambda entry: entry.outcome),
            ListingColumn("datasets", lambda entry: ", ".join(dataset.name for dataset in entry.datasets)),
            ListingColumn("rows", lambda entry: f"{entry.row_count:,}", right=True),
            ListingColumn("bytes", lambda entry: f"{entry.bytes_read:,}", right=True),
            ListingColumn("ms", lambda entry: f"{entry.duration_ms:,}", right=True),
            ListingColumn("query", lambda entry: entry.sql_sha256[:12]),
        )
    )
    if page.next is not None:
        session.hint("see the next page", "audit", "--queries", "--limit", limit, "--cursor", page.next)
