"""`trace status` and `trace down`: shows the stack of a home, and stops it.

A stack runs if its lock is held; a file would survive a kill.
"""

import contextlib
import os
import shlex
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.text import Text

from tracelake.cli.context_status import print_context_status, read_context_status
from tracelake.cli.json_output import json_option
from tracelake.cli.listing import whole_line
from tracelake.cli.options import context_option, home_option, stack_option, token_file_option
from tracelake.cli.session import make_console, show
from tracelake.cli.stack_screen import addresses, parts_listing
from tracelake.cli.work_summary import WorkSummary, read_work, work_lines
from tracelake.client.stack import Stack, chosen_context, default_home, find_stack
from tracelake.settings.home import Home, LocalStack
from tracelake.stack import lock, probe
from tracelake.stack.renewal import RenewalState, read_renewal
from tracelake.stack.supervisor import PartState, PartView

EXIT_NOT_READY = 1
EXIT_NOT_RUNNING = 3

# Postgres may write a last checkpoint for a minute; this is longer than the supervisor's own timeout.
_GRACE_SECONDS = 120.0
_HURRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class StackStatus:
    """The status of a stack. `pid` is None when it does not run. `listeners` tells which of the three answer, the
    internal one also whether all is ready; `stores_away` are the databases that the Dispatcher does not reach."""

    home: Home
    pid: int | None
    stack: LocalStack | None
    parts: list[PartView]
    listeners: dict[str, bool]
    stores_away: tuple[str, ...] = ()
    renewal: RenewalState = field(default_factory=RenewalState)
    work: WorkSummary | None = None
    """What the org's work needs; None if the Dispatcher does not answer."""

    @property
    def ready(self) -> bool:
        return self.pid is not None and self.stack is not None and all(self.listeners.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "running": self.pid is not None,
            "ready": self.ready,
            "pid": self.pid,
            "home": str(self.home.root),
            "listeners": self.listeners,
            "stores_away": list(self.stores_away),
            "renewal": msgspec.to_builtins(self.renewal),
            "parts": msgspec.to_builtins(self.parts),
            "work": msgspec.to_builtins(self.work),
            "stack": None if self.stack is None else msgspec.to_builtins(self.stack),
        }


@click.command()
@stack_option
@context_option
@token_file_option
@json_option
def status(home: Path | None, context: str | None, token_file: Path | None, as_json: bool) -> None:
    """Show whether the stack runs: its parts, the addresses of its listeners, and where its logs are.

    If the Dispatcher answers, a line counts the work of your org: open and failed tasks, gaps, and refused batches. It
    uses your token (--token-file, TRACE_TOKEN, or the stack's own), and does not change the exit status. In a context,
    it shows whether the stack of that context answers you, and the work.

    Exit status: 0 ready, 1 running but not ready, 3 not running; in a context 1 if it does not answer you.
    """
    if chosen_context(home, context) is None:
        code = show_status(Home(home or default_home()), token_file, json=as_json)
    else:
        code = show_context_status(find_stack(home, context), token_file, json=as_json)
    click.get_current_context().exit(code)


@click.command()
@home_option
def down(home: Path | None) -> None:
    """Stop the stack in order, and wait until it has stopped. Without a running stack it does nothing."""
    click.get_current_context().exit(stop_stack(Home(home or default_home())))


def read_status(home: Home, token_file: Path | None = None) -> StackStatus:
    pid = lock.holder(home.lock_file)
    if pid is None:
        return StackStatus(home, None, None, [], {})
    stack = home.read_stack()
    if stack is None:
        return StackStatus(home, pid, None, read_parts(home), {}, renewal=read_renewal(home.renewal_file))
    ca_file = Path(stack.ca_file)
    with ThreadPoolExecutor(3) as threads:  # the timeout of one that hangs passes once
        public = threads.submit(probe.answers, stack.public_url, ca_file)
        task = threads.submit(probe.answers, stack.task_url, ca_file)
        internal = threads.submit(probe.readiness, stack.internal_url, ca_file).result()
        listeners = {"public": public.result(), "task": task.result(), "internal": internal.ready}
    renewal = read_renewal(home.renewal_file)
    work = read_work(stack, token_file) if listeners["public"] else None
    return StackStatus(home, pid, stack, read_parts(home), listeners, internal.away, renewal, work)


