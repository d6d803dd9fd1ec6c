"""What `trace up` shows: a live table on a terminal, plain lines elsewhere, or one line of JSON.

A screen never stops the stack: output to a closed pipe is dropped.
"""

import contextlib
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tracelake import __version__
from tracelake.cli.listing import Listing, ListingColumn, fields
from tracelake.cli.text import shortened, span
from tracelake.settings.home import Home, LocalStack
from tracelake.stack.supervisor import PartState, PartView

STYLES = {
    PartState.STARTING: "yellow",
    PartState.RUNNING: "green",
    PartState.WAITING: "red",
    PartState.STOPPING: "yellow",
    PartState.STOPPED: "dim",
    PartState.FAILED: "bold red",
}


class Screen(AbstractContextManager["Screen"]):
    """What `trace up` tells a screen; one that shows nothing of it is a screen too."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def part(self, view: PartView) -> None:
        """A part changed its state."""

    def ready(self, stack: LocalStack, next_steps: Sequence[str] = (), *, detached: bool = False) -> None:
        """Everything runs. `next_steps` are sentences; a detached stack does not end with this command."""

    def say(self, text: str) -> None:
        """One sentence about what happens now."""

    def tick(self) -> None:
        """A second has passed."""


def choose_screen(home: Home, *, json: bool) -> Screen:
    if json:
        return JsonScreen()
    if sys.stdout is not None and sys.stdout.isatty():
        return LiveScreen(home)
    return PlainScreen()


class JsonScreen(Screen):
    def ready(self, stack: LocalStack, next_steps: Sequence[str] = (), *, detached: bool = False) -> None:  # noqa: ARG002
        _echo(msgspec.json.encode(stack).decode())


class PlainScreen(Screen):
    def __init__(self) -> None:
        self._last: dict[str, tuple[PartState, int | None]] = {}

    def part(self, view: PartView) -> None:
        # A part that starts has no process at first, then one: one line is enough.
        if view.state == PartState.STARTING and view.pid is None:
            return
        if self._last.get(view.name) == (view.state, view.pid):
            return
        self._last[view.name] = (view.state, view.pid)
        note = f" ({view.note})" if view.note else ""
        pid = f", process {view.pid}" if view.pid and view.state == PartState.RUNNING else ""
        _echo(f"{view.name}: {view.state}{pid}{note}")

    def ready(self, stack: LocalStack, next_steps: Sequence[str] = (), *, detached: bool = False) -> None:
        _echo(f"ready: public {stack.public_url}, task {stack.task_url}, internal {stack.internal_url}")
        for line in _closing_lines(stack, next_steps, detached=detached)[1:]:
            _echo(line)

    def say(self, text: str) -> None:
        _echo(text)


class LiveScreen(Screen):
    def __init__(self, home: Home, console: Console | None = None) -> None:
        self._home = home
        self._console = console or Console()
        self._parts: dict[str, PartView] = {}
        self._stack: LocalStack | None = None
        self._text = "Starting ..."
        self._live = Live(console=self._console, auto_refresh=False, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._live.refresh()
            self._live.stop()

    def part(self, view: PartView) -> None:
        self._parts[view.name] = view
        self.tick()

    def ready(self, stack: LocalStack, next_steps: Sequence[str] = (), *, detached: bool = False) -> None:
        self._stack = stack
        self._text = "\n".join(_closing_lines(stack, next_steps, detached=detached))
        self.tick()

    def say(self, text: str) -> None:
        self._text = text
        self.tick()

    def tick(self) -> None:
        with contextlib.suppress(OSError):
            self._live.refresh()

    def _render(self) -> RenderableType:
        lines: list[RenderableType] = [
            Text.assemble(("Trace ", "bold"), __version__, ("  home ", "dim"), str(self._home.root)),
            parts_listing(self._parts.values()),
        ]
        if self._stack is not None:
            lines.append(addresses(self._stack, self._home))
        lines.append(Text(self._text, style="bold" if self._stack else ""))
        return Group(*lines)


def parts_listing(parts: Iterable[PartView]) -> Listing:
    now = time.time()
    return Listing(
        parts,
        ListingColumn("part", lambda view: view.name, whole=True),
        ListingColumn("state", lambda view: _state(view, now)),
        ListingColumn("process", lambda view: view.pid, right=True),
        ListingColumn("restarts", lambda view: view.restarts, right=True),
        ListingColumn("for", lambda view: span(now - view.since) or "0s", whole=True),
    )


def _state(view: PartView, now: float) -> Text:
    state = Text(str(view.state), style=STYLES[view.state])
    if view.note:
        state.append(f"  {shortened(view.note, 60)}", style="dim")
    elif view.ended and view.ended_at is not None:
        how = shortened(view.ended, 60).removeprefix("was ")
        state.append(f"  {how}, {span(now - view.ended_at) or '0s'} ago", style="dim")
    return state


def addresses(stack: LocalStack, home: Home) -> Table:
    query_url = stack.query_url_for_others
    return fields(
        [
            ("public", f"{stack.public_url_for_others} (API of users, webhooks)"),
            ("task", f"{stack.task_url} (calls of running tasks)"),
            ("internal", f"{stack.internal_url} (workers, services, health, metrics)"),
            *([] if query_url is None else [("query", f"{query_url} (SQL of users)")]),
            ("CA file", f"{stack.ca_file} (verifies these addresses)"),
            ("logs", str(home.logs)),
        ]
    )


def _closing_lines(stack: LocalStack, next_steps: Sequence[str], *, detached: bool) -> list[str]:
    """How it is stopped, and what to do next."""
    end = f"`trace down --home {stack.home}` stops it" if detached else "Ctrl-C stops everything"
    lines = [f"Ready. It runs in the background; {end}." if detached else f"Ready. {end}."]
    if next_steps:
        lines.append(f"Next{'' if detached else ', in another terminal'}:")
        lines += [f"  {step}" for step in next_steps]
    return lines


def _echo(text: str) -> None:
    with contextlib.suppress(OSError):
        click.echo(text)
