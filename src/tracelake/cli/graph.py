"""`trace graph`: the jobs and datasets of a DAG as a drawing, on the terminal or in a file."""

import os
import sys
from pathlib import Path

import click
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli.characters import draws_ascii
from tracelake.cli.dag_graph import DagGraph, graph_of_document, graph_of_version, to_drawing
from tracelake.cli.diagnostics import problem_lines
from tracelake.cli.export import check_target, new_file
from tracelake.cli.graph_files import GRAPH_FILES
from tracelake.cli.graph_text import draw_text
from tracelake.cli.options import watch_option
from tracelake.cli.session import Session, make_console, show, user_command
from tracelake.cli.text import clean, count
from tracelake.client.user import UserClient
from tracelake.dag import DagInvalidError
from tracelake.errors import TraceError
from tracelake.settings import Settings
from tracelake.settings.runtimes import load_runtimes
from tracelake.wire import routes

_ENDINGS = tuple(GRAPH_FILES)
_DOCUMENT_ENDINGS = (".yaml", ".yml")
_PAGE_WIDTH = 80
"""Of a drawing that does not go to a terminal."""
_STDIN = "<stdin>"


@click.command()
@click.argument("subject", metavar="DAG_OR_FILE")
@click.option("--version", type=click.IntRange(1), metavar="N", help="Version N of the DAG (default: the active one).")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the graph to this file: .svg (a picture), .dot (Graphviz) or .mmd (Mermaid).")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file of --output if it exists.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters alone.")
@watch_option
@user_command
def command(
    session: Session,
    subject: str,
    version: int | None,
    output: Path | None,
    force: bool,
    ascii_only: bool,
    watch: bool,
) -> None:
    """Draw the jobs and datasets of a DAG, with what runs, what failed and what is behind.

    DAG_OR_FILE is the name of a deployed DAG, or a document: a name that ends in .yaml or .yml, or `-` for standard
    input. A document needs no running stack, and what it names of other DAGs is taken to exist.

    Jobs are boxes, datasets are in brackets. Where two lines cross, the one from above is unbroken. A graph that is
    wider than the terminal has shorter names; one that is wider still is written as a list.

    \b
    Examples:
      trace graph token_flows
      trace graph token_flows --watch
      trace graph token_flows --output flows.svg
      trace graph pools.yaml                        before the first deploy
      trace graph token_flows --json
    """
    is_document = subject == "-" or subject.lower().endswith(_DOCUMENT_ENDINGS)
    if is_document and (version is not None or watch):
        raise click.UsageError("--version and --watch are for deployed DAGs, not for documents.")
    if output is not None:
        if watch:
            raise click.UsageError("--watch is for the terminal: leave out --output.")
        check_target(output, force=force, endings=_ENDINGS)
    elif force:
        raise click.UsageError("--force is for --output.")

    def render(graph: DagGraph) -> RenderableType:
        return graph_view(session, graph, ascii_only=ascii_only)

    if is_document:
        graph = session.answer(_read_document(session, subject))
    elif output is None:
        session.view(lambda client: fetch_graph(client, subject, version), render, watch=watch, dag=subject)
        return
    else:
        graph = session.ask(lambda client: fetch_graph(client, subject, version), dag=subject)
    if output is None:
        session.show(render(graph))
        return
    title = f"Jobs and datasets of {graph.dag}"
    with new_file(output, force=force, endings=_ENDINGS) as path:
        path.write_text(GRAPH_FILES[output.suffix.lower()](to_drawing(graph), title), encoding="utf-8")
    session.say(f"{_counts(graph)} in {output}.")


async def fetch_graph(client: UserClient, dag: str, version: int | None) -> DagGraph:
    jobs = await client.call(routes.LIST_JOBS, dag=dag, version=version)
    datasets = await client.call(routes.LIST_DATASETS)
    return graph_of_version(jobs, [row.name for row in datasets.datasets if row.published])


def graph_view(session: Session, graph: DagGraph, *, ascii_only: bool = False) -> RenderableType:
    console = session.console
    width = console.width if console.is_terminal or "COLUMNS" in os.environ else _PAGE_WIDTH
    version = "a document" if graph.version is None else f"version {graph.version}"
    title = Text.assemble((clean(graph.dag), "bold"), f", {version}: {_counts(graph)}")
    ascii_only = ascii_only or draws_ascii(console)
    return Group(title, *draw_text(to_drawing(graph), width, ascii_only=ascii_only))


def _counts(graph: DagGraph) -> str:
    datasets = sum(node.kind == "dataset" for node in graph.nodes)
    return f"{count(len(graph.nodes) - datasets, 'job')} and {count(datasets, 'dataset')}"


def _read_document(session: Session, subject: str) -> DagGraph:
    if subject == "-":
        source = sys.stdin.buffer.read()
    elif Path(subject).is_file():
        source = Path(subject).read_bytes()
    else:
        raise click.UsageError(f"there is no file {subject}; a deployed DAG is named without an ending.")
    try:
        return graph_of_document(source, load_runtimes(Settings.load({"home": session.home})))
    except DagInvalidError as error:
        if session.as_json:
            session.error(TraceError("dag_invalid", problems=error.problems))
        file_name = _STDIN if subject == "-" else subject
        show(make_console(stderr=True), *problem_lines(error.problems, file_name, source))
        raise click.exceptions.Exit(1) from None
