"""`--follow`: every event and every change of a task once, in order, also over an outage; hints to `trace why`."""

import json
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.cli import samples
from tests.cli.conftest import Ended, Trace
from tests.cli.fake_api import Call, FakeApi, end_after
from tests.cli.samples import EARLIER, EVIL, NOW, TASK, event, task_row, uuid
from tracelake.cli import follow
from tracelake.cli.task_changes import changes
from tracelake.errors import TraceError
from tracelake.wire.base import MAX_CURSOR
from tracelake.wire.datasets import EventRow, EventsPage
from tracelake.wire.sources_view import SourceRow, SourcesReply
from tracelake.wire.tasks import TaskRow, TasksPage
from tracelake.wire.why import WhyReason, WhyReply, WhyStep

Outage = TraceError("store_unavailable")
RESTARTED = EARLIER + timedelta(seconds=60)


class Log:
    """Stands for the events of a server: a test appends to it between looks."""

    def __init__(self, api: FakeApi, monkeypatch: pytest.MonkeyPatch, *steps: Any) -> None:
        self.events: list[EventRow] = []
        self.trouble = False
        self.since = EARLIER
        self._steps = list(steps)
        api.answers["GET /v1/events"] = self.page
        api.answers["POST /v1/event-lookup"] = self.given
        end_after(monkeypatch, len(steps) + 1)

    def page(self, call: Call) -> Any:
        after = int(call.query["after"])
        if after != MAX_CURSOR and self._steps:
            self._steps.pop(0)(self)
        if self.trouble:
            return Outage
        numbers = [row.event_id for row in self.events]  # the order of ids says nothing
        begin = len(numbers) if after == MAX_CURSOR else numbers.index(after) + 1 if after in numbers else 0
        rows = self.events[begin : begin + 2]
        more = begin + 2 < len(numbers)
        settled = numbers[-1] if numbers else 5
        return EventsPage(
            events=rows, next=str(rows[-1].event_id) if more else None, settled=settled, serving_since=self.since
        )

    def given(self, call: Call) -> Any:
        wanted = {(row["dataset"], row["event_id"]) for row in call.json["events"]}
        return EventsPage(events=[row for row in self.events if (row.dataset, row.event_id) in wanted])


def say(*rows: EventRow) -> Any:
    return lambda log: log.events.extend(rows)


def ids(ended: Ended) -> list[int]:
    assert ended.status == 0, ended
    return [json.loads(line)["event_id"] for line in ended.out.splitlines()]


def nothing(_log: Log) -> None: ...


