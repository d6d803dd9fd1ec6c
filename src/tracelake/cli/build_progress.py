"""Shows the plan of a deploy or rollback as tables, and follows the build until the version is active."""

from collections.abc import Iterator, Sequence

import click
import msgspec
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tracelake.cli.error_groups import failure_lines
from tracelake.cli.listing import Listing, ListingColumn, whole_line
from tracelake.cli.session import Session, away, live_view, looks
from tracelake.cli.text import clean, clock, count, shortened
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.dags import (
    BuildProgress,
    DagVersionRow,
    DeployReply,
    JobChange,
    JobRebuild,
    Plan,
    ReaderRebuild,
    TextChange,
)
from tracelake.wire.tasks import TaskRow

# Symbol and colour of each kind of change; the symbols also say it without colour.
_CHANGES = {
    "added": ("+", "green"),
    "changed": ("~", "yellow"),
    "rebuilt": ("~", "yellow"),
    "limits": ("*", "cyan"),
    "restored": ("^", "cyan"),
    "removed": ("-", "red"),
    "unchanged": ("=", "dim"),
}


_REBUILDS_SHOWN = 5
_SHORT = 80
"""Longer differences are only named."""


wait_option = click.option("--wait/--no-wait", default=True, help="Wait for a build to finish (default), or do not.")


class BuildEndedError(Exception):
    """The build will not finish by itself; the message says why, and `steps` what can be done."""

    def __init__(self, message: str, *steps: tuple[str, ...], lines: Sequence[Text] = ()) -> None:
        super().__init__(message)
        self.steps = steps
        self.lines = lines
        """The errors that ended it."""


def show_plan(session: Session, plan: Plan) -> None:
    """Shows what the plan changes; `--json` has the unchanged jobs and datasets too."""
    changed_jobs = [job for job in plan.jobs if job.change != "unchanged"]
    changed_datasets = [row for row in plan.datasets if row.change != "unchanged" or row.because or row.table]
    jobs = Listing(
        changed_jobs,
        ListingColumn("  job", lambda job: _marked(job.change, job.job), whole=True),
        ListingColumn("change", lambda job: Text(clean(job.change), style=_mark(job.change)[1]), whole=True),
        ListingColumn("what differs", _differences),
    )
    datasets = Listing(
        changed_datasets,
        ListingColumn("  dataset", lambda row: _marked(row.change, row.dataset), whole=True),
        ListingColumn("change", lambda row: Text(clean(row.change), style=_mark(row.change)[1]), whole=True),
        ListingColumn(
            "output of",
            lambda row: f"{row.job}[{row.output_index}]" if row.output_index else row.job,
            whole=True,
        ),
        ListingColumn("because", lambda row: row.because),
    )
    session.show(*(listing for listing in (jobs, datasets) if listing.rows))
    same = [
        count(total - len(listing.rows), noun)
        for total, listing, noun in ((len(plan.jobs), jobs, "job"), (len(plan.datasets), datasets, "dataset"))
        if total > len(listing.rows)
    ]
    if same:
        session.say((f"{' and '.join(same)} unchanged.", "dim"))
    for job in changed_jobs:
        for change in job.texts:
            session.show(*_diff_lines(job.job, change))
    for verb, added in (("Rebuilds", False), ("Computes", True)):
        if rebuilds := [item for item in plan.rebuilds if item.added is added]:
            session.say(*_rebuild_text(verb, rebuilds))
    for dataset in plan.datasets:
        if dataset.table:
            session.say("The table of ", (clean(dataset.dataset), "bold"), f": {'; '.join(map(clean, dataset.table))}.")
    computing = [item for item in plan.readers if not item.stale]
    if computing or plan.reader_tasks:
        session.say(*_reader_text(computing, plan.reader_tasks))
    stale = [item for item in plan.readers if item.stale]
    if stale:
        session.say(f"Stale after the cutover, until you rebuild them: {_list_units(stale)}.")
        session.hint("rebuild the units of one", "rebuild", f"{stale[0].dag}/{stale[0].job}")
    if plan.subscribers:
        session.say("Read by other DAGs: ", (", ".join(plan.subscribers), "bold"))
    for note in plan.notes:
        session.say((f"Note: {note}", "yellow"))


def _diff_lines(job: str, change: TextChange) -> Iterator[Text]:
    """The diff as `diff -u` shows it; the colours repeat what the first character of a line says."""
    yield whole_line(Text(f"{clean(job)}: {clean(change.field)}", style="bold"))
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in change.diff:
        yield whole_line(Text(f"  {clean(line)}", style=styles.get(line[:1], "")))
    if change.more:
        yield whole_line(Text(f"  ... {count(change.more, 'line')} more", style="dim"))


