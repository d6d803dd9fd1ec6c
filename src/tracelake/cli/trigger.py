"""`trace trigger`: set off a source by hand, or make the task of one unit of a job."""

import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import click
import msgspec
from rich.console import Group
from rich.text import Text

from tracelake.cli.build_progress import bar, retry_lines
from tracelake.cli.naming import named
from tracelake.cli.paging import collect
from tracelake.cli.parse import CursorType, RangeType
from tracelake.cli.session import Session, away, live_view, looks, user_command
from tracelake.cli.sources import why_kept
from tracelake.cli.text import count
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.jobs import BlockRange, TriggerReply, TriggerRequest
from tracelake.wire.tasks import TaskRow

_INDEX = click.IntRange(0, 63)
_LOOK_ROWS = 2000
"""How many tasks a look counts; of more than that it only tells whether any is open."""
_CLOCKS_APART = timedelta(seconds=5)
"""How far the server's clock may be behind ours, when no task tells its time."""
_SERVERS_APART = timedelta(milliseconds=100)
"""How far the clocks of two servers may be apart, when one does."""


GAVE_UP = 3
"""The exit status when --timeout is over first."""


class TriggerProgress(msgspec.Struct, frozen=True, kw_only=True):
    done: int
    open: int
    failed: int
    more: bool
    """There are tasks beyond those that were counted."""
    retrying: list[TaskRow] = []
    """Those of the open ones that failed and wait for their next attempt."""
    kept: str | None = None
    """Why what was triggered has not made its tasks yet."""
    gave_up: bool = False
    """The time was over before the work."""


@click.command()
@click.argument("target", metavar="DAG/JOB")
@click.option("--range", "blocks", type=RangeType(), help="The blocks from START to END, both included.")
@click.option("--cursor", type=CursorType(), help="The cursor up to which there is something new.")
@click.option("--partition", metavar="KEY", help="The partition with this key.")
@click.option("--key", metavar="TEXT", help="The same key again is the same trigger (default: a new one).")
@click.option("--input", "input_index", type=_INDEX, default=0, help="Of a job: the unit is of this input.")
@click.option("--output", "output_index", type=_INDEX, default=0, help="Of a source: emit for this output.")
@click.option("--wait/--no-wait", default=False, help="Stay until everything that it set off in the DAG is done.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="With --wait: stay no longer than this; the exit status is then 3.",
)
@user_command
def command(
    session: Session,
    target: str,
    blocks: BlockRange | None,
    cursor: int | None,
    partition: str | None,
    key: str | None,
    input_index: int,
    output_index: int,
    wait: bool,
    timeout: float | None,
) -> None:
    """Emit an event of a source, or make the task of one unit of a job.

    Say which unit by exactly one of --range, --cursor and --partition. The DAG may be left out when only one DAG has a
    job of that name. With --wait the exit status is 1 if a task failed for good.

    What is said by a source that is paused, or stopped by a full queue, is kept and makes its tasks later; --wait says
    so, and stays.

    \b
    Examples:
      trace trigger pools/blocks --range 18_000_000-18_001_000 --wait
      trace trigger blocks --cursor 18001000 --wait --timeout 600
      trace trigger pools/report --partition 2026-01-31 --key report-2026-01-31
    """
    if sum(item is not None for item in (blocks, cursor, partition)) != 1:
        raise click.UsageError("Give exactly one of --range, --cursor and --partition.")
    if timeout is not None and not wait:
        raise click.UsageError("--timeout goes with --wait.")
    request = TriggerRequest(
        cursor=cursor,
        range=blocks,
        partition_key=partition,
        input_index=input_index,
        output_index=output_index,
        idempotency_key=key,
    )
    asked_at = datetime.now(UTC)
    dag, job, reply = session.run(lambda client: _trigger(client, target, request))
    if not session.as_json:
        _tell(session, dag, job, reply)
    progress = _wait(session, dag, job, reply, asked_at, timeout) if wait else None
    status = 0 if progress is None else 1 if progress.failed else GAVE_UP if progress.gave_up else 0
    session.answer(reply, status)
    _tell_next(session, dag, job, reply, progress)
    click.get_current_context().exit(status)


async def _trigger(client: UserClient, target: str, request: TriggerRequest) -> tuple[str, str, TriggerReply]:
    dag, job = await named(client, target)
    return dag, job, await client.call(routes.TRIGGER, request, dag=dag, job=job)


def _tell(session: Session, dag: str, job: str, reply: TriggerReply) -> None:
    event = "" if reply.event_id is None else f"event {reply.event_id}, "
    tasks = [reply.task_id] if reply.task_id is not None else reply.tasks
    again = " (it had been triggered before with this key)" if reply.duplicate else ""
    session.say(f"{dag}/{job}: {event}{count(len(tasks), 'task')}{again}.")
    if reply.kept is not None:
        why = "it is paused" if reply.kept == "paused" else "a queue downstream is full"
        session.say((f"The source keeps it for now, because {why}; its tasks are made after that.", "yellow"))
    elif not tasks and not reply.duplicate:
        session.say("No job has a new unit from it; a unit that was made is not made again.")
        session.hint("make one again", "trigger", f"{dag}/JOB", "--range", "START-END")
    if len(tasks) == 1:
        session.say(f"task {tasks[0]}")


