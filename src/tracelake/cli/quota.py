"""`trace quota`: the limits of an org and its usage; the platform's operator sets the limits."""

from typing import NamedTuple

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
    "running_functions",
    "units_per_range",
    "stored_bytes",
    "deploys_per_hour",
    "dry_runs_per_minute",
)
_OPTIONS = {name.replace("_", "-"): name for name in KINDS}


@click.group(invoke_without_command=True)
@user_command
def command(session: Session) -> None:
    """Show the quotas of your org: the limit of each, and how much of it is used.

    An org above its quota of queued tasks or stored bytes cannot trigger or deploy, and its events are kept until there
    is room again. Above its quota of running tasks or functions, ready ones wait. Nothing is lost.

    The weight decides the org's share where orgs compete: slots of workers, queues, limits of operators.

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
    """List the quotas and the usage of every org (for the platform's operator)."""
    reply = session.ask_service(lambda client: client.call(routes.LIST_QUOTAS))
    session.show(Listing([row for org in reply.orgs for row in _rows(org)], *_COLUMNS))


@command.command("set")
@click.argument("org")
@click.option("--weight", type=click.FloatRange(0, 1000, min_open=True), help="Share of slots, queues and limits.")
@click.option("--queued-tasks", type=click.IntRange(0), help="Queued tasks; 0 is no limit, here and below.")
@click.option("--running-tasks", type=click.IntRange(0, 1_000_000), help="Tasks that run at once.")
@click.option("--running-functions", type=click.IntRange(0, 1_000_000), help="Functions that run at once.")
@click.option("--units-per-range", type=click.IntRange(0), help="Units that one range is split into.")
@click.option("--stored-bytes", type=click.IntRange(0), help="Bytes of committed files.")
@click.option("--deploys-per-hour", type=click.IntRange(0), help="New versions of DAGs.")
@click.option("--dry-runs-per-minute", type=click.IntRange(0), help="Plans of deploys, at each Dispatcher.")
@click.option(
    "--default",
    "defaults",
    multiple=True,
    type=click.Choice(sorted(_OPTIONS)),
    metavar="QUOTA",
    help="Set this quota back to its default; named as its option above, such as running-tasks.",
)
@operator_command
def set_quota(session: Session, org: str, defaults: tuple[str, ...], **values: float | None) -> None:
    """Set the weight and the quotas of an org (for the platform's operator; the stack must run).

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


class _QuotaLine(NamedTuple):
    org: str
    quota: str
    used: str = ""
    limit: str = ""
    source: str = ""
    exceeded: bool = False


_COLUMNS: list[ListingColumn[_QuotaLine]] = [
    ListingColumn("org", lambda row: row.org),
    ListingColumn("quota", lambda row: row.quota),
    ListingColumn("used", lambda row: row.used, right=True, whole=True),
    ListingColumn("limit", lambda row: row.limit, right=True, whole=True),
    ListingColumn("set by", lambda row: row.source),
    ListingColumn("state", lambda row: Text("used up", "bold red") if row.exceeded else None),
]


def quota_view(reply: QuotaReply) -> Listing:
    """The quotas of one org, without its name."""
    return Listing(_rows(reply), *_COLUMNS[1:])


def _rows(reply: QuotaReply) -> list[_QuotaLine]:
    return [
        _QuotaLine(reply.org, "weight", limit=f"{reply.weight:g}"),
        *(
            _QuotaLine(
                reply.org,
                row.kind.replace("_", " "),
                "" if row.used is None else f"{row.used:,}",
                "no limit" if row.limit is None else f"{row.limit:,}",
                "operator" if row.own else "default",
                row.exceeded,
            )
            for row in reply.quotas
        ),
    ]
