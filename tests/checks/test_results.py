"""Checks at the Dispatcher: what an attempt is given, which results are kept, and what is said of them."""

from typing import Any

import msgspec

from tests.api.support import User
from tests.support.dispatcher import fence
from tests.windows.support import WindowFlow
from tracelake.tokens.jws import unb64

DAG = """
name: c
defaults: {{runtime: ecs_platform, max_attempts: 3}}
jobs:
  - {{name: src, activation: source, source: {{kind: manual}}}}
  - {{name: tokens, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
      inputs: [{{from: {{job: src}}}}]}}
  - {{name: model, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
      inputs: [{{from: {{job: src}}}}]}}
  - {{name: after, activation: reactive, operator: spark_sql, execution_strategy: PerPartition,
      config: {{query: SELECT * FROM model}}, inputs: [{{from: {{dataset: model}}}}]}}
publish:
  tokens: {{from: {{job: tokens}}, storage: s3}}
  model: {{from: {{job: model}}, storage: s3, checks: {checks}}}
"""
CHECKS = "[{not_null: token}, {row_count: {min: 1}, severity: warn}]"
BAD = {
    "output_index": 0,
    "name": "not_null_token",
    "kind": "not_null",
    "severity": "error",
    "passed": False,
    "rows": 10,
    "offending_rows": 3,
    "message": "token is null in 3 of 10 rows",
    "sample": [{"token": None, "block_number": "7"}],
}
GOOD = BAD | {"passed": True, "offending_rows": 0, "message": "", "sample": []}
WARNED = BAD | {"name": "row_count", "kind": "row_count", "severity": "warn", "offending_rows": 0, "sample": []}
FAILURE = {
    "status": "Failed",
    "retryable": False,
    "error_code": "check_failed",
    "error_message": "check_failed: not_null_token of model: token is null in 3 of 10 rows, such as (token: null).",
}


def deploy(flow: WindowFlow, checks: str = CHECKS) -> Any:
    return flow.deploy(DAG.format(checks=checks))


def start(flow: WindowFlow, first: int = 0) -> Any:
    flow.trigger("c", "src", range={"start": first, "end": first + 9})
    return next(task["task_id"] for task in flow.tasks("model", "Queued"))


def report(flow: WindowFlow, task: Any, lease: Any, **fields: Any) -> Any:
    return flow.harness.task("complete", lease["capability_token"], fence(str(task), lease, **fields))


def granted(token: str) -> set[str]:
    claims = msgspec.json.decode(unb64(token.split(".")[1]))
    return {grant["name"] for grant in claims["datasets"]}


def stored(flow: WindowFlow) -> list[tuple[Any, ...]]:
    rows = flow.harness.sql("SELECT attempt, name, passed, unit FROM check_results ORDER BY checked_at, attempt, name")
    return [tuple(row) for row in rows]


def test_a_failed_check_commits_nothing_and_says_why(flow: WindowFlow) -> None:
    deploy(flow)
    task = start(flow)
    lease = flow.claim(task)
    assert [check["name"] for check in lease["task"]["checks"]] == ["not_null_token", "row_count"]
    reply = report(flow, task, lease, **FAILURE, checks=[BAD, WARNED])
    assert (reply.status, reply.body["status"]) == (200, "Failed")
    assert stored(flow) == [(1, "not_null_token", False, "p:0-9"), (1, "row_count", False, "p:0-9")]
    again = report(flow, task, lease, **FAILURE, checks=[GOOD | {"passed": False}])
    assert again.body["duplicate"]
    assert len(stored(flow)) == 2
    assert flow.rows("model") == {}
    assert flow.tasks("after") == []
    user = User(flow.harness, flow.org)
    why = user.get(f"/v1/why/task/{task}")
    (reason,) = [item for item in why["reasons"] if item["code"] == "check_failed"]
    assert "not_null_token of model: token is null in 3 of 10 rows, such as (token: null)" in reason["text"]
    assert reason["steps"][0]["command"] == "trace checks model"
    assert {"kind": "dataset", "id": "model"} in reason["references"]
    why = user.get("/v1/why/dataset/model")
    assert why["state"] == "blocked"
    assert "not_null_token" in why["summary"]
    checks = {check["name"]: check for check in user.get("/v1/checks?dataset=model")["checks"]}
    assert (checks["not_null_token"]["state"], checks["row_count"]["state"]) == ("failed", "warned")
    assert checks["not_null_token"]["sample"] == BAD["sample"]
    assert user.get("/v1/datasets/model")["checks"] == list(checks.values())


