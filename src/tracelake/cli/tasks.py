"""`trace tasks`: a page of tasks, or everything about one."""

from datetime import datetime
from typing import Any
from uuid import UUID

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from tracelake.cli.events import events_listing
from tracelake.cli.follow import TaskFollower, follow
from tracelake.cli.listing import Listing, ListingColumn, fields
from tracelake.cli.missing import explained
from tracelake.cli.options import cursor_option, follow_option, limit_option, watch_option
from tracelake.cli.paging import collect
from tracelake.cli.parse import TimeType
from tracelake.cli.session import Session, user_command
from tracelake.cli.text import ago, clean_lines, compact, grouped, moment, shortened, unit_text
from tracelake.client.user import UserClient
from tracelake.wire import routes
from tracelake.wire.overview import CountName
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
    """`trace tasks show ID` is `trace tasks ID`, for whoever is used to the longer one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args[1:] if args[:1] == ["show"] else args)


@click.command(cls=_Tasks)
@click.argument("task_id", required=False, type=click.UUID, metavar="[TASK_ID]")
@click.option("--dag", help="Only of this DAG.")
@click.option("--job", help="Only of this job; DAG/JOB says both.")
@click.option("--status", type=click.Choice(list(STATUS_STYLES), case_sensitive=False), help="Only in this state.")
@click.option("--since", type=TimeType(), help="Made since then: 30m, 2h, 7d, or a time like 2026-01-31T12:00:00Z.")
@click.option("--until", type=TimeType(), help="Made before then.")
@limit_option(50)
@cursor_option
@watch_option
@follow_option
@user_command
def command(session: Session, task_id: UUID | None, limit: int, watch: bool, following: bool, **filters: Any) -> None:
    """List tasks, newest first; with TASK_ID, everything about that one.

    With --follow a line is printed for each task that is made from now on, and for each change of it, until it is
    finished: made, claimed, retrying, queued, completed, failed, canceled. --status narrows it to such changes. Tasks
    that are there already are followed too: of those that are queued, running, retrying or failed, the newest 500 each.
    With --since all that were made since then are told first.

    With --watch those that run come first, below a line that counts the tasks of active versions.
    What is new is known by the ids of tasks, which start with the time. A service that makes a task with an id of its
    own choice (POST /internal/tasks with a task_id) may choose one that looks old: that task is not printed.

    A task that is `Retrying` failed and waits for its next attempt; one that is `Failed` failed for good, and somebody
    has to retry or skip it. `Queued, waiting` waits for a place of a limit.

    \b
    Examples:
      trace tasks --dag pools --watch
      trace tasks --follow --job pools/prices
      trace tasks --follow --since 10m
      trace tasks --follow --status Failed --json
      trace tasks --job pools/prices --status Failed --since 2h
      trace tasks 01890000-0000-7000-8000-000000000001
      trace tasks --status Failed --json | jq -r '.tasks[].task_id' | xargs trace retry
    """
    filters = {name: value for name, value in filters.items() if value is not None}
    if task_id is not None:
        if filters or watch or following:
            raise click.UsageError("With a TASK_ID there is nothing to filter or to watch.")
        _show_task(session, task_id)
        return
    if "/" in filters.get("job", ""):
        dag, _, filters["job"] = filters["job"].partition("/")
        if filters.setdefault("dag", dag) != dag:
            raise click.UsageError("--dag and --job name two DAGs.")
    if following:
        _follow(session, filters, watch=watch)
        return
    if watch:
        session.watch(lambda client: _look(client, limit, filters))
        return
    page = session.ask(lambda client: _page(client, limit, filters))
    if not page.tasks:
        session.say("No tasks match." if filters else "There is no task yet.")
        if not filters:
            session.hint("see what could make some", "dags")
        return
    session.show(tasks_listing(page))
    idle = next((task for task in page.tasks if _is_idle(task)), None)
    if idle is not None:
        session.hint("see why it is not running", "why", str(idle.task_id))
    if page.next is not None:
        session.hint("see the next page", "tasks", *_words(filters), "--limit", limit, "--cursor", page.next)
    else:
        session.hint("see all about one", "tasks", str(page.tasks[0].task_id))


def _follow(session: Session, filters: dict[str, Any], *, watch: bool) -> None:
    for name in ("until", "cursor"):
        if name in filters:
            raise click.UsageError(f"--follow has no end and no pages; there is no --{name} with it.")
    if watch:
        raise click.UsageError("Either --watch or --follow.")
    names = {name: filters.get(name) for name in ("dag", "job")}
    status, since = filters.get("status"), filters.get("since")
    follow(session, lambda client: TaskFollower(session, client, status, since, **names))


def _is_idle(task: TaskRow) -> bool:
    """It ought to run some time, and does not."""
    return task.status == "Queued" or (task.status == "Failed" and not task.skipped)


def _words(filters: dict[str, Any]) -> list[str]:
    words = []
    for name, value in filters.items():
        if name != "cursor":
            words += [f"--{name}", value.isoformat() if isinstance(value, datetime) else str(value)]
    return words


async def _page(client: UserClient, limit: int, filters: dict[str, Any]) -> TasksPage:
    pages = collect(client, routes.LIST_TASKS, "tasks", limit=limit, **filters)
    return await explained(client, pages, dag=filters.get("dag"), job=filters.get("job"))


async def _look(client: UserClient, limit: int, filters: dict[str, Any]) -> RenderableType:
    page = await _page(client, limit, filters)
    if "status" not in filters and "cursor" not in filters:
        page = await _running_first(client, page, limit, filters)
    rows = tasks_listing(page) if page.tasks else Text("No tasks match.")
    return Group(await _totals(client, filters), rows)


async def _running_first(client: UserClient, page: TasksPage, limit: int, filters: dict[str, Any]) -> TasksPage:
    """Newest first shows what was made last; what runs may be far below that."""
    running = [task for task in page.tasks if task.status == "Running"]
    if page.next is not None:
        running = (await collect(client, routes.LIST_TASKS, "tasks", limit=limit, status="Running", **filters)).tasks
    running_ids = {task.task_id for task in running}
    rest = [task for task in page.tasks if task.task_id not in running_ids]
    return msgspec.structs.replace(page, tasks=[*running, *rest][:limit])


async def _totals(client: UserClient, filters: dict[str, Any]) -> Text:
    reply = await client.call(routes.SHOW_OVERVIEW, dag=filters.get("dag"))
    jobs = [job for job in reply.jobs if filters.get("job") in (None, job.job)]
    line = Text("now  ", style="dim")
    counts: tuple[tuple[CountName, str, str], ...] = (
        ("running", "running", "cyan"),
        ("ready", "ready", ""),
        ("held", "waiting", "yellow"),
        ("retrying", "retrying", "yellow"),
        ("failed", "failed", "bold red"),
    )
    for name, word, style in counts:
        number = f"{sum(getattr(job, name) for job in jobs)}{'+' if any(name in job.cut for job in jobs) else ''}"
        line.append(number, style=style if number != "0" else "").append(f" {word}  ")
    return line


def tasks_listing(page: TasksPage) -> Listing:
    listing = Listing(
        [
            ListingColumn("task", whole=True),
            ListingColumn("job"),
            ListingColumn("status"),
            ListingColumn("unit"),
            ListingColumn("attempt", whole=True),
            ListingColumn("made", whole=True),
            ListingColumn("error"),
        ]
    )
    for task in page.tasks:
        listing.add(
            str(task.task_id),
            f"{task.dag}/{task.job}",
            status_text(task),
            unit_text(task.unit),
            _attempts(task),
            ago(task.created_at),
            Text(shortened(task.error or ""), style="red"),
        )
    return listing


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
    if task.status == "Failed" and task.next_retry_at is not None:
        session.hint("try it at once", "retry", str(task_id))
        session.hint("or give it up", "cancel", str(task_id))
    elif task.status == "Failed":
        session.hint("try it again", "retry", str(task_id))
        if not task.skipped:
            session.hint("or go on without it", "skip", str(task_id))
    elif task.status == "Canceled":
        session.hint("run it after all", "retry", str(task_id))
    elif task.status in ("Queued", "Running"):
        if task.status == "Queued":
            session.hint("see why it is not running", "why", str(task_id))
        session.hint("stop it", "cancel", str(task_id))
    elif detail.outputs:
        session.hint("see what it wrote", "datasets", detail.outputs[0].dataset)


def task_parts(detail: TaskDetail) -> list[RenderableType]:
    task = detail.task
    parts: list[RenderableType] = [
        fields(
            [
                ("task", str(task.task_id)),
                ("job", f"{task.dag}/{task.job}"),
                ("status", status_text(task)),
                ("unit", unit_text(task.unit)),
                ("revision", task.revision),
                ("operator", f"{task.operator} on {detail.runtime}"),
                ("attempt", _attempts(task)),
                ("made", moment(task.created_at)),
                ("claimed", moment(task.claimed_at)),
                ("finished", moment(task.finished_at)),
                ("next retry", moment(task.next_retry_at)),
                ("result", "" if isinstance(detail.result, list) else compact(detail.result)),
                ("error", Text(clean_lines(task.error or ""), style="red")),
            ]
        )
    ]
    for title, listing in (
        ("Inputs", inputs_listing(detail.inputs)),
        ("Outputs", _outputs(detail)),
        ("Attempts", _attempt_rows(detail)),
        ("Spark", _spark_rows(detail)),
        ("Events", events_listing(detail.events)),
    ):
        if listing.rows:
            parts += [Text(f"\n{title}", style="bold"), listing]
    return parts


def inputs_listing(inputs: list[PayloadInput]) -> Listing:
    listing = Listing(
        [
            ListingColumn("", right=True),
            ListingColumn("dataset"),
            ListingColumn("unit"),
            ListingColumn("revision"),
            ListingColumn("where"),
        ]
    )
    for row in inputs:
        listing.add(row.input_index, row.name, unit_text(row.unit), row.revision, compact(row.where))
    return listing


def _outputs(detail: TaskDetail) -> Listing:
    """With what the task says it wrote, where it says so; columns that are empty are not shown."""
    listing = Listing(
        [
            ListingColumn("", right=True),
            ListingColumn("dataset"),
            ListingColumn("storage"),
            ListingColumn("rows", right=True),
            ListingColumn("files", right=True),
            ListingColumn("bytes", right=True),
            ListingColumn("generation", whole=True, style="dim"),
        ]
    )
    reports = detail.result if isinstance(detail.result, list) else []
    by_dataset = {report.get("dataset_uuid"): report for report in reports if isinstance(report, dict)}
    for row in detail.outputs:
        report = by_dataset.get(str(row.dataset_uuid), {})
        numbers = [grouped(report.get(name)) for name in ("row_count", "file_count", "size_bytes")]
        listing.add(row.output_index, row.dataset, row.storage, *numbers, str(row.dataset_version))
    return listing


def _attempt_rows(detail: TaskDetail) -> Listing:
    listing = Listing(
        [
            ListingColumn("", right=True),
            ListingColumn("outcome"),
            ListingColumn("claimed", whole=True),
            ListingColumn("worker"),
            ListingColumn("error"),
        ]
    )
    for row in detail.attempts:
        error = Text(clean_lines(row.error or ""), style="red")
        listing.add(row.attempt, row.outcome or "current", ago(row.claimed_at), row.worker_id, error)
    return listing


def _spark_rows(detail: TaskDetail) -> Listing:
    """What Spark did for each attempt; columns that are empty are not shown."""
    columns = {
        "": "attempt",
        "jobs": "jobs",
        "stages": "stages",
        "tasks": "tasks",
        "tasks failed": "failed_tasks",
        "run": "run_ms",
        "rows read": "input_rows",
        "bytes read": "input_bytes",
        "shuffle written": "shuffle_write_bytes",
        "shuffle read": "shuffle_read_bytes",
        "spill in memory": "spilled_memory_bytes",
        "spill on disk": "spilled_disk_bytes",
    }
    listing = Listing([ListingColumn(title, right=True) for title in columns])
    for row in detail.attempts:
        if row.spark is not None:
            figures = {**row.spark, "attempt": row.attempt}
            cells = {name: grouped(figures.get(name)) for name in columns.values()}
            if "run_ms" in figures:
                cells["run_ms"] = f"{figures['run_ms'] / 1000:,.1f} s"
            listing.add(*cells.values())
    return listing
