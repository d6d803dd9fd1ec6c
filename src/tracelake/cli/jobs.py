"""`trace jobs`: the jobs of a DAG version, with their inputs, outputs and tasks."""

import click
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli.listing import Listing, ListingColumn
from tracelake.cli.options import watch_option
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import clean, compact, count
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
@click.option("--version", type=click.IntRange(1), metavar="N", help="Jobs of version N (default: the active one).")
@watch_option
@user_command
def command(session: Session, dag: str, version: int | None, watch: bool) -> None:
    """List the jobs of DAG: the operator of each, the state of its inputs, its outputs, and its tasks by state.

    \b
    The state of an input:
      live      events reach the job as they come
      draining  the job catches up with earlier events
      held      a unit failed for good; retry or skip its task, and the input goes on
      stopped   a queue downstream is full (`trace pressure`)
      paused    its source is paused (`trace resume`)
      parked    the version is not active

    Tasks that are `waiting` wait for a concurrency limit; `retrying` ones failed and wait for their next attempt;
    `failed` ones failed for good. If batches of an output were `refused`, their rows are missing from its table
    (`trace dlq`).

    \b
    Examples:
      trace jobs pools
      trace jobs pools --watch
      trace jobs pools --version 4
    """
    reply = session.view(
        lambda client: client.call(routes.LIST_JOBS, dag=dag, version=version), jobs_view, watch=watch, dag=dag
    )
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
        session.hint("trigger its source", "trigger", f"{dag}/{source.name}", "--range", "START-END")
    else:
        session.hint("see the tasks", "tasks", "--dag", dag)


def _is_idle(job: JobRow) -> bool:
    """Whether the job has work to do and no running task."""
    stopped = ("held", "stopped", "paused")
    waiting = job.queued or job.held or job.retrying or any(e.state in stopped or e.backlog for e in job.inputs)
    return bool(waiting) and not job.running


def jobs_view(reply: JobsReply) -> RenderableType:
    title = Text.assemble((clean(reply.dag), "bold"), f", version {reply.version}: {count(len(reply.jobs), 'job')}")
    jobs = Listing(
        reply.jobs,
        ListingColumn("job", lambda job: Text(clean(job.name), style="bold")),
        ListingColumn("operator", _operator),
        ListingColumn("inputs", lambda job: Text("\n").join(edge_text(edge) for edge in job.inputs)),
        ListingColumn("outputs", lambda job: Text("\n").join(_output(output) for output in job.outputs)),
        ListingColumn("queued", lambda job: job.queued, right=True),
        ListingColumn("running", lambda job: job.running, right=True),
        ListingColumn("waiting", lambda job: job.held, right=True),
        ListingColumn("retrying", lambda job: _number(job.retrying, "yellow"), right=True),
        ListingColumn("failed", lambda job: _number(job.failed, "bold red"), right=True),
    )
    return Group(title, jobs)


def _number(number: int, style: str) -> Text:
    return Text(str(number), style=style if number else "")


def _operator(job: JobRow) -> str:
    """`cron source`, or `spark_sql on ecs_platform, PerPartition`: what runs, where, and how events become tasks."""
    parts = [f"{job.source} source" if job.source else ""]
    if job.operator:
        parts.append(f"{job.operator} on {job.runtime}" if job.runtime else job.operator)
        strategy = job.strategy if job.units is None else f"a task for each {clean(job.units)}"
        parts.append(strategy if job.activation == "reactive" else "")
    return ", ".join(part for part in parts if part)


def _output(output: JobOutputRow) -> Text:
    text = Text(clean(output.dataset))
    if output.dead_letters:
        text.append(f" {output.dead_letters:,} refused", style="bold red")
    return text


def edge_text(edge: EdgeRow, *, commits: bool = False) -> Text:
    """`blocks live up to 1000`; with `commits` the cursor is the number of a commit."""
    text = Text.assemble(clean(edge.dataset), " ", (edge.state, EDGE_STYLES.get(edge.state, "")))
    if edge.where:
        text.append(f" where {compact(edge.where)}", style="dim")
    if edge.routed_cursor is not None:
        text.append(f" up to {'commit ' if commits else ''}{edge.routed_cursor}", style="dim")
    if edge.backlog:
        text.append(f", {count(edge.backlog, 'event')} waiting", style="yellow")
    if edge.failed_units:
        text.append(f", {count(edge.failed_units, 'unit')} failed", style="bold red")
    return text
