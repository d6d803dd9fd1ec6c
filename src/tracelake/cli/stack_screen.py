"""What `trace up` shows: a calm live table on a terminal, a few plain lines elsewhere, or one line of JSON.

A screen never stops the stack: output that nobody reads any more (a closed pipe) is dropped.
"""

import contextlib
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tracelake import __version__
from tracelake.settings.home import Home, Stack
from tracelake.stack.supervisor import PartState, PartView

STYLES = {
    PartState.STARTING: "yellow",
    PartState.RUNNING: "green",
    PartState.WAITING: "red",
    PartState.STOPPING: "yellow",
    PartState.STOPPED: "dim",
    PartState.FAILED: "bold red",
}


class Screen(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def part(self, view: PartView) -> None:
        """A part changed its state."""

    def ready(self, stack: Stack) -> None:
        """Everything runs."""

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


class _Quiet:
    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def part(self, view: PartView) -> None:
        pass

    def ready(self, stack: Stack) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def tick(self) -> None:
        pass


class JsonScreen(_Quiet):
    def ready(self, stack: Stack) -> None:
        _echo(msgspec.json.encode(stack).decode())


class PlainScreen(_Quiet):
    def __init__(self) -> None:
        self._last: dict[str, tuple[PartState, int | None]] = {}

    def part(self, view: PartView) -> None:
        # A part that starts has no process yet, then one: one line is enough.
        if view.state == PartState.STARTING and view.pid is None:
            return
        if self._last.get(view.name) == (view.state, view.pid):
            return
        self._last[view.name] = (view.state, view.pid)
        note = f" ({view.note})" if view.note else ""
        pid = f", process {view.pid}" if view.pid and view.state == PartState.RUNNING else ""
        _echo(f"{view.name}: {view.state}{pid}{note}")

    def ready(self, stack: Stack) -> None:
        _echo(f"ready: public {stack.public_url}, task {stack.task_url}, internal {stack.internal_url}")

    def say(self, text: str) -> None:
        _echo(text)


class LiveScreen(_Quiet):
    def __init__(self, home: Home, console: Console | None = None) -> None:
        self._home = home
        self._console = console or Console()
        self._parts: dict[str, PartView] = {}
        self._stack: Stack | None = None
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

    def ready(self, stack: Stack) -> None:
        self._stack = stack
        self._text = "Ready. Ctrl-C stops everything."
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
            parts_table(self._parts),
        ]
        if self._stack is not None:
            lines.append(addresses_table(self._stack, self._home))
        lines.append(Text(self._text, style="bold" if self._stack else ""))
        return Group(*lines)


def parts_table(parts: Mapping[str, PartView]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("part", "state", "process", "restarts", "since"):
        table.add_column(heading, justify="right" if heading in ("process", "restarts") else "left")
    for view in parts.values():
        state = Text(str(view.state), style=STYLES[view.state])
        if view.note:
            state.append(f"  {_first_line(view.note)}", style="dim")
        elif view.ended and view.ended_at is not None:
            how = _first_line(view.ended).removeprefix("was ")
            state.append(f"  {how}, {ago(time.time() - view.ended_at)} ago", style="dim")
        pid = "" if view.pid is None else str(view.pid)
        table.add_row(view.name, state, pid, str(view.restarts), ago(time.time() - view.since))
    return table


def addresses_table(stack: Stack, home: Home) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value in (
        ("public", stack.public_url),
        ("task", stack.task_url),
        ("internal", stack.internal_url),
        ("CA", stack.ca_file),
        ("logs", str(home.logs)),
    ):
        table.add_row(Text(name, style="dim"), Text(value, overflow="fold"))
    return table


def ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _first_line(text: str) -> str:
    line = text.split("\n", 1)[0]
    return line if len(line) <= 60 else line[:57] + "..."


def _echo(text: str) -> None:
    with contextlib.suppress(OSError):
        click.echo(text)
