"""What `trace up` shows on a terminal, and that a screen never stops the stack."""

import io
import time
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from tests.stack.test_home import make_stack
from tracelake.cli.stack_screen import LiveScreen, PlainScreen, addresses
from tracelake.settings.home import Home
from tracelake.stack.supervisor import PartState, PartView


def test_the_live_screen_shows_parts_addresses_and_how_to_stop(tmp_path: Path) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=100, height=40, color_system=None)
    with LiveScreen(Home(tmp_path), console) as screen:
        screen.part(PartView("dispatcher", PartState.RUNNING, 4711, 2, time.time() - 3700))
        screen.part(PartView("worker", PartState.WAITING, None, 3, time.time(), "was killed by SIGKILL\nmore"))
        screen.part(
            PartView(
                "scheduler", PartState.RUNNING, 4712, 1, time.time(), "", "was killed by SIGTERM", time.time() - 20
            )
        )
        screen.ready(make_stack(tmp_path))
        screen.tick()
    shown = output.getvalue()
    for text in (
        "dispatcher",
        "running",
        "4711",
        "1h",
        "was killed by SIGKILL",
        "killed by SIGTERM, 20s ago",
        "https://127.0.0.1:1",
        "Ctrl-C",
    ):
        assert text in shown
    assert "more" not in shown.split("Ready.")[-1]


def test_plain_lines_come_once_per_change(capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen()
    for state, pid in (
        (PartState.STARTING, None),
        (PartState.STARTING, 7),
        (PartState.STARTING, 7),
        (PartState.RUNNING, 7),
    ):
        screen.part(PartView("worker", state, pid, 0, 0.0))
    assert capsys.readouterr().out.splitlines() == ["worker: starting", "worker: running, process 7"]


def test_a_closed_pipe_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Closed())
    PlainScreen().say("anything")


def test_addresses_are_those_for_other_machines(tmp_path: Path) -> None:
    output = io.StringIO()
    stack = msgspec.structs.replace(make_stack(tmp_path), query_url="https://127.0.0.1:2")
    shared = {"shared_public_url": "https://lab.example:1", "shared_query_url": "https://lab.example:2"}
    for shown in (stack, msgspec.structs.replace(stack, **shared)):
        Console(file=output, width=200).print(addresses(shown, Home(tmp_path)))
    lines = [line.split()[:2] for line in output.getvalue().splitlines()]
    assert [words for words in lines if words[0] in ("public", "query")] == [
        ["public", "https://127.0.0.1:1"],
        ["query", "https://127.0.0.1:2"],
        ["public", "https://lab.example:1"],
        ["query", "https://lab.example:2"],
    ]
    without = msgspec.structs.replace(stack, **shared, query_url=None)
    assert without.query_url_for_others is None, "a Query Service that was not started"
