"""Commands that set tasks off or say something about them: trigger, cancel, retry, skip."""

import json
from typing import Any

import msgspec
import pytest

from tests.cli import samples
from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tests.cli.samples import EVIL, TASK, uuid
from tracelake.errors import TraceError
from tracelake.wire.dags import DagsReply
from tracelake.wire.jobs import TriggerReply
from tracelake.wire.platform import CancelReply
from tracelake.wire.tasks import RetryReply, SkipReply

TRIGGER = "POST /v1/dags/pools/jobs/blocks/trigger"
EMITTED = TriggerReply(idempotency_key="k", event_id=7, tasks=[TASK, uuid(2)])


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (["--range", "1_000-2,000"], {"range": {"start": 1000, "end": 2000}}),
        (["--cursor", "1_000"], {"cursor": 1000}),
        (["--partition", "2026-01-31", "--input", "2"], {"partition_key": "2026-01-31", "input_index": 2}),
        (["--cursor", "0", "--output", "1"], {"cursor": 0, "output_index": 1}),
    ],
)
def test_a_unit_is_said_in_one_of_three_ways(options: list[str], body: Any, trace: Trace, api: FakeApi) -> None:
    api.answers[TRIGGER] = EMITTED
    shown = trace("trigger", "pools/blocks", "--key", "k", *options)
    assert (shown.status, shown.err) == (0, "")
    assert api.calls[0].json == body | {"idempotency_key": "k"}
    assert "pools/blocks: event 7, 2 tasks." in shown.out
    assert "trace tasks --dag pools --watch" in shown.out
    as_json = trace("trigger", "pools/blocks", "--key", "k", "--json", *options)
    assert msgspec.json.decode(as_json.out, type=TriggerReply) == EMITTED


def test_a_single_task_is_named_and_a_repeat_is_said(trace: Trace, api: FakeApi) -> None:
    api.answers[TRIGGER] = TriggerReply(idempotency_key="k", task_id=TASK, duplicate=True)
    shown = trace("trigger", "pools/blocks", "--cursor", "5")
    assert f"task {TASK}" in shown.out
    assert "1 task (this key was triggered before" in shown.out


@pytest.mark.parametrize(
    "options",
    [[], ["--cursor", "1", "--range", "1-2"], ["--range", "x"], ["--cursor", "-1"], ["--cursor", "1", "--input", "64"]],
)
def test_a_unit_that_is_none_is_refused(options: list[str], trace: Trace, api: FakeApi) -> None:
    ended = trace("trigger", "pools/blocks", *options)
    assert (ended.status, ended.out) == (2, "")
    assert not api.calls


def test_the_dag_may_be_left_out_when_one_has_the_job(trace: Trace, api: FakeApi) -> None:
    rows = [samples.dags("pools"), samples.dags("other"), samples.dags("idle", active_version=None)]
    api.answers |= {
        "GET /v1/dags": DagsReply(dags=[row for reply in rows for row in reply.dags]),
        "GET /v1/dags/pools/jobs": samples.jobs("pools", "prices"),
        "GET /v1/dags/other/jobs": samples.jobs("other", "daily"),
        "POST /v1/dags/other/jobs/daily/trigger": EMITTED,
    }
    assert "other/daily: event 7" in trace("trigger", "daily", "--cursor", "1").out
    nowhere = trace("trigger", "nowhere", "--cursor", "1")
    assert nowhere.status == 1
    assert nowhere.err.startswith("error: job_not_found: No active DAG has a job named nowhere.")
    several = trace("trigger", "blocks", "--cursor", "1")
    assert several.status == 2
    assert "pools/blocks, other/blocks" in several.err
    assert not [call for call in api.calls if call.method == "POST" and "blocks" in call.path]


# --- cancel, retry, skip

ACTIONS: list[tuple[str, Any, str]] = [
    ("cancel", CancelReply(task_id=TASK, status="Canceled"), "cancelled."),
    ("cancel", CancelReply(task_id=TASK, status="Canceled", duplicate=True), "was already cancelled."),
    ("cancel", CancelReply(task_id=TASK, status="Running", cancel_requested=True), "was asked to stop"),
    ("retry", RetryReply(task_id=TASK, status="Queued", max_attempts=8), "will run again (up to attempt 8)."),
    ("retry", RetryReply(task_id=TASK, status="Queued", duplicate=True), "is Queued already."),
    ("retry", RetryReply(task_id=TASK, status="Running", duplicate=True, cancel_requested=True), "is being stopped"),
    ("skip", SkipReply(task_id=TASK, status="Failed"), "skipped."),
    ("skip", SkipReply(task_id=TASK, status="Failed", duplicate=True), "was already skipped."),
]