def test_a_corrected_unit_goes_on(flow: WindowFlow) -> None:
    deploy(flow)
    task = start(flow)
    report(flow, task, flow.claim(task), **FAILURE, checks=[BAD])
    flow.person("retry", task)
    lease = flow.claim(task)
    finish = flow.complete
    flow.complete = lambda *args, **fields: finish(*args, **fields, checks=[GOOD, WARNED])  # type: ignore[method-assign]
    flow.finish(task, "rows", lease)
    assert flow.rows("model") == {(0, 9): "rows"}
    assert len(flow.tasks("after")) == 1
    user = User(flow.harness, flow.org)
    checks = {check["name"]: check["state"] for check in user.get("/v1/checks")["checks"]}
    assert checks == {"not_null_token": "passed", "row_count": "warned"}
    results = user.get("/v1/datasets/model/check-results")["results"]
    assert [(item["name"], item["passed"], item["attempt"]) for item in results[2:]] == [("not_null_token", False, 1)]
    failed = user.get("/v1/datasets/model/check-results?failed=true&check=not_null_token")["results"]
    assert [item["unit"] for item in failed] == ["0-9"]
    pages: list[list[tuple[str, int]]] = []
    until: str | None = ""
    while until is not None:
        page = user.get(f"/v1/datasets/model/check-results?limit=1{until and f'&until={until}'}")
        pages.append([(item["name"], item["attempt"]) for item in page["results"]])
        until = page.get("next")
    assert [item for page in pages for item in page] == [(item["name"], item["attempt"]) for item in results]
    assert len(pages) > 2
    newest = results[0]["checked_at"]
    since = user.get(f"/v1/datasets/model/check-results?since={newest}")["results"]
    assert since == [item for item in results if item["checked_at"] == newest]


def test_results_that_are_refused(flow: WindowFlow) -> None:
    deploy(flow)
    task = start(flow)
    lease = flow.claim(task)
    refused: list[tuple[dict[str, Any], int]] = [
        ({"status": "Completed", "checks": [BAD]}, 422),
        ({**FAILURE, "checks": [GOOD]}, 422),
        ({**FAILURE, "retryable": True, "checks": [BAD]}, 422),
        ({"status": "Completed", "checks": [GOOD | {"output_index": 7}]}, 403),
        ({"status": "Completed", "checks": [GOOD, GOOD]}, 403),
        ({"status": "Completed", "checks": [GOOD | {"sample": [{"a": "b"}] * 6}]}, 422),
        ({"status": "Completed", "checks": [GOOD | {"sample": [{"a": "b" * 201}]}]}, 422),
    ]
    for fields, status in refused:
        assert report(flow, task, lease, **fields).status == status, fields
    stale = {**lease, "lease_token": "00000000-0000-4000-8000-000000000000"}
    assert report(flow, task, stale, status="Completed", checks=[GOOD]).status == 409
    assert stored(flow) == []


def test_only_checks_change(flow: WindowFlow) -> None:
    """Nothing is rebuilt, and a unit that failed by the old check is retried by the new one."""
    deploy(flow)
    task = start(flow)
    report(flow, task, flow.claim(task), **FAILURE, checks=[BAD])
    plan = deploy(flow, "[{not_null: token, severity: warn, name: lenient}]").plan
    assert [(job.job, job.change) for job in plan.jobs if job.change != "unchanged"] == [("model", "limits")]
    assert plan.rebuild_tasks == 0
    assert not plan.needs_build
    assert "Checks of model change: they apply from the next computation on" in " ".join(plan.notes)
    flow.person("retry", task)
    assert [check["name"] for check in flow.claim(task)["task"]["checks"]] == ["lenient"]


def test_what_checks_read_is_granted_and_pinned(flow: WindowFlow) -> None:
    checks = (
        "[{relationship: {column: token, to: {dataset: tokens, column: token}}}, {unique: log_index, scope: dataset}]"
    )
    deploy(flow, checks)
    flow.commit_source("c", "tokens", 0, 9, "first")
    flow.finish(next(item["task_id"] for item in flow.tasks("model", "Queued")), "unit 0-9")
    flow.commit_source("c", "tokens", 10, 19, "second")
    task = next(item["task_id"] for item in flow.tasks("model", "Queued"))
    lease = flow.claim(task)
    references = {item["name"]: item for item in lease["task"]["references"]}
    assert {item["input_index"] for item in references.values()} == {1000, 1001}
    flow.commit_source("c", "tokens", 20, 29, "too late")
    assert flow.read(task, lease, references["tokens"]) == ["first", "second"]
    assert flow.read(task, lease, references["model"]) == ["unit 0-9"]
    assert granted(lease["capability_token"]) >= {"tokens", "model"}
    renewed = flow.harness.worker("POST", "/internal/task-token", fence(str(task), lease)).body["capability_token"]
    assert granted(renewed) == granted(lease["capability_token"])
    flow.finish(task, "unit 10-19", lease)
    flow.trigger("c", "model", range={"start": 0, "end": 9})
    again = next(item["task_id"] for item in flow.tasks("model", "Queued") if item["unit_key"] == "p:0-9")
    lease = flow.claim(again)
    (own,) = [item for item in lease["task"]["references"] if item["name"] == "model"]
    assert flow.read(again, lease, own) == ["unit 10-19"], "what a unit replaces is not compared with it"


