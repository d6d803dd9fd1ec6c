"""`trace logs`: what a run of a function printed, and how it ended; also while it runs.

The output was written by untrusted code: control characters are spelled out, so that none of it reaches the terminal.
Which line of standard output came before which of standard error is not recorded; the two are shown one after the
other.
"""

from uuid import UUID

import click
from rich.text import Text

from tracelake.cli.follow import note
from tracelake.cli.listing import whole_line
from tracelake.cli.session import Session, away, looks, user_command
from tracelake.cli.text import ago, clean, clean_lines, unit_text
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.run_logs import LogOutput, TaskLog

_STREAMS = ("stdout", "stderr")
_MIB = 1024 * 1024
_LATE_LOOKS = 5
"""How often a follower looks again for the final log of an attempt that is over."""
_STATE_STYLES = {"completed": "green", "running": "cyan", "canceled": "dim"}


@click.command()
@click.argument("task_id", type=click.UUID, metavar="TASK")
@click.option("--attempt", type=click.IntRange(1), help="Of this attempt (default: the newest that has a log).")
@click.option(
    "--follow",
    "following",
    is_flag=True,
    help="Go on while the function runs, and through later attempts, until the task ends; with --attempt, until that"
    " attempt ends. With --json each line is a JSON document.",
)
@user_command
def command(session: Session, task_id: UUID, attempt: int | None, following: bool) -> None:
    """Show the log of a function's run: what it printed, and how it ended.

    The last 256 KB of standard output and of standard error are kept, for 14 days unless the stack says otherwise
    (`log_retention_days`). Logs are of users' functions (`operator: udf`); for other tasks, `trace tasks TASK` and
    `trace why TASK` show the error.

    \b
    Examples:
      trace logs 01890000-0000-7000-8000-000000000001
      trace logs 01890000-0000-7000-8000-000000000001 --attempt 1
      trace logs 01890000-0000-7000-8000-000000000001 --follow
    """
    if following:
        try:
            session.run(lambda client: _follow(LogFollower(session, client, task_id, attempt)))
        except KeyboardInterrupt:
            return
        return
    log = session.ask(lambda client: client.call(routes.READ_LOG, task_id=task_id, attempt=attempt))
    show_log(session, log)
    show_next_steps(session, log)


def show_log(session: Session, log: TaskLog) -> None:
    session.show(whole_line(heading(log)))
    _show_ending(session, log)
    for stream in _STREAMS:
        output: LogOutput = getattr(log, stream)
        if output.text:
            session.show(Text(f"--- {stream}", style="dim"))
            text = _readable(output)
            click.echo(text, nl=not text.endswith("\n"))
    if not (log.stdout.text or log.stderr.text):
        session.say(("It has printed nothing.", "dim"))


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
    unit = unit_text(log.unit)
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
        session.say(("The end of this log is missing: it was not stored, or its runner ended first.", "yellow"))
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
            if not self._heading_shown or ends or any(output.text for output in outputs.values()):
                self._session.json(log)
        elif not self._heading_shown:
            self._session.show(whole_line(heading(log)))
        self._heading_shown = True
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
        self._positions, self._stream = dict.fromkeys(_STREAMS, 0), ""


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
