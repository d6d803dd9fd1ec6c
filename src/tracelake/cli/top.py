"""`trace top`: jobs, queues and sources on one screen, refreshed every second.

On a terminal it fills the screen until `q` or Ctrl-C; if the Dispatcher does not answer, it shows that and the age of
the figures. Elsewhere (a pipe, TERM=dumb, `--once`, `--json`) it measures twice, three seconds apart, and ends: rates
need two measurements.
"""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import click
import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from tracelake.cli import session as sessions
from tracelake.cli import text as words
from tracelake.cli.rates import Measured, Meter, Rate
from tracelake.cli.session import Session, looks, user_command
from tracelake.cli.text import clean, span
from tracelake.cli.top_screen import TopScreen
from tracelake.client.errors import StackDownError
from tracelake.client.name_suggestions import suggest_names
from tracelake.client.user import UserClient
from tracelake.errors import TraceError

_MEASURED_LOOKS = 3
"""How long `--once` measures, in refresh periods."""
_SAID_FOR_SECONDS = 60
"""How long a note about an outage stays on the screen."""


@click.command()
@click.option("--dag", help="Only jobs of this DAG.")
@click.option("--once", is_flag=True, help="Measure for three seconds, print once, and end.")
@user_command
def command(session: Session, dag: str | None, once: bool) -> None:
    """Show the jobs of active versions live: rates, tasks by state, full queues, sources. `q` or Ctrl-C ends it.

    Busy jobs come first, the one whose oldest ready task has waited longest on top. `ready` tasks wait for a worker,
    `waiting` ones for a concurrency limit, `retrying` ones for their next attempt; `failed` ones have no retry left and
    wait for you (`trace retry --dag DAG --failed`). If anything is missing, two more columns show it: `gaps` are units
    that somebody skipped or cancelled, `refused` are batches of rows that a sink did not accept (`trace dlq`).

    `made/s` and `done/s` are tasks created and finished per second, without failures, over the last ten seconds (with
    --once and --json: three). `12+` means at least 12, `-` unknown.

    \b
    Examples:
      trace top
      trace top --dag pools
      trace top --once
      trace top --json | jq .rates
    """
    if once or session.as_json or not session.console.is_terminal or session.console.is_dumb_terminal:
        _print_once(session, dag)
        return
    with suppress(KeyboardInterrupt):
        session.run(lambda client: _live(session, client, dag))


def _print_once(session: Session, dag: str | None) -> None:
    measured = session.run(lambda client: _twice(client, dag))
    session.answer(document(measured))
    session.show(TopScreen(measured, _title(dag)))
    step = next_step(measured)
    if step is not None:
        session.hint(*step)


def next_step(measured: Measured) -> tuple[str, ...] | None:
    """The command that explains what needs attention most: a queue that stops others, a job with failed tasks, or
    refused batches."""
    for edge in measured.reply.stopped:
        if edge.queue is not None:
            return "see why", "why", edge.queue
    for job in measured.reply.jobs:
        if job.failed:
            return "see why", "why", f"{job.dag}/{job.job}"
    if any(job.dead_letters for job in measured.reply.jobs):
        return "see the refused batches", "dlq", "list"
    return None


async def _twice(client: UserClient, dag: str | None) -> Measured:
    meter = Meter(client, dag)
    await suggest_names(client, meter.look(), dag=dag)
    await asyncio.sleep(_MEASURED_LOOKS * sessions.EVERY_SECONDS)
    return await meter.look()


def document(measured: Measured) -> dict[str, object]:
    """The document for programs: the overview as the server answers it, and the rates; null is unknown."""
    fields: dict[str, object] = msgspec.to_builtins(measured.reply)
    for job in fields["jobs"]:  # type: ignore[attr-defined]
        rates = measured.jobs[(job["dag"], job["job"])]
        job["rates"] = {name: _value(getattr(rates, name)) for name in ("events", "made", "done")}
    fields["rates"] = {name: _value(getattr(measured.total, name)) for name in ("events", "made", "done")}
    fields["window_seconds"] = measured.seconds
    return fields


def _value(rate: Rate) -> float | None:
    return None if rate.value is None else round(rate.value, 3)


def _title(dag: str | None) -> str:
    return "all DAGs" if dag is None else f"DAG {dag}"


# --- on a terminal