def test_freshness(flow: WindowFlow) -> None:
    flow.harness.use_movable_clock()
    deploy(flow, "[{freshness: {max_age: 2h}}]")
    task = start(flow)
    assert flow.claim(task)["task"].get("checks", []) == []
    user = User(flow.harness, flow.org)

    def state() -> str:
        (check,) = user.get("/v1/checks")["checks"]
        return str(check["state"])

    assert state() == "passed"
    flow.harness.advance(7_300)
    assert state() == "failed"
    why = user.get("/v1/why/dataset/model")
    (reason,) = [item for item in why["reasons"] if item["code"] == "not_fresh"]
    assert "nothing was committed for 2h, expected at most 2h" in reason["text"]
    assert {item["code"] for item in why["reasons"]} == {"not_fresh", "tasks_unheard"}, "a task explains it"
    flow.harness.run(flow.harness.dispatcher.gauges.run_once())
    page = flow.harness.service("GET", "/metrics").body
    assert 'trace_dataset_late_seconds{dataset="model",org="acme"}' in str(page)


def test_freshness_of_data(flow: WindowFlow) -> None:
    """The newest block is judged, whenever it was committed; both times are shown."""
    flow.harness.use_movable_clock()
    now = int(flow.harness.sql("SELECT trace_now() AS now")[0]["now"].timestamp())
    flow.times = lambda _start, end: (now - 7_200, now - 3_600 if end < 10 else 2**32 - 1)
    deploy(flow, "[{freshness: {max_age: 2h}}, {freshness: {max_age: 2h, of: data}, severity: warn}]")
    user = User(flow.harness, flow.org)

    def checks() -> dict[str, Any]:
        return {check["name"]: check for check in user.get("/v1/checks")["checks"]}

    assert {name: check["state"] for name, check in checks().items()} == {
        "freshness": "passed",
        "freshness_data": "passed",
    }
    flow.harness.advance(3_700)
    flow.finish(start(flow), "rows")
    check = checks()["freshness_data"]
    assert (check["state"], check["expected"]) == ("warned", "newest block at most 2h old")
    assert check["message"].startswith("the newest block is 2h old, expected at most 2h; the newest commit is ")
    assert check["age_seconds"] >= 7_300
    assert check["data_at"] < check["committed_at"]
    assert checks()["freshness"]["state"] == "passed"
    why = user.get("/v1/why/dataset/model")
    assert [item["code"] for item in why["reasons"]] == ["source_late"], "nothing is fine beside it"
    assert why["state"] == "blocked"
    assert "The check freshness_data fails: the newest block is 2h old" in why["summary"]
    assert "Its last event was" in why["summary"]
    commands = [step["command"] for step in why["reasons"][0]["steps"]]
    assert commands == ["trace sources --dag c", "trace checks model"]
    flow.harness.run(flow.harness.dispatcher.gauges.run_once())
    page = str(flow.harness.service("GET", "/metrics").body)
    assert 'trace_dataset_late_seconds{dataset="model",org="acme"} 1' in page
    flow.finish(start(flow, 10), "rows of a window that is not over")
    newest = checks()["freshness_data"]
    assert newest["data_at"] == newest["committed_at"]
    flow.harness.run(flow.harness.dispatcher.gauges.run_once())
    assert "trace_dataset_late_seconds{" not in str(flow.harness.service("GET", "/metrics").body)


def test_freshness_of_data_without_times(flow: WindowFlow) -> None:
    flow.harness.use_movable_clock()
    flow.times = None
    deploy(flow, "[{freshness: {max_age: 2h, of: data}}]")
    flow.harness.advance(7_300)
    flow.finish(start(flow), "rows")
    (check,) = User(flow.harness, flow.org).get("/v1/checks")["checks"]
    assert check["state"] == "failed"
    assert check["message"].startswith("no unit has the time of a block, expected at most 2h")


