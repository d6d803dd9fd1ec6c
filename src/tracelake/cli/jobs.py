"""`trace jobs`: the jobs of a DAG's active version, what they wait for and what they do."""

import click
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.missing import explained
from tracelake.cli.options import watch_option
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import clean, compact, count
from tracelake.client.user import UserClient
from tracelake.wire import routes
from tracelake.wire.jobs import EdgeRow, JobOutputRow, JobRow, JobsReply

EDGE_STYLES = {
    "live": "green",
    "draining": "yellow",
    "held": "bold red",
    "stopped": "bold red",
    "paused": "magenta",
    "parked": "dim",
}


@click.command()
@click.argument("dag")
@click.option("--version", type=click.IntRange(1), metavar="N", help="Of version N (default: the active one).")
@watch_option
@user_command
def command(session: Session, dag: str, version: int | None, watch: bool) -> None:
    """List the jobs of DAG: inputs and how far they are, outputs, tasks by state.

    An input is `live` when events reach it as they come, `draining` while it catches up, `held` when a unit of a
    PerUpdate job failed for good (retry or skip its task, and the input goes on), `stopped` while a queue is full,
    `paused` while its source is, `parked` when its version is not active. Tasks that are `waiting` wait for a place of
    a limit; `retrying` ones failed and wait for another attempt. An output of which batches were `refused` lacks their
    rows, whatever became of the tasks that wrote them.

    \b
    Examples:
      trace jobs pools
      trace jobs pools --watch
      trace jobs pools --version 4
    """
    if watch:
        session.watch(lambda client: _look(client, dag, version))
        return
    reply = session.ask(
        lambda client: explained(client, client.call(routes.LIST_JOBS, dag=dag, version=version), dag=dag)
    )
    session.show(jobs_view(reply))
    failed = next((job for job in reply.jobs if job.failed), None)
    if failed is not None:
        session.hint("see what failed", "tasks", "--dag", dag, "--job", failed.name, "--status", "Failed")
    idle = next((job for job in reply.jobs if _is_idle(job)), None)
    if idle is not None:
        session.hint("see why it is not running", "why", f"{dag}/{idle.name}")
    refused = {output.dataset: output.dead_letters for job in reply.jobs for output in job.outputs}
    letters = next(((name, dead) for name, dead in refused.items() if dead), None)
    if letters is not None:
        session.hint(f"see {count(letters[1], 'dead letter')} of {letters[0]}", "dlq", "list", "--dataset", letters[0])
    if failed is not None or idle is not None or letters is not None:
        return
    if source := next((job for job in reply.jobs if job.source == "manual"), None):
        session.hint("set it off", "trigger", f"{dag}/{source.name}", "--range", "START-END")
    else:
        session.hint("see the tasks", "tasks", "--dag", dag)


def _is_idle(job: JobRow) -> bool:
    """It has something to do, and does nothing."""
    stopped = ("held", "stopped", "paused")
    waiting = job.queued or job.held or job.retrying or any(e.state in stopped or e.backlog for e in job.inputs)
    return bool(waiting) and not job.running


async def _look(client: UserClient, dag: str, version: int | None) -> RenderableType:
    return jobs_view(await client.call(routes.LIST_JOBS, dag=dag, version=version))


def jobs_view(reply: JobsReply) -> RenderableType:
    listing = Listing(
        [
            ListingColumn("job"),
            ListingColumn("does"),
            ListingColumn("inputs"),
            ListingColumn("outputs"),
            ListingColumn("queued", right=True),
            ListingColumn("running", right=True),
            ListingColumn("waiting", right=True),
            ListingColumn("retrying", right=True),
            ListingColumn("failed", right=True),
        ]
    )
    for job in reply.jobs:
        listing.add(
            Text(clean(job.name), style="bold"),
            _does(job),
            Text("\n").join(edge_text(edge) for edge in job.inputs),
            Text("\n").join(_output(output) for output in job.outputs),
            job.queued,
            job.running,
            job.held,
            Text(str(job.retrying), style="yellow" if job.retrying else ""),
            Text(str(job.failed), style="bold red" if job.failed else ""),
        )
    title = Text.assemble((clean(reply.dag), "bold"), f", version {reply.version}: {count(len(reply.jobs), 'job')}")
    return Group(title, listing)


def _does(job: JobRow) -> str:
    parts = [f"{job.source} source" if job.source else "", job.operator or ""]
    if job.operator:
        parts.append(f"on {job.runtime}" if job.runtime else "")
        parts.append(job.strategy if job.activation == "reactive" else "")
    return " ".join(part for part in parts if part)


def _output(output: JobOutputRow) -> Text:
    text = Text(clean(output.dataset))
    if output.dead_letters:
        text.append(f" {output.dead_letters:,} refused", style="bold red")
    return text


def edge_text(edge: EdgeRow, *, commits: bool = False) -> Text:
    """`commits`: of a dataset whose cursor is the number of a commit."""
    text = Text.assemble(clean(edge.dataset), " ", (edge.state, EDGE_STYLES.get(edge.state, "")))
    if edge.where:
        text.append(f" where {compact(edge.where)}", style="dim")
    if edge.routed_cursor is not None:
        text.append(f" up to {'commit ' if commits else ''}{edge.routed_cursor}", style="dim")
    if edge.backlog:
        text.append(f", {count(edge.backlog, 'event')} to come", style="yellow")
    if edge.failed_units:
        text.append(f", {count(edge.failed_units, 'unit')} failed", style="bold red")
    return text
