"""`trace dags`: the DAGs, the versions of one, and the document of a version."""

import sys

import click
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli.build_progress import failed_build_steps, progress
from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.missing import explained
from tracelake.cli.options import watch_option
from tracelake.cli.session import EXAMPLE, Session, user_command
from tracelake.cli.text import ago, clean, clean_lines, count
from tracelake.client.user import UserClient
from tracelake.wire import routes
from tracelake.wire.dags import DagsReply, DagVersionsReply

_STATES = {"Active": "green", "Building": "yellow", "Inactive": "dim"}


@click.command()
@click.argument("name", required=False)
@click.option("--source", type=click.IntRange(1), metavar="N", help="Print the document of version N (needs NAME).")
@watch_option
@user_command
def command(session: Session, name: str | None, source: int | None, watch: bool) -> None:
    """List the DAGs; with NAME, its versions.

    \b
    Examples:
      trace dags                     which DAGs there are, and how they do
      trace dags pools               the versions of one
      trace dags pools --source 3    the document of version 3
      trace dags --watch             the list, live
    """
    if source is not None:
        if name is None or watch or session.as_json:
            raise click.UsageError("--source needs the name of a DAG, and goes with neither --watch nor --json.")
        _print_source(
            session.run(
                lambda client: explained(client, client.call(routes.READ_DOCUMENT, dag=name, number=source), dag=name)
            )
        )
        return
    if watch:
        session.watch(lambda client: _look(client, name))
    elif name is None:
        _show_dags(session)
    else:
        _show_versions(session, name)


def _print_source(text: bytes) -> None:
    """Byte by byte into a file, without tricks onto a terminal."""
    if sys.stdout.isatty():
        click.echo(clean_lines(text.decode("utf-8", errors="replace")), nl=not text.endswith(b"\n"))
    else:
        click.echo(text, nl=False)


async def _look(client: UserClient, name: str | None) -> RenderableType:
    if name is None:
        return dags_listing(await client.call(routes.LIST_DAGS)) or Text("No DAG is deployed yet.")
    return versions_view(await client.call(routes.LIST_VERSIONS, dag=name))


def _show_dags(session: Session) -> None:
    reply = session.ask(lambda client: client.call(routes.LIST_DAGS))
    listing = dags_listing(reply)
    if listing is None:
        session.say("No DAG is deployed yet.")
        session.hint("deploy one", "deploy", EXAMPLE)
        return
    session.show(listing)
    failing = next((dag.name for dag in reply.dags if dag.failed_tasks), None)
    if failing is not None:
        session.hint("see what failed", "tasks", "--dag", failing, "--status", "Failed")
    else:
        session.hint("see the versions of one", "dags", reply.dags[0].name)


def _show_versions(session: Session, name: str) -> None:
    reply = session.ask(lambda client: explained(client, client.call(routes.LIST_VERSIONS, dag=name), dag=name))
    session.show(versions_view(reply))
    stuck = next((row for row in reply.versions if row.build is not None and row.build.failed), None)
    if stuck is not None:
        session.say((f"Version {stuck.number} is not active before its failed tasks are dealt with.", "yellow"))
        for purpose, *words in failed_build_steps(name, stuck.number):
            session.hint(purpose, *words)
    elif reply.versions:
        session.hint("see a document", "dags", name, "--source", max(row.number for row in reply.versions))
        session.hint("see its jobs", "jobs", name)


def dags_listing(reply: DagsReply) -> Listing | None:
    if not reply.dags:
        return None
    listing = Listing(
        [
            ListingColumn("dag"),
            ListingColumn("active", whole=True),
            ListingColumn("building", whole=True),
            ListingColumn("versions", right=True),
            ListingColumn("jobs", right=True),
            ListingColumn("open", right=True),
            ListingColumn("failed", right=True),
            ListingColumn("activated", whole=True),
        ]
    )
    for dag in reply.dags:
        listing.add(
            Text(clean(dag.name), style="bold"),
            Text("none" if dag.active_version is None else f"v{dag.active_version}", style=_active(dag.active_version)),
            Text("" if dag.building_version is None else f"v{dag.building_version}", style="yellow"),
            dag.versions,
            dag.jobs,
            dag.open_tasks,
            Text(str(dag.failed_tasks), style="bold red" if dag.failed_tasks else ""),
            ago(dag.activated_at),
        )
    return listing


def _active(version: int | None) -> str:
    return "dim" if version is None else "green"


def versions_view(reply: DagVersionsReply) -> RenderableType:
    listing = Listing(
        [
            ListingColumn("version", right=True),
            ListingColumn("state", whole=True),
            ListingColumn("jobs", right=True),
            ListingColumn("created", whole=True),
            ListingColumn("by"),
            ListingColumn("activated", whole=True),
        ]
    )
    builds: list[RenderableType] = []
    for row in reply.versions:
        listing.add(
            row.number,
            Text(row.state, style=_STATES[row.state]),
            row.jobs,
            ago(row.created_at),
            row.created_by,
            ago(row.activated_at),
        )
        if row.build is not None:
            builds.append(progress(row.build, row.number))
    title = Text.assemble((clean(reply.dag), "bold"), f": {count(len(reply.versions), 'version')}")
    return Group(title, listing, *builds)