def test_a_result_of_another_rule_is_not_shown_beside_the_new_one(flow: WindowFlow) -> None:
    flow.harness.use_movable_clock()
    range_check = "[{{range: {{column: log_index, min: 0, max: {most}}}, name: bounds, severity: {severity}}}]"
    result = BAD | {
        "name": "bounds",
        "kind": "range",
        "severity": "warn",
        "message": "log_index is not 0 to 15",
        "sample": [],
    }
    finish = flow.complete
    flow.complete = lambda *args, **fields: finish(*args, **fields, checks=[result])  # type: ignore[method-assign]
    user = User(flow.harness, flow.org)

    def check() -> tuple[str, str, int]:
        (item,) = user.get("/v1/checks")["checks"]
        return item["state"], item.get("message", ""), item.get("units", 0)

    deploy(flow, range_check.format(most=15, severity="warn"))
    flow.finish(start(flow), "rows")
    slow = start(flow, 10)
    lease = flow.claim(slow)
    flow.harness.advance(10)
    assert deploy(flow, range_check.format(most=15, severity="error")).state == "Active"
    assert check() == ("failed", "log_index is not 0 to 15", 1), "the rule is the same"
    flow.harness.advance(10)
    deploy(flow, range_check.format(most=60, severity="warn"))
    assert check() == ("unknown", "not evaluated since it changed", 0)
    flow.harness.advance(10)
    flow.finish(slow, "rows", lease)
    assert check() == ("unknown", "not evaluated since it changed", 0), "the attempt had the rule of before"
    result |= {"message": "log_index is not 0 to 60"}
    flow.finish(start(flow, 20), "rows")
    assert check() == ("warned", "log_index is not 0 to 60", 1)
    deploy(flow, range_check.format(most=15, severity="warn"))
    assert check()[0] == "unknown", "the rule of before again: what was evaluated since is of another"


def test_a_unit_that_fails_is_shown_until_its_generation_is_replaced(flow: WindowFlow) -> None:
    deploy(flow)
    task = start(flow)
    report(flow, task, flow.claim(task), **FAILURE, checks=[BAD])
    finish = flow.complete
    flow.complete = lambda *args, **fields: finish(*args, **fields, checks=[GOOD])  # type: ignore[method-assign]
    flow.finish(start(flow, 10), "rows")
    user = User(flow.harness, flow.org)

    def check() -> Any:
        return next(item for item in user.get("/v1/checks")["checks"] if item["name"] == "not_null_token")

    shown = check()
    assert (shown["state"], shown["unit"], shown["message"]) == ("failed", "0-9", BAD["message"])
    assert (shown["units"], shown["failing_units"]) == (2, 1)
    flow.harness.sql("UPDATE check_results SET dataset_version = gen_random_uuid()")
    assert check()["state"] == "unknown"


def test_units_that_are_windows_of_time_are_shown_by_their_date(flow: WindowFlow) -> None:
    deploy(flow)
    task = start(flow)
    report(flow, task, flow.claim(task), **FAILURE, checks=[BAD])
    flow.harness.sql("UPDATE check_results SET unit = 'p:86400-172799'")
    flow.harness.sql("UPDATE dataset_versions SET units = $1::json", '{"by": "time", "grain": "day"}')
    user = User(flow.harness, flow.org)
    assert user.get("/v1/datasets/model/check-results")["results"][0]["unit"] == "1970-01-02"
    assert "1970-01-02" in [check.get("unit") for check in user.get("/v1/checks")["checks"]]
    reply = flow.harness.service("POST", "/internal/check-results", {"org": flow.org})
    assert [result["unit"] for result in reply.body["results"]] == ["1970-01-02"]


def test_another_org_sees_nothing(flow: WindowFlow) -> None:
    deploy(flow)
    task = start(flow)
    report(flow, task, flow.claim(task), **FAILURE, checks=[BAD])
    other = User(flow.harness, "other")
    assert other.get("/v1/checks")["checks"] == []


def test_old_results_are_deleted(flow: WindowFlow) -> None:
    deploy(flow)
    task = start(flow)
    report(flow, task, flow.claim(task), **FAILURE, checks=[BAD])
    flow.harness.sql("UPDATE check_results SET checked_at = trace_now() - interval '91 days'")
    flow.harness.run(flow.harness.dispatcher.retention.run_round())
    assert stored(flow) == []