@pytest.mark.parametrize(("verb", "answer", "text"), ACTIONS)
def test_a_word_about_a_task(verb: str, answer: Any, text: str, trace: Trace, api: FakeApi) -> None:
    api.answers[f"POST /v1/tasks/{TASK}/{verb}"] = answer
    shown = trace(verb, str(TASK), columns=60)
    assert (shown.status, shown.err) == (0, "")
    assert text in " ".join(shown.out.split())
    assert f"trace tasks {TASK}" in shown.out
    as_json = trace(verb, str(TASK), "--json")
    assert [msgspec.convert(item, type(answer)) for item in json.loads(as_json.out)] == [answer]


@pytest.mark.parametrize("verb", ["cancel", "retry", "skip"])
def test_one_that_fails_does_not_keep_the_others(verb: str, trace: Trace, api: FakeApi) -> None:
    good = {"task_id": str(uuid(3)), "status": "Queued"}
    api.answers[f"POST /v1/tasks/{uuid(2)}/{verb}"] = TraceError("task_not_found", f"Gone {EVIL}.")
    api.answers[f"POST /v1/tasks/{uuid(3)}/{verb}"] = lambda _: good
    words = [verb, str(uuid(2)), str(uuid(3)), str(uuid(2))]
    shown = trace(*words)
    assert shown.status == 1
    assert f"{uuid(3)}: " in shown.out
    assert shown.err.startswith(f"{uuid(2)}: task_not_found: Gone x")
    assert not set(shown.err) & set("\x1b\x07\x9b\u202e")
    assert len(api.calls) == 2, "the same task twice is one call"
    as_json = trace(*words, "--json")
    assert (as_json.status, as_json.err) == (1, "")
    first, second = json.loads(as_json.out)
    assert (first["task_id"], first["error"]["code"]) == (str(uuid(2)), "task_not_found")
    assert second == good


@pytest.mark.parametrize("code", ["role_forbidden", "credential_expired", "store_unavailable"])
def test_what_would_be_the_same_for_all_ends_at_once(code: str, trace: Trace, api: FakeApi) -> None:
    api.answers[f"POST /v1/tasks/{uuid(2)}/retry"] = TraceError(code)
    ended = trace("retry", str(uuid(2)), str(uuid(3)))
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(f"error: {code}: ")
    assert not api.asked(f"/v1/tasks/{uuid(3)}/retry")


def test_an_unknown_task_has_nothing_to_see(trace: Trace, api: FakeApi) -> None:
    api.answers[f"POST /v1/tasks/{TASK}/retry"] = TraceError("task_not_found")
    assert trace("retry", str(TASK)).out == ""


def test_a_trigger_that_makes_nothing_says_how_to_make_a_unit_again(trace: Trace, api: FakeApi) -> None:
    api.answers[TRIGGER] = TriggerReply(idempotency_key="k", event_id=7)
    shown = trace("trigger", "pools/blocks", "--range", "1-2").out
    assert "event 7, 0 tasks." in shown
    assert "trace trigger pools/JOB --range START-END" in shown


@pytest.mark.parametrize(
    ("words", "code", "field", "advice"),
    [
        (["--range", "1-2"], "trigger_invalid", "range", "Correct `--range`, as the message says."),
        (["--range", "1-2"], "body_invalid", "range.start", "Correct `--range`."),
        (["--range", "2026-03-02"], "trigger_invalid", "window", "Correct `--range`, as the message says."),
        (["--partition", "a"], "body_invalid", "partition_key", "Correct `--partition`."),
        (["--cursor", "7", "--output", "1"], "body_invalid", "output_index", "Correct `--output`."),
        (["--cursor", "7"], "body_invalid", "output_index", "Correct `output_index`."),  # nobody gave the option
    ],
)
def test_the_option_that_is_wrong_is_named(
    words: list[str], code: str, field: str, advice: str, trace: Trace, api: FakeApi
) -> None:
    api.answers[TRIGGER] = TraceError(code, field=field)
    ended = trace("trigger", "pools/blocks", *words)
    assert ended.err.rstrip().endswith(advice)
    document = json.loads(trace("trigger", "pools/blocks", *words, "--json").out)
    assert document["error"]["details"] == {"field": field}, "for programs it is the field of the call"


@pytest.mark.parametrize("option", ["--range", "--unit"])
def test_a_wrong_window_names_the_option_that_held_it(option: str, trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/datasets/flows/lineage"] = TraceError("body_invalid", "The unit: no hour.", field="unit")
    ended = trace("lineage", "flows", option, "2026-03-02")
    assert ended.err == f"error: body_invalid: The unit: no hour. Correct `{option}`.\n"


@pytest.mark.parametrize("words", [["cancel"], ["retry", "x"], ["skip", str(TASK), "0189"]])
def test_ids_are_whole(words: list[str], trace: Trace, api: FakeApi) -> None:
    ended = trace(*words)
    assert (ended.status, ended.out) == (2, "")
    assert not api.calls
