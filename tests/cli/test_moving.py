"""A stack that is stopped and started again, perhaps with other addresses, while somebody watches it."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Trace, run_trace
from tests.cli.fake_api import FakeApi, running
from tests.cli.samples import EARLIER, event, load, overview
from tests.cli.test_top import on_a_terminal
from tests.client.scripted_server import Certificates
from tracelake.cli import session
from tracelake.wire.datasets import EventsPage


class Machine:
    """One home; each start is another server with another address. Steps happen between the looks of a command."""

    def __init__(self, home: Path, certificates: Certificates, answers: dict[str, Any]) -> None:
        self.home, self.certificates, self.answers = home, certificates, answers
        self._running = ExitStack()
        self.addresses: list[str] = []

    def up(self) -> None:
        api: FakeApi = self._running.enter_context(running(self.home, self.certificates))
        api.answers = self.answers
        self.addresses.append(json.loads((self.home / "stack.json").read_bytes())["public_url"])

    def down(self) -> None:
        self._running.close()
        (self.home / "stack.json").unlink(missing_ok=True)

    def between_looks(self, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], None]) -> None:
        left = list(steps)

        async def pause() -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        monkeypatch.setattr(session, "_pause", pause)


@pytest.fixture
def machine(tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TRACE_HOME", str(tmp_path))
    monkeypatch.setattr(session, "_PATIENCE", 2)
    found = Machine(tmp_path, certificates, {})
    found.up()
    try:
        yield found
    finally:
        found.down()


@pytest.fixture
def trace(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trace:
    assert machine
    return run_trace(monkeypatch, capsys)


def nothing() -> None: ...


def test_followers_go_on_where_the_stack_is_now(
    trace: Trace, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [event(event_id=6)]

    def page(call: Any) -> EventsPage:
        after = int(call.query["after"])
        return EventsPage(
            events=[row for row in rows if row.event_id > after],
            settled=max((row.event_id for row in rows), default=0),
            serving_since=EARLIER,
        )

    def back() -> None:
        rows.append(event(event_id=7))
        machine.up()

    machine.answers["GET /v1/events"] = page
    # Longer than the patience with a Dispatcher that does not answer.
    machine.between_looks(monkeypatch, machine.down, nothing, nothing, nothing, nothing, back, nothing)
    shown = trace("events", "--follow", "--json")
    assert shown.status == 0, shown
    assert [json.loads(line)["event_id"] for line in shown.out.splitlines()] == [7]
    first, second, third = shown.err.splitlines()
    assert "does not answer right now" in first
    assert second == "The stack is down; waiting for `trace up` ..."
    assert third == "The Dispatcher answers again; continuing after event 7."
    assert len(set(machine.addresses)) == 2


def test_top_waits_for_the_stack_and_says_so(trace: Trace, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    output = on_a_terminal(monkeypatch)

    def back() -> None:
        machine.answers["GET /v1/overview"] = overview(load(ready=77))
        machine.up()

    machine.answers["GET /v1/overview"] = overview(load(ready=55))
    machine.between_looks(monkeypatch, machine.down, nothing, nothing, nothing, nothing, back, nothing)
    shown = trace("top")
    assert (shown.status, shown.err) == (0, "")
    assert "55 ready" in output.getvalue()
    assert "The stack is down: this is 0s old, waiting for `trace up` ..." in output.getvalue()
    assert "77 ready" in output.getvalue()


def test_a_dispatcher_that_is_gone_is_named(trace: Trace, machine: Machine) -> None:
    kept = (machine.home / "stack.json").read_bytes()
    machine.down()
    (machine.home / "stack.json").write_bytes(kept)  # as a kill leaves it
    ended = trace("dags")
    assert ended.status == 1
    assert "The Dispatcher does not answer (no connection: ConnectionRefusedError); `trace status` shows" in ended.err
