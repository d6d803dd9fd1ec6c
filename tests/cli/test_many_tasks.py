"""`trace retry`, `skip` and `cancel` of many tasks: the preview, the confirmation, batches, and what is left alone."""

import json
import sys
from datetime import timedelta
from typing import Any

import click
import pytest

from tests.cli.conftest import Trace
from tests.cli.fake_api import Call, FakeApi
from tests.cli.samples import NOW, TASK, task_row, uuid
from tracelake.errors import TraceError
from tracelake.wire.base import ErrorInfo
from tracelake.wire.failures import ErrorGroup, FailuresReply, TaskActionOutcome, TaskActionsReply
from tracelake.wire.tasks import TasksPage

FAILURES, TASKS, ACT = "GET /v1/task-failures", "GET /v1/tasks", "POST /v1/task-actions"
GROUPS = [ErrorGroup(error="no node", tasks=3, jobs=["pools/prices"], task_id=TASK, unit="0-9")]
SEEN = FailuresReply(now=NOW, tasks=3, grouped=3, groups=GROUPS)
LATER = NOW + timedelta(seconds=1)


def failed(number: int, **fields: Any) -> Any:
    return task_row(number, **({"status": "Failed", "attempt": number, "finished_at": NOW} | fields))


def done(call: Call) -> TaskActionsReply:
    outcomes = [TaskActionOutcome(task_id=item["task_id"], outcome="done") for item in call.json["tasks"]]
    return TaskActionsReply(outcomes=outcomes)


@pytest.fixture(autouse=True)
def _answers(api: FakeApi) -> None:
    pages = [
        TasksPage(tasks=[failed(1), failed(2)], next="c"),
        TasksPage(tasks=[failed(3), failed(4, finished_at=LATER)]),
    ]
    api.answers |= {FAILURES: SEEN, TASKS: pages, ACT: done}


@pytest.mark.parametrize(("verb", "word"), [("retry", "retried"), ("skip", "skipped")])
def test_a_preview_comes_first_and_then_batches(verb: str, word: str, trace: Trace, api: FakeApi) -> None:
    shown = trace(verb, "--dag", "pools", "--failed", "--yes")
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.startswith("3 failed tasks of pools:\n3 tasks of pools/prices, same error:\n  no node\n")
    assert f"3 tasks {word}." in shown.out
    assert api.asked("/v1/task-failures")[0].query == {"dag": "pools", "current": "true"}
    first, second = (call.json for call in api.asked("/v1/task-actions"))
    assert first == {
        "action": verb,
        "tasks": [{"task_id": str(uuid(1)), "attempt": 1}, {"task_id": str(uuid(2)), "attempt": 2}],
    }
    assert second["tasks"] == [{"task_id": str(uuid(3)), "attempt": 3}], "the fourth failed after the preview"
    assert api.asked("/v1/tasks")[1].query["cursor"] == "c"


def test_without_a_terminal_it_needs_a_yes(trace: Trace, api: FakeApi) -> None:
    shown = trace("retry", "--job", "pools/prices", "--failed")
    assert shown.status == 2
    assert "no node" in shown.out
    assert shown.err == "Nothing was changed: add --yes to retry them.\n"
    as_json = trace("retry", "--job", "pools/prices", "--failed", "--json")
    assert (as_json.status, json.loads(as_json.out)["matched"]) == (2, 3)
    assert not api.asked("/v1/task-actions")
    assert api.calls[0].query == {"dag": "pools", "job": "prices", "current": "true"}


