"""`trace logs`: the log of a task, of a job (`job_logs.py`) or of a part (`part_logs.py`); also while it grows.

The output was written by untrusted code: control characters are spelled out, so that none of it reaches the terminal.
Which line of standard output came before which of standard error is not recorded; the two are shown one after the
other.
"""

from uuid import UUID

import click
from rich.text import Text

from tracelake.cli.follow import note
from tracelake.cli.job_logs import show_job
from tracelake.cli.listing import whole_line
from tracelake.cli.log_lines import line_text
from tracelake.cli.part_logs import show_part
from tracelake.cli.session import Session, away, looks, user_command
from tracelake.cli.text import ago, clean, clean_lines, unit_text
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.parameters import parse_uuid
from tracelake.wire.run_logs import LogLines, LogOutput, TaskLog

_STREAMS = ("stdout", "stderr")
_MIB = 1024 * 1024
_LATE_LOOKS = 5
"""How often a follower looks again for the final log of an attempt that is over."""
_STATE_STYLES = {"completed": "green", "running": "cyan", "canceled": "dim", "stopped": "yellow", "fenced": "yellow"}


@click.command()
@click.argument("subject", metavar="TASK|DAG/JOB|PART")
@click.option("--attempt", type=click.IntRange(1), help="Of a task: this attempt (default: the newest with a log).")
@click.option("--failed", is_flag=True, help="Of a job: only attempts that failed.")
@click.option("--limit", type=click.IntRange(1, 100), help="Of a job: at most this many attempts.  [default: 10]")
@click.option("--lines", type=click.IntRange(1, 100_000), help="The last N lines (default: 100 of a part, else all).")
@click.option(
    "--follow",
    "following",
    is_flag=True,
    help="Go on while there is more: of a task through later attempts until it ends (with --attempt, until that"
    " attempt ends), of a job or a part until Ctrl-C. With --json each line is a JSON document.",
)
@user_command
def command(
    session: Session,
    subject: str,
    attempt: int | None,
    failed: bool,
    limit: int | None,
    lines: int | None,
    following: bool,
) -> None:
    """Show the log of a task, of the newest attempts of a job, or of a part of the stack.

    A UUID is a task, DAG/JOB a job, and anything else a part: `dispatcher`, `worker`, `scheduler`, `query`, `runner`,
    `postgres-state`, `postgres-data`, `object-store` (`trace status` lists them). Logs of parts are files on the
    machine of the stack; the others can be read from anywhere.

    The log of an attempt has lines of its worker, of its operator and of Spark: only lines known to belong to this
    attempt. The log of a user's function is what it printed. The last 256 KB are kept, for 14 days unless the stack
    says otherwise (`log_retention_days`). docs/logs.md says which lines belong to an attempt.

    \b
    Examples:
      trace logs 01890000-0000-7000-8000-000000000001
      trace logs 01890000-0000-7000-8000-000000000001 --follow
      trace logs my_dag/my_job --failed --limit 3
      trace logs dispatcher --lines 20 --follow
    """
    task_id = parse_uuid(subject)
    is_job = task_id is None and "/" in subject
    _refuse_options(
        {"--attempt": attempt is not None and task_id is None},
        {"--failed": failed and not is_job, "--limit": limit is not None and not is_job},
    )
    if task_id is not None:
        show_task(session, task_id, attempt, lines, following=following)
    elif is_job:
        dag, _, job = subject.partition("/")
        show_job(session, dag, job, failed=failed, limit=limit or 10, lines=lines, following=following)
    else:
        show_part(session, subject, lines, following=following)


def _refuse_options(for_tasks: dict[str, bool], for_jobs: dict[str, bool]) -> None:
    for options, kind in ((for_tasks, "a task"), (for_jobs, "a job (DAG/JOB)")):
        for option, is_wrong in options.items():
            if is_wrong:
                raise click.UsageError(f"{option} is for the logs of {kind}.")


