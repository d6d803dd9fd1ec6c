"""`trace gc`: removes history and data whose retention is over, or shows what would be removed."""

import click

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.session import Session, operator_command
from tracelake.client.internal import InternalClient
from tracelake.wire import routes
from tracelake.wire.retention import GcPlan, GcReply


@click.command()
@click.option("--plan", "only_plan", is_flag=True, help="Show what would be removed, and remove nothing.")
@operator_command
def command(session: Session, only_plan: bool) -> None:
    """Remove what is past its retention: old triggers, attempts, logs, tasks and DAG versions, with their data.

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
    rows: list[tuple[str, str, str | None, str | None]] = [
        (
            rows.kind.replace("_", " "),
            f"{rows.rows:,}{'+' if rows.more else ''}",
            f"{rows.kept_days} d",
            None if rows.oldest is None else f"{rows.oldest:%Y-%m-%d}",
        )
        for rows in plan.rows
    ]
    rows += [(f"version {row.version} of {row.org}/{row.dag}", "1", None, None) for row in plan.versions]
    if plan.jobs_to_sweep:
        rows.append(("jobs of removed versions", str(plan.jobs_to_sweep), None, None))
    if plan.generations_to_delete:
        rows.append(("generations whose files are removed", str(plan.generations_to_delete), None, None))
    return Listing(
        rows,
        ListingColumn("what", lambda row: row[0]),
        ListingColumn("to remove", lambda row: row[1], right=True),
        ListingColumn("kept for", lambda row: row[2]),
        ListingColumn("oldest", lambda row: row[3]),
    )
