"""Live views, and how a table finds its shape."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tests.cli import samples
from tests.cli.conftest import Trace
from tests.cli.fake_api import Call, FakeApi
from tracelake.cli import session
from tracelake.cli.dags import _print_source
from tracelake.cli.listing import Listing, ListingColumn
from tracelake.errors import TraceError
from tracelake.wire.dags import DagsReply
from tracelake.wire.tasks import TasksPage


@pytest.fixture
def ends_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ctrl-C comes after so many looks."""

    def prepare(number: int) -> None:
        async def pause() -> None:
            nonlocal number
            number -= 1
            if not number:
                raise KeyboardInterrupt

        monkeypatch.setattr(session, "_pause", pause)

    return prepare


@pytest.mark.parametrize(
    ("command", "path", "answer", "text"),
    [
        ("dags --watch", "/v1/dags", samples.dags(), "pools"),
        ("dags --watch", "/v1/dags", DagsReply(dags=[]), "No DAG is deployed yet."),
        ("dags pools --watch", "/v1/dags/pools/versions", samples.versions(), "3 done, 2 open"),
        ("jobs pools --watch", "/v1/dags/pools/jobs", samples.jobs(), "manual source"),
        ("tasks --watch --dag pools", "/v1/tasks", samples.TASKS, str(samples.TASK)),
    ],
)
def test_a_view_is_shown_until_ctrl_c(
    command: str, path: str, answer: Any, text: str, trace: Trace, api: FakeApi, ends_after: Any
) -> None:
    api.answers[f"GET {path}"] = [answer, answer, TraceError("store_unavailable"), answer]
    api.answers["GET /v1/overview"] = samples.overview(samples.load(ready=3))
    ends_after(4)
    shown = trace(*command.split())
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.count(text) == 2, "once at first, not again while it is the same, and again after the outage"
    assert "does not answer right now" in shown.out


def test_a_failure_that_stays_ends_the_view(trace: Trace, api: FakeApi, ends_after: Any) -> None:
    api.answers["GET /v1/dags/pools/jobs"] = [samples.jobs(), TraceError("dag_not_found")]
    ends_after(99)
    ended = trace("jobs", "pools", "--watch")
    assert ended.status == 1
    assert ended.err.startswith("error: dag_not_found: ")


def test_on_a_terminal_the_view_is_drawn_over_itself() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, color_system=None)
    with session.live_view(console) as update:
        update(Text("first"))
        update(Text("second"))
    assert "first" in output.getvalue()
    assert "\x1b[2K" in output.getvalue(), "the line before is cleared"


def test_a_document_on_a_terminal_plays_no_tricks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    _print_source(b"name: x\x1b[2J\n\tb: \xff")
    assert capsys.readouterr().out == "name: x\\x1b[2J\n\tb: \ufffd\n"


def rendered(listing: Listing, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, markup=False, emoji=False, highlight=False)
    session.show(console, listing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


cells = st.text(st.characters(categories=["L", "N", "P"]), max_size=40)


@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=5), st.integers(50, 200))
def test_a_table_fits_and_loses_nothing(rows: list[tuple[str, str, str]], width: int) -> None:
    listing = Listing(
        enumerate(rows),
        ListingColumn("id", lambda row: f"{row[0]:036d}", whole=True),
        ListingColumn("words", lambda row: row[1][0]),
        ListingColumn("more", lambda row: row[1][1], right=True),
    )
    lines = rendered(listing, width)
    assert all(cell_len(line) <= width for line in lines)
    shown = "".join("".join(lines).split())
    for number, row in enumerate(rows):
        assert f"{number:036d}" in shown
        for letter in set(row[0] + row[1]):
            assert letter in shown


def test_the_shape_follows_the_room() -> None:
    listing = Listing(
        ["several words that can be folded"],
        ListingColumn("id", lambda _: "0123456789", whole=True),
        ListingColumn("words", lambda text: text),
        ListingColumn("never", lambda _: None),
    )
    assert rendered(listing, 80) == ["id          words", "0123456789  several words that can be folded"]
    assert rendered(listing, 30) == ["id          words", "0123456789  several words that", "            can be folded"]
    assert rendered(listing, 20) == ["0123456789", "  words several", "  words that can be", "  folded"]
    assert rendered(listing, 8)[0] == "0123456789", "an id is never cut"


def test_a_table_without_rows_is_nothing() -> None:
    assert rendered(Listing([], ListingColumn("a", str)), 80) == []


def test_piped_rows_stay_on_one_line(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/tasks"] = samples.TASKS
    lines = trace("tasks").out.splitlines()
    assert len([line for line in lines if line.startswith("01890000")]) == len(samples.TASKS.tasks)


def test_watched_tasks_begin_with_totals_and_those_that_run(trace: Trace, api: FakeApi, ends_after: Any) -> None:
    newest = [samples.task_row(number, status="Queued", attempt=0) for number in (9, 8, 7)]
    running = samples.task_row(2, status="Running")

    def page(call: Call) -> TasksPage:
        return TasksPage(tasks=[running]) if "status" in call.query else TasksPage(tasks=newest, next="more")

    api.answers["GET /v1/tasks"] = page
    api.answers["GET /v1/overview"] = samples.overview(
        samples.load(ready=30, running=1, failed=2), samples.load("other", ready=5, cut=["ready"])
    )
    ends_after(1)
    shown = trace("tasks", "--watch", "--limit", "3", "--job", "prices")
    lines = shown.out.splitlines()
    assert lines[0] == "now  30 ready  1 running  0 waiting  0 retrying  2 failed"
    shown_ids = [line.split()[0] for line in lines[2:]]
    assert shown_ids == [str(row.task_id) for row in (running, *newest[:2])]
    ends_after(1)
    assert "35+ ready" in trace("tasks", "--watch").out


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"TERM": "dumb", "LC_ALL": "C"}, id="dumb"),
        pytest.param({"TERM": "unknown", "COLUMNS": "200", "LINES": "5", "FORCE_COLOR": "1"}, id="forced"),
        pytest.param({"TERM": "", "COLUMNS": "30", "NO_COLOR": "1", "TTY_COMPATIBLE": "0"}, id="narrow"),
    ],
)
def test_the_tests_of_the_screen_pass_on_any_terminal(environment: dict[str, str]) -> None:
    here = "tests/cli/test_screen.py"
    names = ("test_on_a_terminal_the_view_is_drawn_over_itself", "test_the_shape_follows_the_room")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"{here}::{name}" for name in names)]
    root = Path(__file__).parents[2]
    run = subprocess.run(
        command, cwd=root, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:]
