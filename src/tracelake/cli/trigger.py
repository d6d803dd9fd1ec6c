"""`trace trigger`: emits an event of a source by hand, or creates the task of one unit of a job."""

import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import click
import msgspec
from rich.console import Group
from rich.text import Text

from tracelake.cli.build_progress import bar, retry_lines
from tracelake.cli.names import resolve_job, suggest_names
from tracelake.cli.options import CURSOR, RANGE_OR_WINDOWS
from tracelake.cli.paging import collect
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
"""How many tasks are counted; beyond that only whether any is open is known."""
_CLOCKS_APART = timedelta(seconds=5)
"""How far the server's clock may be behind ours, if no task shows its time."""
_SERVERS_APART = timedelta(milliseconds=100)
"""How far the clocks of two servers may be apart, if one does."""


GAVE_UP = 3
"""The exit status when --timeout ends first."""


class TriggerProgress(msgspec.Struct, frozen=True, kw_only=True):
    done: int
    open: int
    failed: int
    more: bool
    """Whether there are more tasks than were counted."""
    retrying: list[TaskRow] = []
    """The open tasks that failed and wait for their next attempt."""
    kept: str | None = None
    """Why the event has not created its tasks yet."""
    gave_up: bool = False
    """Whether --timeout ended before the work."""


@click.command()
@click.argument("target", metavar="DAG/JOB")
@click.option(
    "--range",
    "blocks",
    type=RANGE_OR_WINDOWS,
    help="The blocks from START to END, both included; or a window of time, like 2026-03-03.",
)
@click.option("--cursor", type=CURSOR, help="The cursor up to which there are updates.")
@click.option("--partition", metavar="KEY", help="The partition with this key.")
@click.option(
    "--key", metavar="TEXT", help="The idempotency key: the same key again is the same trigger (default: a new one)."
)
@click.option(
    "--input", "input_index", type=_INDEX, default=0, help="For a job: the index of the input whose unit it is."
)
@click.option(
    "--output", "output_index", type=_INDEX, default=0, help="For a source: the index of the output to emit for."
)
@click.option(
    "--wait/--no-wait", default=False, help="Wait until all tasks of the DAG that follow from it are finished."
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="With --wait: wait at most this long; the exit status is then 3.",
)
@user_command
def command(
    session: Session,
    target: str,
    blocks: BlockRange | str | None,
    cursor: int | None,
    partition: str | None,
    key: str | None,
    input_index: int,
    output_index: int,
    wait: bool,
    timeout: float | None,
) -> None:
    """Start work by hand: emit an event of a source, or create the task of one unit of another job.

    Exactly one of --range, --cursor and --partition names the unit. DAG/ may be left out if only one active DAG has a
    job of that name. With --wait the exit status is 1 if a task failed for good.

    An event of a source that is paused, or stopped by a full queue, is kept and creates its tasks later; --wait then
    shows why, and waits.

    \b
    Examples:
      trace trigger pools/blocks --range 18_000_000-18_001_000 --wait
      trace trigger blocks --cursor 18001000 --wait --timeout 600
      trace trigger pools/daily_volume --range 2026-03-03
      trace trigger pools/report --partition 2026-01-31 --key report-2026-01-31
    """
    if sum(item is not None for item in (blocks, cursor, partition)) != 1:
        raise click.UsageError("Give exactly one of --range, --cursor and --partition.")
    if timeout is not None and not wait:
        raise click.UsageError("--timeout goes with --wait.")
    request = TriggerRequest(
        cursor=cursor,
        range=blocks if isinstance(blocks, BlockRange) else None,
        window=blocks if isinstance(blocks, str) else None,
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
    dag, job = await resolve_job(client, target)
    call = client.call(routes.TRIGGER, request, dag=dag, job=job)
    return dag, job, await suggest_names(client, call, dag=dag, job=job)


def _tell(session: Session, dag: str, job: str, reply: TriggerReply) -> None:
    event = "" if reply.event_id is None else f"event {reply.event_id}, "
    tasks = [reply.task_id] if reply.task_id is not None else reply.tasks
    again = " (this key was triggered before; nothing new was started)" if reply.duplicate else ""
    session.say(f"{dag}/{job}: {event}{count(len(tasks), 'task')}{again}.")
    if reply.kept is not None:
        why = "the source is paused" if reply.kept == "paused" else "a queue downstream is full"
        session.say((f"The event is kept, because {why}; its tasks are created after that.", "yellow"))
    elif not tasks and not reply.duplicate:
        session.say("It created no task: no job that reads the source has a new unit to compute.")
        session.hint("run a unit of a job again", "trigger", f"{dag}/JOB", "--range", "START-END")
    if len(tasks) == 1:
        session.say(f"task {tasks[0]}")


def _tell_next(session: Session, dag: str, job: str, reply: TriggerReply, progress: TriggerProgress | None) -> None:
    if progress is not None and progress.gave_up:
        if progress.kept:
            text = f"It is not finished yet: {progress.kept}. Its tasks are created after that."
        else:
            text = f"It is not finished yet: {count(progress.open, 'task')} open. The work goes on."
        session.say((text, "yellow"))
    if reply.kept == "paused" and (progress is None or progress.kept):
        session.hint("resume the source", "resume", f"{dag}/{job}")
    elif reply.kept == "stopped" and (progress is None or progress.kept):
        session.hint("see which queue is full", "pressure")
    elif progress is not None and progress.gave_up:
        session.hint("follow it", "tasks", "--dag", dag, "--watch")
    elif progress is not None and progress.failed:
        session.say((f"{count(progress.failed, 'task')} failed for good.", "red"))
        session.hint("see why", "tasks", "--dag", dag, "--status", "Failed")
    elif progress is not None:
        session.say(("All tasks are finished.", "green"))
        session.hint("see the datasets", "datasets")
    else:
        session.hint("follow it", "tasks", "--dag", dag, "--watch")


# --- waiting


def _wait(
    session: Session, dag: str, job: str, reply: TriggerReply, asked_at: datetime, timeout: float | None
) -> TriggerProgress:
    try:
        return session.run(lambda client: _follow(session, client, (dag, job), reply, asked_at, timeout))
    except KeyboardInterrupt:
        session.say("You stopped waiting; the work goes on.")
        session.hint("follow it", "tasks", "--dag", dag, "--watch")
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
    """When the first tasks were created. Their ids begin with the milliseconds at which the server created them, and
    `since` of the API compares these."""
    ids = [reply.task_id] if reply.task_id is not None else reply.tasks
    times = [task_id.int >> 80 for task_id in ids if task_id.version == 7]
    if not times:
        return asked_at - _CLOCKS_APART
    return datetime.fromtimestamp(min(times) / 1000, UTC) - _SERVERS_APART


async def measure(client: UserClient, dag: str, since: datetime) -> TriggerProgress:
    """The progress of the DAG's tasks that were created since then."""
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