class LiveOverview:
    """The current screen, drawn for the current size of the terminal."""

    def __init__(self, title: str, step: Callable[..., Text]) -> None:
        """`step` renders a next step from its purpose and its command."""
        self._title = title
        self._step = step
        self._measured: Measured | None = None
        self._trouble: TraceError | None = None
        self._seen_at: datetime | None = None
        self._lost_at: datetime | None = None
        self._back: tuple[datetime, float] | None = None
        """When the Dispatcher answered again, and how long it had not."""
        self._since: datetime | None = None
        self._restarted: tuple[datetime, datetime] | None = None
        """When the restart was noticed, and when it happened."""

    def take(self, result: Measured | TraceError) -> None:
        now = words.current_time()
        if isinstance(result, TraceError):
            self._trouble, self._lost_at = result, self._lost_at or self._seen_at or now
            return
        if self._lost_at is not None:
            self._back = (now, (now - self._lost_at).total_seconds())
        if self._since is not None and result.reply.serving_since > self._since:
            self._restarted = (now, result.reply.serving_since)
        self._since = max(filter(None, (self._since, result.reply.serving_since)))
        self._measured, self._trouble, self._seen_at, self._lost_at = result, None, now, None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._measured is None:
            yield self.note() or Text("Looking ...", style="dim")
            return
        words = next_step(self._measured)
        step = None if words is None else self._step(*words)
        yield TopScreen(self._measured, self._title, self.note(), options.height or console.height, step)

    def note(self) -> Text | None:
        now = words.current_time()
        if self._trouble is not None:
            age = (
                "" if self._seen_at is None else f"this is {span((now - self._seen_at).total_seconds()) or '0s'} old, "
            )
            if isinstance(self._trouble, StackDownError):
                return Text(f"The stack is down: {age}waiting for `trace up` ...", style="bold yellow")
            message = f"The Dispatcher does not answer: {age}trying again ... ({clean(self._trouble.message)})"
            return Text(message, style="bold yellow")
        notes = []
        if self._restarted is not None and (now - self._restarted[0]).total_seconds() <= _SAID_FOR_SECONDS:
            notes.append(f"The Dispatcher was restarted at {self._restarted[1].astimezone(UTC):%H:%M:%S}Z.")
        if self._back is not None and (now - self._back[0]).total_seconds() <= _SAID_FOR_SECONDS:
            at, seconds = self._back
            notes.append(f"No answer for {span(seconds) or '0s'}, until {at.astimezone(UTC):%H:%M:%S}Z.")
        return Text(" ".join(notes), style="yellow") if notes else None


async def _live(session: Session, client: UserClient, dag: str | None) -> None:
    meter = Meter(client, dag)
    screen = LiveOverview(_title(dag), session.hint_text)
    first = await suggest_names(client, meter.look(), dag=dag)  # an error in the request is shown without a screen
    screen.take(first)
    with full_screen(session.console, screen) as live, quit_key() as quitting:
        drawing = asyncio.ensure_future(_draw(meter, screen, live))
        leaving = asyncio.ensure_future(quitting.wait())
        try:
            await asyncio.wait({drawing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            drawing.cancel()
            ended = (await asyncio.gather(drawing, return_exceptions=True))[0]
    if isinstance(ended, Exception):
        raise ended


async def _draw(meter: Meter, screen: LiveOverview, live: Live) -> None:
    await asyncio.sleep(sessions.EVERY_SECONDS)
    async for result in looks(meter.look):
        screen.take(result)
        live.refresh()


@contextmanager
def full_screen(console: Console, view: RenderableType) -> Iterator[Live]:
    """Shows the view on the terminal's alternate screen, redrawn also when its size changes."""
    loop = asyncio.get_running_loop()
    with Live(
        view, console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    ) as live:
        live.refresh()
        resized = getattr(signal, "SIGWINCH", None)
        if resized is not None:
            loop.add_signal_handler(resized, live.refresh)
        try:
            yield live
        finally:
            if resized is not None:
                loop.remove_signal_handler(resized)


@contextmanager
def quit_key() -> Iterator[asyncio.Event]:
    """Yields an event that is set when `q` is pressed. Where single keys cannot be read, only Ctrl-C ends it."""
    pressed = asyncio.Event()
    try:
        stream = sys.stdin.fileno()
        before = termios.tcgetattr(stream)
    except (OSError, ValueError, AttributeError, termios.error):
        yield pressed
        return

    def read() -> None:
        keys = os.read(stream, 100)
        if not keys or b"q" in keys.lower():
            pressed.set()
        if not keys:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(stream)

    tty.setcbreak(stream)
    loop = asyncio.get_running_loop()
    loop.add_reader(stream, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(stream)
        termios.tcsetattr(stream, termios.TCSADRAIN, before)
