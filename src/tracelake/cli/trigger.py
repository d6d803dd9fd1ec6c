"""`trace trigger`: emits an event of a source by hand, or creates the task of one unit of a job."""

import time

import click
import msgspec
from rich.console import Group
from rich.text import Text

from tracelake.cli.build_progress import bar
from tracelake.cli.error_groups import group_lines
from tracelake.cli.names import resolve_job
from tracelake.cli.options import CURSOR, RANGE_OR_WINDOWS
from tracelake.cli.session import Session, away, live_view, looks, user_command
from tracelake.cli.text import clean, clock, count, shortened
from tracelake.client.name_suggestions import suggest_names
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.jobs import BlockRange, TriggerReply, TriggerRequest
from tracelake.wire.trigger_progress import TriggerProgressReply, WaitingInput

_INDEX = click.IntRange(0, 63)

GAVE_UP = 3
"""The exit status when --timeout ends first."""
_ERRORS_SHOWN = 5


@click.command()
@click.argument("target", metavar="DAG/JOB")
@click.option(
    "--range",
    "blocks",
    type=RANGE_OR_WINDOWS,
    help="The blocks from START to END, both included; or windows of time, like 2026-03-03 or 2026-03-01..2026-03-31.",
)
@click.option(
    "--cursor",
    type=CURSOR,
    help="The cursor up to which there are updates; of a cron source, a slot in seconds since 1970.",
)
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
    "--wait/--no-wait", default=False, help="Wait until everything that follows from it is finished (see above)."
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="With --wait: wait at most this long; the exit status is then 3.",
)
@click.option(
    "--across-dags", is_flag=True, help="With --wait: also wait for jobs of other DAGs that read its results."
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
    across_dags: bool,
) -> None:
    """Start work by hand: emit an event of a source, or create the task of one unit of another job.

    Exactly one of --range, --cursor and --partition names the unit. DAG/ may be left out if only one active DAG has a
    job of that name. Of a job with windows, --range may have up to 1,000 windows side by side: each gets a task, or
    none if the inputs do not cover one of them. Any other job gets one task for the whole range.

    --wait follows the jobs of the DAG that the triggered one leads to: tasks that were created since the trigger,
    events that have not become tasks yet, windows and joins that wait for a task, and batches that a sink has still to
    write. What others start in the same jobs meanwhile is waited for as well. It ends when none of this is left. An
    event of a source that is paused, or stopped by a full queue, is kept and creates its tasks later; --wait then shows
    why, and waits. Ctrl-C ends the waiting, not the work; the same command with the same --key waits again.

    Exit status with --wait: 0 if everything is done, 1 if a task failed and has no retry left, a sink refused rows, or
    events wait behind a failed unit, 3 if --timeout ended first.

    \b
    Examples:
      trace trigger pools/blocks --range 18_000_000-18_001_000 --wait
      trace trigger blocks --cursor 18001000 --wait --timeout 600
      trace trigger prices/every_five_minutes --cursor 1772409600
      trace trigger pools/daily_volume --range 2026-03-03
      trace trigger pools/daily_volume --range 2026-03-01..2026-03-31 --wait
      trace trigger pools/report --partition 2026-01-31 --key report-2026-01-31
    """
    if sum(item is not None for item in (blocks, cursor, partition)) != 1:
        raise click.UsageError("Give exactly one of --range, --cursor and --partition.")
    if (timeout is not None or across_dags) and not wait:
        raise click.UsageError("--timeout and --across-dags go with --wait.")
    request = TriggerRequest(
        cursor=cursor,
        range=blocks if isinstance(blocks, BlockRange) else None,
        window=blocks if isinstance(blocks, str) else None,
        partition_key=partition,
        input_index=input_index,
        output_index=output_index,
        idempotency_key=key,
    )
    dag, job, reply = session.run(lambda client: _trigger(client, target, request))
    if not session.as_json:
        _tell(session, dag, job, reply)
    progress = _wait(session, dag, reply, timeout, across=across_dags) if wait else None
    status = 0 if progress is None or progress.succeeded else 1 if progress.finished else GAVE_UP
    session.answer(reply if progress is None else {**msgspec.to_builtins(reply), "progress": progress}, status)
    if progress is None:
        _tell_next(session, dag, job, reply)
    else:
        _tell_end(session, dag, job, progress)
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


def _tell_next(session: Session, dag: str, job: str, reply: TriggerReply) -> None:
    if reply.kept == "paused":
        session.hint("resume the source", "resume", f"{dag}/{job}")
    elif reply.kept == "stopped":
        session.hint("see which queue is full", "pressure")
    else:
        session.hint("follow it", "tasks", "--dag", dag, "--watch")