def _rebuild_text(verb: str, rebuilds: Sequence[JobRebuild]) -> list[str | tuple[str, str]]:
    """`Rebuilds 4 units of flows and 4 units of totals: 8 tasks from what is committed now.`"""
    words = _list_units(rebuilds)
    tasks = sum(item.units for item in rebuilds)
    if not tasks:
        return [f"{verb} {words} from what is committed now."]
    return [f"{verb} {words}: ", (f"{_bound(rebuilds)}{count(tasks, 'task')}", "bold"), " from what is committed now."]


def _reader_text(readers: Sequence[ReaderRebuild], tasks: int) -> list[str | tuple[str, str]]:
    """`The cutover computes in other DAGs: 2 units of reports/weekly: 2 tasks.`"""
    parts: list[str | tuple[str, str]] = ["The cutover computes in other DAGs: "]
    if readers:
        parts.append(_list_units(readers))
    if tasks:
        parts += [": " if readers else "", (f"{_bound(readers)}{count(tasks, 'task')}", "bold")]
    return [*parts, "."]


def _list_units(rebuilds: Sequence[JobRebuild | ReaderRebuild]) -> str:
    first_rebuilds = rebuilds[:_REBUILDS_SHOWN]
    parts = [f"{_unit_count(item)} of {clean(_job_of(item))}" for item in first_rebuilds]
    rest = len(rebuilds) - len(first_rebuilds)
    parts += [f"units of {count(rest, 'job')} more"] if rest else []
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]


def _job_of(item: JobRebuild | ReaderRebuild) -> str:
    return f"{item.dag}/{item.job}" if isinstance(item, ReaderRebuild) else item.job


def _bound(rebuilds: Sequence[JobRebuild | ReaderRebuild]) -> str:
    if any(item.more or item.unknown for item in rebuilds):
        return "more than "
    return "about " if any(item.about for item in rebuilds) else ""


def _unit_count(item: JobRebuild | ReaderRebuild) -> str:
    if item.unknown:
        return "an unknown number of units"
    bound = "more than " if item.more else "about " if item.about else ""
    return f"{bound}{count(item.units, 'unit')}"


def _mark(change: str) -> tuple[str, str]:
    return _CHANGES.get(change, ("?", ""))


def _marked(change: str, name: str) -> Text:
    symbol, style = _mark(change)
    return Text(f"{symbol} {clean(name)}", style=style)


def _differences(job: JobChange) -> str:
    """`config.size: 1000 -> 2000, upstream`: values where they are short, else the names of fields."""
    parts: list[str] = []
    for field in job.fields:
        values = [item for item in job.values if item.field == field or item.field.startswith(f"{field}.")]
        changes = [f"{item.field}: {_value(item.before)} -> {_value(item.after)}" for item in values]
        texts = [f"{item.field} (below)" for item in job.texts if item.field.startswith(f"{field}.")]
        parts += changes + texts if changes + texts and max(map(len, [*changes, ""])) <= _SHORT else [field]
    return ", ".join(parts)


def _value(value: object) -> str:
    return "nothing" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def settle(session: Session, reply: DeployReply, *, wait: bool) -> tuple[DeployReply, bool]:
    """Waits for the build, if there is one and `wait` is set. Returns the reply as it is then, and whether the version
    is as requested; if not, the reason has been shown."""
    if reply.state != "Building" or not wait:
        return reply, True
    plan = reply.plan
    try:
        session.run(lambda client: _follow(session, client, plan))
    except KeyboardInterrupt:
        session.say("You stopped waiting; the build goes on.")
        session.hint("follow it", "dags", plan.dag, "--watch")
        raise
    except BuildEndedError as error:
        session.say((str(error), "red"))
        session.show(*error.lines)
        for purpose, *command in error.steps:
            session.hint(purpose, *command)
        return reply, False
    return msgspec.structs.replace(reply, state="Active"), True


async def _follow(session: Session, client: UserClient, plan: Plan) -> None:
    last_progress: BuildProgress | None = None
    with live_view(session.console) as update:
        async for look in looks(lambda: _version(client, plan)):
            if isinstance(look, TraceError):
                update(Group(progress(last_progress, plan.version), Text(away(look), style="yellow")))
                continue
            version_row, retrying = look
            if version_row is None or version_row.state == "Inactive":
                raise BuildEndedError(
                    f"The build of version {plan.version} was abandoned, because another version was activated.",
                    ("see the versions", "dags", plan.dag),
                )
            last_progress = version_row.build or last_progress
            if version_row.state == "Active":
                update(progress(last_progress, plan.version, finished=True))
                return
            update(Group(progress(last_progress, plan.version), *retry_lines(retrying)))
            build = version_row.build
            if build is None or build.open or build.draining_edges or build.waiting_batches:
                continue
            if build.failed:
                failed = count(build.failed, "task")
                failures = await client.call(routes.LIST_FAILURES, dag=plan.dag, version=plan.version)
                raise BuildEndedError(
                    f"The build of version {plan.version} cannot finish: {failed} failed (no retries left).",
                    *failed_build_steps(plan.dag, plan.version),
                    lines=failure_lines(failures),
                )
            if build.dead_letters:
                raise BuildEndedError(
                    f"The build of version {plan.version} cannot finish: {rejected_words(build)}.",
                    *rejected_build_steps(build),
                    ("or correct the document and deploy it", "deploy", "FILE"),
                )


