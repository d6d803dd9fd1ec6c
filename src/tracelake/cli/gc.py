"""`trace gc`: removes history and data whose retention is over, or shows what would be removed."""

from datetime import datetime
from typing import NamedTuple

import click

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.session import Session, operator_command
from tracelake.cli.text import size_text
from tracelake.client.internal import InternalClient
from tracelake.wire import routes
from tracelake.wire.retention import GcPlan, GcReply


@click.command()
@click.option("--plan", "only_plan", is_flag=True, help="Show what would be removed, and remove nothing.")
@operator_command
def command(session: Session, only_plan: bool) -> None:
    """Remove what is past its retention: old history, logs, deliveries, versions and removed DAGs, with their data.

    The Dispatcher does this by itself, a little at a time; the settings `*_retention_days` and `kept_versions` decide
    how long everything is kept. Active versions, those that you can roll back to, and what their inputs and datasets
    need are never removed.

    \b
    Examples:
      trace gc --plan           # what would be removed
      trace gc --plan --json    # the same for programs
      trace gc                  # remove it now
    """
    if only_plan:
        session.show(_plan_listing(session.ask_service(lambda client: client.call(routes.PLAN_GC))))
        return
    reply = session.ask_service(_run_all)
    if reply.removed:
        removed = ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in sorted(reply.removed.items()))
        click.echo(f"Removed: {removed}.")
    else:
        click.echo("There is nothing to remove: everything is within its retention.")


async def _run_all(client: InternalClient) -> GcReply:
    """Removes round after round until nothing is left to remove."""
    removed: dict[str, int] = {}
    while True:
        reply = await client.call(routes.RUN_GC)
        for kind, number in reply.removed.items():
            removed[kind] = removed.get(kind, 0) + number
        if not reply.more:
            return GcReply(removed=removed, more=False)


def _plan_listing(plan: GcPlan) -> Listing:
    rows = [
        PlanRow(
            rows.kind.replace("_", " "),
            f"{rows.rows:,}{'+' if rows.more else ''}",
            f"{rows.kept_days} d",
            _day(rows.oldest),
            rows.bytes,
        )
        for rows in plan.rows
    ]
    rows += [PlanRow(f"version {row.version} of {row.org}/{row.dag}", "1") for row in plan.versions]
    for dag in plan.removed_dags:
        term = "being deleted" if dag.is_due else f"until {_day(dag.restorable_until) or 'purged'}"
        due = "1" if dag.is_due else "0"
        rows.append(PlanRow(f"removed DAG {dag.org}/{dag.dag}", due, term, _day(dag.removed_at), dag.bytes))
    for what, number in (
        ("jobs of removed versions", plan.jobs_to_sweep),
        ("places whose files are removed", plan.generations_to_delete),
        ("tables of removed DAGs", plan.tables_to_drop),
    ):
        if number:
            rows.append(PlanRow(what, str(number)))
    return Listing(
        rows,
        ListingColumn("what", lambda row: row.what),
        ListingColumn("to remove", lambda row: row.number, right=True),
        ListingColumn("size", lambda row: "" if not row.bytes else size_text(row.bytes), right=True),
        ListingColumn("kept for", lambda row: row.kept),
        ListingColumn("oldest", lambda row: row.oldest),
    )


class PlanRow(NamedTuple):
    """A line of the plan: what, how many, and how long it is kept."""

    what: str
    number: str
    kept: str = ""
    oldest: str = ""
    bytes: int | None = None


def _day(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d}"
