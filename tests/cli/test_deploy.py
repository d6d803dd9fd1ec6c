"""`trace deploy` and `trace rollback`: plans, builds until they count, and documents with errors."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli import samples
from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tests.cli.samples import EVIL, version, versions
from tracelake.cli.diagnostics import problem_lines
from tracelake.errors import TraceError
from tracelake.model.dag import Problem
from tracelake.wire.base import ErrorBody
from tracelake.wire.dags import (
    BuildProgress,
    DatasetChange,
    DeployReply,
    InvalidDag,
    JobChange,
    JobRebuild,
    ReaderRebuild,
    TextChange,
)
from tracelake.wire.failures import ErrorGroup, FailuresReply
from tracelake.wire.tasks import TasksPage

VERSIONS = "/v1/dags/pools/versions"
DOCUMENT = b"name: pools\njobs: []\n"


@pytest.fixture
def document(tmp_path: Path) -> str:
    path = tmp_path / "some-file.yaml"
    path.write_bytes(DOCUMENT)
    return str(path)


@pytest.fixture(autouse=True)
def _nothing_retries(api: FakeApi) -> None:
    api.answers["GET /v1/tasks"] = TasksPage(tasks=[])


def build(done: int, open_: int, failed: int = 0, draining: int = 0) -> Any:
    progress = BuildProgress(done=done, open=open_, failed=failed, draining_edges=draining)
    return versions(version(4, "Building", build=progress), version(3, "Active"))


def test_a_deploy_shows_its_plan_and_what_happened(trace: Trace, api: FakeApi, document: str) -> None:
    api.answers[f"POST {VERSIONS}"] = samples.deployed()
    shown = trace("deploy", document)
    assert (shown.status, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert "~ prices  changed  config.size: 1000 -> 2000, upstream" in lines
    assert "* slow    limits   timeout_seconds" in lines
    assert "^ older       restored  fresh[1]" in lines
    assert [line[0] for line in lines[1:5]] == ["~", "+", "*", "-"]
    assert "1 job unchanged." in lines
    assert "Read by other DAGs: reports/daily" in lines
    assert lines[-2:] == ["Version 4 of pools is active.", "see its jobs and sources: trace jobs pools"]
    assert api.calls[0].body == DOCUMENT
    assert api.calls[0].query == {"dry_run": "false", "activate": "true"}


@pytest.mark.parametrize("columns", [80, 200])
def test_a_plan_shows_the_diff_of_a_query_and_what_is_made_anew(
    columns: int, trace: Trace, api: FakeApi, document: str
) -> None:
    text = TextChange(field="config.query", diff=["@@ -1,2 +1,2 @@", " SELECT a", f"-FROM {EVIL}", "+FROM c"], more=3)
    reply = samples.deployed()
    jobs = [JobChange(job="flows", change="changed", fields=["config"], texts=[text])]
    rebuilds = [JobRebuild(job="flows", units=4), JobRebuild(job="totals", units=10_000, more=True)]
    plan = msgspec.structs.replace(reply.plan, jobs=jobs, rebuilds=rebuilds, rebuild_tasks=10_004)
    api.answers[f"POST {VERSIONS}"] = msgspec.structs.replace(reply, plan=plan)
    shown = trace("deploy", document, "--plan", columns=columns)
    lines = shown.out.splitlines()
    assert "~ flows  changed  config.query (below)" in lines
    start = lines.index("flows: config.query")
    assert lines[start + 1 : start + 3] == ["  @@ -1,2 +1,2 @@", "   SELECT a"]
    assert lines[start + 4 : start + 6] == ["  +FROM c", "  ... 3 lines more"]
    words = " ".join(shown.out.split())
    assert "Rebuilds 4 units of flows and more than 10000 units of totals: more than 10004 tasks from what" in words
    assert "\x1b" not in shown.out


def test_a_plan_computes_what_is_new_and_says_what_it_estimates(trace: Trace, api: FakeApi, document: str) -> None:
    rebuilds = [
        JobRebuild(job="daily", units=4),
        JobRebuild(job="failures", units=102, about=True, added=True),
        JobRebuild(job="top", units=4, about=True, added=True),
    ]
    for more, words in (
        ([], "Computes about 102 units of failures and about 4 units of top: about 106 tasks from what is"),
        (
            [JobRebuild(job="x", units=0, unknown=True, added=True)],
            "about 4 units of top and an unknown number of units of x: more than 106 tasks from what is committed now.",
        ),
    ):
        reply = samples.deployed()
        plan = msgspec.structs.replace(reply.plan, rebuilds=[*rebuilds, *more])
        api.answers[f"POST {VERSIONS}"] = msgspec.structs.replace(reply, plan=plan)
        shown = " ".join(trace("deploy", document, "--plan").out.split())
        assert "Rebuilds 4 units of daily: 4 tasks from what is committed now." in shown
        assert words in shown


def test_a_plan_counts_what_other_dags_compute(trace: Trace, api: FakeApi, document: str) -> None:
    readers = [
        ReaderRebuild(dag="reports", job="weekly", units=2, about=True),
        ReaderRebuild(dag="reports", job="copy", units=4, stale=True),
    ]
    api.answers[f"POST {VERSIONS}"] = samples.deployed(readers=readers, reader_tasks=2)
    lines = trace("deploy", document, "--plan").out.splitlines()
    assert "The cutover computes in other DAGs: about 2 units of reports/weekly: about 2 tasks." in lines
    assert "Stale after the cutover, until you rebuild them: 4 units of reports/copy." in lines
    assert "rebuild the units of one: trace rebuild reports/copy" in lines
    api.answers[f"POST {VERSIONS}"] = samples.deployed(reader_tasks=2)  # of DAGs that the token may not know
    lines = trace("deploy", document, "--plan").out.splitlines()
    assert "The cutover computes in other DAGs: 2 tasks." in lines


def test_a_plan_breaks_no_name_on_a_narrow_terminal(trace: Trace, api: FakeApi, document: str) -> None:
    names = [f"a_rather_long_name_of_a_job_{number}" for number in range(3)]
    api.answers[f"POST {VERSIONS}"] = samples.deployed(
        jobs=[JobChange(job=name, change="changed", fields=["config"]) for name in names],
        datasets=[
            DatasetChange(dataset=f"pools__{name}_0", change="rebuilt", job=name, because=f"{name} differs")
            for name in names
        ],
    )
    shown = trace("deploy", document, columns=60).out
    for name in names:
        assert f"~ {name}" in shown
        assert f"~ pools__{name}_0" in shown
        assert f"{name} differs" in " ".join(shown.split())


def test_the_document_may_come_through_a_pipe(trace: Trace, api: FakeApi) -> None:
    api.answers[f"POST {VERSIONS}"] = samples.deployed()
    shown = trace("deploy", "-", "--json", stdin=DOCUMENT)
    assert msgspec.json.decode(shown.out, type=DeployReply) == samples.deployed()
    assert api.calls[0].body == DOCUMENT


@pytest.mark.parametrize(
    ("state", "options", "changes", "query", "text"),
    [
        ("Planned", ["--plan"], {}, {"dry_run": "true", "activate": "true"}, "first be built beside the active one"),
        ("Planned", ["--plan"], {"needs_build": False}, {"dry_run": "true", "activate": "true"}, "active at once"),
        ("Planned", ["--plan"], {"changes": False}, {"dry_run": "true", "activate": "true"}, "Nothing would change"),
        ("Active", [], {"changes": False}, {"dry_run": "false", "activate": "true"}, "Nothing changed"),
        ("Created", ["--no-activate"], {}, {"dry_run": "false", "activate": "false"}, "trace activate pools 4"),
        ("Building", ["--no-wait"], {}, {"dry_run": "false", "activate": "true"}, "trace dags pools --watch"),
    ],
)
def test_every_outcome_has_its_sentence(
    state: str, options: list[str], changes: Any, query: Any, text: str, trace: Trace, api: FakeApi, document: str
) -> None:
    api.answers[f"POST {VERSIONS}"] = samples.deployed(state, **changes)
    shown = trace("deploy", document, *options)
    assert (shown.status, shown.err) == (0, "")
    assert text in shown.out
    assert api.calls[0].query == query
    assert len(api.calls) == 1
    as_json = trace("deploy", document, "--json", *options)
    assert msgspec.json.decode(as_json.out, type=DeployReply) == samples.deployed(state, **changes)


def test_a_build_is_watched_until_it_is_active(trace: Trace, api: FakeApi, document: str) -> None:
    finished = versions(version(4, "Active"), version(3, "Inactive"))
    away = TraceError("store_unavailable")
    steps = [build(0, 5, draining=2), away, build(3, 2), finished]
    api.answers |= {f"POST {VERSIONS}": samples.deployed("Building"), f"GET {VERSIONS}": [*steps]}
    shown = trace("deploy", document)
    assert (shown.status, shown.err) == (0, "")
    for text in ("0 done, 5 open, 0 failed, 2 inputs still reading", "3 done, 2 open", "does not answer right now"):
        assert text in shown.out
    assert "finished" in shown.out
    assert "Version 4 of pools is active." in shown.out
    api.answers[f"GET {VERSIONS}"] = [*steps]
    as_json = trace("deploy", document, "--json")
    assert as_json.status == 0
    assert msgspec.json.decode(as_json.out, type=DeployReply) == samples.deployed("Active")
    assert "3 done, 2 open" in as_json.err


def test_what_waits_for_a_retry_is_said(trace: Trace, api: FakeApi, document: str) -> None:
    at = samples.NOW + timedelta(seconds=38)
    rows = [samples.task_row(1, status="Failed", next_retry_at=at, error="SleepFailedError: no\nmore")]
    api.answers |= {f"POST {VERSIONS}": samples.deployed("Building"), "GET /v1/tasks": TasksPage(tasks=rows)}
    api.answers[f"GET {VERSIONS}"] = [build(0, 1), versions(version(4, "Active"))]
    assert f"1 task waits for a retry at {at:%H:%M:%S}Z: SleepFailedError: no\n" in trace("deploy", document).out
    assert api.asked("/v1/tasks")[0].query["status"] == "Retrying"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_build_that_cannot_finish_ends_with_what_to_do(
    as_json: bool, trace: Trace, api: FakeApi, document: str
) -> None:
    steps = [build(1, 1, failed=2), build(2, 0, failed=2, draining=1), build(3, 0, failed=2)]
    error = "NonSense: column `x` not found\n" + "y" * 300
    group = ErrorGroup(error=error, tasks=2, jobs=["pools/prices"], task_id=samples.TASK)
    failures = FailuresReply(now=samples.NOW, tasks=2, grouped=2, groups=[group])
    api.answers |= {f"POST {VERSIONS}": samples.deployed("Building"), f"GET {VERSIONS}": steps}
    api.answers["GET /v1/task-failures"] = failures
    shown = trace("deploy", document, *(["--json"] if as_json else []))
    assert shown.status == 1
    people = shown.err if as_json else shown.out
    assert "cannot finish: 2 tasks failed (no retries left)" in people
    assert "2 tasks of pools/prices, same error:\n  NonSense: column `x` not found\n  " + "y" * 300 in people
    assert api.asked("/v1/task-failures")[0].query == {"dag": "pools", "version": "4"}
    assert "trace tasks --dag pools --version 4 --status Failed" in people
    assert "trace retry --dag pools --version 4 --failed" in people
    assert "trace skip --dag pools --version 4 --failed" in people
    assert "trace activate pools 4 --now" in people
    assert "2 done" in people, "what can still go on is waited for"
    assert "3 done" in people
    if as_json:
        assert msgspec.json.decode(shown.out, type=DeployReply).state == "Building"


@pytest.mark.parametrize(
    "rows", [versions(version(4, "Inactive"), version(5, "Active")), versions(version(5, "Active"))]
)
def test_a_build_that_was_given_up_is_said(rows: Any, trace: Trace, api: FakeApi, document: str) -> None:
    api.answers |= {f"POST {VERSIONS}": samples.deployed("Building"), f"GET {VERSIONS}": rows}
    shown = trace("deploy", document)
    assert shown.status == 1
    assert "abandoned" in shown.out
    assert "trace dags pools" in shown.out


def test_a_dispatcher_that_stays_away_ends_the_wait(trace: Trace, api: FakeApi, document: str) -> None:
    api.answers |= {
        f"POST {VERSIONS}": samples.deployed("Building"),
        f"GET {VERSIONS}": TraceError("store_unavailable"),
    }
    shown = trace("deploy", document)
    assert shown.status == 1
    assert shown.err.startswith("error: store_unavailable: ")


def test_many_short_outages_are_no_long_one(trace: Trace, api: FakeApi, document: str) -> None:
    steps = [TraceError("store_unavailable"), build(1, 1)] * 70
    api.answers |= {f"POST {VERSIONS}": samples.deployed("Building")}
    api.answers[f"GET {VERSIONS}"] = [*steps, versions(version(4, "Active"))]
    assert trace("deploy", document).status == 0


def test_ctrl_c_ends_the_waiting_and_not_the_build(
    trace: Trace, api: FakeApi, document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    api.answers |= {f"POST {VERSIONS}": samples.deployed("Building"), f"GET {VERSIONS}": build(1, 1)}
    monkeypatch.setattr("tracelake.cli.build_progress.progress", interrupt)
    shown = trace("deploy", document)
    assert shown.status == 1
    assert "the build goes on" in shown.out
    assert "trace dags pools --watch" in shown.out


# --- documents with errors

SOURCE = b"""name: pools
jobs:
  - name: "\xe6\x9d\xb1\xe4\xba\xac"   # wide
    opertor: noop
