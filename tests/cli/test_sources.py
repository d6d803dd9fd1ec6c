"""`trace sources` for each kind, and `trace trigger` on a source that keeps what is said."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

import msgspec
import pytest

from tests.cli.conftest import Trace
from tests.cli.fake_api import FakeApi
from tracelake.wire.head_progress import HeadProgressRow
from tracelake.wire.jobs import TriggerReply
from tracelake.wire.sources_view import SourceRow, SourcesReply

NOW = datetime(2026, 1, 31, 6, 40, tzinfo=UTC)
TRIGGER = "POST /v1/dags/pools/jobs/blocks/trigger"
CURSOR = ("trigger", "pools/blocks", "--cursor", "5")


def row(**fields: Any) -> SourceRow:
    return SourceRow(**({"dag": "pools", "job": "blocks", "kind": "manual", "state": "waiting"} | fields))


def reply(*rows: SourceRow) -> SourcesReply:
    return SourcesReply(sources=list(rows), now=NOW)


def cron(**fields: Any) -> SourceRow:
    berlin: dict[str, Any] = {
        "kind": "cron",
        "schedule": "30 7 * * *",
        "time_zone": "Europe/Berlin",
        "catch_up": "last",
    }
    return row(**berlin, counts_since=NOW - timedelta(days=9), **fields)


FIRED = NOW.replace(hour=6, minute=30)


def test_a_cron_source_shows_its_last_and_next_slot(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/sources"] = reply(cron(last_slot=FIRED))
    shown = trace("sources").out
    assert "2026-01-31 06:30Z, 10m ago" in shown
    assert "2026-02-01 06:30Z, in 1d" in shown
    assert "overdue" not in shown
    as_json = msgspec.json.decode(trace("sources", "--json").out, type=SourcesReply).sources[0]
    assert (as_json.next_slot, as_json.overdue_since) == (FIRED + timedelta(days=1), None)


@pytest.mark.parametrize("last_slot", [None, FIRED - timedelta(days=1)])
def test_a_slot_that_nobody_fired_is_overdue(trace: Trace, api: FakeApi, last_slot: datetime | None) -> None:
    source = cron(last_slot=last_slot)
    if last_slot is None:
        source = msgspec.structs.replace(source, counts_since=NOW - timedelta(hours=1))
    api.answers["GET /v1/sources"] = reply(source)
    shown = trace("sources").out
    assert "overdue, 10m ago" in shown
    assert "trace status" in shown


def test_a_schedule_with_seconds_shows_them(trace: Trace, api: FakeApi) -> None:
    source = msgspec.structs.replace(cron(last_slot=NOW - timedelta(seconds=5)), schedule="*/5 * * * * *")
    api.answers["GET /v1/sources"] = reply(source)
    shown = trace("sources").out
    assert "2026-01-31 06:39:55Z, 5s ago" in shown
    assert "2026-01-31 06:40:05Z, in 5s" in shown
    assert "overdue" not in shown
    api.answers["GET /v1/sources"] = reply(msgspec.structs.replace(source, last_slot=NOW - timedelta(seconds=100)))
    assert "overdue, 1m35s ago" in trace("sources").out
    as_json = msgspec.json.decode(trace("sources", "--json").out, type=SourcesReply).sources[0]
    assert as_json.next_slot == NOW + timedelta(seconds=5)
    assert as_json.overdue_since == NOW - timedelta(seconds=95)


def test_what_was_due_before_it_counted_is_not_overdue(trace: Trace, api: FakeApi) -> None:
    source = msgspec.structs.replace(cron(last_slot=NOW - timedelta(days=20)), counts_since=NOW)
    api.answers["GET /v1/sources"] = reply(source)
    assert "overdue" not in trace("sources").out


@pytest.mark.parametrize("schedule", ["every full moon", "61 * * * *"])
def test_a_schedule_that_cannot_be_read_here_is_no_reason_to_fail(trace: Trace, api: FakeApi, schedule: str) -> None:
    api.answers["GET /v1/sources"] = reply(msgspec.structs.replace(cron(), schedule=schedule))
    assert trace("sources").status == 0


def test_the_others_show_what_matters_to_them(trace: Trace, api: FakeApi) -> None:
    earlier = NOW - timedelta(minutes=3)
    api.answers["GET /v1/sources"] = reply(
        row(job="hook", kind="webhook", deliveries=12, last_delivery_at=earlier, last_event_at=earlier),
        row(job="head", kind="always_on", state="running", since=NOW - timedelta(days=3), attempt=2, lag_seconds=7.0),
        row(job="pressed", state="stopped", because="pools/slow has 10 of 10 queued tasks", kept=17),
        row(job="dead", kind="always_on", state="dead", since=earlier, error="no such chain"),
    )
    shown = trace("sources").out
    for text in (
        "delivery 12, 3m ago",
        "running for 3d (attempt 2)",
        "stopped: pools/slow has 10 of 10 queued tasks",
        "17",
        "dead, 3m ago",
    ):
        assert text in shown
    assert "trace why pools/pressed" in shown


def test_a_follower_of_a_chain_shows_how_far_it_is(trace: Trace, api: FakeApi) -> None:
    far = HeadProgressRow(state="at_head", at=NOW, head=120, stored=120, lag_blocks=0, lag_seconds=3.4)
    late = HeadProgressRow(
        state="no_node", at=NOW, head=125, stored=120, lag_blocks=5, lag_seconds=600.0, reorgs=2, max_reorg_depth=9
    )
    new = HeadProgressRow(state="before_start", at=NOW, head=7)
    running: dict[str, Any] = {"kind": "always_on", "state": "running"}
    rows = [row(job=name, progress=one, **running) for name, one in (("far", far), ("late", late), ("new", new))]
    api.answers["GET /v1/sources"] = reply(*rows)
    shown = " ".join(trace("sources").out.split())
    assert "at head: block 120, 3s old" in shown
    assert "no node: block 120, 5 blocks behind, 10m old, 2 reorganisations, deepest 9" in shown
    assert "before start: no block yet" in shown
    overtaken = row(job="next", progress=msgspec.structs.replace(far, at=NOW - timedelta(seconds=20)),
                    last_partition="121-130", last_event_at=NOW - timedelta(seconds=5), **running)  # fmt: skip
    silent = row(job="old", progress=msgspec.structs.replace(far, at=NOW - timedelta(minutes=3)), **running)
    api.answers["GET /v1/sources"] = reply(*rows, overtaken, silent)
    shown = " ".join(trace("sources").out.split())
    assert "at head 20s ago: block 120" in shown, "older than the last event"
    assert "at head 3m ago: block 120" in shown
    (_, as_json, _, _, _) = json.loads(trace("sources", "--json").out)["sources"]
    assert (as_json["progress"]["lag_blocks"], as_json["progress"]["max_reorg_depth"]) == (5, 9)


# A trigger that is kept


Kept: TypeAlias = Literal["paused", "stopped"]


def kept(kind: Kept) -> TriggerReply:
    return TriggerReply(idempotency_key="k", event_id=7, kept=kind)


PAUSED = row(state="paused", paused_by="ann", paused_at=NOW, kept=1)
STOPPED = row(state="stopped", because="pools/slow has 10 of 10 queued tasks", kept=1)


@pytest.mark.parametrize(
    ("kind", "said", "step"),
    [
        ("paused", "the source is paused", "trace resume pools/blocks"),
        ("stopped", "a queue downstream is full", "trace pressure"),
    ],
)
def test_a_trigger_says_that_it_is_kept_and_what_to_do(
    trace: Trace, api: FakeApi, kind: Kept, said: str, step: str
) -> None:
    api.answers[TRIGGER] = kept(kind)
    shown = trace(*CURSOR).out
    assert said in shown
    assert step in shown
    assert "No job has a new unit" not in shown


def test_a_timeout_without_waiting_means_nothing(trace: Trace, api: FakeApi) -> None:
    shown = trace(*CURSOR, "--timeout", "5")
    assert (shown.status, api.calls) == (2, [])


def test_what_a_failed_unit_keeps_is_told_with_the_next_step(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/sources"] = reply(row(job="hook", kind="webhook", kept=1, held_by="pools/prices"))
    shown = trace("sources").out
    assert "1, by a failed unit of pools/prices" in shown
    assert "trace why pools/prices" in shown


def test_a_run_whose_worker_is_not_heard_of(trace: Trace, api: FakeApi) -> None:
    silent = row(job="head", kind="always_on", state="running", silent_since=NOW - timedelta(seconds=75))
    api.answers["GET /v1/sources"] = reply(silent)
    shown = trace("sources").out
    assert "running, no heartbeat for 1m15s" in shown
    assert "trace why pools/head" in shown


def test_the_sources_of_one_dag(trace: Trace, api: FakeApi) -> None:
    api.answers["GET /v1/sources"] = reply(row(), row(dag="other", job="clock"))
    shown = trace("sources", "--dag", "other").out
    assert "other/clock" in shown
    assert "1 source of active versions" in shown
    assert "pools/blocks" not in shown
    as_json = msgspec.json.decode(trace("sources", "--dag", "other", "--json").out, type=SourcesReply)
    assert [source.dag for source in as_json.sources] == ["other"]