def show_status(home: Home, token_file: Path | None = None, *, json: bool) -> int:
    """Prints the status; returns the exit status of the command."""
    status = read_status(home, token_file)
    if json:
        click.echo(msgspec.json.encode(status.to_json()).decode())
    elif status.pid is None:
        click.echo(f"Trace is not running on {home.root}. Start it with `trace up --home {home.root}`.")
    else:
        _show_running(status)
    if status.pid is None:
        return EXIT_NOT_RUNNING
    return 0 if status.ready else EXIT_NOT_READY


def show_context_status(stack: Stack, token_file: Path | None = None, *, json: bool) -> int:
    """Prints the status of a stack of another machine; returns the exit status of the command."""
    status = read_context_status(stack, read_work(stack, token_file))
    if json:
        click.echo(msgspec.json.encode(status).decode())
    else:
        print_context_status(status)
    return 0 if status.ready else EXIT_NOT_READY


def _show_running(status: StackStatus) -> None:
    console = make_console()
    show(console, Text(f"Trace runs on {status.home.root} (process {status.pid})"), parts_listing(status.parts))
    if status.stack is not None:
        show(console, addresses(status.stack, status.home))
    lines = []
    failure = status.renewal.describe_failure()
    if failure is not None:
        lines.append(f"WARNING: {failure}")
    silent = [name for name, answers in status.listeners.items() if not answers]
    if status.stack is None:
        lines.append("It is still starting, or it is stopping: run `trace status` again in a moment.")
    elif silent:
        lines += _advice(status, silent)
    else:
        lines.append("Ready.")
    if status.work is not None:
        lines += work_lines(status.work)
    for line in lines:
        show(console, whole_line(Text(line)))


def _advice(status: StackStatus, silent: list[str]) -> list[str]:
    """Which part is not ready, and what to do."""
    home = status.home
    if status.stores_away:
        names = " and ".join(status.stores_away)
        return [
            f"Not ready: the Dispatcher runs, but does not reach its database: {names}.",
            f"See the line of postgres-state above and {home.log_file('postgres-state')}; "
            "with databases of your own, check whether they run.",
        ]
    lines = [f"Not ready: the Dispatcher does not answer ({', '.join(silent)})."]
    log = shlex.quote(str(home.log_file("dispatcher")))
    part = next((view for view in status.parts if view.name == "dispatcher"), None)
    if part is not None and part.state == PartState.RUNNING and part.pid is not None:
        lines.append(f"see its last log lines: tail -n 20 {log}")
        lines.append(f"if it stays so, kill it, and the supervisor starts it again at once: kill -KILL {part.pid}")
    else:
        lines.append(f"The supervisor starts it again by itself; if that does not help, see why: tail -n 20 {log}")
    return lines


def stop_stack(home: Home) -> int:
    """Stops the stack that holds the home's lock; returns the exit status of the command."""
    pid = lock.holder(home.lock_file)
    if pid is None:
        click.echo(f"Trace is not running on {home.root}.")
        return 0
    click.echo(f"Stopping process {pid} ...")
    for number, seconds, next_step in (
        (signal.SIGTERM, _GRACE_SECONDS, "It takes long; telling it to stop at once ..."),
        (signal.SIGTERM, _HURRY_SECONDS, "It does not answer; killing it ..."),
        (signal.SIGKILL, _HURRY_SECONDS, ""),
    ):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if _released(home, pid, seconds):
            click.echo("Stopped.")
            return 0
        if next_step:
            click.echo(next_step)
    click.echo(f"Process {pid} does not stop; end it by hand.", err=True)
    return 1


def _released(home: Home, pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if lock.holder(home.lock_file) != pid:
            return True
        time.sleep(0.1)
    return False


def read_parts(home: Home) -> list[PartView]:
    try:
        return msgspec.json.decode(home.parts_file.read_bytes(), type=list[PartView])
    except (FileNotFoundError, msgspec.DecodeError):
        return []
