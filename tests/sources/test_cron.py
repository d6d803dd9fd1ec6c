"""Cron sources at the Dispatcher: which are at work, since when, and what a slot sets off."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.deploy.support import Text
from tests.support.dags import activate, deploy, job_id, output
from tests.support.dispatcher import DispatcherHarness, Reply

FIRST = "2026-01-31T12:00:00Z"
SECOND = "2026-01-31T12:05:00Z"


def cron(name: str = "d", schedule: str = "*/5 * * * *", outputs: int = 1, **fields: Any) -> Text:
    """tick -> work"""
    source = {"kind": "cron", "schedule": schedule} | fields
    return Text(name).source("tick", source=source, outputs=outputs).job("work", "tick")


def sources(harness: DispatcherHarness) -> list[dict[str, Any]]:
    reply = harness.service("GET", "/internal/sources?kind=cron")
    assert reply.status == 200, reply
    found: list[dict[str, Any]] = reply.body["sources"]
    return found


def fire(harness: DispatcherHarness, job: UUID | str, slot: Any) -> Reply:
    return harness.service("POST", f"/internal/sources/{job}/fire", {"slot": slot})


def events(harness: DispatcherHarness) -> list[asyncpg.Record]:
    return harness.sql("SELECT * FROM events ORDER BY cursor, dataset_uuid")


def now(harness: DispatcherHarness) -> datetime:
    found: datetime = harness.sql("SELECT trace_now() AS now")[0]["now"]
    return found


def since(harness: DispatcherHarness, job: str = "tick") -> datetime:
    return next(datetime.fromisoformat(item["since"]) for item in sources(harness) if item["job"] == job)


def test_sources_of_every_org_are_listed_with_what_a_scheduler_needs(harness: DispatcherHarness) -> None:
    assert sources(harness) == []
    before = now(harness)
    deploy(harness, str(cron("a")))
    deploy(harness, str(cron("b", "30 2 * * mon", time_zone="Europe/Berlin", catch_up="all")), org="other")
    deploy(harness, str(Text("c").source("by_hand")))
    found = {item["dag"]: item for item in sources(harness)}
    assert {name: set(item) for name, item in found.items()} == {
        name: {"org", "dag", "job", "job_id", "schedule", "time_zone", "catch_up", "since"} for name in "ab"
    }
    assert [found["a"][name] for name in ("org", "job", "schedule", "time_zone", "catch_up")] == [
        "acme", "tick", "*/5 * * * *", "UTC", "last",
    ]  # fmt: skip
    assert [found["b"][name] for name in ("org", "schedule", "time_zone", "catch_up")] == [
        "other", "30 2 * * mon", "Europe/Berlin", "all",
    ]  # fmt: skip
    assert found["a"]["job_id"] == str(job_id(harness, "a", "tick"))
    assert before <= datetime.fromisoformat(found["a"]["since"]) <= now(harness)
    harness.advance(86400)
    told = datetime.fromisoformat(harness.service("GET", "/internal/sources?kind=cron").body["now"])
    assert abs(told - now(harness)) < timedelta(seconds=30)


def test_which_kind_must_be_said(harness: DispatcherHarness) -> None:
    for query in ("", "?kind=", "?kind=webhook"):
        reply = harness.service("GET", f"/internal/sources{query}")
        assert (reply.status, reply.body["error"]["details"]) == (422, {"field": "kind"})


def test_a_slot_is_one_event_and_its_task_and_no_more_when_repeated(harness: DispatcherHarness) -> None:
    deploy(harness, str(cron()))
    tick = job_id(harness, "d", "tick")
    assert fire(harness, tick, FIRST).body == {"slot": FIRST, "events": 1}
    assert fire(harness, tick, FIRST).body == {"slot": FIRST, "events": 0, "duplicate": True}
    assert fire(harness, tick, "2026-01-31T13:00:00+01:00").body["duplicate"], "the same instant"
    assert fire(harness, tick, SECOND).body == {"slot": SECOND, "events": 1}
    cursors = [int(datetime.fromisoformat(slot).timestamp()) for slot in (FIRST, SECOND)]
    assert [(row["producer"], row["cursor"], row["state"]) for row in events(harness)] == [
        (f"cron:{FIRST}", cursors[0], "Routed"),
        (f"cron:{SECOND}", cursors[1], "Routed"),
    ]
    tasks = harness.sql("SELECT unit_end, status FROM tasks ORDER BY unit_end")
    assert [tuple(row) for row in tasks] == [(cursor, "Queued") for cursor in cursors]
    assert harness.sql("SELECT count(*) FROM outbox")[0][0] == 2
    assert sources(harness)[0]["last_slot"] == SECOND


def test_an_older_slot_does_not_move_the_last_one_back(harness: DispatcherHarness) -> None:
    deploy(harness, str(cron()))
    tick = job_id(harness, "d", "tick")
    fire(harness, tick, SECOND)
    assert fire(harness, tick, FIRST).body == {"slot": FIRST, "events": 1}
    assert sources(harness)[0]["last_slot"] == SECOND


def test_each_output_has_its_event(harness: DispatcherHarness) -> None:
    deploy(harness, str(cron(outputs=3).job("other", "tick:2")))
    assert fire(harness, job_id(harness, "d", "tick"), FIRST).body == {"slot": FIRST, "events": 3}
    assert {(row["dataset_uuid"], row["dataset_version"]) for row in events(harness)} == {
        output(harness, "d", "tick", index) for index in range(3)
    }
    assert harness.sql("SELECT count(*) FROM tasks")[0][0] == 2


def test_a_source_without_outputs_is_fired_all_the_same(harness: DispatcherHarness) -> None:
    deploy(harness, str(Text("d").source("tick", source={"kind": "cron", "schedule": "* * * * *"}, outputs=0)))
    tick = job_id(harness, "d", "tick")
    assert fire(harness, tick, FIRST).body == {"slot": FIRST, "events": 0}
    assert sources(harness)[0]["last_slot"] == FIRST


@pytest.mark.parametrize(
    "slot",
    ["1969-12-31T23:59:00Z", "2026-01-31T12:00:00.5Z", "2026-01-31T12:00:00", "9999-12-31T23:59:59Z", "today", 5, None,
     "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"],
)  # fmt: skip
def test_what_is_no_slot(harness: DispatcherHarness, slot: Any) -> None:
    deploy(harness, str(cron()))
    reply = fire(harness, job_id(harness, "d", "tick"), slot)
    assert (reply.status, reply.code, reply.body["error"]["details"]["field"]) == (422, "body_invalid", "slot")
    assert events(harness) == []


def test_a_slot_may_be_a_little_ahead_of_the_stores_clock(harness: DispatcherHarness) -> None:
    deploy(harness, str(cron()))
    tick = job_id(harness, "d", "tick")
    harness.advance(86400)
    time = now(harness).replace(microsecond=0)
    assert fire(harness, tick, (time + timedelta(seconds=90)).isoformat()).status == 422
    assert fire(harness, tick, (time + timedelta(seconds=50)).isoformat()).status == 200


def test_who_is_no_source_at_work(harness: DispatcherHarness) -> None:
    deploy(harness, str(cron().source("by_hand")))
    old = job_id(harness, "d", "tick")
    deploy(harness, str(cron(schedule="0 0 * * *").source("by_hand")), activate=False)
    never = harness.sql("SELECT job_id FROM jobs WHERE name = 'tick' AND job_id <> $1", old)[0]["job_id"]
    plain = harness.make_job("plain")["job_id"]
    for job in (job_id(harness, "d", "by_hand"), job_id(harness, "d", "work"), uuid4(), never, plain):
        reply = fire(harness, job, FIRST)
        assert (reply.status, reply.code) == (404, "source_not_found"), job
    assert fire(harness, "tick", FIRST).status == 422
    activate(harness, "d", 2)
    assert fire(harness, old, FIRST).code == "source_not_found"
    assert fire(harness, never, FIRST).status == 200


def test_a_new_version_goes_on_where_the_old_one_was(harness: DispatcherHarness) -> None:
    """The same schedule counts without a break, whatever else changes."""
    deploy(harness, str(cron()))
    begun = since(harness)
    fire(harness, job_id(harness, "d", "tick"), FIRST)
    harness.advance(3600)
    deploy(harness, str(cron(catch_up="all").job("work", "tick", max_attempts=9)))
    (source,) = sources(harness)
    assert (source["catch_up"], source["last_slot"], since(harness)) == ("all", FIRST, begun)
    assert fire(harness, source["job_id"], FIRST).body["duplicate"]
    assert fire(harness, source["job_id"], SECOND).body["events"] == 1


@pytest.mark.parametrize(
    "other",
    [
        cron(schedule="0 0 * * *"),
        cron(time_zone="Asia/Tokyo"),
        cron(outputs=2),
        Text("d").source("tick").job("work", "tick"),
        Text("d").source("another").job("work", "another"),
    ],
    ids=["schedule", "zone", "outputs", "kind", "gone"],
)
def test_what_another_schedule_or_no_source_left_out_was_not_missed(harness: DispatcherHarness, other: Text) -> None:
    deploy(harness, str(cron()))
    first = since(harness)
    fire(harness, job_id(harness, "d", "tick"), FIRST)
    harness.advance(3600)
    deploy(harness, str(other))
    changed = sources(harness)
    if changed:
        assert since(harness) >= first + timedelta(hours=1)
    harness.advance(3600)
    activate(harness, "d", 1)
    (source,) = sources(harness)
    assert since(harness) >= first + timedelta(hours=2), "the first version counts anew"
    assert source["last_slot"] == FIRST
    assert fire(harness, source["job_id"], FIRST).body["duplicate"]
    assert fire(harness, source["job_id"], SECOND).body["events"] == 1


def test_a_source_that_is_gone_is_not_listed_by_any_dispatcher(harness: DispatcherHarness) -> None:
    deploy(harness, str(cron()))
    (source,) = sources(harness)
    deploy(harness, str(Text("d").source("by_hand").job("work", "by_hand")))
    assert sources(harness) == []
    assert fire(harness, source["job_id"], FIRST).status == 404
    harness.restart()
    assert sources(harness) == []
    activate(harness, "d", 1)
    assert [item["job_id"] for item in sources(harness)] == [source["job_id"]]


def test_the_same_slot_many_times_at_once_is_one(harness: DispatcherHarness) -> None:
    deploy(harness, str(cron(outputs=2)))
    tick = job_id(harness, "d", "tick")
    path, headers = f"/internal/sources/{tick}/fire", {"x-trace-service-token": harness.service_token}

    async def all_at_once() -> list[Reply]:
        calls = [harness.call_async("internal", "POST", path, {"slot": FIRST}, headers) for _ in range(12)]
        return await asyncio.gather(*calls)

    replies = harness.run(all_at_once())
    assert {reply.status for reply in replies} == {200}
    assert sorted(reply.body["events"] for reply in replies) == [0] * 11 + [2]
    assert len(events(harness)) == 2


@pytest.mark.parametrize("committed", [False, True])
def test_a_crash_on_either_side_of_the_commit(
    harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    deploy(harness, str(cron()))
    tick = job_id(harness, "d", "tick")
    store = harness.dispatcher.ports.store
    commit = store.commit

    async def crash(connection: Any) -> None:
        if committed:
            await commit(connection)
        raise ConnectionResetError

    monkeypatch.setattr(store, "commit", crash)
    assert fire(harness, tick, FIRST).status == 503
    monkeypatch.undo()
    assert [len(events(harness)), sources(harness)[0].get("last_slot")] == ([1, FIRST] if committed else [0, None])
    assert fire(harness, tick, FIRST).body.get("duplicate", False) is committed
    assert len(events(harness)) == 1
    assert harness.sql("SELECT count(*) FROM tasks")[0][0] == 1


def test_fires_and_their_lateness_are_counted(harness: DispatcherHarness) -> None:
    deploy(harness, str(cron()))
    tick = job_id(harness, "d", "tick")
    slot = datetime.fromtimestamp(int(now(harness).timestamp()) - 100, UTC).isoformat()
    fire(harness, tick, slot)
    fire(harness, tick, slot)
    text = harness.dispatcher.metrics.render().decode()
    assert 'trace_cron_fires_total{result="fired"} 1.0' in text
    assert 'trace_cron_fires_total{result="duplicate"} 1.0' in text
    assert 'trace_cron_lateness_seconds_bucket{le="60.0"} 0.0' in text
    assert 'trace_cron_lateness_seconds_bucket{le="300.0"} 1.0' in text