def show_task(session: Session, task_id: UUID, attempt: int | None, lines: int | None, *, following: bool) -> None:
    if following:
        try:
            session.run(lambda client: _follow(LogFollower(session, client, task_id, attempt)))
        except KeyboardInterrupt:
            return
        return
    log = session.ask(lambda client: client.call(routes.READ_LOG, task_id=task_id, attempt=attempt))
    show_log(session, log, lines)
    show_next_steps(session, log)


def show_log(session: Session, log: TaskLog, lines: int | None = None) -> None:
    session.show(whole_line(heading(log)))
    _show_ending(session, log)
    _show_lines(session, log.lines, lines)
    for stream in _STREAMS:
        output: LogOutput = getattr(log, stream)
        if output.text:
            session.show(Text(f"--- {stream}", style="dim"))
            text = _readable(output)
            if lines is not None:
                text = "".join(text.splitlines(keepends=True)[-lines:])
            click.echo(text, nl=not text.endswith("\n"))
    if not (log.stdout.text or log.stderr.text or log.lines.lines):
        session.say(("It has printed nothing.", "dim"))


def _show_lines(session: Session, lines: LogLines, number: int | None = None) -> None:
    if lines.omitted:
        session.say((f"({lines.omitted:,} lines before are not kept)", "dim"))
    for line in lines.lines if number is None else lines.lines[-number:]:
        session.show(whole_line(line_text(line)))


def show_next_steps(session: Session, log: TaskLog) -> None:
    task = str(log.task_id)
    if log.state == "running":
        session.hint("follow it", "logs", task, "--follow")
    others = [attempt for attempt in log.attempts if attempt != log.attempt]
    if others:
        session.hint("see another attempt", "logs", task, "--attempt", max(others))
    if log.outcome == "Failed" and not log.open:
        session.hint("retry it", "retry", task)


def heading(log: TaskLog) -> Text:
    """Job, unit, attempt, how it ended, time and memory, in one line."""
    state = log.ending or log.state
    unit = unit_text(log.unit, log.window)
    text = Text.assemble(
        (f"{clean(log.dag)}/{clean(log.job)}", "bold"),
        f" {unit}" if unit else "",
        f", attempt {log.attempt}: ",
        (clean(state), _STATE_STYLES.get(state, "red")),
    )
    if log.seconds is not None:
        text.append(f", {'after' if log.ending else 'for'} {log.seconds:.1f} s")
    if log.peak_bytes is not None:
        text.append(f", with at most {log.peak_bytes / _MIB:.0f} MiB")
    text.append(f" (started {ago(log.started_at)})", style="dim")
    return text


def _show_ending(session: Session, log: TaskLog) -> None:
    """The structured error, or why there is none."""
    if log.error is not None:
        session.show(Text(clean_lines(f"{log.error.type}: {log.error.message}"), style="red"))
        for frame in log.error.frames:
            session.show(Text(clean_lines(frame), style="dim"))
    elif log.message:
        session.show(Text(clean_lines(log.message), style="red"))
    elif log.outcome in ("Failed", "Timeout"):
        text = log.attempt_error or "its lease expired without a final report"
        session.show(Text(clean_lines(text.partition("\n")[0]), style="red"))
    if log.state == "incomplete":
        session.say(
            ("The end of this log is missing: it was not stored, or its worker or runner ended first.", "yellow")
        )
    if log.refused:
        reasons = ", ".join(f"{reason} {number}" for reason, number in sorted(log.refused.items()))
        session.say(("refused requests: ", "dim"), reasons)


def _readable(output: LogOutput) -> str:
    text = clean_lines(output.text.replace("\r\n", "\n"))
    return f"({output.omitted:,} bytes before are not kept)\n{text}" if output.omitted else text


# --- following


