"""`trace jobs`: the jobs of a DAG version, with their inputs, outputs and tasks."""

from collections.abc import Sequence

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
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
      held      a unit failed (no retries left); retry or skip its task, and the input goes on
      stopped   a queue downstream is full (`trace pressure`)
      paused    its source is paused (`trace resume`)
      parked    the version is not active

    Tasks that are `ready` wait for a worker, `waiting` ones for a concurrency limit; `retrying` ones failed and wait
    for their next attempt; `failed` ones have no retry left; `done` ones completed. `gaps` are units that somebody
    skipped or cancelled. If batches of an output were `refused`, their rows are missing from its table (`trace dlq`).
    `100+` means at least 100. A narrow terminal gets two tables.

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
        session.hint("see what failed", "tasks", "--dag", dag, "--job", failed.name, "--by-error")
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


class JobsView:
    """The jobs as one table, or as two where one is too wide: the tasks of each job, and its inputs and outputs."""

    def __init__(self, jobs: Sequence[JobRow]) -> None:
        name: ListingColumn[JobRow] = ListingColumn("job", lambda job: Text(clean(job.name), style="bold"), breaks=True)
        parts: list[ListingColumn[JobRow]] = [
            ListingColumn("operator", _operator, breaks=True),
            ListingColumn("inputs", lambda job: Text("\n").join(edge_text(edge) for edge in job.inputs), breaks=True),
            ListingColumn("outputs", lambda job: Text("\n").join(map(_output, job.outputs)), breaks=True),
        ]
        self._whole = Listing(jobs, name, *parts, *_counts("ready running waiting retrying failed done gaps"))
        self._tasks = Listing(jobs, name, *_counts("ready run wait retry fail done gaps"))
        self._parts = Listing(
            [part for job in jobs for part in _parts(job)],
            ListingColumn("job", lambda part: part[0], breaks=True),
            ListingColumn("", lambda part: part[1], whole=True, style="dim"),
            ListingColumn("operator, inputs, outputs", lambda part: part[2], breaks=True),
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._whole.fits(options.max_width) or not self._tasks.fits(options.max_width, broken=True):
            yield self._whole
        else:
            yield from (self._tasks, Text(), self._parts)


def _parts(job: JobRow) -> list[tuple[Text, str, Text]]:
    """A line for what the job runs, and one for each input and output; the first names the job."""
    lines = [("runs", Text(clean(_operator(job))))]
    lines += [("reads", edge_text(edge)) for edge in job.inputs]
    lines += [("writes", _output(output)) for output in job.outputs]
    names = [Text(clean(job.name), style="bold"), *(Text() for _ in lines[1:])]
    return [(name, kind, text) for name, (kind, text) in zip(names, lines, strict=True)]


def _counts(names: str) -> list[ListingColumn[JobRow]]:
    """The columns with numbers of tasks, under these names."""
    ready, running, waiting, retrying, failed, done, gaps = names.split()
    return [
        ListingColumn(ready, lambda job: _number(job, job.queued), right=True),
        ListingColumn(running, lambda job: _number(job, job.running), right=True),
        ListingColumn(waiting, lambda job: _number(job, job.held), right=True),
        ListingColumn(retrying, lambda job: _number(job, job.retrying, "yellow"), right=True),
        ListingColumn(failed, lambda job: _number(job, job.failed, "bold red"), right=True),
        ListingColumn(done, lambda job: f"{job.done}{'+' if job.done_more else ''}", right=True),
        ListingColumn(gaps, lambda job: str(job.gaps) if job.gaps else "", right=True, style="yellow"),
    ]


def jobs_view(reply: JobsReply) -> RenderableType:
    title = Text.assemble((clean(reply.dag), "bold"), f", version {reply.version}: {count(len(reply.jobs), 'job')}")
    return Group(title, JobsView(reply.jobs))


def _number(job: JobRow, number: int, style: str = "") -> Text:
    return Text(f"{number}{'+' if job.more and number else ''}", style=style if number else "")


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