\tbad
"""
PROBLEMS = [
    Problem(code="yaml_syntax", message="A tab.", line=5, column=1, path=""),
    Problem(
        code="unknown_field",
        message="The field does not exist.",
        line=4,
        column=5,
        path="jobs[0].opertor",
        suggestion="Did you mean `operator`?",
    ),
    Problem(code="invalid_value", message="Not a name.", line=3, column=16, path="jobs[0].name"),
    Problem(code="missing_field", message="No `publish`.", line=99, column=1, path=""),
]


def test_errors_are_shown_as_compilers_do(trace: Trace, api: FakeApi, tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    path.write_bytes(SOURCE)
    details = msgspec.to_builtins(InvalidDag(problems=PROBLEMS))
    api.answers[f"POST {VERSIONS}"] = TraceError("dag_invalid", **details)
    shown = trace("deploy", str(path), columns=60)
    assert (shown.status, shown.out) == (1, "")
    assert shown.err.splitlines() == [
        f"{path}:3:16: error[invalid_value] jobs[0].name: Not a name.",
        '    3 |   - name: "東京"   # wide',
        "      |                  ^",
        f"{path}:4:5: error[unknown_field] jobs[0].opertor: The field does not exist. (Did you mean `operator`?)",
        "    4 |     opertor: noop",
        "      |     ^^^^^^^",
        f"{path}:5:1: error[yaml_syntax] A tab.",
        "    5 |  bad",
        "      | ^",
        f"{path}:99:1: error[missing_field] No `publish`.",
        f"4 errors in {path}; nothing was deployed.",
    ]
    as_json = trace("deploy", str(path), "--json")
    assert as_json.status == 1
    assert as_json.err.splitlines() == shown.err.splitlines()
    info = msgspec.json.decode(as_json.out, type=ErrorBody).error
    assert info.code == "dag_invalid"
    assert msgspec.convert(info.details, InvalidDag).problems == PROBLEMS


def test_errors_play_no_tricks(trace: Trace, api: FakeApi) -> None:
    problem = Problem(code=EVIL, message=EVIL, line=1, column=3, path=EVIL, suggestion=EVIL)
    api.answers["POST /v1/dags/dag/versions"] = TraceError(
        "dag_invalid", **msgspec.to_builtins(InvalidDag(problems=[problem]))
    )
    shown = trace("deploy", "-", stdin=b"[ \x1b[31m\xff]")
    assert shown.status == 1
    assert not set(shown.err) & set("\x1b\x07\x9b\u202e")
    assert shown.err.startswith("<stdin>:1:3: error[x")
    assert "1 error in <stdin>" in shown.err


def test_a_document_without_a_readable_name_goes_under_that_of_its_file(
    trace: Trace, api: FakeApi, tmp_path: Path
) -> None:
    path = tmp_path / "My-Pools.yaml"
    path.write_bytes(b"name: [")
    details = msgspec.to_builtins(InvalidDag(problems=PROBLEMS[:1]))
    api.answers["POST /v1/dags/my_pools/versions"] = TraceError("dag_invalid", **details)
    assert "error[yaml_syntax]" in trace("deploy", str(path)).err


def test_details_of_another_make_are_one_line(trace: Trace, api: FakeApi, document: str) -> None:
    api.answers[f"POST {VERSIONS}"] = TraceError("dag_invalid", problems=[{"nonsense": 1}])
    shown = trace("deploy", document)
    assert (shown.status, shown.out) == (1, "")
    assert shown.err.startswith("error: dag_invalid: ")


@pytest.mark.parametrize("column", [0, 1, 150, 300, 301, 999])
def test_of_a_long_line_the_surroundings_are_shown(column: int) -> None:
    line = "".join(f"{number:04d} " for number in range(60))
    problem = Problem(code="x", message="y", line=1, column=column, path="")
    _, quoted, mark, _ = (text.plain for text in problem_lines([problem], "f", line.encode()))
    assert len(quoted) < 180
    if 1 <= column < len(line) and line[column - 1] != " ":
        assert quoted[mark.index("^")] == line[column - 1]


def test_an_address_in_a_line_is_not_shown() -> None:
    line = '  config: {rpc: "https://user:pass@node.example/KEY", tables: [x]} # https://node.example/KEY'
    for column in range(1, len(line)):
        problem = Problem(code="x", message="y", line=1, column=column, path="")
        _, quoted, mark, _ = (text.plain for text in problem_lines([problem], "f", line.encode()))
        assert "https://***" in quoted
        assert "tables: [x]" in quoted
        assert not {"KEY", "pass"} & set(re.findall(r"\w+", quoted))
        assert mark.index("^") == column + 7


def test_a_file_that_is_not_there_is_refused(trace: Trace, api: FakeApi, tmp_path: Path) -> None:
    ended = trace("deploy", str(tmp_path / "missing.yaml"))
    assert ended.status == 2
    assert "missing.yaml" in ended.err
    assert not api.calls


# --- rollback


@pytest.mark.parametrize(
    ("options", "body"),
    [([], {"version": "previous"}), (["--to", "2"], {"version": 2}), (["--now"], {"version": "previous", "now": True})],
)
def test_rollback_says_which_version_is_active(options: list[str], body: Any, trace: Trace, api: FakeApi) -> None:
    api.answers["PUT /v1/dags/pools/active"] = samples.deployed("Active", version=2)
    shown = trace("rollback", "pools", *options)
    assert shown.status == 0
    assert "Version 2 of pools is active." in shown.out
    assert api.calls[0].json == body
    as_json = trace("rollback", "pools", "--json", *options)
    assert msgspec.json.decode(as_json.out, type=DeployReply) == samples.deployed("Active", version=2)


def test_any_version_can_be_made_active(trace: Trace, api: FakeApi) -> None:
    api.answers["PUT /v1/dags/pools/active"] = samples.deployed("Active", version=2)
    assert "Version 2 of pools is active." in trace("activate", "pools", "2", "--now").out
    assert api.calls[0].json == {"version": 2, "now": True}
    assert trace("activate", "pools").status == 2
    assert trace("activate", "pools", "0").status == 2


def test_rollback_to_a_version_that_needs_a_build_waits_or_not(trace: Trace, api: FakeApi) -> None:
    api.answers |= {
        "PUT /v1/dags/pools/active": samples.deployed("Building"),
        f"GET {VERSIONS}": [build(1, 1), versions(version(4, "Active"))],
    }
    assert "trace dags pools --watch" in trace("rollback", "pools", "--no-wait").out
    assert "Version 4 of pools is active." in trace("rollback", "pools").out


def test_rollback_of_what_is_not_there(trace: Trace, api: FakeApi) -> None:
    api.answers["PUT /v1/dags/pools/active"] = TraceError("dag_version_not_found")
    ended = trace("rollback", "pools", "--to", "9")
    assert (ended.status, ended.out) == (1, "")
    assert "trace dags NAME" in ended.err


def test_a_plan_shows_what_is_hardly_meant(trace: Trace, api: FakeApi, document: str) -> None:
    api.answers[f"POST {VERSIONS}"] = samples.deployed("Planned", notes=["prices: its queue is never full."])
    assert "Note: prices: its queue is never full." in trace("deploy", document, "--plan").out


def test_a_plan_shows_what_becomes_of_a_table(trace: Trace, api: FakeApi, document: str) -> None:
    texts = ["add the column `memo` (text)", "add an index on (memo)"]
    change = DatasetChange(dataset="alerts", change="unchanged", job="find", table=texts)
    api.answers[f"POST {VERSIONS}"] = samples.deployed("Planned", datasets=[change])
    shown = trace("deploy", document, "--plan").out
    assert "The table of alerts: add the column `memo` (text); add an index on (memo)." in shown
    assert json.loads(trace("deploy", document, "--plan", "--json").out)["plan"]["datasets"][0]["table"] == texts
