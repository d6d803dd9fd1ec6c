"""`trace logs` of attempts that workers ran, of jobs and of parts of the stack."""

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.cli.conftest import Trace
from tests.cli.fake_api import Call, FakeApi, end_after
from tests.cli.samples import EARLIER, EVIL, NOW, TASK, UNIT, uuid
from tests.cli.test_logs import PATH, log
from tracelake.cli import part_logs
from tracelake.errors import TraceError
from tracelake.stack.log_tail import LogTail
from tracelake.wire.run_logs import JobRun, JobRuns, LogLine, LogLines, LogOutput, TaskLog

RUNS = "/v1/dags/moves/jobs/work/runs"
OTHER = uuid(77)
TRICKS = "\x1b\x07\x00\x9b\u202e\r\x08"


def line(text: str, seconds: float = 0, **fields: Any) -> LogLine:
    values: dict[str, Any] = {"level": "info", "source": "operator", "time": EARLIER + timedelta(seconds=seconds)}
    return LogLine(text=text, **(values | fields))


def of_worker(*lines: LogLine, start: int = 0, **changes: Any) -> TaskLog:
    fields = {"bundle_id": None, "worker_id": "host:1", "operator": "spark_sql", "peak_bytes": None}
    return log(lines=LogLines(lines=list(lines), next=start + len(lines)), **(fields | changes))


def clock(item: LogLine) -> str:
    return f"{item.time:%H:%M:%S}.{item.time.microsecond // 1000:03d}"


def test_the_log_of_a_worker(api: FakeApi, trace: Trace) -> None:
    failed: dict[str, Any] = {"outcome": "Failed", "ending": "failed", "attempt_error": "ValueError: no\nmore"}
    lines = (line("claimed", source="worker"), line("lost\n  at x", 1.5, level="warning", source="spark"))
    api.answers[PATH] = of_worker(*lines, **failed)
    assert trace("logs", str(TASK)).out.splitlines() == [
        "moves/work 1000-1999, attempt 1: failed, after 1.2 s (started 3m5s ago)",
        "ValueError: no",
        f"{clock(lines[0])} info    worker   claimed",
        f"{clock(lines[1])} warning spark    lost",
        "      at x",
        f"retry it: trace retry {TASK}",
    ]
    assert "claimed" not in trace("logs", str(TASK), "--lines", "1").out


def test_hostile_lines_reach_no_terminal(api: FakeApi, trace: Trace) -> None:
    hostile = "\x1b]0;title\x07\x1b[2J\x00\x9b31m\u202eevil\r\nnext\rover\x08"
    api.answers[PATH] = of_worker(line(hostile))
    api.answers[f"GET {RUNS}"] = JobRuns(runs=[run(error=EVIL)])
    for subject in (str(TASK), "moves/work"):
        ended = trace("logs", subject)
        assert "\\x1b[2J" in ended.out
        assert not set(TRICKS) & set(ended.out + ended.err)


def test_lines_are_followed_to_the_end(api: FakeApi, trace: Trace) -> None:
    open_fields: dict[str, Any] = {"state": "running", "ending": None, "outcome": None, "open": True, "seconds": None}

    def answer(call: Call) -> TaskLog:
        number = int(call.query["lines_from"])
        if number == 0:
            return of_worker(line("one"), **open_fields)
        if number == 1:
            return of_worker(line("two", 1), start=1)
        return of_worker(start=number)

    api.answers[PATH] = answer
    ended = trace("logs", str(TASK), "--follow")
    assert [text[-3:] for text in ended.out.splitlines()[1:3]] == ["one", "two"]
    assert "completed" in ended.out.splitlines()[-1]
    documents = [json.loads(text) for text in trace("logs", str(TASK), "--follow", "--json").out.splitlines()]
    assert [document["lines"]["lines"][0]["text"] for document in documents] == ["one", "two"]


# --- jobs


def run(**changes: Any) -> JobRun:
    values: dict[str, Any] = {"task_id": TASK, "attempt": 1, "unit": UNIT, "operator": "spark_sql", "started_at": NOW}
    return JobRun(**(values | changes))


def add_two_runs(api: FakeApi) -> None:
    runs = [run(task_id=OTHER, outcome="Completed"), run(attempt=2, outcome="Failed", error="no")]
    api.answers[f"GET {RUNS}"] = lambda call: JobRuns(runs=runs[1:] if call.query.get("failed") == "true" else runs)
    api.answers[PATH] = of_worker(line("a1", 1), line("a3", 3), attempt=2)
    api.answers[f"GET /v1/tasks/{OTHER}/log"] = of_worker(line("b2", 2), line("b4", 4), task_id=OTHER)


def test_attempts_of_a_job_by_time(api: FakeApi, trace: Trace) -> None:
    add_two_runs(api)
    out = trace("logs", "moves/work").out.splitlines()
    short, other = f"{TASK.hex[-8:]}#2", OTHER.hex[-8:]
    shown = [(text.split(" ")[0], text[-2:]) for text in out if " info " in text]
    assert shown == [(short, "a1"), (other, "b2"), (short, "a3"), (other, "b4")]
    assert out[-1] == f"see one of them alone: trace logs {TASK} --attempt 2"
    assert other not in trace("logs", "moves/work", "--failed", "--limit", "3").out
    assert api.asked(RUNS)[-1].query == {"failed": "true", "limit": "3"}
    document = json.loads(trace("logs", "moves/work", "--json").out)
    assert (len(document["runs"]), len(document["logs"])) == (2, 2)
    assert max(map(len, trace("logs", "moves/work", columns=80).out.splitlines()[:3])) <= 80