def _tell_next(session: Session, dag: str, job: str, reply: TriggerReply, progress: TriggerProgress | None) -> None:
    if progress is not None and progress.gave_up:
        if progress.kept:
            text = f"It is not done yet: {progress.kept}. Its tasks are made after that."
        else:
            text = f"It is not done yet, with {count(progress.open, 'task')} open. The work goes on."
        session.say((text, "yellow"))
    if reply.kept == "paused" and (progress is None or progress.kept):
        session.hint("let the source go on", "resume", f"{dag}/{job}")
    elif reply.kept == "stopped" and (progress is None or progress.kept):
        session.hint("see which queue is full", "pressure")
    elif progress is not None and progress.gave_up:
        session.hint("see it run", "tasks", "--dag", dag, "--watch")
    elif progress is not None and progress.failed:
        session.say((f"{count(progress.failed, 'task')} failed for good.", "red"))
        session.hint("see why", "tasks", "--dag", dag, "--status", "Failed")
    elif progress is not None:
        session.say(("Nothing is open any more.", "green"))
        session.hint("see what it made", "datasets")
    else:
        session.hint("see it run", "tasks", "--dag", dag, "--watch")


# --- waiting


def _wait(
    session: Session, dag: str, job: str, reply: TriggerReply, asked_at: datetime, timeout: float | None
) -> TriggerProgress:
    try:
        return session.run(lambda client: _follow(session, client, (dag, job), reply, asked_at, timeout))
    except KeyboardInterrupt:
        session.say("You stopped waiting; the work goes on.")
        session.hint("see it", "tasks", "--dag", dag, "--watch")
        raise


async def _follow(
    session: Session,
    client: UserClient,
    source: tuple[str, str],
    reply: TriggerReply,
    asked_at: datetime,
    timeout: float | None,
) -> TriggerProgress:
    since = first_made(reply, asked_at)
    progress = TriggerProgress(done=0, open=0, failed=0, more=False)
    calm = 0
    is_kept = reply.kept is not None
    started_at = time.monotonic()

    async def look() -> TriggerProgress:
        why = await _why_kept(client, *source) if is_kept else None
        return msgspec.structs.replace(await measure(client, source[0], since), kept=why)

    with live_view(session.console) as update:
        async for result in looks(look):
            if isinstance(result, TraceError):
                update(Group(_view(progress), Text(away(result), style="yellow")))
            else:
                progress = result
                update(_view(progress))
                # Between the questions of one look a task may move from a later state to an earlier one, so ask twice.
                # And what was kept has its tasks a moment after nothing keeps it any more.
                calm = calm + 1 if not progress.open and progress.kept is None else 0
                if calm > (1 if progress.more or is_kept else 0):
                    return progress
            if timeout is not None and time.monotonic() - started_at >= timeout:
                return msgspec.structs.replace(progress, gave_up=True)
    raise AssertionError("looks never ends")


async def _why_kept(client: UserClient, dag: str, job: str) -> str | None:
    rows = (await client.call(routes.LIST_SOURCES)).sources
    return next((why_kept(row) for row in rows if (row.dag, row.job) == (dag, job)), None)


def first_made(reply: TriggerReply, asked_at: datetime) -> datetime:
    """When the first tasks were made: their ids begin with the milliseconds at which the server made them, and these
    are what `since` of the API looks at."""
    ids = [reply.task_id] if reply.task_id is not None else reply.tasks
    times = [task_id.int >> 80 for task_id in ids if task_id.version == 7]
    if not times:
        return asked_at - _CLOCKS_APART
    return datetime.fromtimestamp(min(times) / 1000, UTC) - _SERVERS_APART


async def measure(client: UserClient, dag: str, since: datetime) -> TriggerProgress:
    """What became of the DAG's tasks that were made since then."""
    page = await collect(client, routes.LIST_TASKS, "tasks", limit=_LOOK_ROWS, dag=dag, since=since)
    states = Counter(_state(task) for task in page.tasks)
    progress = TriggerProgress(
        done=states["done"],
        open=states["open"],
        failed=states["failed"],
        more=page.next is not None,
        retrying=[task for task in page.tasks if task.next_retry_at is not None],
    )
    if not progress.more or progress.open:
        return progress
    for status in ("Queued", "Running", "Retrying"):
        rest = await client.call(routes.LIST_TASKS, dag=dag, since=since, status=status, limit=100)
        if rest.tasks:
            retrying = rest.tasks if status == "Retrying" else []
            return msgspec.structs.replace(progress, open=len(rest.tasks), retrying=retrying)
    return progress


def _state(task: TaskRow) -> str:
    if task.status in ("Queued", "Running") or task.next_retry_at is not None:
        return "open"
    return "failed" if task.status == "Failed" and not task.skipped else "done"


def _view(progress: TriggerProgress) -> Group:
    more = "+" if progress.more else ""
    failed = (f"{progress.failed} failed", "red" if progress.failed else "")
    text = Text.assemble(f"{progress.done}{more} done, {progress.open}{more} open, ", failed)
    lines = [] if progress.kept is None else [Text(f"kept: {progress.kept}", style="yellow")]
    working = bar("working", progress.done, progress.done + progress.open + progress.failed, text)
    return Group(working, *retry_lines(progress.retrying), *lines)
