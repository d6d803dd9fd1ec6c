"""A source that is paused, or stopped by a full queue: what it says is taken, kept, and worked off in order after."""

from collections.abc import Collection
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from tests.routing.support import Flow
from tests.scheduler.support import Faulty
from tests.sources.always_on_support import sources, user
from tests.sources.webhook_support import Hook
from tests.support.configs import scheduler_config
from tests.support.dispatcher import DispatcherHarness
from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.pressure import upstream
from tracelake.scheduler import Scheduler

# The source makes units of `work`, which may hold two.
_DAG = """\
name: alerts
defaults: {{ runtime: ecs_platform }}
jobs:
  - {{ name: hook, activation: source, source: {source} }}
  - {{ name: work, activation: reactive, operator: noop, inputs: [{{ from: {{ job: hook }} }}], max_queue_depth: 2 }}
"""
KINDS = {
    "manual": "{ kind: manual }",
    "webhook": "{ kind: webhook, webhook_path: acme/prices }",
    "cron": '{ kind: cron, schedule: "* * * * *", catch_up: all }',
}


class Source:
    """Says something, whatever its kind, and knows what it said."""

    def __init__(self, harness: DispatcherHarness, kind: str) -> None:
        self.harness = harness
        self.flow = Flow(harness)
        self.flow.deploy(_DAG.format(source=KINDS[kind]))
        self.kind = kind
        self.hook = Hook(harness, org="acme", path="acme/prices")
        self.scheduler = Scheduler(scheduler_config(), calls=Faulty(harness))
        self.said: list[int] = []

    def say(self) -> Any:
        """Answers what the caller is told."""
        match self.kind:
            case "manual":
                cursor = len(self.said) + 1
                self.said.append(cursor)
                return self.flow.trigger("alerts", "hook", cursor=cursor).kept
            case "webhook":
                answer = self.hook.sent(delivery=f"d-{len(self.said)}")
                self.said.append(answer["number"])
                return answer.get("kept")
            case _:
                self.harness.advance(60)
                while self.harness.run(self.scheduler.run_once()) == 0.0:
                    pass
                events = self.harness.sql("SELECT cursor FROM events WHERE producer LIKE 'cron:%' ORDER BY routed_seq")
                assert len(events) == len(self.said) + 1, "a slot fires also while it is kept"
                self.said.append(events[-1]["cursor"])
                return None

    def word(self, word: str) -> None:
        assert user(self.harness, "POST", f"/v1/dags/alerts/jobs/hook/{word}").status == 200

    @property
    def units(self) -> list[int]:
        """Where each ends. Each begins where the one before it ended, so they were made in this order and no other."""
        cursors = sorted(
            (task["unit"]["cursor"]["to"], task["unit"]["cursor"]["after"]) for task in self.flow.tasks("work")
        )
        assert all(after == end for (end, _), (_, after) in pairwise(cursors))
        return [to for to, _ in cursors]

    @property
    def row(self) -> Any:
        return sources(self.harness)["alerts/hook"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_paused_source_is_heard_and_worked_off_in_order_after(harness: DispatcherHarness, kind: str) -> None:
    source = Source(harness, kind)
    source.say()
    source.flow.run_all("work")
    source.word("pause")
    told = [source.say() for _ in range(2)]
    assert told == ([None] * 2 if kind == "cron" else ["paused"] * 2)
    source.flow.drain()
    assert source.units == source.said[:1], "stored, and not routed"
    row = source.row
    assert (row["state"], row["paused_by"], row["kept"], row["since"]) == ("paused", "ann", 2, row["paused_at"])
    source.word("resume")
    source.flow.drain()
    assert source.units == source.said, "in order, and each once"
    row = source.row
    assert row.get("kept") is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_queue_keeps_what_comes_and_lets_it_in_when_there_is_room(harness: DispatcherHarness, kind: str) -> None:
    source = Source(harness, kind)
    assert [source.say() for _ in range(2)] == [None, None], "the second one fills it, and is in"
    told = [source.say() for _ in range(2)]
    assert told == ([None] * 2 if kind == "cron" else ["stopped"] * 2)
    source.flow.drain()
    assert source.units == source.said[:2]
    row = source.row
    assert (row["state"], row["kept"]) == ("stopped", 2)
    assert "alerts/work" in row["because"]
    assert "2 of 2" in row["because"]
    source.flow.run_all("work")
    source.flow.drain()
    assert source.units == source.said
    assert source.row["state"] in ("waiting", "stopped"), "the two that waited fill it again"


@pytest.mark.parametrize(("catch_up", "made_up_for"), [("none", 1), ("last", 1), ("all", 5)])
def test_a_pause_is_no_absence_of_the_scheduler(harness: DispatcherHarness, catch_up: str, made_up_for: int) -> None:
    """Catching up is about slots that nobody fired; a pause delays those that somebody did."""
    cron = KINDS["cron"].replace("all", catch_up)
    flow = Flow(harness)
    flow.deploy(_DAG.format(source=cron).replace(", max_queue_depth: 2", ""))
    assert user(harness, "POST", "/v1/dags/alerts/jobs/hook/pause").status == 200
    now: datetime = harness.sql("SELECT trace_now() AS now")[0]["now"]
    harness.advance((90 - now.astimezone(UTC).second) % 60)  # the middle of a minute
    running = Scheduler(scheduler_config(tolerance_seconds=59), calls=Faulty(harness))

    def slots() -> int:
        while harness.run(running.run_once()) == 0.0:
            pass
        return len(harness.sql("SELECT FROM events WHERE producer LIKE 'cron:%'"))

    before = slots()
    for number in (1, 2, 3):
        harness.advance(60)
        assert slots() == before + number
    harness.advance(300)  # and now it is away as well
    assert slots() == before + 3 + made_up_for
    assert user(harness, "POST", "/v1/dags/alerts/jobs/hook/resume").status == 200
    flow.drain()
    assert len(flow.tasks("work")) == before + 3 + made_up_for


def test_a_repeated_delivery_is_answered_as_ever_while_it_is_kept(harness: DispatcherHarness) -> None:
    source = Source(harness, "webhook")
    source.word("pause")
    first = source.hook.sent(delivery="a")
    again = source.hook.sent(delivery="a")
    assert again == {name: first[name] for name in ("delivery_id", "event_ids", "number")} | {"duplicate": True}


# What people see


def test_each_kind_shows_what_matters(harness: DispatcherHarness) -> None:
    cron = Source(harness, "cron")
    row = cron.row
    assert (row["schedule"], row["time_zone"], row["catch_up"]) == ("* * * * *", "UTC", "all")
    assert "last_slot" not in row
    assert row["counts_since"] <= sources_now(harness)
    cron.say()
    slot = datetime.fromtimestamp(cron.said[0], UTC)
    assert datetime.fromisoformat(cron.row["last_slot"]) == slot


def test_a_webhook_shows_its_last_delivery(harness: DispatcherHarness) -> None:
    hook = Source(harness, "webhook")
    assert hook.row["deliveries"] == 0
    assert "last_delivery_at" not in hook.row
    hook.say()
    hook.say()
    row = hook.row
    assert row["deliveries"] == 2
    assert row["last_delivery_at"] <= row["last_event_at"]


def sources_now(harness: DispatcherHarness) -> str:
    reply = user(harness, "GET", "/v1/sources")
    now: str = reply.body["now"]
    return now


@pytest.mark.parametrize("kind", ["manual", "webhook"])
def test_what_no_queue_can_stop_is_asked_about_once(
    harness: DispatcherHarness, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the router, for the sake of a pause; what the caller is told costs no further statement."""
    source = Source(harness, kind)
    source.flow.deploy(_DAG.format(source=KINDS[kind]).replace(", max_queue_depth: 2", ""))
    read_stops, asked = upstream.read_stops, []

    async def noted(connection: Connection, queues: Collection[UUID], sources: Collection[UUID]) -> upstream.Stops:
        if queues or sources:
            asked.append((queues, sources))
        return await read_stops(connection, queues, sources)

    monkeypatch.setattr(upstream, "read_stops", noted)
    assert source.say() is None
    assert len(asked) == 1