@pytest.mark.parametrize("agreed", [True, False])
def test_at_a_terminal_it_asks(agreed: bool, trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = []

    def confirm(text: str, **_: Any) -> None:
        questions.append(text)
        if not agreed:
            raise click.Abort

    monkeypatch.setattr("click.confirm", confirm)
    monkeypatch.setattr("tracelake.cli.many_tasks.sys", type("Fake", (), {"stdin": Terminal()}))
    shown = trace("skip", "--dag", "pools", "--failed")
    assert questions == ["Skip 3 tasks? Their units stay missing until somebody retries them."]
    assert bool(api.asked("/v1/task-actions")) == agreed
    assert shown.status == (0 if agreed else 1)


class Terminal:
    def isatty(self) -> bool:
        return sys.stdin is not None


def test_what_became_of_each_is_told(trace: Trace, api: FakeApi) -> None:
    refusal = ErrorInfo(code="task_finished", message="The task belongs to a version that is not active.")
    outcomes = [
        TaskActionOutcome(task_id=uuid(1), outcome="done"),
        TaskActionOutcome(task_id=uuid(2), outcome="duplicate"),
        TaskActionOutcome(task_id=uuid(3), outcome="changed", status="Running"),
        TaskActionOutcome(task_id=uuid(5), outcome="refused", error=refusal),
    ]
    api.answers |= {TASKS: TasksPage(tasks=[failed(1)]), ACT: TaskActionsReply(outcomes=outcomes)}
    shown = trace("retry", "--dag", "pools", "--version", "3", "--failed", "--yes")
    assert shown.status == 1
    for text in (
        "1 task retried.",
        "1 task had been handled before.",
        "1 task had moved on since the preview, and nothing was done to them.",
        "1 task refused:",
        f"  {uuid(5)}: task_finished: The task belongs to a version that is not active.",
    ):
        assert text in shown.out
    assert api.asked("/v1/task-failures")[0].query == {"dag": "pools", "version": "3"}
    as_json = trace("retry", "--dag", "pools", "--version", "3", "--failed", "--yes", "--json")
    document = json.loads(as_json.out)
    assert (as_json.status, document["done"], document["changed"], document["refused"]) == (1, 1, 1, 1)


def test_a_batch_whose_answer_is_lost_is_repeated(trace: Trace, api: FakeApi) -> None:
    api.answers |= {TASKS: TasksPage(tasks=[failed(1)]), ACT: [TraceError("store_unavailable")] * 3 + [done]}

    def once(call: Call) -> Any:
        answer = answers.pop(0)
        return answer(call) if callable(answer) else answer

    answers: list[Any] = [TraceError("store_unavailable"), TraceError("store_unavailable"), done]
    api.answers[ACT] = once
    shown = trace("retry", "--dag", "pools", "--failed", "--yes")
    assert (shown.status, shown.err) == (0, "")
    bodies = [call.body for call in api.asked("/v1/task-actions")]
    assert len(bodies) == 3
    assert len(set(bodies)) == 1


def test_nothing_to_do_is_no_failure(trace: Trace, api: FakeApi) -> None:
    api.answers[FAILURES] = FailuresReply(now=NOW, tasks=0, grouped=0, groups=[])
    shown = trace("retry", "--dag", "pools", "--failed")
    assert (shown.status, shown.out) == (0, "pools has no failed task: nothing to retry.\n")


def test_open_tasks_are_cancelled_running_ones_first(trace: Trace, api: FakeApi) -> None:
    def open_tasks(call: Call) -> TasksPage:
        numbers = {"Running": [1], "Retrying": [], "Queued": [2, 3]}
        rows = [task_row(number, status=call.query["status"]) for number in numbers[call.query["status"]]]
        return TasksPage(tasks=rows)

    api.answers[TASKS] = open_tasks
    shown = trace("cancel", "--job", "pools/prices", "--open", "--yes")
    assert (shown.status, shown.err) == (0, "")
    assert "3 open tasks of pools/prices: 1 running, 2 queued." in shown.out
    assert "3 tasks cancelled or asked to stop." in shown.out
    assert {call.json["action"] for call in api.asked("/v1/task-actions")} == {"cancel"}


@pytest.mark.parametrize(
    "words",
    [
        ["retry", "--failed"],
        ["retry", str(TASK), "--failed", "--dag", "pools"],
        ["retry", "--dag", "pools"],
        ["skip", str(TASK), "--dag", "pools"],
        ["cancel", "--dag", "pools"],
        ["retry"],
        ["tasks", "--version", "3"],
        ["tasks", "--by-error", "--watch"],
        ["tasks", "--by-error", "--status", "Queued"],
    ],
)
def test_what_is_ambiguous_is_refused(words: list[str], trace: Trace, api: FakeApi) -> None:
    ended = trace(*words)
    assert (ended.status, ended.out, api.calls) == (2, "", [])


def test_failed_tasks_by_error(trace: Trace, api: FakeApi) -> None:
    api.answers[FAILURES] = FailuresReply(now=NOW, tasks=10_000, more=True, grouped=1000, groups=GROUPS, other_groups=2)
    shown = trace("tasks", "--by-error", "--dag", "pools")
    assert (shown.status, shown.err) == (0, "")
    assert "3 tasks of pools/prices, same error:\n  no node\n" in shown.out
    assert "2 other errors with fewer tasks" in shown.out
    assert "Of 10,000 or more failed tasks, the newest 1,000 are grouped." in shown.out
    assert "trace retry --dag pools --failed" in shown.out
