"""`trace gc`: removes what was kept long enough, or shows what would go."""

import click

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.session import Session, operator_command
from tracelake.client.internal import InternalClient
from tracelake.wire import routes
from tracelake.wire.retention import GcPlan, GcReply


@click.command()
@click.option("--plan", "only_plan", is_flag=True, help="Show what would go, and remove nothing.")
@operator_command
def command(session: Session, only_plan: bool) -> None:
    """Remove what was kept long enough: old triggers, attempts and versions of DAGs, with the data that only they have.

    The Dispatcher does this by itself, a little at a time; the settings `*_retention_days` and `kept_versions` say how
    long everything is kept. Active versions, those that you can roll back to, and what their inputs and datasets need
    are never removed.

    \b
    Examples:
      trace gc --plan           # what would go
      trace gc --plan --json    # the same for programs
      trace gc                  # now, until nothing is left to remove
    """
    if only_plan:
        session.show(_plan_listing(session.ask_service(lambda client: client.call(routes.PLAN_GC))))
        return
    reply = session.ask_service(_run_all)
    if reply.removed:
        removed = ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in sorted(reply.removed.items()))
        click.echo(f"Removed: {removed}.")
    else:
        click.echo("There is nothing to remove.")


async def _run_all(client: InternalClient) -> GcReply:
    """Round after round. What was removed is known also if a later round fails."""
    removed: dict[str, int] = {}
    while True:
        reply = await client.call(routes.RUN_GC)
        for kind, number in reply.removed.items():
            removed[kind] = removed.get(kind, 0) + number
        if not reply.more:
            return GcReply(removed=removed, more=False)


def _plan_listing(plan: GcPlan) -> Listing:
    listing = Listing(
        [ListingColumn("what"), ListingColumn("number", right=True), ListingColumn("kept"), ListingColumn("oldest")]
    )
    for rows in plan.rows:
        oldest = None if rows.oldest is None else f"{rows.oldest:%Y-%m-%d}"
        listing.add(
            rows.kind.replace("_", " "), f"{rows.rows:,}{'+' if rows.more else ''}", f"{rows.kept_days} d", oldest
        )
    for version in plan.versions:
        listing.add(f"version {version.version} of {version.org}/{version.dag}", "1", None, None)
    if plan.jobs_to_sweep:
        listing.add("jobs of versions that are gone", str(plan.jobs_to_sweep), None, None)
    if plan.generations_to_delete:
        listing.add("generations whose files are to go", str(plan.generations_to_delete), None, None)
    return listing
