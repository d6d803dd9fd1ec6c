"""Logs of attempts that workers ran, at the Dispatcher: who may store one, who reads it, and when it goes."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.api.support import User
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness, Reply, fence
from tracelake.dispatcher.invoke.operators import CONTROL_OPERATORS
from tracelake.dispatcher.run_logs.attempt_logs import INLINE_BYTES
from tracelake.dispatcher.views.run_logs import CONTROL
from tracelake.errors import StoreUnavailableError
from tracelake.wire.run_logs import MAX_LOGS

DAY = 86_400
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def line(text: str, **fields: Any) -> dict[str, Any]:
    return {"time": MOMENT.isoformat(), "level": "info", "source": "operator", "text": text} | fields


@dataclass
class Logs:
    """Tasks of an org, and a worker that reports their logs."""

    harness: DispatcherHarness
    user: User
    job_id: str

    def task(self) -> str:
        return self.harness.make_task(self.job_id)

    def claim(self, task_id: str, worker_id: str = "w1") -> Any:
        reply = self.harness.claim(task_id, worker_id=worker_id)
        assert reply.body["status"] == "Claimed", reply
        return reply.body

    def finish(self, task_id: str, claimed: Any, status: str = "Completed", **fields: Any) -> None:
        body = fence(task_id, claimed, status=status, **fields)
        assert self.harness.task("complete", claimed["capability_token"], body).status == 200

    def store(self, *reports: dict[str, Any], worker_id: str = "w1") -> Reply:
        body = {"worker_id": worker_id, "logs": list(reports)}
        return self.harness.worker("POST", "/internal/task-logs", body)

    def stored(self, *reports: dict[str, Any], worker_id: str = "w1") -> int:
        reply = self.store(*reports, worker_id=worker_id)
        assert reply.status == 200, reply
        number: int = reply.body["stored"]
        return number

    def read(self, task_id: str, user: User | None = None, query: str = "") -> Reply:
        return (user or self.user).call("GET", f"/v1/tasks/{task_id}/log{query}")

    def texts(self, task_id: str, query: str = "") -> list[str]:
        reply = self.read(task_id, query=query)
        assert reply.status == 200, reply
        return [row["text"] for row in reply.body.get("lines", {}).get("lines", [])]

    def objects(self) -> list[str]:
        prefix = f"s3://{self.harness.config.bundle_bucket}/runs/"
        return [meta.uri for meta in self.harness.run(self.harness.objects.list(prefix))]


def report(task_id: str, *texts: str, attempt: int = 1, **fields: Any) -> dict[str, Any]:
    return {"task_id": task_id, "attempt": attempt, "lines": [line(text) for text in texts]} | fields


@pytest.fixture
def logs(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[Logs]:
    config = dispatcher_config(user_rate_per_second=10**6, user_rate_burst=10**6)
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path, config)
    harness.use_movable_clock()
    try:
        job = harness.make_job(operator="sleep", config={"seconds": 1})
        yield Logs(harness, User(harness, "acme", "reader"), job["job_id"])
    finally:
        harness.stop()


def test_control_operators_have_no_log() -> None:
    assert set(CONTROL_OPERATORS) == CONTROL


def test_a_log_while_it_runs_and_after(logs: Logs) -> None:
    task = logs.task()
    assert logs.read(task).code == "log_not_found"
    claimed = logs.claim(task)
    assert logs.stored(report(task, "one")) == 1
    body = logs.read(task).body
    assert (body["state"], body["operator"], body["worker_id"]) == ("running", "sleep", "w1")
    assert "bundle_id" not in body
    assert body["lines"] == {"lines": [line("one") | {"time": "2026-01-01T00:00:00Z"}], "next": 1}
    logs.finish(task, claimed, "Failed", error_message="no", retryable=False)
    assert logs.read(task).body["state"] == "incomplete", "its last report is on its way"
    assert logs.stored(report(task, "one", "two", ending="failed", seconds=2.5)) == 1
    body = logs.read(task, query="?lines_from=1").body
    assert (body["state"], body["ending"], body["seconds"], body["outcome"]) == ("ended", "failed", 2.5, "Failed")
    assert [row["text"] for row in body["lines"]["lines"]] == ["two"]
    assert logs.read(task, query="?lines_from=2").body["lines"] == {"next": 2}
    assert body["attempt_error"] == "no"
    detail = logs.user.get(f"/v1/tasks/{task}")
    assert [attempt["has_log"] for attempt in detail["attempts"]] == [True]
    steps = [step for cause in logs.user.get(f"/v1/why/task/{task}")["reasons"] for step in cause["steps"]]
    assert any(step["command"] == f"trace logs {task}" for step in steps)


def test_reports_out_of_order_take_nothing_back(logs: Logs) -> None:
    task = logs.task()
    logs.claim(task)
    assert logs.stored(report(task, "one", "two")) == 1
    assert logs.stored(report(task, "one")) == 0, "older"
    assert logs.stored(report(task, "one", "two", ending="completed")) == 1
    assert logs.stored(report(task, "one", "two", ending="completed")) == 1, "the answer was lost"
    assert logs.stored(report(task, "one", "two", "three")) == 0, "it has ended"
    assert logs.texts(task) == ["one", "two"]
    both = (report(task, "x", ending="failed", start=3), report(task, "y", ending="failed", start=4))
    assert logs.stored(*both) == 1, "two reports of one attempt in a call: the last one"
    assert logs.texts(task) == ["y"]


def test_lines_that_are_no_longer_kept_are_counted(logs: Logs) -> None:
    task = logs.task()
    logs.claim(task)
    logs.stored(report(task, "nine", "ten", start=8))
    assert {**logs.read(task).body["lines"], "lines": None} == {"lines": None, "next": 10, "omitted": 8}
    assert {**logs.read(task, query="?lines_from=5").body["lines"], "lines": None}["omitted"] == 3
    assert logs.texts(task, "?lines_from=9") == ["ten"]


def test_a_worker_stores_logs_of_its_own_attempts_alone(logs: Logs) -> None:
    task = logs.task()
    assert logs.stored(report(task, "not claimed")) == 0
    claimed = logs.claim(task)
    assert logs.stored(report(task, "forged"), worker_id="w2") == 0
    assert logs.stored(report(task, "forged", attempt=2)) == 0
    assert logs.stored(report("00000000-0000-7000-8000-000000000001", "no such task")) == 0
    logs.finish(task, claimed, "Failed", error_message="again", retryable=True)
    logs.harness.advance(DAY)
    logs.harness.requeue_due()
    logs.claim(task, "w2")
    assert logs.stored(report(task, "late words of the first attempt", ending="failed")) == 1
    assert logs.stored(report(task, "forged", attempt=2)) == 0
    assert logs.stored(report(task, "second", attempt=2), worker_id="w2") == 1
    assert logs.texts(task) == ["second"]
    assert logs.texts(task, "?attempt=1") == ["late words of the first attempt"]
    assert logs.read(task).body["attempts"] == [1, 2]


def test_a_large_log_is_an_object(logs: Logs) -> None:
    small, large = logs.task(), logs.task()
    for task in (small, large):
        logs.claim(task)
    noise = ["".join(random.Random(number).choices("0123456789abcdef", k=5000)) for number in range(10)]
    assert sum(map(len, noise)) > 3 * INLINE_BYTES
    assert logs.stored(report(small, "one"), report(large, *noise)) == 2
    assert [uri.rpartition("/")[2] for uri in logs.objects()] == ["running.json"]
    assert logs.texts(large) == noise
    assert logs.stored(report(large, *noise, "end", ending="completed")) == 1
    assert logs.texts(large) == [*noise, "end"]
    assert len(logs.objects()) == 2
    logs.harness.advance(15 * DAY)
    assert logs.harness.run(logs.harness.dispatcher.logs.run_once()) == 2
    assert (logs.objects(), logs.harness.sql("SELECT FROM run_logs")) == ([], [])
    assert logs.read(large).code == "log_expired"


def test_a_store_that_is_away_loses_no_log(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    task = logs.task()
    logs.claim(task)
    noise = ["".join(random.Random(number).choices("0123456789abcdef", k=9000)) for number in range(5)]

    async def refuse(_uri: str, _body: bytes) -> None:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(logs.harness.objects, "put", refuse)
        assert logs.store(report(task, *noise, ending="failed")).status == 503
    assert logs.stored(report(task, *noise, ending="failed")) == 1
    assert logs.texts(task) == noise


def test_a_log_that_is_reported_stays(logs: Logs) -> None:
    """The attempt of a source runs for months."""
    task = logs.task()
    logs.claim(task)
    for day in range(0, 60, 10):
        assert logs.stored(report(task, *map(str, range(day + 1)))) == 1
        logs.harness.advance(10 * DAY)
        assert logs.harness.run(logs.harness.dispatcher.logs.run_once()) == 0
    logs.harness.advance(5 * DAY)
    assert logs.harness.run(logs.harness.dispatcher.logs.run_once()) == 1


def test_other_orgs_see_no_log(logs: Logs) -> None:
    task = logs.task()
    logs.claim(task)
    logs.stored(report(task, "ours"))
    logs.harness.make_job(org="others")
    for org in ("others", "unheard_of"):
        stranger = User(logs.harness, org, "admin")
        assert (logs.read(task, stranger).status, logs.read(task, stranger).code) == (404, "task_not_found")
        reply = stranger.call("GET", "/v1/dags/dag/jobs/job/runs")
        assert reply.body.get("runs", []) == []
        assert "ours" not in str(reply.body)


def test_runs_of_a_job(logs: Logs) -> None:
    first, second = logs.task(), logs.task()
    for task, status in ((first, "Failed"), (second, "Completed")):
        claimed = logs.claim(task)
        fields = {"error_message": "line one\nline two", "retryable": False} if status == "Failed" else {}
        logs.finish(task, claimed, status, **fields)
        logs.stored(report(task, "x", ending=status.lower()))
        logs.harness.advance(1)
    path = "/v1/dags/dag/jobs/job/runs"
    runs = logs.user.get(path)["runs"]
    assert [(run["task_id"], run["outcome"], run["operator"]) for run in runs] == [
        (second, "Completed", "sleep"),
        (first, "Failed", "sleep"),
    ]
    assert runs[1]["error"] == "line one"
    assert [run["task_id"] for run in logs.user.get(f"{path}?failed=true")["runs"]] == [first]
    assert [run["task_id"] for run in logs.user.get(f"{path}?limit=1")["runs"]] == [second]
    assert logs.user.call("GET", "/v1/dags/nope/jobs/job/runs").code == "dag_not_found"
    assert logs.user.get("/v1/udf/runs?dag=dag")["runs"] == [], "those are functions alone"


@pytest.mark.parametrize(
    "changes",
    [
        {"logs": []},
        {"logs": [{"task_id": "x", "attempt": 1}]},
        {"worker_id": ""},
        {"logs": [report("00000000-0000-7000-8000-000000000001")] * (MAX_LOGS + 1)},
        {"logs": [report("00000000-0000-7000-8000-000000000001", "x" * 10_001)]},
        {"logs": [report("00000000-0000-7000-8000-000000000001", start=-1)]},
    ],
)
def test_reports_that_are_none(logs: Logs, changes: dict[str, Any]) -> None:
    body = {"worker_id": "w1", "logs": [report("00000000-0000-7000-8000-000000000001")]} | changes
    assert logs.harness.worker("POST", "/internal/task-logs", body).code == "body_invalid"