def failed_build_steps(dag: str, version: int) -> list[tuple[str, ...]]:
    """The steps for a build with failed tasks: purposes and commands."""
    return [
        ("see them", "tasks", "--dag", dag, "--version", str(version), "--status", "Failed"),
        ("see the log of one", "logs", "TASK_ID"),
        ("correct the document and deploy it", "deploy", "FILE"),
        ("or retry them", "retry", "--dag", dag, "--version", str(version), "--failed"),
        ("or go on without them", "skip", "--dag", dag, "--version", str(version), "--failed"),
        ("or activate it with what is built so far", "activate", dag, str(version), "--now"),
    ]


def rejected_words(build: BuildProgress) -> str:
    """`2 batches of its rows were rejected by the sink, 1 of them before this deploy`."""
    one = build.dead_letters == 1
    text = f"{count(build.dead_letters, 'batch')} of its rows {'was' if one else 'were'} rejected"
    if build.old_dead_letters == build.dead_letters:
        return f"{text} before this deploy"
    before = f", {build.old_dead_letters} of them before this deploy" if build.old_dead_letters else ""
    return f"{text} by the sink{before}"


def rejected_build_steps(build: BuildProgress) -> list[tuple[str, ...]]:
    """The steps for a build with rejected batches."""
    return [
        step
        for dataset in build.rejected_datasets
        for step in (
            ("see why", "dlq", "list", "--dataset", dataset),
            ("once the cause is corrected, replay them", "dlq", "replay", "--dataset", dataset),
            ("or go on without their rows", "dlq", "drop", "--dataset", dataset),
        )
    ]


def retry_lines(tasks: Sequence[TaskRow]) -> list[Text]:
    """`2 wait for a retry, the next at 12:00:38Z: SleepFailedError ...`; empty when none does.

    The time and not how far it is, so that a log gets a line when something changes and not one a second.
    """
    waiting = sorted((task.next_retry_at, task.error or "") for task in tasks if task.next_retry_at is not None)
    if not waiting:
        return []
    at, error = waiting[0]
    words = "task waits for a retry" if len(waiting) == 1 else "tasks wait for a retry, the next"
    text = f"{len(waiting)} {words} at {clock(at)}" + (f": {shortened(error)}" if error else "")
    return [Text(text, style="yellow")]


async def _version(client: UserClient, plan: Plan) -> tuple[DagVersionRow | None, list[TaskRow]]:
    """The version, and the tasks of the DAG that wait for a retry while it is built."""
    rows = (await client.call(routes.LIST_VERSIONS, dag=plan.dag)).versions
    row = next((row for row in rows if row.number == plan.version), None)
    if row is None or row.build is None or not row.build.open:
        return row, []
    return row, (await client.call(routes.LIST_TASKS, dag=plan.dag, status="Retrying", limit=100)).tasks


def progress(build: BuildProgress | None, version: int, *, finished: bool = False) -> RenderableType:
    build = build or BuildProgress(done=0, open=0, failed=0, draining_edges=0)
    total = build.done + build.open + build.failed
    text = Text.assemble(
        f"{build.done} done, {build.open} open, ", (f"{build.failed} failed", "red" if build.failed else "")
    )
    if finished:  # what was seen last is no longer true
        text = Text("finished", style="green")
    elif build.draining_edges:
        text.append(f", {count(build.draining_edges, 'input')} still reading history", style="dim")
    elif build.waiting_batches:
        text.append(f", {count(build.waiting_batches, 'batch')} waiting for a sink", style="dim")
    if build.dead_letters and not finished:
        text.append(f", {count(build.dead_letters, 'batch')} rejected", style="red")
    return bar(f"building version {version}", build.done, total, text, finished=finished)


def bar(label: str, done: int, total: int, text: Text, *, finished: bool = False) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    drawn = ProgressBar(
        total=1 if finished else max(total, 1),
        completed=1 if finished else done,
        width=20,
        complete_style="cyan",
        finished_style="green",
    )
    grid.add_row(Text(label), drawn, text)
    return grid
