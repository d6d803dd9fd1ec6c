"""`trace tasks`: a page of tasks, or everything about one."""

from datetime import datetime
from typing import Any
from uuid import UUID

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli.error_groups import failure_lines
from tracelake.cli.events import events_listing
from tracelake.cli.follow import TaskFollower, follow
from tracelake.cli.listing import Cell, Listing, ListingColumn, fields, sections
from tracelake.cli.options import TIME, cursor_option, follow_option, limit_option, watch_option
from tracelake.cli.rates import task_counts
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, clean_lines, compact, grouped, moment, shortened, storage_text, unit_text
from tracelake.client.paging import collect
from tracelake.client.user import UserClient
from tracelake.wire import routes
from tracelake.wire.jobs import JobOutputRow
from tracelake.wire.tasks import TaskDetail, TaskRow, TasksPage
from tracelake.wire.units import PayloadInput

STATUS_STYLES = {
    "Queued": "",
    "Running": "cyan",
    "Retrying": "yellow",
    "Completed": "green",
    "Failed": "bold red",
    "Skipped": "dim",
    "Canceled": "dim",
}


class _Tasks(click.Command):
    """A command that also takes `trace tasks show ID` for `trace tasks ID`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args[1:] if args[:1] == ["show"] else args)


@click.command(cls=_Tasks)
@click.argument("task_id", required=False, type=click.UUID, metavar="[TASK_ID]")
@click.option("--dag", help="Only tasks of this DAG.")
@click.option("--job", help="Only tasks of this job; DAG/JOB names both.")
@click.option("--version", type=click.IntRange(1), metavar="N", help="Only tasks of jobs that version N of --dag has.")
@click.option(
    "--by-error",
    is_flag=True,
    help="Failed tasks of active versions (or of --version) grouped by error, each error whole.",
)
@click.option(
    "--status", type=click.Choice(list(STATUS_STYLES), case_sensitive=False), help="Only tasks in this state."
)
@click.option("--since", type=TIME, help="Created since then: 30m, 2h, 7d, or a time like 2026-01-31T12:00:00Z.")
@click.option("--until", type=TIME, help="Created before then.")
@limit_option(50)
@cursor_option
@watch_option
@follow_option
@user_command
def command(
    session: Session,
    task_id: UUID | None,
    limit: int,
    watch: bool,
    following: bool,
    by_error: bool,
    **filters: Any,
) -> None:
    """List tasks, newest first; with TASK_ID, show everything about that one.

    A task computes one unit of a job's output: a range of blocks, a partition, or the updates up to a cursor. It is
    `Queued` until a worker claims it (`Queued, waiting`: until a concurrency limit allows it), then `Running`, and in
    the end `Completed`, `Canceled` or `Failed`. `Retrying` means that it failed and its next attempt comes by itself;
    `Failed` that somebody has to retry or skip it. Tasks of all versions are listed, unless --version names one; a job
    that a deploy did not change is the same job in both versions.

    With --watch running tasks come first, below a line that counts the tasks of active versions.

    With --follow a line is printed for each task created from now on, and for each of its changes: created, claimed,
    retrying, queued, completed, failed, canceled. --status selects changes to that state. Open and failed tasks that
    exist already are followed too, the newest 500 of each state; with --since, tasks created since then are printed
    first. A service may create a task under an id of its own (POST /internal/tasks with a task_id); ids begin with a
    time, and a task whose id looks old is not printed.

    \b
    Examples:
      trace tasks --dag pools --watch
      trace tasks --follow --job pools/prices
      trace tasks --follow --since 10m
      trace tasks --follow --dag pools --version 5
      trace tasks --follow --status Failed --json
      trace tasks --job pools/prices --status Failed --since 2h
      trace tasks 01890000-0000-7000-8000-000000000001
      trace tasks --dag pools --version 4 --status Failed
      trace tasks --dag pools --by-error
    """
    filters = {name: value for name, value in filters.items() if value is not None}
    if task_id is not None:
        if filters or watch or following or by_error:
            raise click.UsageError("TASK_ID shows one task: leave out filters, --watch and --follow.")
        _show_task(session, task_id)
        return
    if "/" in filters.get("job", ""):
        dag, _, filters["job"] = filters["job"].partition("/")
        if filters.setdefault("dag", dag) != dag:
            raise click.UsageError(f"--dag names {filters['dag']} and --job names {dag}: leave out one of them.")
    if "version" in filters and "dag" not in filters:
        raise click.UsageError("--version is one of a DAG: give --dag as well.")
    if by_error:
        _show_by_error(session, filters, live=watch or following)
        return
    if following:
        _follow(session, filters, watch=watch)
        return
    if watch:
        session.watch(lambda client: _look(client, limit, filters), lambda view: view)
    names = {name: filters.get(name) for name in ("dag", "job")}
    page = session.ask(lambda client: collect(client, routes.LIST_TASKS, "tasks", limit=limit, **filters), **names)
    if not page.tasks:
        session.say("No task matches the filters." if filters else "There is no task yet.")
        if not filters:
            session.hint("see the sources, which start the work", "sources")
        return
    session.show(tasks_listing(page))
    idle = next((task for task in page.tasks if _is_idle(task)), None)
    if idle is not None:
        session.hint("see why it is not running", "why", str(idle.task_id))
    if page.next is not None:
        session.hint("see the next page", "tasks", *_words(filters), "--limit", limit, "--cursor", page.next)
    else:
        session.hint("see everything about one", "tasks", str(page.tasks[0].task_id))


def _show_by_error(session: Session, filters: dict[str, Any], *, live: bool) -> None:
    others = sorted(set(filters) - {"dag", "job", "version", "status"})
    if live or others or filters.pop("status", "Failed") != "Failed":
        raise click.UsageError("--by-error goes with --dag, --job and --version only.")
    names = {name: filters.get(name) for name in ("dag", "job")}
    if "version" not in filters:  # what an abandoned version failed at needs nobody
        filters["current"] = True
    failures = session.ask(lambda client: client.call(routes.LIST_FAILURES, **filters), **names)
    if not failures.tasks:
        session.say("No task has failed without a retry left.")
        return
    session.show(*failure_lines(failures))
    dag = failures.groups[0].jobs[0].partition("/")[0]
    session.hint("after the cause is fixed, retry them", "retry", "--dag", filters.get("dag", dag), "--failed")


def _follow(session: Session, filters: dict[str, Any], *, watch: bool) -> None:
    for name in ("until", "cursor"):
        if name in filters:
            raise click.UsageError(f"--follow has no end and no pages: leave out --{name}.")
    if watch:
        raise click.UsageError("Give --watch or --follow, not both.")
    names = {name: filters.get(name) for name in ("dag", "job")}
    status, since = filters.get("status"), filters.get("since")
    version = filters.get("version")
    follow(session, lambda client: TaskFollower(session, client, status, since, version, **names))


def _is_idle(task: TaskRow) -> bool:
    """Whether the task does not run although it is wanted."""
    return task.status == "Queued" or (task.status == "Failed" and not task.skipped)


def _words(filters: dict[str, Any]) -> list[str]:
    words = []
    for name, value in filters.items():
        if name != "cursor":
            words += [f"--{name}", value.isoformat() if isinstance(value, datetime) else str(value)]
    return words


async def _look(client: UserClient, limit: int, filters: dict[str, Any]) -> RenderableType:
    page = await collect(client, routes.LIST_TASKS, "tasks", limit=limit, **filters)
    if "status" not in filters and "cursor" not in filters:
        page = await _running_first(client, page, limit, filters)
    rows = tasks_listing(page) if page.tasks else Text("No task matches the filters.")
    return Group(await _totals(client, filters), rows)


async def _running_first(client: UserClient, page: TasksPage, limit: int, filters: dict[str, Any]) -> TasksPage:
    """The page with running tasks first; newest first they may be far below."""
    running = [task for task in page.tasks if task.status == "Running"]
    if page.next is not None:
        running = (await collect(client, routes.LIST_TASKS, "tasks", limit=limit, status="Running", **filters)).tasks
    running_ids = {task.task_id for task in running}
    rest = [task for task in page.tasks if task.task_id not in running_ids]
    return msgspec.structs.replace(page, tasks=[*running, *rest][:limit])


async def _totals(client: UserClient, filters: dict[str, Any]) -> Text:
    reply = await client.call(routes.SHOW_OVERVIEW, dag=filters.get("dag"))
    jobs = [job for job in reply.jobs if filters.get("job") in (None, job.job)]
    return Text.assemble(("now  ", "dim"), task_counts(jobs))


def tasks_listing(page: TasksPage) -> Listing:
    return Listing(
        page.tasks,
        ListingColumn("task", lambda task: str(task.task_id), whole=True),
        ListingColumn("job", lambda task: f"{task.dag}/{task.job}"),
        ListingColumn("status", status_text),
        ListingColumn("unit", lambda task: unit_text(task.unit, task.window)),
        ListingColumn("attempt", _attempts, whole=True),
        ListingColumn("created", lambda task: ago(task.created_at), whole=True),
        ListingColumn("error", lambda task: Text(shortened(task.error or ""), style="red")),
    )


def status_text(task: TaskRow) -> Text:
    text = Text(task.status, style=STATUS_STYLES[task.status])
    if task.skipped:
        text = Text("Failed, skipped", style=STATUS_STYLES["Skipped"])
    elif task.status == "Failed" and task.next_retry_at is not None:
        text = Text(f"Retrying ({ago(task.next_retry_at)})", style=STATUS_STYLES["Retrying"])
    if task.cancel_requested and task.status == "Running":
        text.append(", stopping", style="yellow")
    if task.held and task.status == "Queued":
        text.append(", waiting", style="yellow")
    return text


def _attempts(task: TaskRow) -> str:
    return f"{task.attempt}/{task.max_attempts}" if task.max_attempts else str(task.attempt)


# --- one task


def _show_task(session: Session, task_id: UUID) -> None:
    detail = session.ask(lambda client: client.call(routes.SHOW_TASK, task_id=task_id))
    session.show(*task_parts(detail))
    task = detail.task
    if any(attempt.has_log for attempt in detail.attempts):
        follow = ("--follow",) if task.status == "Running" else ()
        session.hint("see its log", "logs", str(task_id), *follow)
    if task.status == "Failed" and task.next_retry_at is not None:
        session.hint("retry it now", "retry", str(task_id))
        session.hint("or cancel it", "cancel", str(task_id))
    elif task.status == "Failed":
        session.hint("retry it", "retry", str(task_id))
        if not task.skipped:
            session.hint("or go on without it", "skip", str(task_id))
    elif task.status == "Canceled":
        session.hint("run it after all", "retry", str(task_id))
    elif task.status in ("Queued", "Running"):
        if task.status == "Queued":
            session.hint("see why it is not running", "why", str(task_id))
        session.hint("cancel it", "cancel", str(task_id))
    elif detail.outputs:
        session.hint("see what it wrote", "datasets", detail.outputs[0].dataset)


def task_parts(detail: TaskDetail) -> list[RenderableType]:
    task = detail.task
    pairs: list[tuple[str, Cell]] = [
        ("task", str(task.task_id)),
        ("job", f"{task.dag}/{task.job}"),
        ("status", status_text(task)),
        ("unit", unit_text(task.unit, task.window)),
        ("revision", task.revision),
        ("operator", f"{task.operator} on {detail.runtime}"),
        ("attempt", _attempts(task) + _not_retried(detail)),
        ("created", moment(task.created_at)),
        ("claimed", moment(task.claimed_at)),
        ("finished", moment(task.finished_at)),
        ("next retry", moment(task.next_retry_at)),
        ("result", "" if isinstance(detail.result, list) else compact(detail.result)),
        ("error", Text(clean_lines(task.error or ""), style="red")),
    ]
    return [
        fields(pairs),
        *sections(
            ("Inputs", inputs_listing(detail.inputs)),
            ("Outputs", _outputs(detail)),
            ("Attempts", _attempt_rows(detail)),
            ("Spark, by attempt", _spark_rows(detail)),
            ("Events", events_listing(detail.events)),
        ),
    ]


def _not_retried(detail: TaskDetail) -> str:
    """Why a failed task has attempts left: its last one reported that another would fail in the same way."""
    task, outcome = detail.task, detail.attempts[-1].outcome if detail.attempts else None
    ended = task.status == "Failed" and task.next_retry_at is None and outcome == "Failed"
    if not ended or (task.max_attempts is not None and task.attempt >= task.max_attempts):
        return ""
    return ", not retried: another attempt would fail in the same way"


def inputs_listing(inputs: list[PayloadInput]) -> Listing:
    return Listing(
        inputs,
        ListingColumn("", lambda row: row.input_index, right=True),
        ListingColumn("dataset", lambda row: row.name),
        ListingColumn("unit", lambda row: unit_text(row.unit, row.window)),
        ListingColumn("revision", lambda row: row.revision),
        ListingColumn("where", lambda row: compact(row.where)),
    )


def _outputs(detail: TaskDetail) -> Listing:
    """The outputs, with the numbers that the task reported; empty columns are not shown."""
    reports = detail.result if isinstance(detail.result, list) else []
    by_dataset = {report.get("dataset_uuid"): report for report in reports if isinstance(report, dict)}

    def reported(row: JobOutputRow, name: str) -> str:
        return grouped(by_dataset.get(str(row.dataset_uuid), {}).get(name))

    return Listing(
        detail.outputs,
        ListingColumn("", lambda row: row.output_index, right=True),
        ListingColumn("dataset", lambda row: row.dataset),
        ListingColumn("storage", lambda row: storage_text(row.storage)),
        ListingColumn("rows", lambda row: reported(row, "row_count"), right=True),
        ListingColumn("files", lambda row: reported(row, "file_count"), right=True),
        ListingColumn("bytes", lambda row: reported(row, "size_bytes"), right=True),
        ListingColumn("generation", lambda row: str(row.dataset_version), whole=True, style="dim"),
    )


def _attempt_rows(detail: TaskDetail) -> Listing:
    return Listing(
        detail.attempts,
        ListingColumn("", lambda row: row.attempt, right=True),
        ListingColumn("outcome", lambda row: row.outcome or "current"),
        ListingColumn("claimed", lambda row: ago(row.claimed_at), whole=True),
        ListingColumn("worker", lambda row: row.worker_id),
        ListingColumn("package", lambda row: row.operator_package),
        ListingColumn("error", lambda row: Text(clean_lines(row.error or ""), style="red")),
    )


_SPARK_FIGURES = {
    "": "attempt",
    "jobs": "jobs",
    "stages": "stages",
    "tasks": "tasks",
    "tasks failed": "failed_tasks",
    "run time": "run_ms",
    "rows read": "input_rows",
    "bytes read": "input_bytes",
    "shuffle written": "shuffle_write_bytes",
    "shuffle read": "shuffle_read_bytes",
    "spill in memory": "spilled_memory_bytes",
    "spill on disk": "spilled_disk_bytes",
}


def _spark_rows(detail: TaskDetail) -> Listing:
    """The figures of Spark for each attempt; empty columns are not shown."""
    figures = [{**row.spark, "attempt": row.attempt} for row in detail.attempts if row.spark is not None]
    return Listing(figures, *(_spark_column(title, name) for title, name in _SPARK_FIGURES.items()))


def _spark_column(title: str, name: str) -> ListingColumn[dict[str, int]]:
    if name == "run_ms":
        return ListingColumn(title, lambda row: f"{row[name] / 1000:,.1f} s" if name in row else "", right=True)
    return ListingColumn(title, lambda row: grouped(row.get(name)), right=True)
