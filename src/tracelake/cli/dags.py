"""`trace dags`: the DAGs, the versions of one, and the document of a version."""

import sys

import click
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli.build_progress import failed_build_steps, progress, rejected_build_steps, rejected_words
from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.options import watch_option
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, clean, clean_lines, count
from tracelake.wire import routes
from tracelake.wire.dags import DagRow, DagsReply, DagVersionsReply

_STATES = {"Active": "green", "Building": "yellow", "Inactive": "dim"}


@click.command()
@click.argument("name", required=False)
@click.option("--source", type=click.IntRange(1), metavar="N", help="Print the document of version N (needs NAME).")
@watch_option
@user_command
def command(session: Session, name: str | None, source: int | None, watch: bool) -> None:
    """List the DAGs, or the versions of the DAG called NAME.

    Each deploy of a changed document makes a version. One version of a DAG is active: its jobs run. A version that is
    being built computes its data beside the active one and then takes over. Open tasks are queued, running or waiting
    for a retry. Failed ones are those of the active version that have no retry left and need you (`trace retry`,
    `trace skip`); failures of a build stand beside its version. Gaps are units that somebody skipped or cancelled,
    refused are batches of rows that a sink did not accept (`trace dlq`). `10000+` means that counting stopped there.

    \b
    Examples:
      trace dags                     all DAGs and their tasks
      trace dags pools               the versions of one DAG
      trace dags pools --source 3    the document of version 3
      trace dags --watch             the list, live
    """
    if source is not None:
        if name is None or watch or session.as_json:
            raise click.UsageError("--source needs the NAME of a DAG, and goes with neither --watch nor --json.")
        _print_source(session.run(lambda client: client.call(routes.READ_DOCUMENT, dag=name, number=source), dag=name))
    elif name is None:
        _show_dags(session, watch=watch)
    else:
        _show_versions(session, name, watch=watch)


def _print_source(text: bytes) -> None:
    """Prints the document: byte by byte into a file, cleaned onto a terminal."""
    if sys.stdout.isatty():
        click.echo(clean_lines(text.decode("utf-8", errors="replace")), nl=not text.endswith(b"\n"))
    else:
        click.echo(text, nl=False)


def _show_dags(session: Session, *, watch: bool) -> None:
    reply = session.view(lambda client: client.call(routes.LIST_DAGS), dags_view, watch=watch)
    failing = next((dag.name for dag in reply.dags if dag.failed_tasks or dag.failed_building), None)
    if not reply.dags:
        session.hint_first_dag("deploy one")
    elif failing is not None:
        session.hint("see what failed", "tasks", "--dag", failing, "--by-error")
    elif any(dag.dead_letters for dag in reply.dags):
        session.hint("see the refused batches", "dlq", "list")
    else:
        session.hint("see the versions of one", "dags", reply.dags[0].name)


def _show_versions(session: Session, name: str, *, watch: bool) -> None:
    reply = session.view(
        lambda client: client.call(routes.LIST_VERSIONS, dag=name), versions_view, watch=watch, dag=name
    )
    stuck = next((row for row in reply.versions if row.build is not None and row.build.failed), None)
    if stuck is not None:
        session.say((f"Version {stuck.number} cannot become active: tasks of its build have failed.", "yellow"))
        for purpose, *step in failed_build_steps(name, stuck.number):
            session.hint(purpose, *step)
    rejected = next((row for row in reply.versions if row.build is not None and row.build.dead_letters), None)
    if rejected is not None and rejected.build is not None:
        words = rejected_words(rejected.build)
        session.say((f"Version {rejected.number} cannot become active: {words}.", "yellow"))
        for purpose, *step in rejected_build_steps(rejected.build):
            session.hint(purpose, *step)
    if stuck is None and rejected is None and reply.versions:
        session.hint("see a document", "dags", name, "--source", max(row.number for row in reply.versions))
        session.hint("see its jobs", "jobs", name)


def dags_view(reply: DagsReply) -> RenderableType:
    if not reply.dags:
        return Text("No DAG is deployed yet.")
    return Listing(
        reply.dags,
        ListingColumn("dag", lambda dag: Text(clean(dag.name), style="bold")),
        ListingColumn("active", lambda dag: _version(dag.active_version, "green", none="none"), whole=True),
        ListingColumn("building", _building, whole=True),
        ListingColumn("versions", lambda dag: dag.versions, right=True),
        ListingColumn("jobs", lambda dag: dag.jobs, right=True),
        ListingColumn("open", lambda dag: _counted(dag, dag.open_tasks), right=True),
        ListingColumn("failed", lambda dag: _counted(dag, dag.failed_tasks, "bold red"), right=True),
        ListingColumn("gaps", lambda dag: str(dag.gaps) if dag.gaps else "", right=True),
        ListingColumn(
            "refused", lambda dag: _counted(dag, dag.dead_letters, "bold red") if dag.dead_letters else "", right=True
        ),
        ListingColumn("activated", lambda dag: ago(dag.activated_at), whole=True),
    )


def _counted(dag: DagRow, number: int, style: str = "") -> Text:
    return Text(f"{number}{'+' if dag.more and number else ''}", style=style if number else "")


def _building(dag: DagRow) -> Text:
    text = _version(dag.building_version, "yellow")
    if dag.failed_building:
        text.append(f", {dag.failed_building} failed", style="bold red")
    return text


def _version(number: int | None, style: str, none: str = "") -> Text:
    return Text(none, style="dim") if number is None else Text(f"v{number}", style=style)


def versions_view(reply: DagVersionsReply) -> RenderableType:
    title = Text.assemble((clean(reply.dag), "bold"), f": {count(len(reply.versions), 'version')}")
    versions = Listing(
        reply.versions,
        ListingColumn("version", lambda row: row.number, right=True),
        ListingColumn("state", lambda row: Text(row.state, style=_STATES[row.state]), whole=True),
        ListingColumn("jobs", lambda row: row.jobs, right=True),
        ListingColumn("created", lambda row: ago(row.created_at), whole=True),
        ListingColumn("by", lambda row: row.created_by),
        ListingColumn("activated", lambda row: ago(row.activated_at), whole=True),
    )
    return Group(title, versions, *(progress(row.build, row.number) for row in reply.versions if row.build is not None))
