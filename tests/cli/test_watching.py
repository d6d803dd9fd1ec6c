"""Watching a real Dispatcher: work is done between the looks, and every bit of it is seen."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Trace, run_trace
from tests.cli.fake_api import write_stack
from tests.cli.test_end_to_end import DAG, say
from tests.http.support import user_token
from tests.support.dispatcher import DispatcherHarness
from tracelake.cli import session

TRIGGER = "/v1/dags/pools/jobs/blocks/trigger"


@pytest.fixture
def harness(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[DispatcherHarness]:
    running = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    try:
        yield running
    finally:
        running.stop()


class Person:
    """Does something between two looks of a command, and Ctrl-C at the end."""

    def __init__(self, harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.harness = harness
        self.tasks: list[str] = []
        self._steps: list[Callable[[], None]] = []
        monkeypatch.setattr(session, "_pause", self._pause)

    def then(self, *steps: Callable[[], None]) -> None:
        self._steps = list(steps)

    async def _pause(self) -> None:
        if not self._steps:
            raise KeyboardInterrupt
        self._steps.pop(0)()

    def trigger(self, *starts: int) -> None:
        token = user_token(self.harness, org="acme", roles=["writer"])
        for start in starts:
            body = {"range": {"start": start, "end": start + 9}}
            reply = self.harness.call("public", "POST", TRIGGER, body, {"authorization": f"Bearer {token}"})
            assert reply.status == 200, reply
            self.tasks += reply.body["tasks"]


@pytest.fixture
def person(harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch) -> Person:
    return Person(harness, monkeypatch)


@pytest.fixture
def trace(harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trace:
    client = harness.clients["public"]
    write_stack(harness.home, f"https://{client._authority}", harness.tls.ca)
    (harness.home / "admin.token").write_text(user_token(harness, org="acme", roles=["admin", "writer", "reader"]))
    monkeypatch.setenv("TRACE_HOME", str(harness.home))
    run = run_trace(monkeypatch, capsys)
    assert run("deploy", "-", stdin=DAG.format(seconds=1).encode()).status == 0
    return run


def documents(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_events_are_followed(trace: Trace, person: Person) -> None:
    person.trigger(0)
    person.then(lambda: person.trigger(10), lambda: None, lambda: person.trigger(20, 30))
    shown = trace("events", "--follow", "--json", "--dataset", "pools__blocks_0", "--state", "Routed")
    assert (shown.status, shown.err) == (0, "")
    assert [row["partition_key"] for row in documents(shown.out)] == ["10-19", "20-29", "30-39"]


def test_tasks_are_followed_from_being_made_to_their_end(
    trace: Trace, person: Person, harness: DispatcherHarness
) -> None:
    def all_at_once() -> None:
        person.trigger(20)
        say(harness, person.tasks[2], "Completed")

    person.trigger(0)
    person.then(
        lambda: person.trigger(10),
        lambda: say(harness, person.tasks[1], "Failed", error_message="no such block", retryable=False),
        all_at_once,
    )
    shown = trace("tasks", "--follow", "--json", "--job", "pools/prices")
    assert (shown.status, shown.err) == (0, "")
    second, third = person.tasks[1:]
    assert [(row["task"]["task_id"], row["change"]) for row in documents(shown.out)] == [
        (second, "created"), (second, "claimed"), (second, "failed"),
        (third, "created"), (third, "claimed"), (third, "completed"),
    ]  # fmt: skip
    assert documents(shown.out)[2]["task"]["error"] == "no such block"


def test_top_counts_them(trace: Trace, person: Person, harness: DispatcherHarness) -> None:
    person.trigger(0, 10, 20)
    say(harness, person.tasks[0], "Failed", error_message="no such block", retryable=False)
    harness.claim(person.tasks[1])
    shown = trace("top")
    assert (shown.status, shown.err) == (0, "")
    assert "1 ready  1 running  0 waiting  0 retrying  1 failed  oldest ready " in shown.out
    assert "pools/blocks  manual  waiting" in shown.out
    assert "trace why pools/prices" in shown.out
    document = json.loads(trace("top", "--json", "--dag", "pools").out)
    assert {(job["job"], job["ready"], job["failed"]) for job in document["jobs"]} == {
        ("blocks", 0, 0),
        ("prices", 1, 1),
    }