def _tell_end(session: Session, dag: str, job: str, progress: TriggerProgressReply) -> None:
    if not progress.finished:
        session.say((f"It is not finished yet: {_open_text(progress)}. The work goes on.", "yellow"))
        stopped = next((item for item in progress.inputs if item.state in ("paused", "stopped")), None)
        if stopped is None:
            session.hint("follow it", "tasks", "--dag", dag, "--watch")
        elif stopped.state == "paused":
            session.hint("resume the source", "resume", f"{dag}/{job}")
        else:
            session.hint("see which queue is full", "pressure")
        return
    if progress.succeeded:
        tasks = f"{progress.done:,}{'+' if progress.more else ''}"
        text = f"All {tasks} tasks finished, none failed." if progress.done > 1 else "Finished; no task failed."
        session.say((text, "green"))
        session.hint("see the datasets", "datasets")
        return
    if progress.failed:
        more = " or more" if progress.more else ""
        session.say((f"{count(progress.failed, 'task')}{more} failed (no retries left).", "red"))
        if progress.errors:
            session.show(*group_lines(progress.errors[:_ERRORS_SHOWN]))
            failed_dag = progress.errors[0].jobs[0].partition("/")[0]
            session.hint("after the cause is fixed, retry them", "retry", "--dag", failed_dag, "--failed")
            session.hint("see one", "tasks", str(progress.errors[0].task_id))
        else:
            session.say("They are of DAGs that your token does not reach.")
    for item in progress.inputs:
        if item.state == "held":
            session.say((f"{clean(item.job)} has a failed unit; {_wait_text(item)} behind it.", "red"))
            session.hint("see which", "why", item.job)
    if progress.dead_letters:
        session.say((f"A sink refused {count(progress.dead_letters, 'batch')} of rows.", "red"))
        session.hint("see why", "dlq", "list")


# --- waiting


def _wait(
    session: Session, dag: str, reply: TriggerReply, timeout: float | None, *, across: bool
) -> TriggerProgressReply:
    try:
        return session.run(lambda client: _follow(session, client, reply.idempotency_key, timeout, across=across))
    except KeyboardInterrupt:
        session.say("You stopped waiting; the work goes on.")
        session.hint("follow it", "tasks", "--dag", dag, "--watch")
        raise


async def _follow(
    session: Session, client: UserClient, key: str, timeout: float | None, *, across: bool
) -> TriggerProgressReply:
    """Waits until the server says that nothing is left, or the time is over."""
    progress: TriggerProgressReply | None = None
    started_at = time.monotonic()
    with live_view(session.console) as update:
        async for result in looks(lambda: client.call(routes.SHOW_TRIGGER, key=key, across=across)):
            if isinstance(result, TraceError):
                lines = [] if progress is None else [_view(progress)]
                update(Group(*lines, Text(away(result), style="yellow")))
            else:
                progress = result
                update(_view(progress))
                if progress.finished:
                    return progress
            if progress is not None and timeout is not None and time.monotonic() - started_at >= timeout:
                return progress
    raise AssertionError("looks never ends")


def _view(progress: TriggerProgressReply) -> Group:
    more = "+" if progress.more else ""
    failed = (f"{progress.failed} failed", "red" if progress.failed else "")
    text = Text.assemble(f"{progress.done}{more} done, {progress.open}{more} open, ", failed)
    waiting = _waiting_text(progress)
    if waiting:
        text.append(f", {waiting}", style="dim")
    lines = [bar("working", progress.done, progress.done + progress.open + progress.failed, text)]
    if progress.next_retry_at is not None:
        # The time and not how far it is, so that a log gets a line when something changes and not one a second.
        words = "task waits for a retry" if progress.retrying == 1 else "tasks wait for a retry, the next"
        error = f": {shortened(progress.retry_error)}" if progress.retry_error else ""
        line = f"{progress.retrying} {words} at {clock(progress.next_retry_at)}{error}"
        return Group(*lines, Text(line, style="yellow"), *_stop_lines(progress))
    return Group(*lines, *_stop_lines(progress))


def _stop_lines(progress: TriggerProgressReply) -> list[Text]:
    return [
        Text(f"kept: {_wait_text(item)} at {clean(item.job)}: {clean(item.because)}", style="yellow")
        for item in progress.inputs
        if item.state in ("paused", "stopped")
    ]


def _wait_text(item: WaitingInput) -> str:
    return f"{count(item.events, 'event')} {'waits' if item.events == 1 else 'wait'}"


def _waiting_text(progress: TriggerProgressReply) -> str:
    """`2 events to route, 1 batch waiting for a sink`; empty if nothing waits."""
    draining = progress.waiting_events
    parts = [
        f"{count(draining, 'event')} without tasks yet" if draining else "",
        f"{count(progress.waiting_units, 'unit')} waiting for a task" if progress.waiting_units else "",
        f"{count(progress.waiting_reruns, 'invalidation')} in progress" if progress.waiting_reruns else "",
        f"{count(progress.waiting_batches, 'batch')} waiting for a sink" if progress.waiting_batches else "",
    ]
    return ", ".join(part for part in parts if part)


def _open_text(progress: TriggerProgressReply) -> str:
    parts = [f"{count(progress.open, 'task')} open" if progress.open else "", _waiting_text(progress)]
    parts += [clean(item.because) for item in progress.inputs if item.state in ("paused", "stopped")]
    return ", ".join(part for part in parts if part)
