"""`trace trigger --wait`: what it shows while it waits, when it ends, and with which exit status."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tests.cli.samples import EVIL, NOW, TASK, uuid
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire.failures import ErrorGroup
from tracelake.wire.jobs import TriggerReply
from tracelake.wire.trigger_progress import TriggerProgressReply, WaitingInput

TRIGGER = "POST /v1/dags/pools/jobs/blocks/trigger"
PROGRESS = "GET /v1/triggers"
EMITTED = TriggerReply(idempotency_key="k", event_id=7, tasks=[TASK, uuid(2)])
WAIT = ("trigger", "pools/blocks", "--cursor", "5", "--wait")


def progress(**fields: Any) -> TriggerProgressReply:
    numbers = {"done": 0, "open": 0, "failed": 0, "finished": False}
    return TriggerProgressReply(idempotency_key="k", triggered_at=NOW, now=NOW, **(numbers | fields))


def waiting(state: Any, because: str = "") -> WaitingInput:
    return WaitingInput(job="pools/prices", dataset="blocks", events=1, state=state, because=because)


def test_it_ends_when_the_server_says_so_and_prints_a_line_on_change(trace: Trace, api: FakeApi) -> None:
    def looks() -> list[Any]:
        return [
            progress(open=2),
            progress(open=2),
            progress(open=2),
            TraceError("store_unavailable"),
            progress(done=1, open=1, retrying=1, next_retry_at=NOW, retry_error="node away"),
            progress(done=2, waiting_batches=1),
            progress(done=2, waiting_events=1),
            progress(done=3, finished=True),
        ]

    api.answers |= {TRIGGER: EMITTED, PROGRESS: looks()}
    shown = trace(*WAIT)
    assert (shown.status, shown.err) == (0, "")
    for text in (
        "0 done, 2 open",
        "does not answer",
        "1 done, 1 open",
        "1 task waits for a retry at ",
        ": node away",
        "2 done, 0 open, 0 failed, 1 batch waiting for a sink",
        "2 done, 0 open, 0 failed, 1 event without tasks yet",
        "All 3 tasks finished, none failed.",
    ):
        assert text in shown.out
    assert shown.out.count("0 done, 2 open") == 2, "once, and once below the trouble: not at every look"
    assert api.asked("/v1/triggers")[0].query == {"key": "k", "across": "false"}
    api.answers[PROGRESS] = looks()
    as_json = trace(*WAIT, "--json", "--across-dags")
    assert msgspec.json.decode(as_json.out, type=TriggerReply) == EMITTED
    assert msgspec.json.decode(as_json.out)["progress"]["done"] == 3
    assert api.calls[-1].query["across"] == "true"


def test_failed_tasks_are_shown_with_their_errors_whole(trace: Trace, api: FakeApi) -> None:
    error = f"SparkError: no such column {'x' * 300}\n  at line 2 {EVIL}"
    group = ErrorGroup(error=error, tasks=8, jobs=["pools/prices", "pools/volume"], task_id=TASK, unit="0-99")
    one = ErrorGroup(error="other", tasks=1, jobs=["pools/prices"], task_id=uuid(2))
    api.answers |= {TRIGGER: EMITTED, PROGRESS: progress(done=4, failed=9, finished=True, errors=[group, one])}
    shown = trace(*WAIT, columns=80)
    assert shown.status == 1
    assert "9 tasks failed (no retries left)." in shown.out
    assert "8 tasks of pools/prices, pools/volume, same error:\n" in shown.out
    assert f"  SparkError: no such column {'x' * 300}\n    at line 2" in shown.out
    assert f"newest task {TASK}, unit 0-99" in shown.out
    assert "1 task of pools/prices:\n  other\n" in shown.out
    assert "trace retry --dag pools --failed" in shown.out
    assert not set(shown.out) & set("\x1b\x07\x9b\u202e")


@pytest.mark.parametrize(
    ("state", "because", "step"),
    [
        ("paused", "pools/blocks is paused by ann", "trace resume pools/blocks"),
        ("stopped", "pools/slow has 10 of 10 queued tasks", "trace pressure"),
    ],
)
def test_what_is_kept_is_told_with_its_reason(trace: Trace, api: FakeApi, state: Any, because: str, step: str) -> None:
    kept = progress(waiting_events=1, inputs=[waiting(state, because)])
    reply = TriggerReply(idempotency_key="k", event_id=7, kept=state)
    api.answers |= {TRIGGER: reply, PROGRESS: [kept, kept, progress(open=1), progress(done=1, finished=True)]}
    shown = trace(*WAIT)
    assert shown.status == 0
    assert f"kept: 1 event waits at pools/prices: {because}" in shown.out
    assert "Finished; no task failed." in shown.out
    assert step not in shown.out
    api.answers[PROGRESS] = kept
    shown = trace(*WAIT, "--timeout", "0")
    assert shown.status == 3
    assert f"It is not finished yet: 1 event without tasks yet, {because}. The work goes on." in shown.out
    assert step in shown.out
    as_json = trace(*WAIT, "--timeout", "0", "--json")
    assert (as_json.status, msgspec.json.decode(as_json.out, type=TriggerReply).kept) == (3, state)


def test_events_behind_a_failed_unit_and_refused_rows_are_failures(trace: Trace, api: FakeApi) -> None:
    end = progress(done=1, finished=True, inputs=[waiting("held")], dead_letters=2)
    api.answers |= {TRIGGER: EMITTED, PROGRESS: end}
    shown = trace(*WAIT)
    assert shown.status == 1
    assert "pools/prices has a failed unit; 1 event waits behind it." in shown.out
    assert "trace why pools/prices" in shown.out
    assert "A sink refused 2 batches of rows." in shown.out
    assert "trace dlq list" in shown.out


def test_the_timeout_ends_the_wait_for_open_tasks(trace: Trace, api: FakeApi) -> None:
    api.answers |= {TRIGGER: EMITTED, PROGRESS: progress(open=1)}
    shown = trace(*WAIT, "--timeout", "0")
    assert (shown.status, "1 task open" in shown.out) == (3, True)


def test_ctrl_c_ends_the_waiting_and_not_the_work(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("tracelake.cli.trigger._view", interrupt)
    api.answers |= {TRIGGER: EMITTED, PROGRESS: progress(open=1)}
    shown = trace(*WAIT)
    assert (shown.status, "the work goes on" in shown.out) == (1, True)


def test_a_time_of_the_next_retry_is_not_a_countdown(trace: Trace, api: FakeApi) -> None:
    at = NOW + timedelta(seconds=90)
    retrying = progress(open=1, retrying=1, next_retry_at=at)
    api.answers |= {TRIGGER: EMITTED, PROGRESS: [retrying, retrying, progress(done=1, finished=True)]}
    assert trace(*WAIT).out.count("waits for a retry") == 1


@pytest.mark.parametrize(("seconds", "lines"), [(30, 1), (1, 0)])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_wait_for_the_quota_is_announced_on_standard_error(
    trace: Trace,
    api: FakeApi,
    monkeypatch: pytest.MonkeyPatch,
    seconds: int,
    lines: int,
    options: tuple[str, ...],
) -> None:
    waits: list[float] = []

    async def sleep(wait: float) -> None:
        waits.append(wait)

    defaults = UserClient.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "sleep", sleep)
    full = TraceError("quota_queued_tasks", "Its quota is 5: wait.", retry_after_seconds=seconds)
    api.answers[TRIGGER] = [full, EMITTED]
    ended = trace("trigger", "pools/blocks", "--cursor", "5", *options)
    assert (ended.status, waits) == (0, [seconds])
    line = f"quota_queued_tasks: Its quota is 5: wait. Trying again in {seconds} seconds; Ctrl-C gives up."
    assert ended.err.splitlines() == [line] * lines
    assert "quota" not in ended.out
    if options:
        assert msgspec.json.decode(ended.out, type=TriggerReply) == EMITTED
