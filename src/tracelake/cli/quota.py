"""`trace quota`: what an org may use, and what it uses; the platform's operator sets it."""

import click
from rich.text import Text

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.session import Session, operator_command, user_command
from tracelake.wire import routes
from tracelake.wire.quotas import QuotaReply, QuotaRequest

KINDS = (
    "weight",
    "queued_tasks",
    "running_tasks",
    "units_per_range",
    "stored_bytes",
    "deploys_per_hour",
    "dry_runs_per_minute",
)
_OPTIONS = {name.replace("_", "-"): name for name in KINDS}


@click.group(invoke_without_command=True)
@user_command
def command(session: Session) -> None:
    """Show what your org may use, and what it uses.

    Above its quota of queued tasks or stored bytes an org is held back: triggers and deploys are refused, and events
    are kept until there is room again. Above its quota of running tasks, ready tasks wait. Nothing is lost.

    The weight is the org's share of what orgs share: slots of workers, queues, limits of operators.

    \b
    Examples:
      trace quota
      trace quota --json
      trace quota set acme --weight 2 --queued-tasks 50000
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    reply = session.ask(lambda client: client.call(routes.SHOW_QUOTA))
    session.show(quota_view(reply))


@command.command("list")
@operator_command
def list_orgs(session: Session) -> None:
    """Show the quotas of every org and what it uses (for the platform's operator)."""
    reply = session.ask_service(lambda client: client.call(routes.LIST_QUOTAS))
    listing = Listing([ListingColumn("org"), *_COLUMNS])
    for org in reply.orgs:
        _add_rows(listing, org, org.org)
    session.show(listing)


@command.command("set")
@click.argument("org")
@click.option("--weight", type=click.FloatRange(0, 1000, min_open=True), help="Share of slots, queues and limits.")
@click.option("--queued-tasks", type=click.IntRange(0), help="Tasks that wait; 0 is no limit, here and below.")
@click.option("--running-tasks", type=click.IntRange(0, 1_000_000), help="Tasks that run at once.")
@click.option("--units-per-range", type=click.IntRange(0), help="Units that one range is split into.")
@click.option("--stored-bytes", type=click.IntRange(0), help="Bytes of committed files.")
@click.option("--deploys-per-hour", type=click.IntRange(0), help="New versions of DAGs.")
@click.option("--dry-runs-per-minute", type=click.IntRange(0), help="Plans of deploys, at each Dispatcher.")
@click.option("--default", "defaults", multiple=True, type=click.Choice(sorted(_OPTIONS)), help="Back to the default.")
@operator_command
def set_quota(session: Session, org: str, defaults: tuple[str, ...], **values: float | None) -> None:
    """Set the weight and the quotas of an org (for the platform's operator, on the home of a running stack).

    \b
    Examples:
      trace quota set acme --weight 2 --running-tasks 8
      trace quota set acme --default running-tasks
    """
    changes = {name: float(value) for name, value in values.items() if value is not None}
    if not changes and not defaults:
        raise click.UsageError("Expected at least one quota to set, such as --queued-tasks 50000; received none.")
    request = QuotaRequest(org=org, values=changes, defaults=[_OPTIONS[name] for name in defaults])
    change = session.ask_service(lambda client: client.call(routes.CHANGE_QUOTA, request))
    session.show(quota_view(change.quota))


_COLUMNS = [
    ListingColumn("quota"),
    ListingColumn("used", right=True, whole=True),
    ListingColumn("limit", right=True, whole=True),
    ListingColumn("set"),
    ListingColumn("state"),
]


def quota_view(reply: QuotaReply) -> Listing:
    listing = Listing(_COLUMNS)
    _add_rows(listing, reply)
    return listing


def _add_rows(listing: Listing, reply: QuotaReply, *first: str) -> None:
    listing.add(*first, "weight", None, f"{reply.weight:g}", None, None)
    for row in reply.quotas:
        listing.add(
            *first,
            row.kind.replace("_", " "),
            None if row.used is None else f"{row.used:,}",
            "no limit" if row.limit is None else f"{row.limit:,}",
            "for this org" if row.own else "default",
            Text("used up", "bold red") if row.exceeded else None,
        )
