"""Logs of runs at the Dispatcher: their addresses, what people of which org read, and their removal."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.api.support import User
from tests.bundles.test_invocations import deploy
from tests.bundles.uploading import push
from tests.invoke.support import ScriptedInvoker
from tests.routing.support import Flow
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness, Reply
from tracelake.dispatcher.run_logs.rows import log_uris
from tracelake.errors import StoreUnavailableError
from tracelake.ports import InvokeError
from tracelake.wire.claims import Invocation
from tracelake.wire.run_logs import RunError, RunLog, StoredOutput

DAY = 86_400


@dataclass
class Runs:
    """A function of an org, whose runs a test plays."""

    harness: DispatcherHarness
    invoker: ScriptedInvoker
    user: User
    bundle_id: str

    def start(self, cursor: int = 1) -> Invocation:
        Flow(self.harness).trigger("moves", "tick", cursor=cursor)
        return self.invoke()

    def invoke(self) -> Invocation:
        self.harness.invoke()
        return self.invoker.given[-1]

    def store(self, invocation: Invocation, log: RunLog | bytes, *, final: bool = True, org: str = "") -> None:
        """Does what whoever has the address does."""
        (row,) = self.harness.sql("SELECT org_id FROM orgs WHERE name = $1", org or self.user.org)
        uris = log_uris(self.harness.config.bundle_bucket, row["org_id"], invocation.task_id, invocation.attempt)
        body = log if isinstance(log, bytes) else msgspec.json.encode(log)
        self.harness.run(self.harness.objects.put(uris[0 if final else 1], body))

    def report(self, invocation: Invocation, status: str = "Failed", **fields: Any) -> None:
        body = {"task_id": str(invocation.task_id), "attempt": invocation.attempt, "status": status, **fields}
        reply = self.harness.task(
            "complete", invocation.capability_token, body | {"lease_token": str(invocation.lease_token)}
        )
        assert reply.status == 200, reply

    def fail(self, invocation: Invocation, log: RunLog | None = None) -> None:
        if log is not None:
            self.store(invocation, log)
        self.report(invocation, error_message="ValueError: on purpose\n  File main.py", retryable=True)

    def log(self, invocation: Invocation, user: User | None = None, **query: int) -> Reply:
        parameters = "&".join(f"{name}={value}" for name, value in query.items())
        return (user or self.user).call("GET", f"/v1/tasks/{invocation.task_id}/log?{parameters}")

    def objects(self) -> list[str]:
        prefix = f"s3://{self.harness.config.bundle_bucket}/runs/"
        return [meta.uri for meta in self.harness.run(self.harness.objects.list(prefix))]


@pytest.fixture
def runs(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[Runs]:
    invoker = ScriptedInvoker()
    config = dispatcher_config(user_rate_per_second=10**6, user_rate_burst=10**6)
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path, config, invoker=invoker)
    harness.use_movable_clock()
    try:
        user = User(harness, Flow(harness).org, "writer")
        bundle_id = push(user)
        assert deploy(user, bundle_id).status == 200
        yield Runs(harness, invoker, user, bundle_id)
    finally:
        harness.stop()


def output(text: str, start: int = 0) -> StoredOutput:
    return StoredOutput(text=text, start=start, end=start + len(text.encode()))


ERROR = RunError(type="ValueError", message="on purpose", frames=["File main.py"])
FAILED = RunLog(
    ending="error", error=ERROR, seconds=1.5, peak_bytes=2**20, stdout=output("hello\n"), refused={"host": 1}
)


def test_addresses_open_the_log_of_the_attempt_alone(runs: Runs) -> None:
    invocation = runs.start()
    assert invocation.log is not None
    (row,) = runs.harness.sql("SELECT * FROM run_logs")
    place = f"trace-bundles/runs/{row['org_id']}/{invocation.task_id}/1"
    assert f"{place}/running.json?seconds=930" in invocation.log.running_url
    assert f"{place}/final.json?seconds=930" in invocation.log.final_url
    assert (row["attempt"], row["bundle_id"]) == (1, UUID(runs.bundle_id))


def test_a_log_while_it_runs_and_after(runs: Runs) -> None:
    invocation = runs.start()
    body = runs.log(invocation).body
    assert (body["state"], body["open"], body["stdout"]) == ("running", True, {}), "nothing was printed yet"
    runs.store(invocation, RunLog(seconds=2.0, stdout=output("one\n")), final=False)
    body = runs.log(invocation).body
    assert (body["state"], body["stdout"]) == ("running", {"text": "one\n", "next": 4})
    runs.store(invocation, RunLog(stdout=output("one\ntwo\n")), final=False)
    assert runs.log(invocation, stdout_from=4).body["stdout"] == {"text": "two\n", "next": 8}
    runs.fail(invocation, FAILED)
    body = runs.log(invocation).body
    assert (body["state"], body["ending"], body["outcome"], body["attempt"]) == ("ended", "error", "Failed", 1)
    assert body["error"] == {"type": "ValueError", "message": "on purpose", "frames": ["File main.py"]}
    assert (body["seconds"], body["peak_bytes"], body["refused"]) == (1.5, 2**20, {"host": 1})
    assert (body["dag"], body["job"], body["bundle_id"]) == ("moves", "work", runs.bundle_id)
    assert body["open"], "it is tried again"
    assert body["next_retry_at"] > body["started_at"]


def test_uploads_out_of_order_take_nothing_back(runs: Runs) -> None:
    invocation = runs.start()
    runs.store(invocation, RunLog(stdout=output("one\n")), final=False)
    reply = runs.log(invocation, stdout_from=8, stderr_from=3).body
    assert (reply["stdout"], reply["stderr"]) == ({"next": 8}, {"next": 3}), "the reader had more already"
    runs.store(invocation, FAILED)
    runs.store(invocation, RunLog(stdout=output("late\n")), final=False)
    assert runs.log(invocation).body["stdout"]["text"] == "hello\n", "the final log wins"


def test_what_was_cut_is_told(runs: Runs) -> None:
    invocation = runs.start()
    runs.store(invocation, RunLog(ending="completed", stdout=output("é漢b", start=1000)))

    def read(position: int) -> Any:
        return runs.log(invocation, stdout_from=position).body["stdout"]

    assert read(0) == {"text": "é漢b", "next": 1006, "omitted": 1000}
    assert read(400) == {"text": "é漢b", "next": 1006, "omitted": 600}
    assert read(1002) == {"text": "漢b", "next": 1006}
    assert read(1003) == {"text": "b", "next": 1006}, "from the next whole character on"
    assert read(1006) == {"next": 1006}
    assert runs.log(invocation, stdout_from=-1).code == "body_invalid"


def test_attempts_have_logs_of_their_own(runs: Runs) -> None:
    first = runs.start()
    runs.fail(first, FAILED)
    assert [row.get("has_log") for row in runs.user.get(f"/v1/tasks/{first.task_id}")["attempts"]] == [True]
    runs.harness.advance(3600)
    runs.harness.requeue_due()
    second = runs.invoke()
    assert (second.task_id, second.attempt) == (first.task_id, 2)
    assert runs.log(first).body["attempt"] == 2, "the newest, which runs"
    runs.report(second, error_message="gone", retryable=True)
    body = runs.log(first).body
    assert (body["attempt"], body["attempts"]) == (1, [1, 2]), "the newest that has one"
    assert (body["outcome"], body["attempt_error"].partition("\n")[0]) == ("Failed", "ValueError: on purpose")
    missing = runs.log(first, attempt=2)
    assert (missing.status, missing.code) == (404, "log_not_found")
    runs.store(second, RunLog(stdout=output("so far\n")), final=False)
    body = runs.log(first).body
    assert (body["attempt"], body["state"], body["stdout"]["text"]) == (2, "incomplete", "so far\n")
    assert runs.log(first, attempt=3).body["error"]["message"] == "Expected an attempt from 1 to 2, received 3."


def test_an_attempt_that_nobody_took_points_at_no_log(runs: Runs) -> None:
    runs.invoker.raises = [InvokeError("the runner is away")]
    invocation = runs.start()
    assert "has_log" not in runs.user.get(f"/v1/tasks/{invocation.task_id}")["attempts"][0]

    def steps() -> list[str]:
        why = runs.user.get(f"/v1/why/task/{invocation.task_id}")
        assert "File main.py" not in why["summary"], "the log has the rest of the error"
        return [step["command"] for reason in why["reasons"] for step in reason["steps"]]

    assert f"trace logs {invocation.task_id}" not in steps()
    assert runs.log(invocation).code == "log_not_found"
    runs.harness.advance(3600)
    runs.harness.requeue_due()
    runs.fail(runs.invoke(), FAILED)
    assert f"trace logs {invocation.task_id}" in steps()


def test_other_orgs_and_other_tasks(runs: Runs) -> None:
    invocation = runs.start()
    runs.fail(invocation, FAILED)
    other = User(runs.harness, "others", "admin")
    push(other)
    for stranger in (other, User(runs.harness, "unheard_of", "admin")):
        reply = runs.log(invocation, stranger)
        assert (reply.status, reply.code) == (404, "task_not_found")
        assert stranger.call("GET", f"/v1/udf/runs?bundle_id={runs.bundle_id}").code == "bundle_not_found"
        assert stranger.call("GET", "/v1/udf/runs?dag=moves").code == "dag_not_found"
    job = runs.harness.make_job(org=runs.user.org)
    plain = runs.harness.make_task(job["job_id"])
    reply = runs.user.call("GET", f"/v1/tasks/{plain}/log")
    assert (reply.status, reply.code) == (422, "task_has_no_log")
    assert "which does its work at once" in reply.body["error"]["message"]


def test_runs_of_a_bundle_and_of_a_job(runs: Runs) -> None:
    first = runs.start(1)
    runs.fail(first, FAILED)
    runs.harness.advance(1)
    second = runs.start(2)
    for query in (f"bundle_id={runs.bundle_id}", "dag=moves&job=work", "dag=moves"):
        rows = runs.user.get(f"/v1/udf/runs?{query}")["runs"]
        assert [(row["task_id"], row["attempt"]) for row in rows] == [
            (str(second.task_id), 1),
            (str(first.task_id), 1),
        ]
        assert ("outcome" in rows[0], rows[1]["outcome"], rows[1]["error"]) == (
            False,
            "Failed",
            "ValueError: on purpose",
        )
    assert len(runs.user.get("/v1/udf/runs?dag=moves&limit=1")["runs"]) == 1
    assert runs.user.get("/v1/udf/runs?dag=moves&job=tick")["runs"] == []
    assert runs.user.call("GET", "/v1/udf/runs").code == "body_invalid"
    assert runs.user.call("GET", f"/v1/udf/runs?dag=moves&bundle_id={runs.bundle_id}").code == "body_invalid"
    assert runs.user.call("GET", "/v1/udf/runs?dag=moves&job=nothing").code == "job_not_found"


def test_what_somebody_else_put_there_is_no_log(runs: Runs) -> None:
    invocation = runs.start()
    runs.store(invocation, RunLog(stdout=output("ours\n")), final=False)
    for strange in (b"", b"\xff", b"[]", b"{" * 100, b" " * (9 * 1024 * 1024)):
        runs.store(invocation, strange)
        assert runs.log(invocation).body["stdout"]["text"] == "ours\n"


def test_a_store_that_is_away(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    invocation = runs.start()

    async def away(uri: str) -> None:
        raise StoreUnavailableError

    monkeypatch.setattr(runs.harness.objects, "head", away)
    assert runs.log(invocation).status == 503


def test_logs_go_after_their_retention(runs: Runs) -> None:
    old = runs.start(1)
    runs.fail(old, FAILED)
    runs.store(old, RunLog(), final=False)
    runs.harness.advance(10 * DAY)
    new = runs.start(2)
    runs.store(new, FAILED)
    collector, retention = runs.harness.dispatcher.logs, runs.harness.dispatcher.retention
    assert runs.harness.run(collector.run_once()) == 0
    assert len(runs.objects()) == 3
    runs.harness.advance(4 * DAY)
    assert runs.harness.run(collector.run_once()) == 0, "counted from when its address expired"
    runs.harness.advance(2000)
    plan = {rows.kind: rows for rows in runs.harness.run(retention.plan()).rows}
    assert (plan["run_logs"].rows, plan["run_logs"].kept_days) == (1, 14)
    assert runs.harness.run(collector.run_once()) == 1
    assert [str(new.task_id) in uri for uri in runs.objects()] == [True]
    assert runs.log(new).status == 200
    expired = runs.log(old)
    assert (expired.status, expired.code) == (404, "log_expired")
    assert runs.log(old, attempt=1).code == "log_expired"
    assert "has_log" not in runs.user.get(f"/v1/tasks/{old.task_id}")["attempts"][0]
    runs.harness.advance(11 * DAY)
    assert runs.harness.run(retention.run_round()).removed["run_logs"] == 1
    assert runs.objects() == []


def test_a_crash_between_the_objects_and_the_row_is_repeated(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    invocation = runs.start()
    runs.store(invocation, FAILED)
    runs.harness.advance(15 * DAY)
    collector, delete = runs.harness.dispatcher.logs, runs.harness.objects.delete

    async def fail_later(uri: str) -> None:
        await delete(uri)
        raise StoreUnavailableError

    with monkeypatch.context() as patch:
        patch.setattr(runs.harness.objects, "delete", fail_later)
        with pytest.raises(StoreUnavailableError):
            runs.harness.run(collector.run_once())
    assert len(runs.harness.sql("SELECT FROM run_logs")) == 1
    assert runs.harness.run(collector.run_once()) == 1
    assert runs.harness.sql("SELECT FROM run_logs") == []
