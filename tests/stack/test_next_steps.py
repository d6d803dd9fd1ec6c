"""What `trace up` says once it is ready, on a stack with and without DAGs."""

from pathlib import Path

import pytest

from tests.support.postgres import TestCluster, run
from tracelake.processes.next_steps import find_next_steps, list_next_steps
from tracelake.settings import Settings


def test_a_new_stack_is_shown_how_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACE_HOME", raising=False)
    assert list_next_steps(Path("~/.trace").expanduser(), has_dags=False) == [
        "`trace init DIRECTORY` makes a project to start from",
        "`trace deploy FILE` deploys its DAG",
    ]


def test_a_stack_with_dags_is_shown_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACE_HOME", raising=False)
    steps = list_next_steps(Path("/a home"), has_dags=True)
    assert steps[0] == "`trace top --home '/a home'` shows the work"
    assert steps[1] == "`trace datasets --home '/a home'` lists the data"
    monkeypatch.setenv("TRACE_HOME", "/a home")
    assert list_next_steps(Path("/a home"), has_dags=True)[0] == "`trace top` shows the work"


def test_the_state_tells_which(cluster: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dsns = {"state_dsn": cluster.fresh("state"), "queue_dsn": cluster.fresh("queue")}
    assert "init" in run(find_next_steps(Settings.load({"home": tmp_path, **dsns}, environ={})))[0]
    away = dict.fromkeys(dsns, "postgresql://u@127.0.0.1:1/x")
    assert "init" in run(find_next_steps(Settings.load({"home": tmp_path, **away}, environ={})))[0]
    monkeypatch.setattr("tracelake.processes.next_steps._HAS_DAGS", "SELECT true")
    assert "top" in run(find_next_steps(Settings.load({"home": tmp_path, **dsns}, environ={})))[0]