def test_each_new_event_is_a_line_oldest_first(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(api, monkeypatch, say(event(event_id=6)), say(event(event_id=2), event(event_id=9), event(event_id=1)))
    log.events.append(event(event_id=3, dataset="before"))
    shown = trace("events", "--follow", "--dataset", "blocks")
    assert shown.status == 0
    lines = shown.out.splitlines()
    assert [line.split("event ")[1].split()[0] for line in lines] == ["6", "2", "9", "1"]
    assert lines[0] == f"{EARLIER:%H:%M:%S}Z  blocks  1999  Routed  event 6 by {TASK}#2"
    assert shown.err == "Following; Ctrl-C ends it.\n"
    assert {call.query["dataset"] for call in api.calls} == {"blocks"}


def test_programs_get_a_document_a_line(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [event(event_id=6), event(event_id=7, cursor=None, partition_key="1-2", invalidates={"start": 1})]
    Log(api, monkeypatch, say(*rows))
    shown = trace("events", "--follow", "--json")
    assert shown.err == ""
    assert [msgspec.json.decode(line, type=EventRow) for line in shown.out.splitlines()] == rows


def test_a_dispatcher_that_is_away_costs_nothing_and_is_said_once(
    trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(log: Log) -> None:
        log.trouble = True

    def come_back(log: Log) -> None:
        log.trouble = False
        log.events.append(event(event_id=8))

    Log(api, monkeypatch, say(event(event_id=6)), lose, nothing, come_back, say(event(event_id=9)))
    shown = trace("events", "--follow", "--json")
    assert ids(shown) == [6, 8, 9]
    first, second = shown.err.splitlines()
    assert "does not answer right now" in first
    assert second == "The Dispatcher answers again; continuing after event 8."


def test_a_restart_that_nobody_had_to_wait_for_is_said(
    trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restart(log: Log) -> None:
        log.since = RESTARTED

    def another(log: Log) -> None:
        log.since = EARLIER

    Log(api, monkeypatch, nothing, restart, another, restart, nothing)
    shown = trace("events", "--follow", "--json")
    assert shown.err == "The Dispatcher was restarted; continuing after event 5.\n", "and not when two answer in turn"


def test_with_a_state_an_event_is_a_line_when_it_comes_into_it(
    trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def route(log: Log) -> None:
        log.events[0] = event(event_id=6)

    steps = (say(event(event_id=6, state="AwaitsCommit"), event(event_id=7)), nothing, route, nothing)
    Log(api, monkeypatch, *steps)
    assert ids(trace("events", "--follow", "--state", "Routed", "--json")) == [7, 6]
    Log(api, monkeypatch, *steps)
    assert ids(trace("events", "--follow", "--state", "AwaitsCommit", "--json")) == [6]
    Log(api, monkeypatch, *steps)
    assert ids(trace("events", "--follow", "--json")) == [6, 7]


def test_memory_is_bounded(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "MOST_OPEN", 2)

    def route(log: Log) -> None:
        log.events[:] = [event(event_id=row.event_id) for row in log.events]

    waiting = [event(event_id=number, state="AwaitsCommit") for number in (6, 7, 8, 9)]
    Log(api, monkeypatch, say(*waiting), nothing, route)
    shown = trace("events", "--follow", "--state", "Routed", "--json")
    assert ids(shown) == [8, 9], "the newest"
    assert shown.err.count("more than 2") == 1


# --- tasks


class Work:
    """Stands for the tasks of a server; those above `settled` come again with every look."""

    def __init__(self, api: FakeApi, monkeypatch: pytest.MonkeyPatch, *steps: Any) -> None:
        self.tasks: dict[UUID, TaskRow] = {}
        self.settled = uuid(0)
        self._steps = list(steps)
        self._looked = False
        api.answers["GET /v1/tasks"] = self.page
        api.answers["POST /v1/task-lookup"] = self.given
        end_after(monkeypatch, len(steps) + 1)

    def put(self, *rows: TaskRow) -> None:
        self.tasks |= {row.task_id: row for row in rows}

    def page(self, call: Call) -> Any:
        if "status" in call.query:
            found = [row for row in self.tasks.values() if _status(row) == call.query["status"]]
            found.sort(key=lambda row: row.task_id, reverse=True)
            most = int(call.query["limit"])
            return TasksPage(tasks=found[:most], next="more" if len(found) > most else None)
        after = UUID(call.query["after"])
        if after.int == 2**128 - 1:
            return TasksPage(tasks=[], settled=self.settled, serving_since=EARLIER)
        if self._looked and self._steps and call.query["after"] != str(self._last):
            self._steps.pop(0)(self)
        self._looked = True
        rows = sorted((row for row in self.tasks.values() if row.task_id > after), key=lambda row: row.task_id)
        page, more = rows[:2], len(rows) > 2
        self._last = page[-1].task_id if more else None
        return TasksPage(
            tasks=page, next=str(self._last) if more else None, settled=self.settled, serving_since=EARLIER
        )

    _last: UUID | None = None

    def given(self, call: Call) -> Any:
        return TasksPage(tasks=[self.tasks[UUID(task_id)] for task_id in call.json["task_ids"]])


def _status(row: TaskRow) -> str:
    return "Retrying" if row.next_retry_at is not None else row.status


def put(*rows: TaskRow, settled: int | None = None) -> Any:
    def step(work: Work) -> None:
        work.put(*rows)
        if settled is not None:
            work.settled = uuid(settled)

    return step


QUEUED: dict[str, Any] = {"status": "Queued", "attempt": 0}
LATER = EARLIER + timedelta(seconds=2)
RUNNING: dict[str, Any] = {"status": "Running", "attempt": 1, "claimed_at": LATER}
DONE = RUNNING | {"status": "Completed", "finished_at": NOW}
RETRYING = RUNNING | {"status": "Failed", "next_retry_at": NOW + timedelta(seconds=30), "error": "no such block\nmore"}


def told(ended: Ended) -> list[tuple[int, str]]:
    assert ended.status == 0, ended
    lines = [json.loads(line) for line in ended.out.splitlines()]
    return [(UUID(line["task"]["task_id"]).int & 0xFF, line["change"]) for line in lines]


def test_each_task_is_followed_until_it_is_finished(
    trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = (
        put(task_row(2, **QUEUED), task_row(3, **QUEUED)),
        put(task_row(2, **RUNNING), task_row(4, **DONE)),
        put(task_row(2, **RETRYING), task_row(3, **RUNNING), settled=4),
        put(task_row(2, **QUEUED | {"attempt": 1})),
        put(task_row(2, **RUNNING | {"attempt": 2}), task_row(3, **DONE)),
        put(task_row(2, **DONE | {"attempt": 2})),
        put(),
    )
    work = Work(api, monkeypatch, *steps)
    work.put(task_row(1, **RUNNING))
    shown = trace("tasks", "--follow", "--json", "--job", "pools/prices")
    assert told(shown) == [
        (2, "created"), (3, "created"),
        (4, "created"), (4, "claimed"), (4, "completed"), (2, "claimed"),
        (2, "retrying"), (3, "claimed"),
        (2, "queued"),
        (2, "claimed"), (3, "completed"),
        (2, "completed"),
    ]  # fmt: skip
    assert all(call.query["job"] == "prices" and call.query["dag"] == "pools" for call in api.asked("/v1/tasks"))
    asked = [call.json["task_ids"] for call in api.asked("/v1/task-lookup")]
    assert asked[-1] == [str(uuid(1))], "what is finished is not asked for again"


def test_tasks_that_were_there_are_followed_from_their_next_change_on(
    trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = RUNNING | {"status": "Failed", "finished_at": NOW, "error": "no"}
    steps = (
        put(),
        put(task_row(1, **DONE), task_row(3, **QUEUED | {"attempt": 1})),
        put(task_row(2, **RUNNING), task_row(3, **RUNNING | {"attempt": 2})),
        put(task_row(2, **failed), task_row(3, **failed | {"attempt": 2})),
        put(task_row(2, **failed | {"skipped": True}), task_row(3, **QUEUED | {"attempt": 2})),
        put(),
    )
    work = Work(api, monkeypatch, *steps)
    work.put(task_row(1, **RUNNING), task_row(2, **QUEUED), task_row(3, **failed), task_row(4, **DONE))
    shown = trace("tasks", "--follow", "--json")
    assert told(shown) == [
        (1, "completed"), (3, "queued"),
        (2, "claimed"), (3, "claimed"),
        (2, "failed"), (3, "failed"),
        (2, "skipped"), (3, "queued"),
    ]  # fmt: skip


def test_no_more_than_the_newest_of_those_that_were_there_are_followed(
    trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "MOST_BEFORE", 2)
    work = Work(api, monkeypatch, put(), put(*(task_row(number, **DONE) for number in (1, 2, 3))), put())
    work.put(*(task_row(number, **QUEUED) for number in (1, 2, 3)))
    shown = trace("tasks", "--follow", "--json", "--status", "Completed")
    assert told(shown) == [(2, "completed"), (3, "completed")]
    assert shown.err == "More than 2 tasks are Queued already; only the newest 2 are followed.\n"


def test_a_task_that_becomes_visible_late_is_told(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id is below one that was told already, but not below what is settled."""
    Work(api, monkeypatch, put(task_row(5, **DONE)), put(task_row(3, **DONE)), put(settled=9), put())
    assert told(trace("tasks", "--follow", "--json", "--status", "Completed")) == [(5, "completed"), (3, "completed")]


def test_people_get_a_line_for_each_change(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (put(task_row(2, **QUEUED | {"held": True})), put(task_row(2, **RETRYING)), put(task_row(3, **QUEUED)))
    Work(api, monkeypatch, *steps)
    shown = trace("tasks", "--follow")
    assert shown.err == "Following; Ctrl-C ends it.\n"
    created, claimed, retrying, another = shown.out.splitlines()
    assert created == (
        f"{EARLIER:%H:%M:%S}Z  created    pools/prices  1000-1999  {uuid(2)}  waits for a concurrency limit"
    )
    assert claimed == f"{LATER:%H:%M:%S}Z  claimed    pools/prices  1000-1999  {uuid(2)}  attempt 1/5"
    assert retrying == (
        f"{NOW:%H:%M:%S}Z  retrying   pools/prices  1000-1999  {uuid(2)}  "
        "attempt 1/5  next attempt in 30s  no such block"
    )
    assert "created" in another


def test_since_tells_what_was_made_before_too(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(api, monkeypatch, put())
    work.put(task_row(1, **DONE))
    assert told(trace("tasks", "--follow", "--json", "--since", "1h")) == [
        (1, "created"),
        (1, "claimed"),
        (1, "completed"),
    ]
    assert all("since" in call.query for call in api.asked("/v1/tasks"))


def test_only_jobs_of_a_version_are_followed(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(api, monkeypatch, put(task_row(2, **QUEUED)), put(task_row(2, **RUNNING)))
    work.put(task_row(1, **RUNNING))
    shown = trace("tasks", "--follow", "--json", "--dag", "pools", "--version", "4")
    assert told(shown) == [(2, "created"), (2, "claimed")]
    assert all(call.query["version"] == "4" and call.query["dag"] == "pools" for call in api.asked("/v1/tasks"))
    refusal = trace("tasks", "--follow", "--version", "4")
    assert (refusal.status, "--version is one of a DAG" in refusal.err) == (2, True)


def test_a_version_that_does_not_exist_is_not_followed(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/tasks"] = TraceError("dag_version_not_found")
    ended = trace("tasks", "--follow", "--dag", "pools", "--version", "9")
    assert (ended.status, "dag_version_not_found" in ended.err) == (1, True)


def test_open_tasks_are_bounded_too(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "MOST_OPEN", 2)
    rows = [task_row(number, **QUEUED) for number in (2, 3, 4)]
    Work(api, monkeypatch, put(*rows), put(*(task_row(number, **DONE) for number in (2, 3, 4)), settled=9))
    shown = trace("tasks", "--follow", "--json", "--status", "Completed")
    assert told(shown) == [(3, "completed"), (4, "completed")]
    assert "more than 2 open tasks; the oldest are no longer followed." in shown.err


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (QUEUED, QUEUED, []),
        (QUEUED | {"held": True}, QUEUED, ["queued"]),
        (QUEUED, DONE, ["claimed", "completed"]),
        (RUNNING, RUNNING | {"cancel_requested": True}, ["stopping"]),
        (RUNNING | {"cancel_requested": True}, RUNNING | {"cancel_requested": True}, []),
        (RUNNING, RUNNING | {"status": "Canceled"}, ["canceled"]),
        (RETRYING, RETRYING, []),
        (RETRYING, RETRYING | {"attempt": 2}, ["claimed", "retrying"]),
        (RETRYING, RETRYING | {"next_retry_at": None, "finished_at": NOW}, ["failed"]),
        (RETRYING, RETRYING | {"next_retry_at": None, "skipped": True}, ["skipped"]),
    ],
)
def test_what_happened_between_two_looks(before: dict[str, Any], now: dict[str, Any], expected: list[str]) -> None:
    assert [change.change for change in changes(task_row(1, **before), task_row(1, **now))] == expected


def test_times_are_those_of_the_task() -> None:
    times = [change.at for change in changes(None, task_row(1, **DONE))]
    assert times == [EARLIER, LATER, NOW]
    (seen,) = list(changes(task_row(1, **RUNNING), task_row(1, **RETRYING)))
    assert isinstance(seen.at, datetime)


def test_names_play_no_tricks(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(api, monkeypatch, put(task_row(2, **RETRYING | {"dag": EVIL, "job": EVIL, "error": EVIL})))
    assert work
    shown = trace("tasks", "--follow")
    Log(api, monkeypatch, say(event(event_id=6, dataset=EVIL, producer=EVIL, cursor=None, partition_key=EVIL)))
    said = trace("events", "--follow")
    assert shown.out
    assert said.out
    assert not set(shown.out + said.out) & set("\x1b\x07\x9b\u202e")


@pytest.mark.parametrize(
    "command",
    [
        "tasks --follow --watch",
        "tasks --follow --until 1h",
        f"tasks --follow --cursor {TASK}",
        f"tasks {TASK} --follow",
        "events --follow --cursor 7",
    ],
)
def test_what_does_not_go_together_is_refused(trace: Trace, command: str) -> None:
    assert trace(*command.split()).status == 2


@pytest.mark.parametrize(
    ("command", "path", "error", "meant"),
    [
        ("events --follow --dataset price_out", "/v1/events", "dataset_not_found", "prices_out"),
        ("tasks --follow --dag pool", "/v1/tasks", "dag_not_found", "pools"),
    ],
)
def test_a_name_that_nothing_has_ends_it(
    command: str, path: str, error: str, meant: str, trace: Trace, api: FakeApi
) -> None:
    api.answers |= {
        "GET /v1/datasets": samples.DATASETS,
        "GET /v1/dags": samples.dags(),
        f"GET {path}": TraceError(error),
    }
    ended = trace(*command.split())
    assert ended.status == 1
    assert f"Did you mean `{meant}`?" in ended.err


# --- what is not running leads to `trace why`


def test_lists_lead_to_why(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/tasks"] = TasksPage(tasks=[task_row(1), task_row(2, **QUEUED)])
    assert f"see why it is not running: trace why {uuid(2)}" in trace("tasks").out
    api.answers["GET /v1/tasks"] = TasksPage(tasks=[task_row(1), task_row(2, **DONE)])
    assert "trace why" not in trace("tasks").out
    api.answers[f"GET /v1/tasks/{TASK}"] = samples.detail(status="Queued")
    assert f"trace why {TASK}" in trace("tasks", str(TASK)).out


@pytest.mark.parametrize(("state", "hinted"), [("stopped", True), ("backing_off", True), ("running", False)])
def test_sources_lead_to_why(trace: Trace, api: FakeApi, state: Any, hinted: bool) -> None:
    source = SourceRow(dag="pools", job="head", kind="always_on", state=state)
    api.answers["GET /v1/sources"] = SourcesReply(sources=[source])
    assert ("see why it is not running: trace why pools/head" in trace("sources").out) is hinted


@pytest.mark.parametrize(
    ("changes", "hinted"),
    [({"queued": 3, "running": 0}, True), ({"queued": 3, "running": 1}, False), ({"queued": 0, "running": 0}, False)],
)
def test_jobs_lead_to_why(trace: Trace, api: FakeApi, changes: dict[str, Any], hinted: bool) -> None:
    reply = samples.jobs()
    idle = {"queued": 0, "running": 0, "held": 0, "retrying": 0, "failed": 0, "inputs": []}
    rows = [msgspec.structs.replace(job, **idle | changes) for job in reply.jobs if job.source is None]
    api.answers["GET /v1/dags/pools/jobs"] = msgspec.structs.replace(reply, jobs=rows)
    assert ("trace why pools/prices" in trace("jobs", "pools").out) is hinted


def test_why_can_be_watched(trace: Trace, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [WhyStep(purpose="try it again", command=f"trace retry {TASK}"), WhyStep(purpose="x", command="rm -rf y")]
    held = WhyReason(code="edge_held", state="blocked", text="It is held.", steps=steps, references=[])
    blocked = WhyReply(kind="job", id="pools/prices", state="blocked", summary="It is held.", reasons=[held])
    fine = WhyReply(kind="job", id="pools/prices", state="fine", summary="All is done.", reasons=[])
    api.answers["GET /v1/why/job/pools/prices"] = [blocked, blocked, fine]
    end_after(monkeypatch, 3)
    shown = trace("why", "pools/prices", "--watch")
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.splitlines() == ["blocked It is held.", f"try it again: trace retry {TASK}", "fine All is done."]
    assert trace("why", "pools/prices", "--watch", "--json").status == 2