class LogFollower:
    """Prints what is new at each look, from one attempt to the next."""

    def __init__(self, session: Session, client: UserClient, task_id: UUID, attempt: int | None) -> None:
        self._session, self._client, self._task_id = session, client, task_id
        self._only = attempt is not None
        self._attempt = attempt
        self._heading_shown = False
        self._positions = dict.fromkeys(_STREAMS, 0)
        self._line = 0
        """The number of the line that comes next."""
        self._stream = ""
        self._line_open = False
        """Whether the last line that was printed may go on."""
        self._ended = False
        """Whether the end of the attempt was shown."""
        self._late = 0
        self._wait_noted = False

    async def look(self) -> bool:
        """Returns whether there is nothing more to come."""
        places = {f"{stream}_from": position for stream, position in self._positions.items()}
        places["lines_from"] = self._line
        try:
            log = await self._client.call(routes.READ_LOG, task_id=self._task_id, attempt=self._attempt, **places)
        except TraceError as error:
            if error.code != "log_not_found" or self._heading_shown or not await self._will_start():
                raise
            return False
        if self._attempt is not None and log.attempt != self._attempt:
            return True  # a server that does not keep to what it was asked
        self._attempt = log.attempt
        self._show(log)
        return self._is_over(log)

    async def _will_start(self) -> bool:
        task = (await self._client.call(routes.SHOW_TASK, task_id=self._task_id)).task
        is_open = task.status in ("Queued", "Running") or task.next_retry_at is not None
        if is_open and not self._wait_noted:
            self._wait_noted = True
            note("The task has not started; waiting for its first attempt. Ctrl-C ends this.")
        return is_open

    def _show(self, log: TaskLog) -> None:
        outputs = {stream: getattr(log, stream) for stream in _STREAMS}
        ends = log.state == "ended" and not self._ended
        if self._session.as_json:
            if not self._heading_shown or ends or log.lines.lines or any(output.text for output in outputs.values()):
                self._session.json(log)
        elif not self._heading_shown:
            self._session.show(whole_line(heading(log)))
        self._heading_shown = True
        self._line = max(self._line, log.lines.next)
        if not self._session.as_json:
            _show_lines(self._session, log.lines)
        for stream, output in outputs.items():
            self._positions[stream] = max(self._positions[stream], output.next)
            if output.text and not self._session.as_json:
                self._print(stream, _readable(output))
        if ends:
            self._show_end(log)

    def _print(self, stream: str, text: str) -> None:
        if stream != self._stream:
            self._end_line()
            self._session.show(Text(f"--- {stream}", style="dim"))
            self._stream = stream
        click.echo(text, nl=False)
        self._line_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._line_open:
            click.echo()
        self._line_open = False

    def _show_end(self, log: TaskLog) -> None:
        self._ended = True
        if not self._session.as_json:
            self._end_line()
            self._session.show(whole_line(heading(log)))
            _show_ending(self._session, log)

    def _is_over(self, log: TaskLog) -> bool:
        newer = [attempt for attempt in log.attempts if attempt > log.attempt]
        if not self._ended:
            # Over without its final log: that may be on its way.
            self._late += log.state == "incomplete"
            if self._late < _LATE_LOOKS:
                return False
            self._show_end(log)
        if self._only:
            return True
        if newer:
            self._go_on(min(newer))
            return False
        if log.open and log.next_retry_at is not None and not self._wait_noted:
            self._wait_noted = True
            note(f"The next attempt starts {ago(log.next_retry_at)}; waiting. Ctrl-C ends this.")
        return not log.open

    def _go_on(self, attempt: int) -> None:
        self._attempt, self._heading_shown, self._ended, self._late, self._wait_noted = attempt, False, False, 0, False
        self._positions, self._line, self._stream = dict.fromkeys(_STREAMS, 0), 0, ""


async def _follow(follower: LogFollower) -> None:
    lost = False
    async for item in looks(follower.look):
        if isinstance(item, TraceError):
            if not lost:
                note(away(item))
            lost = True
        elif item:
            return
        else:
            lost = False
