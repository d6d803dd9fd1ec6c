"""`trace status` counts the work of the caller's org, and works as well without a Dispatcher that answers."""

import json
from pathlib import Path

import pytest

from tests.cli import samples
from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tracelake.cli.work_summary import WorkSummary, read_work, work_lines
from tracelake.client.stack import find_stack
from tracelake.errors import TraceError
from tracelake.stack import lock, probe
from tracelake.wire.dags import DagsReply


@pytest.fixture(autouse=True)
def _running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "holder", lambda _: 4242)
    monkeypatch.setattr(probe, "answers", lambda *_: True)
    monkeypatch.setattr(probe, "readiness", lambda *_: probe.Readiness(answers=True, ready=True))


def test_what_needs_attention_is_counted_over_all_dags(trace: Trace, api: FakeApi) -> None:
    first = samples.dags("pools", open_tasks=5, failed_tasks=2, failed_building=1, gaps=3)
    second = samples.dags("flows", open_tasks=1, failed_tasks=0, dead_letters=2)
    api.answers["GET /v1/dags"] = DagsReply(dags=[*first.dags, *second.dags])
    shown = trace("status")
    assert shown.status == 0
    assert "Ready.\nWork: 2 DAGs, 6 open tasks, 3 failed tasks, 3 gaps, 2 refused batches.\n" in shown.out
    assert "trace tasks --by-error" in shown.out
    assert "trace dlq list" in shown.out
    work = json.loads(trace("status", "--json").out)["work"]
    assert (work["failed_tasks"], work["gaps"], work["dead_letters"], work["error"]) == (3, 3, 2, None)


def test_nothing_to_do_is_one_line(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/dags"] = samples.dags("pools", open_tasks=0, failed_tasks=0)
    assert trace("status").out.endswith("Ready.\nWork: 1 DAG, 0 open tasks, 0 failed tasks.\n")


@pytest.mark.parametrize("code", ["role_forbidden", "credential_expired", "store_unavailable"])
def test_a_refusal_is_told_and_the_stack_is_ready(code: str, trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/dags"] = TraceError(code)
    shown = trace("status")
    assert shown.status == 0
    assert f"Work: unknown ({code}: " in shown.out


def test_without_a_dispatcher_nothing_is_asked(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "answers", lambda *_: False)
    shown = trace("status")
    assert (shown.status, api.calls) == (1, [])
    assert "Work:" not in shown.out
    assert json.loads(trace("status", "--json").out)["work"] is None


def test_a_dispatcher_that_hangs_is_not_waited_for(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelake.cli.work_summary._SECONDS", 0.0)
    assert read_work(find_stack(api.home)).error == "the Dispatcher did not answer in time"
    monkeypatch.undo()
    assert "OSError" in work_lines(WorkSummary(error="OSError: x"))[0]


def test_a_token_file_that_is_not_there_is_refused(trace: Trace, api: FakeApi, tmp_path: Path) -> None:
    assert (trace("status", "--token-file", str(tmp_path / "none")).status, api.calls) == (2, [])
