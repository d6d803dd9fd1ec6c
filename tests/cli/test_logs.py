"""`trace logs` and `trace udf logs`: headings, hostile output, following to the end and into the next attempt."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cli.conftest import Trace
from tests.cli.fake_api import Call, FakeApi, end_after
from tests.cli.samples import EARLIER, EVIL, NOW, TASK, UNIT, detail, uuid
from tracelake.errors import TraceError
from tracelake.wire.run_logs import FunctionRun, FunctionRuns, LogOutput, RunError, TaskLog
from tracelake.wire.tasks import AttemptRow

PATH = f"GET /v1/tasks/{TASK}/log"
BUNDLE = uuid(9)
ERROR = RunError(type="ValueError", message="on purpose", frames=['  File "main.py", line 3, in handler'])


def log(**changes: Any) -> TaskLog:
    values: dict[str, Any] = {
        "task_id": TASK,
        "dag": "moves",
        "job": "work",
        "unit": UNIT,
        "bundle_id": BUNDLE,
        "attempt": 1,
        "attempts": [1],
        "state": "ended",
        "outcome": "Completed",
        "ending": "completed",
        "started_at": EARLIER,
        "seconds": 1.25,
        "peak_bytes": 24 * 2**20,
        "stdout": LogOutput(),
        "stderr": LogOutput(),
        "expires_at": NOW,
    }
    return TaskLog(**(values | changes))


def running(stdout: LogOutput, **changes: Any) -> TaskLog:
    fields = {"state": "running", "ending": None, "outcome": None, "open": True, "seconds": None, "peak_bytes": None}
    return log(stdout=stdout, **(fields | changes))


def text(value: str, start: int = 0) -> LogOutput:
    return LogOutput(text=value, next=start + len(value.encode()))


def test_a_failed_run(api: FakeApi, trace: Trace) -> None:
    failed = {"outcome": "Failed", "ending": "error", "error": ERROR, "refused": {"host": 2}}
    api.answers[PATH] = log(**failed, stdout=text("one\ntwo\n"), stderr=text("oops"))
    ended = trace("logs", str(TASK))
    assert ended.out.splitlines() == [
        "moves/work 1000-1999, attempt 1: error, after 1.2 s, with at most 24 MiB (started 3m5s ago)",
        "ValueError: on purpose",
        '  File "main.py", line 3, in handler',
        "refused requests: host 2",
        "--- stdout",
        "one",
        "two",
        "--- stderr",
        "oops",
        f"retry it: trace retry {TASK}",
    ]


def test_output_of_strangers_reaches_no_terminal(api: FakeApi, trace: Trace) -> None:
    hostile = "\x1b]0;title\x07\x1b[2J\x00\x9b31m\u202eevil\r\nnext\rover\x08"
    error = RunError(type=EVIL, message=f"{EVIL}\nsecond", frames=[EVIL])
    api.answers[PATH] = log(dag=EVIL, stdout=text(hostile), error=error, ending=EVIL, message=EVIL, refused={EVIL: 1})
    for arguments in (("logs", str(TASK)), ("logs", str(TASK), "--follow")):
        ended = trace(*arguments)
        for character in "\x1b\x07\x00\x9b\u202e\r\x08":
            assert character not in ended.out + ended.err
        assert "\\x1b[2J\\x00\\x9b31m\\u202eevil\nnext\\rover\\x08" in ended.out
    ended = trace("logs", str(TASK), "--json")
    assert json.loads(ended.out)["stdout"]["text"] == hostile
    assert not any(ord(character) < 32 and character != "\n" for character in ended.out)


def test_what_was_cut_and_what_is_missing_are_told(api: FakeApi, trace: Trace) -> None:
    cut = LogOutput(text="end\n", next=5000, omitted=4996)
    fields = {"state": "incomplete", "ending": None, "outcome": "Timeout", "attempts": [1, 2]}
    api.answers[PATH] = log(stdout=cut, **fields)
    ended = trace("logs", str(TASK), "--attempt", "1")
    assert "(4,996 bytes before are not kept)\nend\n" in ended.out
    assert "The end of this log is missing" in ended.out
    assert "its lease expired without a final report" in ended.out
    assert f"see another attempt: trace logs {TASK} --attempt 2" in ended.out
    assert api.calls[-1].query["attempt"] == "1"


def test_a_task_without_a_log(api: FakeApi, trace: Trace) -> None:
    api.answers[PATH] = TraceError("task_has_no_log", "The task runs the operator sql.")
    ended = trace("logs", str(TASK))
    assert ended.status != 0
    assert "task_has_no_log: The task runs the operator sql." in ended.err
    assert "trace tasks TASK" in ended.err
    assert "trace why TASK" in ended.err


def test_following_prints_each_byte_once(api: FakeApi, trace: Trace) -> None:
    """Over an outage, an older upload that replaces a newer one, and to the end."""
    api.answers[PATH] = [
        running(text("one ")),
        TraceError("store_unavailable"),
        running(LogOutput(next=4)),
        running(text("two\n", 4), stderr=text("warning\n")),
        log(stdout=text("three\n", 8), stderr=LogOutput(next=8), open=True, outcome=None),
        log(stdout=LogOutput(next=14), stderr=LogOutput(next=8)),
    ]
    ended = trace("logs", str(TASK), "--follow")
    assert ended.out.splitlines() == [
        "moves/work 1000-1999, attempt 1: running (started 3m5s ago)",
        "--- stdout",
        "one two",
        "--- stderr",
        "warning",
        "--- stdout",
        "three",
        "moves/work 1000-1999, attempt 1: completed, after 1.2 s, with at most 24 MiB (started 3m5s ago)",
    ]
    assert "does not answer right now" in ended.err
    positions = [(call.query["stdout_from"], call.query["stderr_from"]) for call in api.asked(PATH[4:])]
    assert positions == [("0", "0"), ("4", "0"), ("4", "0"), ("4", "0"), ("8", "8"), ("14", "8")]


def test_following_goes_on_to_the_next_attempt(api: FakeApi, trace: Trace) -> None:
    failed = {"outcome": "Failed", "ending": "error", "error": ERROR, "open": True, "next_retry_at": NOW}
    second: list[TaskLog] = [
        running(text("again\n"), attempt=2, attempts=[1, 2]),
        log(stdout=LogOutput(next=6), attempt=2, attempts=[1, 2]),
    ]

    def reply(call: Call) -> TaskLog:
        if call.query.get("attempt") == "2":
            return second.pop(0) if len(second) > 1 else second[0]
        attempts = [1, 2] if len(api.asked(PATH[4:])) > 2 else [1]
        output = text("first\n") if call.query["stdout_from"] == "0" else LogOutput(next=6)
        return log(**failed, stdout=output, attempts=attempts)

    api.answers[PATH] = reply
    ended = trace("logs", str(TASK), "--follow")
    lines = ended.out.splitlines()
    assert lines.count("first") == 1
    assert lines.index("ValueError: on purpose") < lines.index("again")
    assert lines[-1].startswith("moves/work 1000-1999, attempt 2: completed")
    assert "The next attempt starts now; waiting." in ended.err
    only = trace("logs", str(TASK), "--follow", "--attempt", "1")
    assert "again" not in only.out


def test_following_ends_without_the_final_log(api: FakeApi, trace: Trace) -> None:
    fields = {"state": "incomplete", "ending": None, "outcome": "Timeout"}
    api.answers[PATH] = [running(text("so far\n")), log(stdout=LogOutput(next=7), **fields)]
    ended = trace("logs", str(TASK), "--follow")
    assert ended.status == 0
    assert "The end of this log is missing" in ended.out


def test_following_a_task_that_has_not_started(api: FakeApi, trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    api.answers[PATH] = [TraceError("log_not_found"), TraceError("log_not_found"), log(stdout=text("done\n"))]
    api.answers[f"GET /v1/tasks/{TASK}"] = detail(status="Queued")
    ended = trace("logs", str(TASK), "--follow")
    assert ended.err.count("waiting for its first attempt") == 1
    assert "done\n" in ended.out
    api.answers[PATH] = TraceError("log_not_found")
    api.answers[f"GET /v1/tasks/{TASK}"] = detail(status="Canceled")
    assert "log_not_found" in trace("logs", str(TASK), "--follow").err
    api.answers[PATH] = running(LogOutput())
    end_after(monkeypatch, 3)
    ended = trace("logs", str(TASK), "--follow")
    assert (ended.status, ended.err) == (0, ""), "Ctrl-C ends it without a word"


def test_following_as_json_is_a_document_for_each_change(api: FakeApi, trace: Trace) -> None:
    api.answers[PATH] = [running(text("one\n")), running(LogOutput(next=4)), log(stdout=text("two\n", 4))]
    ended = trace("logs", str(TASK), "--follow", "--json")
    assert [json.loads(line)["stdout"]["text"] for line in ended.out.splitlines()] == ["one\n", "two\n"]


def test_runs_of_a_bundle_and_of_a_job(api: FakeApi, trace: Trace) -> None:
    runs = [
        FunctionRun(task_id=TASK, attempt=2, dag="moves", job="work", bundle_id=BUNDLE, started_at=EARLIER),
        FunctionRun(
            task_id=TASK,
            attempt=1,
            dag="moves",
            job="work",
            bundle_id=BUNDLE,
            started_at=EARLIER,
            outcome="Failed",
            error=EVIL,
        ),
    ]
    api.answers["GET /v1/udf/runs"] = FunctionRuns(runs=runs)
    api.answers[PATH] = running(text("hello\n"), attempt=2)
    ended = trace("udf", "logs", "moves/work")
    assert api.asked("/v1/udf/runs")[-1].query == {"dag": "moves", "job": "work", "limit": "10"}
    assert "\x1b" not in ended.out
    assert "--- stdout\nhello\n" in ended.out
    assert f"follow it: trace logs {TASK} --follow" in ended.out
    assert f"see another run: trace logs {TASK} --attempt 1" in ended.out
    document = json.loads(trace("udf", "logs", str(BUNDLE), "--json", "--limit", "2").out)
    assert api.asked("/v1/udf/runs")[-1].query == {"bundle_id": str(BUNDLE), "limit": "2"}
    assert (len(document["runs"]), document["log"]["stdout"]["text"]) == (2, "hello\n")
    api.answers[PATH] = TraceError("log_not_found")
    ended = trace("udf", "logs", "moves/work")
    assert (ended.status, "--- stdout" in ended.out) == (0, False)
    api.answers["GET /v1/udf/runs"] = FunctionRuns(runs=[])
    assert "No run of it is kept." in trace("udf", "logs", str(BUNDLE)).out


def test_a_task_with_a_log_points_at_it(api: FakeApi, trace: Trace) -> None:
    attempts = [AttemptRow(attempt=1, outcome="Failed", has_log=True)]
    api.answers[f"GET /v1/tasks/{TASK}"] = replace(detail(status="Failed"), attempts=attempts)
    assert f"see its log: trace logs {TASK}\n" in trace("tasks", str(TASK)).out
    api.answers[f"GET /v1/tasks/{TASK}"] = replace(detail(status="Running"), attempts=attempts)
    assert f"see its log: trace logs {TASK} --follow\n" in trace("tasks", str(TASK)).out