def test_a_job_without_logs_and_an_unknown_one(api: FakeApi, trace: Trace) -> None:
    api.answers[f"GET {RUNS}"] = JobRuns(runs=[])
    assert "No attempt of it has a log" in trace("logs", "moves/work").out
    assert "No failed attempt" in trace("logs", "moves/work", "--failed").out
    api.answers[f"GET {RUNS}"] = JobRuns(runs=[run()])
    api.answers[PATH] = TraceError("log_expired")
    assert trace("logs", "moves/work").status == 0
    api.answers[f"GET {RUNS}"] = TraceError("job_not_found")
    ended = trace("logs", "moves/work")
    assert ended.status != 0
    assert "job_not_found" in ended.err


def test_new_attempts_of_a_job_are_followed(api: FakeApi, trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = run(), run(task_id=OTHER)
    api.answers[f"GET {RUNS}"] = [JobRuns(runs=[first]), JobRuns(runs=[second, first])]
    api.answers[PATH] = lambda call: of_worker(line("one")) if call.query["lines_from"] == "0" else of_worker(start=1)
    api.answers[f"GET /v1/tasks/{OTHER}/log"] = of_worker(line("two"), task_id=OTHER)
    end_after(monkeypatch, 3)
    documents = [json.loads(text) for text in trace("logs", "moves/work", "--follow", "--json").out.splitlines()]
    assert [(document["task_id"], document["text"]) for document in documents] == [
        (str(TASK), "one"),
        (str(OTHER), "two"),
    ], "each line once"


def test_what_a_function_printed_stands_between(api: FakeApi, trace: Trace) -> None:
    api.answers[f"GET {RUNS}"] = JobRuns(runs=[run()])
    api.answers[PATH] = log(stdout=LogOutput(text="printed\n", next=8))
    assert "printed" in trace("logs", "moves/work").out


# --- parts

DOCUMENT = {"time": "2026-01-02T03:04:05.678+00:00", "level": "error", "process": "worker", "message": EVIL}


def write_log(api: FakeApi, name: str, text: str) -> None:
    (api.home / "logs").mkdir(exist_ok=True)
    (api.home / "logs" / f"{name}.log").write_text(text)


def test_the_log_of_a_part(api: FakeApi, trace: Trace) -> None:
    document = json.dumps(DOCUMENT | {"task_id": "t", "error": "Trace\nback"})
    write_log(api, "worker", f"plain \x1b[2J\n{document}\n")
    ended = trace("logs", "worker")
    assert ended.status == 0
    assert "2026-01-02 03:04:05 error" in ended.out
    assert ended.out.splitlines()[-2:] == ["    Trace", "    back"]
    assert not set(TRICKS) & set(ended.out)
    assert len(trace("logs", "worker-1", "--lines", "1").out.splitlines()) == 3
    documents = [json.loads(text) for text in trace("logs", "sink", "--json").out.splitlines()]
    assert [document["message"] for document in documents] == ["plain \x1b[2J", EVIL]


def test_names_of_parts(api: FakeApi, trace: Trace) -> None:
    ended = trace("logs", "dispatcher")
    assert "is a file on the machine of the stack" in ended.err
    for name in ("dispatcher", "postgres-state", "query", "worker-1", "worker-2"):
        write_log(api, name, f"of {name}\n")
    assert trace("logs", "state").out == "of postgres-state\n"
    assert trace("logs", "query-service").out == "of query\n"
    assert trace("logs", "worker-1").out == "of worker-1\n"
    assert "several workers: name one of worker-1, worker-2" in trace("logs", "worker").err
    ended = trace("logs", "dispacher")
    assert ended.status == 2
    assert "Did you mean `dispatcher`?" in ended.err
    assert "dispatcher, postgres-state, query, worker-1, worker-2" in ended.err
    for option in ("--failed", "--attempt=1", "--limit=1"):
        assert "is for the logs of" in trace("logs", "dispatcher", option).err
    assert "--attempt is for the logs of a task" in trace("logs", "moves/work", "--attempt", "1").err
    assert not api.calls, "nothing of this asks the Dispatcher"


def test_a_part_is_followed(api: FakeApi) -> None:
    write_log(api, "dispatcher", "")
    path = api.home / "logs" / "dispatcher.log"
    tail = LogTail(path)
    shown: list[list[str]] = []
    texts = ["one\n", "two\n"]

    def wait(_seconds: float) -> None:
        if not texts:
            raise KeyboardInterrupt
        with path.open("a") as file:
            file.write(texts.pop(0))

    with pytest.raises(KeyboardInterrupt):
        part_logs.follow_part(tail, shown.append, wait)
    assert shown == [["one"], ["two"]]
