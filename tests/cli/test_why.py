"""`trace why` and `trace pressure`: for people, for programs, with evil names; and how a name is guessed."""

from typing import Any

import msgspec
import pytest

from tests.cli import samples
from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tests.cli.samples import EARLIER, EVIL, TASK
from tracelake.errors import TraceError
from tracelake.wire.pressure import PressureEdgeRow, PressureReply, QueueRow
from tracelake.wire.why import WhyReason, WhyReference, WhyReply, WhyStep

FULL = "pools/prices is full for 3m (1,200 of 1,000 queued; goes on below 50 %)"
PRESSURE = PressureReply(
    queues=[
        QueueRow(dag="pools", job="prices", state="stopped", depth=1200, held=31, max_depth=1000, age_seconds=400.5,
                 max_age_seconds=600, since=EARLIER, because=FULL),
        QueueRow(dag="pools", job="report", state="open", depth=1, age_seconds=0, max_depth=5, building=True),
    ],
    edges=[
        PressureEdgeRow(dag="pools", job="fetch", input_index=0, dataset="blocks", bulk=True, state="stopped",
                        queue="pools/prices", queues=["pools/prices", "pools/report"], depth=1200, max_depth=1000,
                        age_seconds=400.5, since=EARLIER, because=FULL, backlog=77),
        PressureEdgeRow(dag="pools", job="prices", input_index=0, dataset="fetched", state="open",
                        queue="pools/prices", queues=["pools/prices"], depth=1200, age_seconds=0, backlog=0),
    ],
)  # fmt: skip


def why(kind: Any, name: str, *more: WhyReason) -> WhyReply:
    held = WhyReason(
        code="edge_held",
        state="blocked",
        text="Its input blocks is held at cursor 9 by 1 failed unit; 3 events wait.",
        steps=[
            WhyStep(purpose="try it again", command=f"trace retry {TASK}"),
            WhyStep(purpose="or go on without it", command=f"trace skip {TASK}"),
        ],
        references=[WhyReference(kind="task", id=str(TASK))],
    )
    summary = f"{name}: {held.text} Retry or skip the task."
    return WhyReply(kind=kind, id=name, state="blocked", summary=summary, reasons=[held, *more])


RUNNING = WhyReason(
    code="tasks_running",
    state="working",
    text="2 tasks of it are running.",
    steps=[WhyStep(purpose="see them", command="trace tasks --dag pools")],
)

VIEWS: list[tuple[str, str, Any, list[str]]] = [
    ("pressure", "/v1/pressure", PRESSURE,
     ["2 queues with a threshold; 1 input stopped", "pools/prices", "1200 of 1000", "400s of 600s",
      "pools/fetch (bulk) blocks", "full 1200 of 1000 31", "77", FULL, "building", "3m5s ago",
      "trace why pools/prices"]),
    (f"why {TASK}", f"/v1/why/task/{TASK}", why("task", str(TASK)),
     ["blocked", "3 events wait. Retry or skip the task.", f"trace retry {TASK}", f"trace skip {TASK}"]),
    ("why pools/prices", "/v1/why/job/pools/prices", why("job", "pools/prices", RUNNING),
     ["pools/prices: Its input", "tasks_running", "2 tasks of it are running."]),
    ("why prices_out", "/v1/why/dataset/prices_out", why("dataset", "prices_out"), ["prices_out: Its input blocks"]),
]  # fmt: skip
NAMES = [command for command, *_ in VIEWS]


@pytest.mark.parametrize(("command", "path", "answer", "texts"), VIEWS, ids=NAMES)
@pytest.mark.parametrize("columns", [None, 200, 60, 20])
def test_people_see_everything(
    command: str, path: str, answer: Any, texts: list[str], columns: int | None, trace: Trace, api: FakeApi
) -> None:
    api.answers[f"GET {path}"] = answer
    shown = trace(*command.split(), columns=columns)
    assert (shown.status, shown.err) == (0, "")
    if columns is None:
        text = " ".join(shown.out.split())
        for expected in texts:
            assert expected in text
    assert all(line == line.rstrip() for line in shown.out.splitlines())


