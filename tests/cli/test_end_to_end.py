"""The commands against a real Dispatcher: what they send is what it takes, and what it answers is what they show."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ended, Trace, run_trace
from tests.cli.fake_api import write_stack
from tests.http.support import user_token
from tests.support.dags import run_builds
from tests.support.dispatcher import DispatcherHarness, fence

DAG = """\
name: pools
jobs:
  - name: blocks
    activation: source
    source: {{ kind: manual }}
  - name: prices
    activation: reactive
    runtime: ecs_platform
    operator: sleep
    config: {{ seconds: {seconds} }}
    execution_strategy: PerPartition
    max_attempts: 1
    inputs:
      - from: {{ job: blocks }}
"""


@pytest.fixture
def harness(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[DispatcherHarness]:
    running = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def trace(harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trace:
    client = harness.clients["public"]
    write_stack(harness.home, f"https://{client._authority}", harness.tls.ca)
    (harness.home / "admin.token").write_text(user_token(harness, org="acme", roles=["admin", "writer", "reader"]))
    monkeypatch.setenv("TRACE_HOME", str(harness.home))
    return run_trace(monkeypatch, capsys)


def answer(ended: Ended) -> Any:
    assert (ended.status, ended.err) == (0, "")
    return json.loads(ended.out)


def say(harness: DispatcherHarness, task_id: str, status: str, **fields: Any) -> None:
    """What a worker would say about a task."""
    claimed = harness.claim(task_id).body
    body = fence(task_id, claimed, status=status, **fields)
    assert harness.task("complete", claimed["capability_token"], body).status == 200


def deployed(trace: Trace, seconds: int = 1, *options: str) -> Any:
    return answer(trace("deploy", "-", "--json", *options, stdin=DAG.format(seconds=seconds).encode()))


def test_the_life_of_a_dag(trace: Trace, harness: DispatcherHarness) -> None:
    assert "No DAG is deployed yet." in trace("dags").out
    assert deployed(trace, 1, "--plan")["plan"]["new_version"]
    assert "No DAG is deployed yet." in trace("dags").out, "a plan changes nothing"
    assert deployed(trace)["state"] == "Active"
    assert "Nothing changed" in trace("deploy", "-", stdin=DAG.format(seconds=1).encode()).out
    assert trace("dags", "pools", "--source", "1").out == DAG.format(seconds=1)
    assert "manual source" in trace("jobs", "pools").out

    first = answer(trace("trigger", "blocks", "--range", "0-999", "--key", "k", "--json"))
    assert answer(trace("trigger", "pools/blocks", "--range", "0-999", "--key", "k", "--json"))["duplicate"]
    assert "trigger_conflict" in trace("trigger", "pools/blocks", "--range", "0-9", "--key", "k").err
    (task_id,) = first["tasks"]
    assert task_id in trace("tasks", "--job", "pools/prices", "--status", "Queued", "--since", "1h").out
    say(harness, task_id, "Failed", error_message="no such block", retryable=False)
    assert answer(trace("dags", "--json"))["dags"][0]["failed_tasks"] == 1
    shown = trace("tasks", task_id).out
    assert "no such block" in shown
    assert f"trace retry {task_id}" in shown
    assert trace("trigger", "pools/blocks", "--range", "0-999", "--key", "k", "--wait").status == 1

    assert "will run again" in trace("retry", task_id).out
    assert "task_not_failed" in trace("skip", task_id).err
    say(harness, task_id, "Completed")
    done = trace("trigger", "pools/blocks", "--range", "0-999", "--key", "k", "--wait")
    assert (done.status, done.err) == (0, "")
    assert "1 done, 0 open, 0 failed" in done.out

    assert "pools__blocks_0" in trace("datasets").out
    assert "pools/prices" in trace("datasets", "pools__blocks_0").out
    assert "0-999" in trace("lineage", "pools__blocks_0", "--range", "5-6").out
    assert "The dataset has no such unit." in trace("lineage", "pools__blocks_0", "--range", "5000-6000").out
    assert "0-999" in trace("events", "--dataset", "pools__blocks_0").out
    assert "acme" in trace("whoami").out
    for view in ("dags", "dags pools", "jobs pools", "tasks", "events", "datasets", "audit", f"tasks {task_id}"):
        assert answer(trace(*view.split(), "--json")), view
        assert trace(*view.split(), columns=60).status == 0, view
    assert "pools" in trace("audit").out


def test_a_changed_dag_is_built_beside_the_active_one(trace: Trace, harness: DispatcherHarness) -> None:
    deployed(trace)
    (old,) = answer(trace("trigger", "blocks", "--range", "0-9", "--json"))["tasks"]
    assert "cancelled." in trace("cancel", old).out
    assert "was already cancelled." in trace("cancel", old).out
    building = trace("deploy", "-", "--no-wait", stdin=DAG.format(seconds=2).encode())
    assert "is being built" in building.out
    assert "~ prices  changed" in building.out
    versions = answer(trace("dags", "pools", "--json"))["versions"]
    assert [row["state"] for row in versions] == ["Building", "Active"]
    while harness.run(harness.dispatcher.drain.run_once()):
        pass
    tasks = answer(trace("tasks", "--status", "Queued", "--json"))["tasks"]
    for task in tasks:
        say(harness, task["task_id"], "Completed")
    run_builds(harness)
    versions = answer(trace("dags", "pools", "--json"))["versions"]
    assert [row["state"] for row in versions] == ["Active", "Inactive"]
    back = trace("rollback", "pools")
    assert (back.status, back.err) == (0, "")
    assert "Version 1 of pools is active." in back.out
    assert "dag_version_not_found" in trace("rollback", "pools", "--to", "9").err


def test_errors_of_a_document_have_their_places(trace: Trace, harness: DispatcherHarness) -> None:
    text = DAG.format(seconds=1).replace("operator: sleep", "opertor: sleep").replace("job: blocks", "job: block")
    ended = trace("deploy", "-", stdin=text.encode())
    assert (ended.status, ended.out) == (1, "")
    assert "<stdin>:9:5: error[unknown_field] jobs[1].opertor: " in ended.err
    assert "    9 |     opertor: sleep\n      |     ^^^^^^^\n" in ended.err
    assert "error[unknown_job]" in ended.err
    error = json.loads(trace("deploy", "-", "--json", stdin=text.encode()).out)["error"]
    problems = error["details"]["problems"]
    assert {problem["code"] for problem in problems} >= {"unknown_field", "unknown_job"}
    for broken in (b"", b"[", b"\xff", b"name: other\n", b"- x", b"name: Not A Name\njobs: []"):
        ended = trace("deploy", "-", stdin=broken)
        assert (ended.status, ended.out) == (1, ""), broken
        assert "error[" in ended.err, broken


def test_what_is_not_there_is_one_line(trace: Trace) -> None:
    missing = "01890000-0000-7000-8000-000000000001"
    for words in ("dags nope", "jobs nope", "datasets nope", "lineage nope", f"tasks {missing}", "rollback nope"):
        ended = trace(*words.split())
        assert (ended.status, ended.out) == (1, ""), words
        assert "not_found: " in ended.err, words
