"""Errors for people: each thing is said once, and commands are named."""

import pytest

from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tracelake.cli.error_text import error_line
from tracelake.cli.query_runner import QueryRunner
from tracelake.cli.query_shell import QueryShell, ShellSettings
from tracelake.cli.session import Session
from tracelake.errors import CATALOGUE, TraceError

REMOVED = (
    "The dataset swaps was removed with the DAG pools on 2026-03-02 12:00 UTC. "
    "Restore it with `trace remove --undo pools`, or delete it for good: `trace remove --purge pools`."
)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("dataset_removed", REMOVED),
        ("dag_removed", REMOVED.replace("dataset swaps", "DAG pools")),
        ("dag_removed", "The DAG pools is being deleted. Its names are free then: see `trace remove --list`."),
        ("dag_not_removed", "The DAG pools is not removed: `trace remove pools` first."),
    ],
)
def test_a_message_with_the_commands_stands_alone(code: str, message: str) -> None:
    assert error_line(TraceError(code, message)) == f"{code}: {message}"


def test_other_messages_have_the_remedy() -> None:
    for code, message in (("dag_removed", "The DAG pools was removed."), ("dataset_not_found", "No `trace`.")):
        assert error_line(TraceError(code, message)) == f"{code}: {message} {CATALOGUE[code].remedy}"


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_query_of_a_removed_dataset_says_so(
    api: FakeApi, trace: Trace, capsys: pytest.CaptureFixture[str], is_removed: bool
) -> None:
    code = "dataset_removed" if is_removed else "dataset_not_found"
    api.answers["GET /v1/datasets/swaps"] = TraceError(code, REMOVED if is_removed else None)
    unknown = TraceError("query_unknown_relation", "Unknown.", line=1, column=15, name="swaps", suggestions=["caps"])
    session = Session(api.home)
    with QueryRunner(session) as runner:
        QueryShell(session, runner, ShellSettings()).show_error(unknown, "SELECT * FROM swaps")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: query_unknown_relation: " + (REMOVED if is_removed else "Unknown.")
    assert (lines[-1] == "Similar names: caps") is not is_removed
    for name in ("a.b", "../x", None):
        other = TraceError("query_unknown_relation", "Unknown.", name=name)
        with QueryRunner(session) as runner:
            QueryShell(session, runner, ShellSettings()).show_error(other, "SELECT * FROM x")
    assert len(api.calls) == 1, "only a name of a dataset is asked for"