def evil(answer: Any) -> Any:
    """The same answer with a trick at the end of every text that is free."""

    def change(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: change(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [change(item, key) for item in value]
        return value + EVIL if isinstance(value, str) and key not in ("kind", "state", "since") else value

    return msgspec.convert(change(msgspec.to_builtins(answer)), type(answer))


@pytest.mark.parametrize(("command", "path", "answer", "texts"), VIEWS, ids=NAMES)
def test_programs_get_the_wire_type_and_names_play_no_tricks(
    command: str, path: str, answer: Any, texts: list[str], trace: Trace, api: FakeApi
) -> None:
    assert texts
    api.answers[f"GET {path}"] = evil(answer)
    shown = trace(*command.split(), "--json")
    assert (shown.status, shown.err, shown.out.count("\n")) == (0, "", 1)
    assert msgspec.json.decode(shown.out, type=type(answer)) == evil(answer)
    seen = trace(*command.split())
    assert seen.status == 0
    assert not set(seen.out) & set("\x1b\x07\x9b\u202e")


def test_steps_are_those_of_the_worst_reasons_and_each_is_shown_once(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/why/job/pools/prices"] = why("job", "pools/prices", why("job", "x").reasons[0], RUNNING)
    shown = trace("why", "pools/prices", "--home", str(api.home)).out
    assert shown.count(f"trace retry {TASK} --home {api.home}") == 1
    assert "see them" not in shown


def test_what_the_first_lines_say_is_not_repeated_below(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/why/job/pools/prices"] = why("job", "pools/prices", RUNNING)
    shown = " ".join(trace("why", "pools/prices", columns=200).out.split())
    assert shown.count("Its input blocks is held at cursor 9") == 1
    assert shown.count("2 tasks of it are running.") == 1


def test_a_step_that_is_no_command_is_not_offered(trace: Trace, api: FakeApi) -> None:
    answer = why("job", "pools/prices")
    steps = [WhyStep(purpose="x", command="rm -rf y"), WhyStep(purpose="y", command=f"trace why '{EVIL}")]
    reason = msgspec.structs.replace(answer.reasons[0], steps=steps)
    api.answers["GET /v1/why/job/pools/prices"] = msgspec.structs.replace(answer, reasons=[reason])
    assert "rm -rf" not in trace("why", "pools/prices").out


def test_a_name_is_a_dataset_or_else_the_one_job_of_that_name(trace: Trace, api: FakeApi) -> None:
    api.answers |= {
        "GET /v1/why/dataset/prices": TraceError("dataset_not_found"),
        "GET /v1/dags": samples.dags(),
        "GET /v1/dags/pools/jobs": samples.jobs(),
        "GET /v1/why/job/pools/prices": why("job", "pools/prices"),
    }
    assert "pools/prices: Its input" in trace("why", "prices").out


def test_nothing_of_that_name_is_said_in_one_line(trace: Trace, api: FakeApi) -> None:
    api.answers |= {
        "GET /v1/why/dataset/none_such": TraceError("dataset_not_found"),
        "GET /v1/dags": samples.dags(),
        "GET /v1/dags/pools/jobs": samples.jobs(),
    }
    ended = trace("why", "none_such")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(
        "error: job_not_found: There is no dataset named none_such, and no job of an active DAG."
    )


def test_other_errors_are_not_taken_for_a_missing_dataset(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/why/dataset/prices"] = TraceError("role_forbidden")
    assert trace("why", "prices").err.startswith("error: role_forbidden")
    assert len(api.calls) == 1


def test_a_name_that_nothing_can_have_asks_for_no_such_path(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/dags"] = samples.dags()
    api.answers["GET /v1/dags/pools/jobs"] = samples.jobs()
    assert trace("why", "a b").status == 1
    assert not [call for call in api.calls if "why" in call.path]


def test_without_thresholds_pressure_is_a_sentence(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/pressure"] = PressureReply(queues=[], edges=[])
    assert "no active job sets max_queue_depth" in trace("pressure").out
    assert trace("pressure", "--watch", "--json").status == 2


def test_a_paused_source_leads_to_its_reader(trace: Trace, api: FakeApi) -> None:
    edge = PressureEdgeRow(
        dag="pools", job="fetch", input_index=0, dataset="ticks", state="paused", since=EARLIER,
        because="pools/clock was paused by ann 3m ago", depth=0, age_seconds=0, backlog=1,
    )  # fmt: skip
    api.answers["GET /v1/pressure"] = PressureReply(queues=[], edges=[edge])
    assert "trace why pools/fetch" in trace("pressure").out


def test_a_backlog_is_told_from_a_job(trace: Trace, api: FakeApi) -> None:
    full = "the backlog of large is full for 3m (2 of 2 batches; goes on below 50 %)"
    queue = QueueRow(
        dag="pools", job="large", backlog=True, state="stopped", depth=2, max_depth=2, age_seconds=9, because=full
    )
    edge = PressureEdgeRow(
        dag="pools", job="left", input_index=0, dataset="blocks", state="stopped", queue="pools/large",
        queue_is_backlog=True, queues=["pools/large", "pools/report"], depth=2, age_seconds=9, because=full, backlog=1,
    )  # fmt: skip
    api.answers["GET /v1/pressure"] = PressureReply(queues=[queue], edges=[edge])
    shown = trace("pressure", columns=200).out
    assert "pools/large (backlog)" in shown
    assert "2 of 2 batches" in shown
    assert "pools/large (backlog), pools/report" in shown
    assert shown.rstrip().endswith("trace why large"), "the dataset is asked, not a job of its name"
    job = msgspec.structs.replace(edge, queue_is_backlog=False)
    api.answers["GET /v1/pressure"] = PressureReply(queues=[], edges=[job])
    assert trace("pressure").out.rstrip().endswith("trace why pools/large")
